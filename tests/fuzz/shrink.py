"""A smaller model with the same fault: fewer outputs, and inputs in the place of nodes, as long as the fault stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

from fuzz.checks import Fault, Way, look
from fuzz.models import Random, checks
from fuzz.runtime import opened, type_of
from npz import write_npz


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
