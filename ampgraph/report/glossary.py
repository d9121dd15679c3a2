"""What the words of reports mean: `ampgraph help TERM` and docs/glossary.md. Rules, rewrites, metrics and error codes
are explained where they are declared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ..core.error_codes import CODES
from ..core.errors import AmpError, nearest
from ..core.json_types import JsonObject
from ..core.metric_names import METRICS
from ..core.shown import Shown
from ..core.spellings import dtype_word
from ..oplists.files import own_file
from .lines import in_rows
from .listing import rule_rows

WORDS: Mapping[str, str] = MappingProxyType({
    # what is decided
    "level": "O0, O1, O2, O3 or auto: how much becomes low; docs/levels.md has what each does with each class",
    "O0": "nothing becomes low",
    "O1": "products become low, arithmetic stays float32",
    "O2": "all becomes low but norms; the default",
    "O3": "all becomes low that can; guards only warn",
    "auto": "products become low, and the minimum cut decides what is in doubt",
    "policy": "whose lists and rules decide: ampgraph, or pytorch, apex, tensorflow, mxnet or mindspore, as they would",
    "low": "short for reduced precision: float16 or bfloat16, whichever was asked for; else float32",
    "target": "where the result will run: which kernels exist there, and which of them compute in float32 inside",
    "slot": "one type variable of an operator's schema; decisions are for each operator and slot: Resize's data may be "
    "low while its scales stay float32",
    "unit": "slots of one or several nodes that must have the same type, and so have one decision",
    "class": "what the lists say of an operator: allow, infer, neutral, deny or fp32",
    "allow": "class of operators that gain most by low precision: MatMul, Gemm, Conv, Attention",
    "infer": "class of arithmetic, which is exact enough in low precision as long as it does not overflow",
    "neutral": "class of operators that move data or choose from it, without a rounding of their own",
    "deny": "class of operators that lose accuracy in low precision: exponentials, long sums",
    "fp32": "class of operators that O1 and O2 compute in float32: norms, losses",
    "list": "the file that gives each operator its class, with the line and the reason: `ampgraph lists OPERATOR`",
    "unlisted": "an operator that is in no list; it stays float32, and is counted in the summary",
    "user": "decided by a pattern of --fp32 or --low, yours or one that a check tried",
    "pattern": "what --fp32 and --low take: a glob of node names, op:Kind, scope:layers.3.* or value:NAME; in the code "
    "also a region's form, a graph in text",
    "region": "nodes that share one decision: a norm, GELU or softmax written in simple operators, a product "
    "with its bias",
    "type group": "values that must have one type: a loop's state, or what both branches of an If give",
    "cut": "the minimum cut: of all ways to place Casts around what is undecided, the one that moves "
    "the fewest bytes",
    "rule": "what decides beside lists and regions, by its name: `ampgraph lists --rules` has all",
    "guard": "a rule that keeps nodes float32 because of numbers it can see: a small eps, squares of what may be "
    "large; --rule no-NAME switches it off",
    "validity": "a rule of validity keeps float32 where anything else is wrong, and cannot be switched off",
    "taint": "what reads what a guard or a measured range pinned to float32, up to the next product or norm",
    "residual stream": "additions that follow one another, directly or behind a norm, and that norms read",
    "fp32_stream": "decided by --fp32-stream: residual streams and the norms that read them stay float32",
    "recipe": "all options that decide precision, as one object or text: O2,float16,fp32=op:Pow",
    "plan": "the decisions as data, each with its reason; it fits the model that it was made for, and no other",
    "metadata": "what a converted file says of itself: type and reason of each node, version, level, patterns",
    "trait": "a property of an operator that rules ask for: moves data, is bounded, sums",
    # rows of reports
    "model": "the file that was read",
    "result": "the file that was written, or why none was",
    "options": "the level (O0, nothing, to O3, all that can; or auto), type, policy (whose rules decide) and target; "
    "not said: O2, float16, ampgraph, and cuda or for MindIR ascend",
    "nodes": "nodes of the result by precision, Casts not counted; those without a float32 tensor (integers, shapes, "
    "what was low already) had nothing to decide",
    "products": "MatMul, Gemm, Conv, Attention and recurrent layers: what most of the time is spent in",
    "casts": "Cast nodes before and after; each reads and writes a tensor. Inputs and outputs keep their types unless "
    "--io says otherwise, so that a model in which all is low has Casts there",
    "weights": "bytes of all stored tensors before and after, integers too",
    "rewrites": "nodes written in another form before precision was decided; --verbose has the names that --rewrite "
    "takes",
    "float32": "what stays float32: how many nodes, one of them, why, and in parentheses the rule that decided; IEEE "
    "single precision",
    "float16": "IEEE half precision: 11 significant bits, up to 65,504, down to 6e-8",
    "bfloat16": "float32's range with 8 significant bits",
    "ranges": "values that were measured on samples, those that would overflow among them",
    "no risk": "no numbers that the graph tells were a reason for float32: no warning, and no promise without "
    "--data, which looks at values",
    "range": "decided by a measured range: the value would overflow on your samples, or on generated inputs",
    "held": "more is float32 than the level asks for, as the check of the first conversion was not ok and that helps",
    "samples": "the inputs of a run: yours (--data), or generated ones",
    "generated": "inputs made up from what the model says of itself: names, shapes and first operators; the same for "
    "every command and machine",
    "check": "the strict run behind a conversion, and its verdict",
    "speed": "how many times as fast as float32 the file is on devices of the target, as an estimate",
    "estimates checked": "the devices on which estimates were held against measured times; the others have the same "
    "method and their own peaks",
    "estimate": "not measured: computed from what each node computes and moves and from how many kernels start, by the "
    "peaks that a device's maker publishes (a roofline); float32 is TF32 on NVIDIA's",
    "shapes": "for what sizes of open dimensions an engine is built, in trtexec's words: least, best and largest",
    "kernel start": "the time in which a device starts a kernel, whatever that computes: most of a small model's time",
    "TF32": "float32 whose products NVIDIA's tensor cores compute from 11 significant bits, as its runtimes allow",
    "engine": "what TensorRT builds of a model, for one device and a range of shapes",
    "notes": "what you may want to know and need not act on",
    "repaired": "what was put right when the model was read, as ONNX Runtime does, or read as what is known here",
    "optimize": "what ONNX Runtime's own optimisation did before the conversion: --optimize",
    "mask": "numbers below the low type's range that only feed a Softmax: they become half the least that it holds",
    "overflow": "a value that was measured beyond the low type's range, and is low all the same",
    "vanishing": "a value of which most was measured to vanish in the low type, and which is low all the same",
    "origin": "what the file does not say of the module that it was exported from, by which a policy decides",
    "export": "what the exporter took out of the network that would be trained",
    "verdict": "what a run found: ok, DOUBTFUL, MISSED or not checked",
    "ok": "the tolerance is met",
    "met": "a rule of `ampgraph check` that holds",
    "not looked at": "a rule of `ampgraph check` of which nothing could be said, and why",
    "doubtful": "generated inputs leave it open: some miss the tolerance, or values come near the end of the "
    "type; give --data",
    "missed": "the tolerance is not met, or a value is infinite or NaN that is finite in float32",
    "not checked": "nothing was run, for the reason that stands behind it",
    "tolerance": "the error that 9 of 10 samples must meet at every output; 0.01 in float16, 0.05 in bfloat16",
    "strict": "a CPU run in which every low value is really rounded, which a plain run of ONNX Runtime does not do",
    "simulated": "by a strict run: each low value that a node hands on is really rounded; what kernels add up inside "
    "is modelled where the target adds up in float16, and nowhere else",
    "next": "what is to be done with the result, if anything; DIR holds an .npz file for each sample, arrays by "
    "input name",
    "repair": "what is pinned to float32 where the check is missed: options that were tried, or with --repair "
    "are applied",
    "chaotic": "a model that the rounding of its inputs alone changes beyond the tolerance; no plan mends that",
    "vanishes": "an output so small that the low type has nothing left of it",
    "reference": "the float32 model that another is compared with",
    "run": "how the models were executed",
    "output": "an output of the model, with its errors",
    "relative L2": "root mean square of the difference over that of the reference, the float32 result; a check tells "
    "it of the worst output, where up to one of ten inputs may be worse, of generated ones one of eight",
    "not finite": "the first node that gives infinity or NaN",
    "fell back": "nodes that ONNX Runtime gave to the CPU as the device has no kernel for them",
    "on the cpu": "nodes that ONNX Runtime gave to the CPU as the device has no kernel for them",
    "steps": "runs in which what the model remembers is fed back to it",
    "layers": "nodes by the scopes that the exporter wrote, or by repeated structure",
    "layer": "the part of the model that a node belongs to, as its name or metadata say",
    "scope": "the module that a node comes from: layers.3.attention; scope:PATTERN names its nodes",
    "node": "an operator of the graph, with its name",
    "kernel": "the target's implementation of an operator for a type",
    "existing": "types that stand in the file, which are facts",
    "fused operators": "nodes that the runtime makes one kernel of",
    "placement": "which device the runtime gives each node to",
    "first": "the one that was named first, or where something begins",
    "second": "the one that was named second",
    "decisions": "nodes of different precision in the two",
    "error": "how far a result is from the reference, by the metric",
    "metric": "how the error of an output is measured: --metric",
    "errors": "the errors of both beside the reference",
    "promoted": "what tune puts back into float32, as options of convert",
    "left out": "operators of MindSpore that an exported mixlist cannot name, as no operator type of Ascend is known",
    "runs": "strict runs that were made",
    "operator": "the kind of a node",
    "source": "file and line of the list that says so",
    "reason": "why",
    "asked": "the name that was asked for, and what the lists call it",
    "one type": "slots that must have the same type",
    # training
    "loss": "what the step minimizes",
    "loss scale": "the factor on the loss that keeps small gradients from vanishing in float16; the "
    "update divides by it",
    "optimizer": "how parameters are updated from gradients",
    "clip norm": "the largest norm that all gradients together may have",
    "clip value": "the largest absolute value that a number of a gradient may have",
    "trained": "parameters that are updated",
    "frozen": "parameters that are not",
    "state": "what goes into a step and comes out changed: parameters, moments, the loss scale",
    "inputs": "what a step is fed",
})  # fmt: skip


class Meanings(Shown):
    """The report of `help`. ``found``: a term, with its kind in front if it is no plain word -> its meaning."""

    __slots__ = ("found",)

    def __init__(self, found: Mapping[str, str]) -> None:
        self.found = found

    def to_dict(self) -> JsonObject:
        """The meanings of a term in each of its senses, as plain data for JSON."""
        return {**self.found}

    def lines(self) -> list[str]:
        """The text that `ampgraph help TERM` prints: a line for each sense."""
        return in_rows(self.found.items(), max(map(len, self.found)) + 1)


def sections() -> Iterator[tuple[str, Mapping[str, str]]]:
    """(kind, terms) of the whole glossary; ``terms``: term -> its meaning."""
    yield "word", WORDS
    yield "rule", {row.name: f"{row.trigger} -> {row.action}" for row in rule_rows()}
    yield "rewrite", {name: str(entry["about"]) for name, entry in own_file("rewrites.toml").data.items()}
    yield "metric", METRICS
    yield "error", CODES


def meanings(term: str, commands: Mapping[str, str] = MappingProxyType({})) -> Meanings:
    """The report of `help`: what a term means; where there is no such term, each of its words (guard long-sum); else
    all terms that begin with it (residual).

    ``commands``: commands of the program and what they do, which are known too. Raises AmpError AMP309 for a term that
    matches nothing.
    """
    every = [*sections(), ("command", commands)]
    found = _matching_terms({term}, every)
    if not found:
        found = _matching_terms(set(term.split()), every)
    if not found:
        found = _matching_terms({term}, every, begun=True)
    if not found:
        known = [name for _, entries in every for name in entries]
        hint = nearest(term, known) or "`ampgraph help` lists all terms; commands have --help"
        raise AmpError("AMP309", f"no report prints '{term}'", hint=hint)
    return Meanings(found)


def _matching_terms(terms: set[str], every: list[tuple[str, Mapping[str, str]]], begun: bool = False) -> dict[str, str]:
    """The glossary's terms that equal one of some (fp16: float16), or if ``begun`` begin with one, and their
    meanings."""
    wanted = {_normalized(word) for term in terms for word in (term, dtype_word(term) or "") if word}
    starts = tuple(f"{one} " for one in wanted) if begun else ()
    found = {}
    for kind, entries in every:
        for name, text in entries.items():
            if _normalized(name) in wanted or _normalized(name).startswith(starts):
                found[name if kind == "word" else f"{kind} {name}"] = text
    return found


def overview() -> Meanings:
    """The report of `help` without a term: all terms that it explains, by their kind."""
    return Meanings({f"{kind}s": ", ".join(entries) for kind, entries in sections()})


def page() -> str:
    """The text of docs/glossary.md: all terms of the glossary, a table for each kind but error codes."""
    made = "Made from the code by `python docs/make_reference.py`."
    lines = ["# Glossary", "", f"What the words of reports mean; `ampgraph help TERM` prints the same. {made}", ""]
    for kind, entries in sections():
        if kind == "error":
            lines += ["Error codes have [a page of their own](errors.md)."]
            continue
        lines += [f"## {kind.title()}s", "", f"| {kind} | meaning |", "|---|---|"]
        lines += [f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in entries.items()] + [""]
    return "\n".join(lines) + "\n"


def _normalized(term: str) -> str:
    """A term of the glossary as it is compared: lower case, of letters and digits alone, without an "s" at the end."""
    return " ".join(re.sub(r"[^a-z0-9]+", " ", term.lower()).split()).removesuffix("s")
