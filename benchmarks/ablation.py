"""What each rule, rewrite, trait, pattern and threshold of the planner earns: each by itself is off, over models.

    python benchmarks/ablation.py FOLDER --gather             # the models that tests have, written to FOLDER/SET/models
    python benchmarks/ablation.py FOLDER [--only TEXT] [--sets zoo hard] [--models PATTERN] [--table FILE.md]
        [--target tensorrt] [--cuda-python build/cuda_placement/bin/python]

FOLDER has SET/models/NAME.onnx (or .mindir) and SET/data/NAME/*.npz, real inputs, a sample a file; where a model has
none, inputs are generated. Sets are the folders in it; those of real models (`zoo_right.py`, `unseen.py`, `fresh.py`)
may be links. The models of the set `steps` are forward graphs of which training steps are built.

Every model is planned at O1, O2 and auto in float16, and at O2 in bfloat16, as it is and then without each thing that
this plan asked for (`ablation_switches.py`). Only where another plan comes out is it converted and run, strictly: the
error is that of `zoo_right.py`. With `--cuda-python` of benchmarks/cuda_placement nodes that CUDA would run are counted
in `exports` and `steps`. Results lie in FOLDER/results; a run that is broken off goes on. Plans are kept for one state
of the product's files, errors for all states by the model and what its plan does. With `--target` plans are those for
another runtime than ONNX Runtime on CUDA; the table has those of every target of which plans are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from ablation_switches import SETTINGS, Seen, Switch, all_off, recorded, switches, watch  # noqa: E402
from zoo_right import TOLERANCE, frozen, p90  # noqa: E402

import ampgraph  # noqa: E402

WAYS = (("O1", "float16"), ("O2", "float16"), ("auto", "float16"), ("O2", "bfloat16"))
SETS = ("zoo", "unseen", "fresh", "hard", "exports", "fuzz", "steps", "mindir", "backend")
"""In the order in which they are worked on."""
THRESHOLDS = (("O2", "float16"),)
"""Where thresholds are set to something else."""
FEWER = {"backend": WAYS[1:2]}
"""Ways of sets of many small models."""
DECISIONS = ("rule", "part", "rewrite", "pattern")
PHASES = (
    (DECISIONS, WAYS[1:2]),
    (("trait",), WAYS[1:2]),
    (("threshold",), THRESHOLDS),
    (DECISIONS, WAYS),
    (("row of a trait",), WAYS[1:2]),
    (("trait",), WAYS),
)
"""The order of work: sorts, and the ways in which they are tried."""
COUNTED = ("exports", "steps")
PARTS = ("plan", "run", "nodes")
STEP: Mapping[str, Any] = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "batch": 64}
NOISE, SMALL = 1.5, 1e-5
"""Errors differ beyond noise where one is so many times the other, and is so large."""
LARGE, FEW = 1 << 18, 3
"""Models of more bytes are run on so many samples."""
PLAN_SECONDS = 10  # of CPU time for a plan: without a limit a search may never end
SECONDS = 900  # for the strict runs of one model
NOTHING = "(nothing)"


@dataclass(frozen=True)
class Model:
    """A file, the set that it belongs to, and a folder of its inputs, which need not be there."""

    group: str
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def data(self) -> Path | None:
        folder = self.path.parents[1] / "data" / self.name
        return folder if any(folder.glob("*.npz")) else None

    @cached_property
    def key(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@dataclass(frozen=True)
class Way:
    """A model at a level in a type, for a target or for that of its format, ""."""

    model: Model
    level: str
    dtype: str
    target: str = ""

    @property
    def words(self) -> dict[str, Any]:
        """Words of a recipe."""
        return {"dtype": self.dtype, **({"target": self.target} if self.target else {})}

    def __str__(self) -> str:
        return f"{self.model.name} {self.level}" + ("" if self.dtype == "float16" else f" {self.dtype}")


# -- what is kept -----------------------------------------------------------------------------------------------------


class Kept:
    """A file of results, a line each, by key; a line that was cut off is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self.reread()

    def reread(self) -> None:
        """Takes in what other processes have written."""
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                if line.endswith("]"):
                    *key, row = json.loads(line)
                    self.rows[tuple(key)] = row

    def add(self, key: tuple[str, ...], row: dict[str, Any]) -> dict[str, Any]:
        self.rows[key] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([*key, row]) + "\n")
        return row


def product_key() -> str:
    """The state of the product's files: code and lists."""
    found = hashlib.sha256()
    for room in ("ampgraph", "passes", "op_lists"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".py", ".toml", ".json") and path.is_file():
                found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return found.hexdigest()[:12]


# -- plans ------------------------------------------------------------------------------------------------------------


def planned(way: Way, off: Sequence[Switch] = ()) -> dict[str, Any]:
    """What a plan does, and how much: a digest of all but its words; or why there is none."""
    with all_off(off) as fields, limited(PLAN_SECONDS if off else 0):
        try:
            if way.model.group == "steps":
                made = step(way, fields)
                return {
                    "does": digest(made.SerializeToString()),
                    "casts": casts_of(made),
                    "nodes": len(made.graph.node),
                }
            plan = json.loads(ampgraph.plan(way.model.path, way.level, **way.words, **fields).to_json())
        except ampgraph.AmpError as error:
            return {"refused": error.code}
        except Exception as error:
            if not off:
                raise
            return {"refused": f"{type(error).__name__}: {str(error)[:80]}"}  # another part counts on what is off
    return {**what_it_does(plan), "words": digest(json.dumps([plan["notes"], plan["reasons"]]).encode())}


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeoutError behind so much CPU time; 0 for none."""

    def ended(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def what_it_does(plan: Mapping[str, Any]) -> dict[str, Any]:
    words = ("ampgraph_plan", "digest", "decisions", "notes", "reasons")
    rest = {key: value for key, value in plan.items() if key not in words and value != []}
    types = [row[:5] for row in plan["decisions"]]
    low = {(scope, index, kind) for scope, index, kind, _, dtype in types if dtype == plan["dtype"]}
    text = json.dumps([types, rest], sort_keys=True).encode()
    return {"does": digest(text), "casts": len(plan["casts"]), "low": len(low)}


def step(way: Way, fields: Mapping[str, Any]) -> onnx.ModelProto:
    """The training step of a forward graph, as `cuda_placement/steps.py` has it."""
    import onnx_ir as ir

    made = ampgraph.build_training_step(way.model.path, level=way.level, **way.words, **STEP, **fields)
    return ir.to_proto(made.model)


def casts_of(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "Cast" for node in model.graph.node)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


@dataclass
class Run:
    """One state of the product over some models, and what is known of it."""

    folder: Path
    models: Sequence[Model]
    switches: Sequence[Switch]
    plans: Kept
    errors: Kept
    nodes: Kept
    samples: int = 8
    strict: bool = True
    target: str = ""

    def ways(self) -> Iterator[Way]:
        for model in self.models:
            yield from (Way(model, level, dtype, self.target) for level, dtype in WAYS)

    def plan(self, sorts: Sequence[str], ways: Sequence[tuple[str, str]]) -> None:
        """Plans every model as it is, and without each thing of some sorts that may matter to it."""
        for group in dict.fromkeys(model.group for model in self.models):
            for way in (way for way in self.ways() if way.model.group == group):
                if (way.level, way.dtype) in ways and (way.level, way.dtype) in FEWER.get(group, WAYS):
                    self._plan_way(way, sorts)
            told(f"{group}: {', '.join(sorts)} planned")

    def _plan_way(self, way: Way, sorts: Sequence[str]) -> None:
        """Things of a sort are switched off together, and by halves where that makes another plan."""
        base = self._as_it_is(way)
        if "does" not in base:
            return
        seen = Seen.of(base["seen"])
        asked = [switch for switch in self.switches if switch.sort in sorts and switch.matters(seen)]
        if "row of a trait" in sorts:
            felt = frozenset[tuple[str, str]]().union(
                *(s.traits for s in self.switches if s.sort == "trait" and self.differs(way, s))
            )
            asked = [switch for switch in asked if not felt.isdisjoint(switch.traits)]
        for batch in batches(asked):
            self._halve(way, base, [s for s in batch if self.row(way, s) is None])

    def _halve(self, way: Way, base: Mapping[str, Any], off: Sequence[Switch]) -> None:
        if not off:
            return
        row = planned(way, off)
        if len(off) > 1 and row.get("does") != base["does"]:
            self._halve(way, base, off[: len(off) // 2])
            self._halve(way, base, off[len(off) // 2 :])
            return
        for switch in off:
            self.plans.add((way.model.key, way.level, way.dtype, switch.key), row)

    def _as_it_is(self, way: Way) -> dict[str, Any]:
        """Made anew where somebody asks for thresholds and nobody did before."""
        key = (way.model.key, way.level, way.dtype, NOTHING)
        traced = (way.level, way.dtype) in THRESHOLDS and any(s.sort == "threshold" for s in self.switches)
        known = self.plans.rows.get(key)
        if known is None or traced and not known.get("traced", True):
            with recorded(traced) as seen:
                row = planned(way)
            known = self.plans.add(key, {**row, "seen": seen.to_dict(), "traced": traced})
        return known

    def row(self, way: Way, switch: Switch) -> dict[str, Any] | None:
        """The plan without something, None where it was not made."""
        return self.plans.rows.get((way.model.key, way.level, way.dtype, switch.key))

    def differs(self, way: Way, switch: Switch) -> bool:
        """Whether another plan comes out without something."""
        row = self.row(way, switch)
        return row is not None and row.get("does") != self._as_it_is(way).get("does")

    # -- errors and nodes ---------------------------------------------------------------------------------------------

    def others(self, ways: Sequence[tuple[str, str]], sorts: Sequence[str]) -> dict[Way, dict[str, str]]:
        """By way: digests of plans that do something else, each with what makes it; first the plan as it is."""
        known = {switch.key for switch in self.switches if switch.sort in sorts} | {NOTHING}
        by_way: dict[tuple[str, ...], dict[str, str]] = {}
        for (*way, switch), row in self.plans.rows.items():
            if "does" in row and switch in known:
                by_way.setdefault(tuple(way), {}).setdefault(row["does"], switch)
        found = {
            way: by_way.get((way.model.key, way.level, way.dtype), {})
            for way in self.ways()
            if (way.level, way.dtype) in ways
        }
        return {way: made for way, made in found.items() if len(made) > 1}

    def judge(self, sorts: Sequence[str], ways: Sequence[tuple[str, str]], python: str) -> None:
        """Strict errors of what other plans make, a process for each model; nodes with ``python``."""
        others = self.others(ways, sorts)
        for model in dict.fromkeys(one.model for one in others):
            self._judge_model(model, {way: made for way, made in others.items() if way.model == model}, python)
        told(f"{', '.join(sorts)}: judged")

    def _judge_model(self, model: Model, others: Mapping[Way, Mapping[str, str]], python: str) -> None:
        by_key = {switch.key: switch for switch in self.switches}
        jobs = [
            (way, does, by_key.get(name))
            for way, made in others.items()
            for does, name in made.items()
            if self.unknown(model, does, python)
        ]
        if jobs:
            in_child(self._judge_one, model, jobs, python)
            self.errors.reread()
            self.nodes.reread()
            told(f"{model.group} {model.name}: {len(jobs)} judged")

    def to_run(self, model: Model, does: str) -> bool:
        """Whether a strict run is wanted and not there yet."""
        runs = self.strict and model.group != "steps" and model.path.suffix == ".onnx"
        return runs and (model.key, does) not in self.errors.rows

    def unknown(self, model: Model, does: str, python: str) -> bool:
        return self.to_run(model, does) or bool(
            python and model.group in COUNTED and (model.key, does) not in self.nodes.rows
        )

    def _judge_one(self, model: Model, jobs: Sequence[tuple[Way, str, Switch | None]], python: str) -> None:
        try:
            wanted = any(self.to_run(model, does) for _, does, _ in jobs)
            judge = Judge(model, self.samples) if wanted else None
        except ampgraph.AmpError as error:  # nothing runs it as it is, or no inputs can be made
            for _, does, _ in jobs:
                self.errors.add((model.key, does), {"failed": f"as it is: {error.code}"})
            return
        for way, does, switch in jobs:
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder) / "made.onnx"
                try:
                    write(way, switch, made)
                except Exception as error:  # what is switched off may be what writing counts on
                    self.errors.add((model.key, does), {"failed": f"{type(error).__name__}: {str(error)[:80]}"})
                    continue
                if judge is not None and self.to_run(model, does):
                    self.errors.add((model.key, does), judge.of(made))
                if python and model.group in COUNTED and (model.key, does) not in self.nodes.rows:
                    self.nodes.add((model.key, does), counted(made, python))


def batches(asked: Sequence[Switch]) -> Iterator[list[Switch]]:
    """Those of a sort together; of thresholds those with one setting, each only once."""
    sorts: dict[tuple[str, str], list[Switch]] = {}
    for switch in asked:
        setting = switch.name.rpartition(" ")[2] if switch.sort == "threshold" else ""
        if switch.sort == "pattern":  # few match, and each set of them is made ready once
            setting = switch.name
        sorts.setdefault((switch.sort, setting), []).append(switch)
    yield from sorts.values()


def write(way: Way, switch: Switch | None, output: Path) -> None:
    with all_off([switch] if switch else []) as fields:
        if way.model.group == "steps":
            onnx.save(step(way, fields), output)
        else:
            ampgraph.convert(way.model.path, way.level, **way.words, output=output, check="off", **fields)


def counted(model: Path, python: str) -> dict[str, Any]:
    """What CUDA would run."""
    from ampgraph.runtime.optimizing import optimized

    found = optimized(onnx.load(model), python=python)
    providers = found.providers()
    copies = sum(found.copied().values())
    return {
        "nodes": len(found.nodes),
        "casts": sum(found.cast().values()),
        "cpu": providers.get("CPU", 0),
        "copies": copies,
    }


class Judge:
    """Strict runs of one model on its samples; what the float32 model gives is computed once."""

    def __init__(self, model: Model, count: int) -> None:
        from ampgraph.numerics.inputs.samples import load_samples
        from ampgraph.numerics.strict.session import StrictSession

        count = min(count, FEW) if model.path.stat().st_size > LARGE else count
        self.feeds = list(load_samples(model.path, model.data and str(model.data), count))
        session = StrictSession(model.path)
        self.expected = [session.run(feeds) for feeds in self.feeds]

    def of(self, made: Path) -> dict[str, Any]:
        """The error of the worst float output; None where it is infinite."""
        from ampgraph.numerics.strict.session import StrictSession

        try:
            session = StrictSession(made)
            results = [session.run(feeds) for feeds in self.feeds]
        except ampgraph.AmpError as error:
            return {"failed": error.code}
        worst = 0.0
        for name, value in self.expected[0].items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                pairs = zip(self.expected, results, strict=True)
                worst = max(worst, p90([frozen(a[name], b[name]) for a, b in pairs]))
        return {"error": worst if math.isfinite(worst) else None, "samples": len(self.feeds)}


def in_child(work: Any, *given: Any) -> None:
    """Runs in a process of its own, for what may crash or never end."""
    child = multiprocessing.get_context("fork").Process(target=work, args=given)
    child.start()
    child.join(SECONDS)
    if child.is_alive():
        child.kill()
    child.join()
    if child.exitcode:
        told(f"{given[0].name}: ended with {child.exitcode}")


def told(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """What is another without something, in one way: ``sort`` is one of `EFFECTS`, ``worse`` is without it."""

    way: Way
    sort: str
    worse: bool
    text: str


EFFECTS = ("verdict", "refusal", "error", "nodes", "Casts", "low nodes", "other")
"""The weightiest first."""


def effect(run: Run, way: Way, base: Mapping[str, Any], row: Mapping[str, Any]) -> Effect:
    """The weightiest difference between two plans of one model."""
    if "refused" in row or "refused" in base:
        text = str(row.get("refused") or base.get("refused"))
        return Effect(way, "refusal" if text.startswith("AMP") else "other", "refused" in row, text)
    before, after = (run.errors.rows.get((way.model.key, one["does"])) for one in (base, row))
    if before and after and (found := errors_differ(way, before, after)):
        return found
    old, new = (run.nodes.rows.get((way.model.key, one["does"])) for one in (base, row))
    if old and new and old["nodes"] != new["nodes"]:
        return Effect(way, "nodes", new["nodes"] > old["nodes"], f"{old['nodes']} to {new['nodes']}")
    for key, sort, sign in (("nodes", "nodes", 1), ("casts", "Casts", 1), ("low", "low nodes", -1)):
        if base.get(key) != row.get(key):
            return Effect(way, sort, (row[key] - base[key]) * sign > 0, f"{base[key]} to {row[key]}")
    return Effect(way, "other", False, "")


def errors_differ(way: Way, before: Mapping[str, Any], after: Mapping[str, Any]) -> Effect | None:
    """Another verdict, or errors that differ by more than noise."""
    if "failed" in before or "failed" in after:
        same = before.get("failed") == after.get("failed")
        return None if same else Effect(way, "refusal", "failed" in after, str(after.get("failed") or "runs"))
    a, b = (math.inf if row["error"] is None else row["error"] for row in (before, after))
    text = f"{a:.1e} to {b:.1e}"
    if (a <= TOLERANCE) != (b <= TOLERANCE):
        return Effect(way, "verdict", b > a, text)
    large, small = max(a, b), min(a, b)
    if large > SMALL and large > NOISE * small:
        return Effect(way, "error", b > a, text)
    return None


@dataclass(frozen=True)
class Earned:
    """All that is known of one thing."""

    switch: Switch
    asked: int
    tried: int
    effects: Sequence[Effect]

    @property
    def better_with(self) -> bool:
        """Whether some model is worse without it, by more than words."""
        return any(one.worse for one in self.effects)

    def cells(self) -> list[str]:
        counts = Counter((one.sort, one.worse) for one in self.effects)
        told = [
            f"{counts[sort, True]} / {counts[sort, False]}" if counts[sort, True] or counts[sort, False] else ""
            for sort in EFFECTS[:-1]
        ]
        tried = str(self.tried) if self.tried == self.asked else f"{self.tried} of {self.asked}"
        return [self.switch.name, tried, str(len(self.effects) or ""), *told, self.needed_by()]

    def needed_by(self) -> str:
        """The three models that need it most, or that would be better without it."""
        order = sorted(self.effects, key=lambda one: (not one.worse, EFFECTS.index(one.sort)))
        by_model = {one.way.model.name: one for one in reversed(order)}
        chosen = sorted(by_model.values(), key=order.index)[:3]
        return "; ".join(f"{one.way}: {one.sort} {one.text}".strip() for one in chosen)


def earned(run: Run) -> list[Earned]:
    """By thing, the plans that asked for it, those made without it, and what was another then."""
    found = []
    bases = {way: run.plans.rows.get((way.model.key, way.level, way.dtype, NOTHING), {}) for way in run.ways()}
    seen = {way: Seen.of(base["seen"]) for way, base in bases.items() if "does" in base}
    for switch in run.switches:
        asked = [way for way, what in seen.items() if switch.matters(what)]
        tried = {way: row for way in asked if (row := run.row(way, switch)) is not None}
        others = {way: row for way, row in tried.items() if row.get("does") != bases[way]["does"]}
        effects = [effect(run, way, bases[way], row) for way, row in others.items()]
        found.append(Earned(switch, len(asked), len(tried), effects))
    return found


def page(run: Run, commit: str, others: Sequence[Run] = ()) -> str:
    """The table as Markdown, with what is another plan for other targets."""
    found = earned(run)
    lines = [INTRODUCTION.format(commit=commit, what=what_was_run(run)), "", NOTES.read_text(encoding="utf-8").strip()]
    for sort in dict.fromkeys(switch.sort for switch in run.switches):
        of_sort = [one for one in found if one.switch.sort == sort]
        lines += ["", f"## {HEADS[sort]}", ""]
        lines += rows_of(one for one in of_sort if one.effects)
        silent = [one for one in of_sort if not one.effects]
        lines += ["", f"Tried, and no plan is another without: {named(one for one in silent if one.tried)}."]
        lines += ["", f"Not tried yet: {named(one for one in silent if one.asked and not one.tried)}."]
        lines += ["", f"Asked for by no plan: {named(one for one in silent if not one.asked)}."]
    for other in others:
        here = {one.switch.key for one in found if one.effects}
        more = [one for one in earned(other) if one.effects and one.switch.key not in here]
        plans = sum(name == NOTHING and "does" in row for (*_, name), row in other.plans.rows.items())
        tried = f"Of {plans} plans; what makes another plan here alone."
        lines += ["", f"## For {other.target}", "", tried, "", *rows_of(more, sorts=True)]
    return "\n".join(lines) + "\n"


def rows_of(found: Iterable[Earned], sorts: bool = False) -> list[str]:
    """A table, with a line for each thing; its sort before its name with ``sorts``."""
    head = ["| without | tried | other plan | " + " | ".join(EFFECTS[:-1]) + " | models |", "|---" * 10 + "|"]
    return [*head, *(f"| {f'{one.switch.sort} ' if sorts else ''}{' | '.join(one.cells())} |" for one in found)]


def named(found: Iterable[Earned]) -> str:
    """How many there are, and their names; a threshold without its settings where these are all there."""
    rows = [(one.switch.name, one.switch.sort == "threshold") for one in found]
    settings = Counter(name.rpartition(" ")[0] for name, has_settings in rows if has_settings)
    whole = {name for name, count in settings.items() if count == len(SETTINGS)}
    names = list(dict.fromkeys(key if (key := name.rpartition(" ")[0]) in whole else name for name, _ in rows))
    return f"{len(names)} ({', '.join(names)})" if names else "none"


def what_was_run(run: Run) -> str:
    """How many models of each set were planned and judged, and in how many ways."""
    head = ["set", "models", "with real inputs", "plans as they are", "things tried", "other plans", "run strictly"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for group in dict.fromkeys(model.group for model in run.models):
        ways = [way for way in run.ways() if way.model.group == group]
        keys = {(way.model.key, way.level, way.dtype): way for way in ways}
        tried = [(key, row) for (*key, name), row in run.plans.rows.items() if tuple(key) in keys and name != NOTHING]
        bases = {key: run.plans.rows.get((*key, NOTHING), {}) for key in keys}
        other = {
            (*key, row["does"]) for key, row in tried if "does" in row and row["does"] != bases[tuple(key)].get("does")
        }
        models = {way.model for way in ways}
        counts = [len(models), sum(model.data is not None for model in models), sum(map(bool, bases.values()))]
        counts += [len(tried), len(other), sum((model, does) in run.errors.rows for model, _, _, does in other)]
        rows.append(f"| {group} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


NOTES = Path(__file__).with_name("ablation_notes.md")
"""What follows from the tables, written by hand."""
HEADS = {
    "rule": "Rules",
    "part": "Parts of rules",
    "rewrite": "Rewrites",
    "pattern": "Patterns",
    "trait": "Traits",
    "row of a trait": "Rows of traits",
    "threshold": "Thresholds",
}
INTRODUCTION = """# What each part of the planner earns

Made by `benchmarks/ablation.py` at {commit}; its head says how.
Each line is one thing switched off by itself. "Tried": of the plans that asked for it those that were made without it;
"other plan": those that do something else then. The columns behind count the weightiest difference of each such plan,
worse / better without the thing: a verdict at 1e-2, a refusal, an error beyond noise (half as much again, and above
1e-5), nodes (of a training step, or those that CUDA would run), Casts, low nodes. Where a plan was not run strictly,
Casts and low nodes are all that is known of it. Then the three models that need it most, with a figure as it is and
without it.

Things of a sort are switched off together first, and by halves where another plan comes out. Rows of traits are tried
where their trait, or one that includes it, made another plan. Plans are those of O1, O2 and auto in float16 and of O2
in bfloat16, of the backend suite those of O2 in float16; traits beyond O2, and thresholds but at O2 in float16, come
last and may be missing. What no plan asks for may be asked for by others: training, generated inputs, reports. Rules of
validity are not switched off.

{what}"""


# -- the command ------------------------------------------------------------------------------------------------------


def models_of(folder: Path, sets: Sequence[str], pattern: str) -> list[Model]:
    """The models that are there, in the order of the sets, the small ones first."""
    found = []
    for group in sets:
        paths = [path for path in (folder / group / "models").glob("*") if path.suffix in (".onnx", ".mindir")]
        chosen = [path for path in paths if fnmatch.fnmatch(path.stem, pattern)]
        found += [Model(group, path) for path in sorted(chosen, key=lambda path: (path.stat().st_size, path.name))]
    return found


def gather(folder: Path) -> None:
    """Writes what the tests have: hard models, faults that the fuzz found, networks of MindIR, the backend suite."""
    sys.path.insert(0, str(ROOT / "tests"))
    from digests.groups import PEERS, backend, peers
    from digests.nets import networks
    from hard_models import HARD_MODELS
    from npz import write_npz

    def put(
        group: str, name: str, model: bytes, feeds: Iterable[Mapping[str, Any]] = (), suffix: str = ".onnx"
    ) -> None:
        (folder / group / "models").mkdir(parents=True, exist_ok=True)
        (folder / group / "models" / (name + suffix)).write_bytes(model)
        for number, feed in enumerate(feeds):
            (folder / group / "data" / name).mkdir(parents=True, exist_ok=True)
            write_npz(folder / group / "data" / name / f"{number:02}.npz", dict(feed))

    for name, hard in HARD_MODELS.items():
        put("hard", name, hard.build().SerializeToString(), hard.feeds(8))
    for path in sorted((ROOT / "tests" / "fuzz" / "found").glob("*.onnx")):
        put("fuzz", path.stem, path.read_bytes())
    for name, content in networks().items():
        put("mindir", name, content, suffix=".mindir")
    from conformance.cases import case

    for name in backend():
        found = case(name)
        feeds = [inputs for inputs, _ in found.data]
        put("backend", name, found.model, feeds if all(_plain(feed) for feed in feeds) else ())
    exported = peers()
    for name in PEERS:
        with np.load(exported / f"{name}.npz") as held:
            put("exports", name, (exported / f"{name}.onnx").read_bytes(), [dict(held)])
    gather_steps(folder / "steps" / "models")


def _plain(feed: Mapping[str, Any]) -> bool:
    return all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in feed.values())


def gather_steps(folder: Path) -> None:
    """The forward graphs of `cuda_placement/steps.py`."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "cuda_placement"))
    import steps

    folder.mkdir(parents=True, exist_ok=True)
    for name, path in steps.models(folder):
        target = folder / f"{name.replace(', ', '_').replace(' ', '_')}.onnx"
        path.rename(target) if path.parent == folder else target.write_bytes(path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gather", action="store_true", help="write the models that tests have; nothing else")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="what has one of these in its name, `rewrite gelu` or `trait`"
    )
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--models", default="*", help="names of models, with wildcards")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--target", default="", help="for which runtime; that of the model's format if not given")
    parser.add_argument("--cuda-python", default="", help="of benchmarks/cuda_placement, for nodes")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--table", type=Path, help="write what is known as Markdown")
    parser.add_argument("--commit", default="a state without a name", help="what the table calls this state")
    args = parser.parse_args()
    if args.gather:
        gather(args.folder)
        return
    os.environ["AMPGRAPH_CHECK"] = "off"
    watch()
    results = args.folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    chosen = [switch for switch in switches() if any(text in switch.key for text in args.only)]
    models = models_of(args.folder, args.sets, args.models)
    errors, nodes = Kept(results / "errors.jsonl"), Kept(results / "nodes.jsonl")

    def run_for(target: str) -> Run:
        plans = Kept(results / f"plans.{product_key()}{target and f'.{target}'}.jsonl")
        return Run(results, models, chosen, plans, errors, nodes, args.samples, "run" in args.parts, target)

    run = run_for(args.target)
    for sorts, ways in PHASES:
        if "plan" in args.parts:
            run.plan(sorts, ways)
        if {"run", "nodes"} & set(args.parts):
            run.judge(sorts, ways, args.cuda_python if "nodes" in args.parts else "")
    if args.table:
        known = (path.name.split(".")[2] for path in results.glob(f"plans.{product_key()}.*.jsonl"))
        others = [run_for(target) for target in sorted(known)]
        args.table.write_text(page(run_for(""), args.commit, others), encoding="utf-8")


if __name__ == "__main__":
    main()
