"""Graphs as runs need them: without functions, and what their operators read."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op
from ..core.graph import Graph
from ..formats.adapters import OnnxGraph, load_onnx
from ..formats.kinds import Model


def flat_graph(model: Model | Graph) -> OnnxGraph:
    """For runs in float32: a graph of ``model`` that the caller may edit: sorted, functions inlined. Raises AmpError as
    `load_onnx`."""
    flat = load_onnx(model).flat()
    return flat.copied() if flat is model else flat


def reads_of(flow: Dataflow) -> dict[int, list[int]]:
    """For runs that show values: operator of the main graph -> the values of the main graph that it reads, in its
    bodies too, once each.

    For a model without functions."""
    found: dict[int, dict[int, None]] = {op.id: {} for op in flow.ops if op.scope == 0}
    for op in flow.ops:
        found[_outermost_operator(flow, op)].update(dict.fromkeys(op.inputs))
    for scope in flow.scopes:
        if scope.op != NONE:
            found[_outermost_operator(flow, flow.ops[scope.op])].update(dict.fromkeys(scope.outputs))
    return {op: [i for i in read if i != NONE and flow.values[i].scope == 0] for op, read in found.items()}


def _outermost_operator(flow: Dataflow, op: Op) -> int:
    """For runs that show values: the operator of the main graph that holds this one, at any depth; itself there."""
    while op.scope != 0:
        op = flow.ops[flow.scopes[op.scope].op]
    return op.id
