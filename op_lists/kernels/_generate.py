"""Write onnxruntime-cuda.toml, -cpu.toml and -cpu-arm64.toml from the kernels that the wheels register.

    python op_lists/kernels/_generate.py [--python build/cuda_placement/bin/python] [--arm64 build/arm64/bin/python]
        [--check]

The CPU's are those of the onnxruntime beside this Python, CUDA's those of --python, an environment with onnxruntime-gpu
(benchmarks/cuda_placement/set-up makes one), whose releases come later, and those of an Arm CPU those of --arm64, which
may be emulated (benchmarks/arm64/set-up); one that is not given is left alone. --check writes nothing; exit status 1
where a file is not what the wheel says. What a registry does not say (what a kernel keeps in float32 inside, what is
registered but fails) is written down here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any, TypedDict

HERE = Path(__file__).resolve().parent
NAMES = HERE.parent / "schemas" / "names.json"
CONTRIB = HERE.parent / "schemas" / "com_microsoft.json"
FLOATS = ("float", "float16", "bfloat16", "double")
LOW = ("float16", "bfloat16")


class Registry(TypedDict):
    """What _registry.py prints."""

    version: str
    kernels: list[Any]


REDUCTION = {"attribute": "reduction", "fine": "none", "default": "none"}
DIES = "ONNX Runtime 1.31 dies as it loads, where it moves a low Transpose past a product with a constant"
EMBEDDINGS = {
    "bfloat16": "ONNX Runtime 1.31 makes one operator of embeddings and the norm before an Attention, which refuses it",
    "sums": "lookups",
    "beside": "fused_attention",
}
LEFT = dict.fromkeys(LOW, "the provider leaves it to the CPU in every type")
PAIRS: dict[str, object] = {
    "float16": "the kernel computes two elements at a time, and leaves out the last of an odd number",
    "odd": True,
}
PAST = {
    **dict.fromkeys(LOW, "wrong by its own size on an H100 and an H200, and right in float32 (benchmarks/gpu.md)"),
    "unlike": [4, 5],  # keys and values of the past
}
PLAIN: dict[str, list[object]] = {"activation_alpha": [], "activation_beta": [], "clip": []}
MASKS = {
    "float16": "ONNX Runtime 1.31 reads the number by which its fusion of attention knows a mask as float32, and fails",
    "mask_below": -1000.0,
}
SCALED = ("Div MatMul", "Mul MatMul", "MatMul Div", "MatMul Mul")


def _fused_pair(makes: str, where: str, *pairs: str) -> dict[str, object]:
    """An entry of [fused_pairs]."""
    return {"makes": makes, "pairs": [pair.split() for pair in pairs], "where": where}


HEADS: dict[str, dict[str, Any]] = {
    "cuda": {
        "wheel": "onnxruntime-gpu",
        "provider": "CUDAExecutionProvider",
        "missing": "float32",
        "fallback": "cpu",
        "float32_inside": {
            "BatchNormalization": "float16 data: scale, bias, mean and variance are widened to float32 for cuDNN",
            "InstanceNormalization": "float16 data: mean and variance are float32 buffers",
            "LayerNormalization": "accumulates in float32 whatever the data; stash_type 1 asks for that",
            "LogSoftmax": "accumulates in float32",
            "RMSNormalization": "the LayerNormalization kernel without a mean: accumulates in float32",
            "SimplifiedLayerNormalization": "the LayerNormalization kernel without a mean: accumulates in float32",
            "Softmax": "accumulates in float32",
            "com.microsoft::BiasSoftmax": "accumulates in float32; its bias is added low on long rows",
            "com.microsoft::GroupNorm": "sums and squares are float32",
            "com.microsoft::SkipGroupNorm": "sums and squares are float32",
            "com.microsoft::SkipLayerNormalization": "mean and deviation are accumulated in float32",
            "com.microsoft::SkipSimplifiedLayerNormalization": "the mean square is accumulated in float32",
        },
        "low_inside": {
            **dict.fromkeys(("GRU", "LSTM", "RNN"), "cuDNN computes sums, gates and states in the type of the data"),
            **dict.fromkeys(("ReduceLogSum", "ReduceMean"), "the sum is stored in the type of the data"),
        },
        "ties": True,
        "tied": {},
        "broken": {
            "Add": EMBEDDINGS,
            "Attention": PAST,
            "CastLike": {"float16": "no provider has a Cast from it to float16", "reads": "float4e2m1"},
            "ConvTranspose": {**LEFT, "runs": {"auto_pad": ["NOTSET", "VALID"]}, "mirrored": "pads"},
            "GRU": {
                **LEFT,
                "attribute": "linear_before_reset",
                "fine": 1,
                "default": 0,
                "runs": {**PLAIN, "activations": ["sigmoid", "tanh"]},
            },
            "Gelu": {**PAIRS, "runs": {"approximate": ["none"]}},
            "LSTM": {
                **LEFT,
                "runs": {**PLAIN, "activations": ["sigmoid", "tanh", "tanh"], "input_forget": [0]},
                "without": 7,
            },
            "Mul": MASKS,
            "RNN": {**LEFT, "runs": {**PLAIN, "activations": ["tanh"]}},
            "com.microsoft::FastGelu": PAIRS,
        },
        "fuses": {
            "Gelu": {
                "why": "GeluFusion: Erf, the half first or last; FastGeluFusion: Tanh, the half first",
                "operators": ["Add", "Div", "Erf", "Mul"],
                "half_last": True,
                "half_first": ["tanh", "tanh of squares"],
                "float32_alone": ["bfloat16"],
                "wide_variants": ["erf", "tanh of squares"],
            },
            "LayerNormalization": {
                "why": "LayerNormFusion: Div, with the Casts around what is float32",
                "operators": ["Add", "Div", "Pow", "ReduceMean", "Sqrt", "Sub"],
                "quotient": True,
            },
            "RMSNormalization": {
                "why": "SimplifiedLayerNormFusion: Div, with the Casts around what is float32",
                "operators": ["Add", "Div", "Pow", "ReduceMean", "Sqrt"],
                "quotient": True,
                "low_epsilon": {"float16": 1e-5},
            },
        },
        "fused_pairs": {
            "BiasGeluFusion": _fused_pair("BiasGelu", "vector", "Add Gelu"),
            "BiasSoftmaxFusion": _fused_pair("BiasSoftmax", "", "Add Softmax"),
            "ConvAddFusion": _fused_pair("Conv", "stored", "Conv Add"),
            "ConvBNFusion": _fused_pair(
                "Conv", "stored", "Conv BatchNormalization", "ConvTranspose BatchNormalization"
            ),
            "ConvMulFusion": _fused_pair("Conv", "stored", "Conv Mul"),
            "DivMulFusion": _fused_pair("Div", "", "Div Mul"),
            "MatMulScaleFusion": _fused_pair("FusedMatMul", "number", *SCALED),
            "QuickGeluFusion": _fused_pair("QuickGelu", "", "Sigmoid Mul"),
            "ReluClipFusion": _fused_pair("Clip", "", "Relu Clip"),
            "SkipLayerNormFusion": _fused_pair("SkipLayerNormalization", "", "Add LayerNormalization"),
        },
    },
    "cpu": {
        "wheel": "onnxruntime",
        "provider": "CPUExecutionProvider",
        "missing": "wraps",
        "wraps": ["float16"],
        "wraps_since": 6,
        "ties": False,
        "no_gain": {
            "float16": "on an x86 CPU: ONNX Runtime computes float16 in float32 there, and only the file is smaller; "
            "int8 gains (onnxruntime.quantization), and bfloat16 in OpenVINO where the CPU has it (--target openvino)"
        },
        "float32_inside": {},
        "tied": {},
        "broken": {
            "EyeLike": {"float16": "no kernel, and with no float input there is nothing to wrap"},
            "Mul": MASKS,
            "RandomNormal": {"float16": "no kernel, and with no float input there is nothing to wrap"},
            "RandomNormalLike": {"float16": "no kernel writes float16 unless its input is float16"},
            "RandomUniform": {"float16": "no kernel, and with no float input there is nothing to wrap"},
            "RandomUniformLike": {"float16": "no kernel writes float16 unless its input is float16"},
            "ScatterElements": {
                "float16": "the kernel refuses to add and multiply float16 values",
                **REDUCTION,
            },
            "ScatterND": {"float16": "the kernel refuses every reduction of float16 values", **REDUCTION},
            "Transpose": {**dict.fromkeys(LOW, DIES), "before": "scores"},
        },
        "fuses": {},
    },
}

RIGHT = "right although a sum inside is beyond float16"
NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
SKIPPING = ("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
HEADS["cpu-arm64"] = {
    "wheel": "onnxruntime",
    "provider": "CPUExecutionProvider",
    "missing": "float32",
    "executes": "cpu",
    "machines": ["aarch64", "arm64"],
    "accumulates": "float16",
    "fused_sums": True,
    "ties": False,
    "float32_inside": dict.fromkeys((*NORMS, *SKIPPING), RIGHT),
    "tied": {},
    "broken": {name: HEADS["cpu"]["broken"][name] for name in ("Mul", "ScatterElements", "ScatterND", "Transpose")},
    "fuses": {},
}

OURS = ("ties", "wheel")  # what the file does not say

COMMENTS = {
    "cuda": """
# Other reductions are not in float32_inside: nothing promises their accumulator. [low_inside]: measured on an H200, by
# its outputs alone (benchmarks/gpu.md). [broken]: nodes whose `attribute` (`default`
# if not set) has another value than `fine`; the last sum of what the trait `sums` makes, in models with an operator of
# the trait `beside`; those that read an operand of the type `reads`; those that set an attribute of `runs` to another
# value (a list: others in turn), have other numbers in the second half of `mirrored` than in the first, or an operand
# at `without`, or two operands, those of `unlike`, of different last sizes, or make an `odd` number of elements; or all
# nodes.
# [fuses]: what a region stands for = the operators that ONNX Runtime makes one kernel of, in the order that the name of
# the fusion says; `quotient`, `half_last`, `half_first` (these variants): written so by us; `low_epsilon`: what
# SimplifiedLayerNormFusion takes for an epsilon that is no float32 constant. In the types of
# `float32_alone` it matches no constants (optimizer_utils::IsInitializerWithExpectedValue knows float, float16 and
# double), so that only what stays float32 and is one of its pattern's `wide_variants` is one kernel. Of GELUs by tanh
# those of squares are: behind a Cast FastGeluFusion::CheckSecondFormula wants the half of one of a cube to be
# multiplied low, and reads that half.
# [fused_pairs]: a fusion of two operators, the second the only reader of the first = the kernel that it `makes`, and
# what is stored beside them `where` that matters.
# An operator without an entry at an opset runs on the fallback provider in either type.
""",
    "cpu": """
# A float16 node without a kernel is wrapped in casts by the runtime, which then removes its own round trips, so an
# accurate CPU run says nothing about float16; no such help exists for bfloat16, nor below opset 6, where the cast that
# it inserts is invalid. Found by running every single-node model of the ONNX backend suite in float16, at each
# version of its operator, with ONNX Runtime 1.32.0. [broken]: nodes whose `attribute` (`default` if not set) has
# another value than `fine`; nodes that a product of the trait `before` with a constant reads; or all nodes.
""",
    "cpu-arm64": """
# Its float16 kernels compute in float16; an operator without one would be wrapped in Casts by the runtime, so it stays
# float32. accumulates, fused_sums: MatMul, Gemm and Conv add up in float16, each step a fused multiply-add, and pools
# too; CPUs with SME alone add up in float32 (KleidiAI). Of Arm's kernels on an emulated CPU (tests/arm64). machines:
# where float16 is computed so; elsewhere ONNX Runtime computes it in float32. [broken]: as in onnxruntime-cpu.toml.
""",
}


def effective(since: int, until: int | None, versions: list[int]) -> tuple[int, int | None] | None:
    """The opsets that a registration serves; an open one matches the schema version that it names and no later one."""
    served = [v for v in versions if (v == since if until is None else since <= v <= until)]
    if not served:
        return None
    later = [v for v in versions if v > served[-1]]
    return served[0], later[0] - 1 if later else None


def floats_of(types: Iterable[str]) -> frozenset[str]:
    """The float types of a constraint; `tensor(x)` and sequences of it count alike."""
    return frozenset(name for text in types for name in FLOATS if f"tensor({name})" in text)


Versions = dict[int, frozenset[str]]


def schemas() -> dict[str, Versions]:
    """Operator -> version of its schema, as ONNX Runtime registers it -> type variables that may be float there."""
    import onnx

    found: dict[str, Versions] = {}
    rows = [
        (s.domain, s.name, s.since_version, {c.type_param_str: c.allowed_type_strs for c in s.type_constraints})
        for s in onnx.defs.get_all_schemas_with_history()
    ]
    contrib = json.loads(CONTRIB.read_text(encoding="utf-8"))["operators"]
    rows += [(row["domain"], row["name"], row["since_version"], row["constraints"]) for row in contrib]
    for domain, name, since, constraints in rows:
        admitted = frozenset(variable for variable, types in constraints.items() if floats_of(types))
        found.setdefault(f"{domain}::{name}" if domain else name, {})[since] = admitted
    return found


Opsets = tuple[int, int | None]
Types = dict[str, frozenset[str]]


def registered(registry: Registry, provider: str) -> dict[str, dict[Opsets, list[Types]]]:
    """Operator -> opset range -> the kernels that a provider registers for it: type variable -> float types."""
    known = json.loads(NAMES.read_text(encoding="utf-8"))["operators"]
    variables = schemas()
    kernels: dict[str, dict[Opsets, list[Types]]] = {}
    for owner, domain, name, since, until, types in registry["kernels"]:
        kind = f"{domain}::{name}" if domain else name
        if owner != provider or kind not in known:
            continue
        known_here = sorted(variables.get(kind, ()))
        opsets = effective(since, until, known_here) if known_here and not domain else (since, until)
        if opsets is None:
            continue
        version = max((v for v in known_here if v <= opsets[0]), default=0)
        named = variables.get(kind, {}).get(version, ())
        floats = {v: floats_of(admitted) for v, admitted in types.items() if v in named}
        if floats:
            kernels.setdefault(kind, {}).setdefault(opsets, []).append(floats)
    return kernels


def collect(registry: Registry, provider: str) -> dict[str, dict[Opsets, dict[str, set[str]]]]:
    """Operator -> opset range -> type variable -> float types of any kernel there."""
    found: dict[str, dict[Opsets, dict[str, set[str]]]] = {}
    for kind, ranges in registered(registry, provider).items():
        for opsets, kernels in ranges.items():
            slot = found.setdefault(kind, {}).setdefault(opsets, {})
            for variable, floats in (item for kernel in kernels for item in kernel.items()):
                slot.setdefault(variable, set()).update(floats)
    return found


def derived_ties(registry: Registry, provider: str) -> dict[str, list[list[str]]]:
    """Type variables that no kernel takes in different types, as groups, where they may be low."""
    import networkx as nx

    found = {}
    for kind, ranges in registered(registry, provider).items():
        graph = nx.Graph(
            pair
            for kernels in ranges.values()
            for pair in combinations(sorted({v for kernel in kernels for v in kernel}), 2)
            if _tied(kernels, *pair)
        )
        if graph:
            found[kind] = sorted(sorted(group) for group in nx.connected_components(graph))
    return found


def _tied(kernels: list[Types], one: str, other: str) -> bool:
    """Whether all kernels of an operator have one type for both type variables, a low one among them."""
    both = [(a, b) for kernel in kernels for a in kernel.get(one, FLOATS) for b in kernel.get(other, FLOATS)]
    compared = [(a, b) for a, b in both if {a, b} <= {"float", *LOW}]
    return all(a == b for a, b in compared) and any(a in LOW for a, _ in compared)


def toml_key(kind: str) -> str:
    """A key as TOML writes it."""
    return kind if re.fullmatch(r"[A-Za-z0-9_-]+", kind) else f'"{kind}"'


def toml_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    return json.dumps(value)


def _entry(opsets: tuple[int, int | None], types: dict[str, set[str]]) -> str:
    """A row of the table: '1-12 T=float16,float' for opsets, and the float types of each type variable."""
    since, until = opsets
    variables = [f"{v}={','.join(t for t in FLOATS if t in floats)}" for v, floats in sorted(types.items())]
    return f"'{since}-{'' if until is None else until} {' '.join(variables)}'"


def render(target: str, registry: Registry) -> str:
    """The text of a target's file."""
    head = HEADS[target]
    if head["ties"]:
        head = {**head, "tied": derived_ties(registry, head["provider"])}
    source = f"the registry of the wheel of {head['wheel']} {registry['version']}"
    lines = [f"# Generated by _generate.py from {source}. Do not edit.", "#"]
    lines += ["# [kernels]: operator = ['first opset-last opset TYPE VARIABLE=float types ...', ...]"]
    lines += COMMENTS[target].strip().splitlines() + [""]
    lines += [f"{k} = {toml_value(v)}" for k, v in head.items() if k not in OURS and not isinstance(v, dict)]
    sections = ("no_gain", "float32_inside", "low_inside", "tied", "broken", "fuses", "fused_pairs")
    for section in [name for name in sections if name in head]:
        entries = head[section]
        assert isinstance(entries, dict)
        lines += ["", f"[{section}]"] + [f"{toml_key(k)} = {toml_value(v)}" for k, v in sorted(entries.items())]
    lines += ["", "[kernels]"]
    for kind, ranges in sorted(collect(registry, head["provider"]).items()):
        ordered = sorted(ranges.items(), key=lambda item: item[0][0])
        lines.append(f"{toml_key(kind)} = [{', '.join(_entry(opsets, types) for opsets, types in ordered)}]")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes or checks both files; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="", help="of an environment with onnxruntime-gpu")
    parser.add_argument("--arm64", default="", help="of an environment with the onnxruntime of Arm64 CPUs")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = 0
    for target, python in (("cuda", args.python), ("cpu", sys.executable), ("cpu-arm64", args.arm64)):
        if not python:
            continue
        words = [python, "-I", str(HERE / "_registry.py")]
        registry = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        out, text = HERE / f"onnxruntime-{target}.toml", render(target, registry)
        same = out.exists() and out.read_text(encoding="utf-8") == text
        stale += not same
        if not args.check:
            out.write_text(text, encoding="utf-8")
        print(f"{out.name}: {'as the wheel says' if same else 'is not current' if args.check else 'written'}")
    return int(args.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
