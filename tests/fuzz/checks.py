"""What must hold of a random model that was converted, and a smaller model with the same fault."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

import ampgraph
from ampgraph.api.check_run import Request, check_pair, verdict_on_opening
from ampgraph.core.recipe import Recipe
from ampgraph.core.verdict import TOLERANCES, CheckVerdict
from ampgraph.numerics.inputs.samples import load_samples
from ampgraph.numerics.pairs import OnnxPair
from ampgraph.numerics.strict.session import StrictSession
from formats.onnx.helpers import inputs_kept
from fuzz.models import Random, checks
from fuzz.runtime import opened, type_of
from hard_models.measure import casts
from npz import write_npz

LEVELS = ("O1", "O2", "O3", "auto")
TARGETS = ("cpu", "cpu", "cuda", "tensorrt")
FLOOR = 1e-3  # of the reference's root mean square, below which its digits are rounding
SECONDS = 30.0  # for a check's samples
MUTE = "the float32 model itself gives nothing finite on these inputs"


@dataclass(frozen=True)
class Way:
    """One conversion of a model."""

    level: str
    dtype: str
    target: str

    def __str__(self) -> str:
        return f"{self.level},{self.dtype},{self.target}"


@dataclass(frozen=True)
class Fault:
    """What does not hold, at which stage; An error that the check announces is none."""

    seed: int
    way: Way
    stage: str
    message: str

    def __str__(self) -> str:
        return f"{self.seed} {self.way} {self.stage}: {self.message}"


def ways(seed: int, count: int) -> list[Way]:
    """Some ways of a seed: all levels and types come in turn."""
    every = [Way(level, dtype, "") for dtype in ("float16", "bfloat16") for level in LEVELS]
    drawn = np.random.default_rng([seed, 1]).permutation(len(every))[:count]
    return [Way(every[i].level, every[i].dtype, TARGETS[(seed + place) % 4]) for place, i in enumerate(drawn)]


def faults(case: Random, count: int = 3) -> Iterator[Fault]:
    """All that is wrong with some conversions of a model."""
    for way in ways(case.seed, count):
        fault = look(case, way)
        if fault is not None:
            yield fault


def look(case: Random, way: Way) -> Fault | None:
    """What is wrong with one conversion."""
    try:
        _examine(case, way)
    except _Failed as failed:
        return Fault(case.seed, way, failed.stage, failed.message)
    return None


class _Failed(Exception):
    def __init__(self, stage: str, error: object) -> None:
        self.stage, self.message = stage, " ".join(f"{type(error).__name__} {error}".split())[:400]
        super().__init__(stage)


def convert(model: ModelProto, way: Way) -> ModelProto:
    return ampgraph.convert(model, way.level, dtype=way.dtype, target=way.target, check="off")


def _examine(case: Random, way: Way) -> None:
    before = _bytes(case.model)
    try:
        result = convert(case.model, way)
    except Exception as error:
        raise _Failed("convert", error) from error
    if _bytes(case.model) != before:
        raise _Failed("untouched", "the caller's model was changed")
    after = _bytes(result)
    if after == before:
        return
    if way.level == "auto" and (held := casts(result)) > (most := casts(convert(case.model, replace(way, level="O2")))):
        raise _Failed("casts", f"{held} Casts, and O2 has {most}")
    if case.seed % 8 == 0 and _bytes(convert(case.model, way)) != after:
        raise _Failed("deterministic", "a second run gives other bytes")
    _valid(case, result, way)
    _right(case, result, way)
    try:
        again = _bytes(convert(result, way))
    except Exception as error:
        raise _Failed("again", error) from error
    if again != after:
        raise _Failed("again", "converting again changes it")


def _bytes(model: ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def _valid(case: Random, result: ModelProto, way: Way) -> None:
    """The checker takes it, and on its own target ONNX Runtime; its interface is as before."""
    if case.checked:
        try:
            onnx.checker.check_model(result, full_check=True)
        except Exception as error:
            raise _Failed("checker", error) from error
    inputs = case.model.graph.input if case.model == result else inputs_kept(case.model)
    for old, new in ((inputs, result.graph.input), (case.model.graph.output, result.graph.output)):
        if list(old) != list(new):
            raise _Failed("interface", "inputs or outputs changed")
    try:
        seen, before = (_seen(opened(model)) for model in (result, case.model))
        if seen != before:
            apart = next((a, b) for a, b in zip(before, seen, strict=True) if a != b)
            raise _Failed("interface", f"ONNX Runtime saw {apart[0]}, and sees {apart[1]}")
    except _Failed:
        raise
    except Exception as error:
        said = _of_opening(case.model, result, way)
        if said or way.target == "cpu":  # other targets' kernels are not here, nor what is valid in their place
            raise _Failed("load", said or f"unannounced: {error}") from error


def _of_opening(model: ModelProto, result: ModelProto, way: Way) -> str:
    """What the check says of a file that does not open; empty where it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        given, low = (os.path.join(folder, name) for name in ("model.onnx", "low.onnx"))
        onnx.save(model, given)
        onnx.save(result, low)
        found, _ = verdict_on_opening(Request(given, low, None, 1, {}, 1.0, 0, target=way.target))
        return "" if found is None else str(found)


def _seen(session: ort.InferenceSession) -> list[tuple[str, str, int]]:
    """Inputs and outputs as ONNX Runtime tells of them: names, types and ranks."""
    return [(one.name, one.type, len(one.shape)) for one in (*session.get_inputs(), *session.get_outputs())]


def _right(case: Random, result: ModelProto, way: Way) -> None:
    """A strict run is right, or the check says that it is not."""
    try:
        session = StrictSession(result, threads=1)
        found = [session.run(feeds) for feeds in case.feeds]
    except Exception as error:
        raise _Failed("strict", error) from error
    errors = [
        distance(expected[name], one[name])
        for expected, one in zip(case.expected, found, strict=True)
        for name in expected
    ]
    worst, tolerance = max(errors, default=0.0), TOLERANCES[way.dtype]
    if worst > tolerance:
        said = announced(case, way, result, tolerance)
        if not (said.missed or said.reason.startswith(MUTE)):
            raise _Failed("silent", f"an error of {worst:.3g} of which the check says: {said}")
        _mended(case, way, said, tolerance)


def distance(reference: Any, result: Any) -> float:
    """rms(a - b) / max(rms(a), 1e-3) of a floating output; infinite where only one side is finite; 0 for all else."""
    if isinstance(reference, list):
        if len(reference) != len(result):
            return float("inf")
        return max((distance(a, b) for a, b in zip(reference, result, strict=True)), default=0.0)
    if not isinstance(reference, np.ndarray) or reference.dtype.kind != "f" or not reference.size:
        return 0.0
    if reference.shape != result.shape:
        return float("inf")
    a, b = reference.astype(np.float64), result.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not (same | (np.isfinite(a) & np.isfinite(b))).all():
        return float("inf")
    apart = np.where(same, 0, b) - np.where(same, 0, a)
    size = np.where(np.isfinite(a), a, 0)
    return float(np.sqrt((apart**2).mean()) / max(np.sqrt((size**2).mean()), FLOOR))


def announced(case: Random, way: Way, result: ModelProto, tolerance: float) -> CheckVerdict:
    """What the check says of a wrong result."""
    try:
        return verdict(case, way, result, tolerance)
    except Exception as error:
        raise _Failed("check", error) from error


def _mended(case: Random, way: Way, said: CheckVerdict, tolerance: float) -> None:
    """A repair that the check names is one that `convert` takes, and that mends; a suggestion is one that it takes."""
    patterns = said.mended_by or said.suggested
    try:
        result = ampgraph.convert(case.model, way.level, dtype=way.dtype, target=way.target, fp32=patterns, check="off")
        again = verdict(case, way, result, tolerance) if said.repair else None
    except Exception as error:
        raise _Failed("repair", error) from error
    if again is not None and not again.ok:
        raise _Failed("repair", f"{' '.join(said.repair)} leaves: {again}")


def verdict(case: Random, way: Way, result: ModelProto, tolerance: float) -> CheckVerdict:
    """What the check that ends a conversion says of it on the same samples: its own function, but in this process."""
    said: list[CheckVerdict] = []
    pair = OnnxPair(case.model, result, "cpu")
    recipe = Recipe.of(level=way.level, dtype=way.dtype, target=way.target or None)
    asked = Request("", "", None, len(case.feeds), {}, tolerance, SECONDS, recipe=recipe)
    check_pair(pair, load_samples(pair.reference, case.feeds), asked, said.append, case.model)
    return said[-1]


def shrunk(case: Random, way: Way, stage: str) -> Random:
    """The smallest model that was found with a fault of this stage."""
    known = _everything(case)
    found = True
    while found:
        found = False
        for smaller in _smaller(case, known):
            fault = _fault(smaller, way)
            if fault is not None and fault.stage == stage:
                case, found = smaller, True
                break
    return case


def keep(case: Random, way: Way, folder: Path) -> None:
    """Writes a model, its inputs and what it gives beside each other, under the name of the seed and the way."""
    stem = folder / f"{case.seed}-{way}".replace(",", "-")
    stem.with_suffix(".onnx").write_bytes(case.model.SerializeToString(deterministic=True))
    found = {f"{what}/{number}/{name}": np.asarray(value) for what in ("feeds", "expected")
             for number, values in enumerate(getattr(case, what)) for name, value in values.items()}  # fmt: skip
    write_npz(stem.with_suffix(".npz"), found)


def kept(file: Path) -> tuple[Random, Way]:
    """What `keep` wrote."""
    model = ModelProto.FromString(file.read_bytes())
    found: dict[str, list[dict[str, Any]]] = {"feeds": [{}, {}], "expected": [{}, {}]}
    for key, value in np.load(file.with_suffix(".npz")).items():
        what, number, name = key.split("/", 2)
        found[what][int(number)][name] = value
    seed, *way = file.stem.split("-")
    return Random(int(seed), model, found["feeds"], found["expected"], checks(model)), Way(*way)


def _fault(case: Random, way: Way) -> Fault | None:
    try:
        return look(case, way)
    except Exception:  # whatever becomes of a model that was cut to pieces
        return None


def _everything(case: Random) -> list[dict[str, Any]]:
    """Every value of the main graph that can be had, for each sample."""
    model = ModelProto()
    model.CopyFrom(case.model)
    given = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name and name not in given]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = opened(model)
    every = [value.name for value in model.graph.output]
    return [{**feeds, **dict(zip(every, session.run(every, feeds), strict=True))} for feeds in case.feeds]


def _smaller(case: Random, known: list[dict[str, Any]]) -> Iterator[Random]:
    graph = case.model.graph
    for output in graph.output if len(graph.output) > 1 else ():
        yield from _cut(case, known, [o.name for o in graph.output if o.name != output.name], [])
    for node in graph.node:
        if all(isinstance(known[0].get(name), np.ndarray) for name in node.output if name):
            yield from _cut(case, known, [o.name for o in graph.output], list(node.output))


def _cut(case: Random, known: list[dict[str, Any]], outputs: list[str], bound: list[str]) -> Iterator[Random]:
    """The model with these outputs alone, and some values as inputs."""
    model = ModelProto()
    model.CopyFrom(case.model)
    graph = model.graph
    kept = [o for o in graph.output if o.name in outputs and o.name not in bound]
    del graph.output[:]
    graph.output.extend(kept)
    nodes = [node for node in graph.node if not set(node.output) & set(bound)]
    live = {o.name for o in kept}.union(*map(_read, nodes))
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.extend(helper.make_value_info(n, type_of(known[0][n])) for n in bound if n in live)
    for field in (graph.input, graph.initializer, graph.value_info):
        left = [item for item in field if item.name in live]
        del field[:]
        field.extend(left)
    stored = {tensor.name for tensor in graph.initializer}
    feeds = [{i.name: values[i.name] for i in graph.input if i.name not in stored} for values in known]
    expected = [{o.name: values[o.name] for o in graph.output} for values in known]
    if kept:
        yield replace(case, model=model, feeds=feeds, expected=expected, checked=checks(model))


def _read(node: NodeProto) -> set[str]:
    """What a node reads, in its bodies too."""
    bodies: list[GraphProto] = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    inside = (name for body in bodies for inner in body.node for name in _read(inner))
    passed = (output.name for body in bodies for output in body.output)
    return {*node.input, *inside, *passed}
