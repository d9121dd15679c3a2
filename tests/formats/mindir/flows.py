"""Facts of a MindIR dataflow, asked by name."""

from __future__ import annotations

from typing import Any

from ampgraph.core.dataflow import NONE, Dataflow, Op
from formats.mindir.parse import graph_of, parse


def flow_of(words: str, **options: Any) -> Dataflow:
    return graph_of(parse(words)).dataflow(**options)


def op_of(flow: Dataflow, kind: str, number: int = 0) -> Op:
    return [op for op in flow.ops if op.kind == kind][number]


def names(flow: Dataflow, ids: list[int]) -> list[str]:
    """Values by name without the graph's; '' for an operand that is no tensor of the dataflow."""
    return [flow.values[v].name.split(":")[-1] if v != NONE else "" for v in ids]


def units(flow: Dataflow, *values: str) -> list[int]:
    """The unit that writes each value."""
    found = {value.name.split(":")[-1]: value for value in flow.values}
    return [flow.find(found[name].unit) for name in values]


def fixed(flow: Dataflow, value: str) -> str:
    """Why a value cannot be low."""
    root = units(flow, value)[0]
    return next((unit.fixed for unit in flow.units if unit.fixed and flow.find(unit.id) == root), "")
