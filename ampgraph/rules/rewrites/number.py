"""Numbers that follow from a size which the file says, in a shape of which it leaves others open: stored, since no
runtime computes them beforehand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ..known import Known, named_ops
from ..rewrite import RewriteRule, in_function

STORED = (FLOAT32, "int64")
"""Types of such numbers."""
MOST = 2.0**53  # a plan holds numbers as JSON has them


@dataclass(frozen=True)
class StoredNumber(RewriteRule):
    """Writes a Constant of one ``number`` in so many ``dimensions`` (0 or 1) in the place of the last node; the other
    nodes, which nobody reads then, are taken away."""

    dimensions: int
    number: float

    names = ("number",)
    counted = ("constant expression", "folded")
    writes = "Constant"

    @classmethod
    def find(cls, known: Known) -> Iterator[StoredNumber]:
        """Yields each node that makes a number from sizes of a shape with open ones, for others that do more, with the
        nodes that serve it alone. A shape that the file gives whole is the runtime's to fold. What a pattern names
        stays, and what it reads."""
        flow = known.flow
        shapes = [op for op in flow.with_roles(known.traits.operators("shapes")) if _is_open(flow, op)]
        made = _ops_making_numbers(known, shapes)
        stored = {op: _number_to_store(flow, made, op) for op in made}
        numbers = {op: number for op, number in stored.items() if number is not None}
        gone: dict[int, list[int]] = {op: [] for op in sorted(numbers)}
        for op, last in _last_numbers_served(flow, made, numbers).items():
            if op != last:
                gone[last].append(op)
        for op, others in gone.items():
            ops = [*sorted(map(flow.ops.__getitem__, others), key=lambda other: other.index), flow.ops[op]]
            dimensions = len(flow.shape(flow.ops[op].outputs[0]) or ())
            yield cls("number", *cls.place(flow, *ops), dimensions, numbers[op])

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> StoredNumber:
        """The rewrite that a row of plan format 1 means, which kept dimensions and number as axis and epsilon."""
        return cls(name, scope, nodes, row["axis"], row["epsilon"])

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes a Constant in the place of the nodes, of the type and rank that the value has."""
        value = self.edited(editor)[-1].outputs[0]
        self.refuse(self.dimensions == len(flow.shape(value) or ()))
        dtype = np.dtype(flow.values[value].dtype)
        number = np.full((1,) * self.dimensions, self.number, dtype)
        editor.replace(self.scope, self.nodes, self.writes, (), {"value": number})


def _is_open(flow: Dataflow, op: Op) -> bool:
    """Rewrite of numbers that follow from sizes: whether some sizes that an operator reads are known, and some open."""
    shape = flow.shape(op.inputs[0]) if op.inputs and not in_function(flow, op) else None
    sizes = [isinstance(size, int) for size in shape or ()]
    return any(sizes) and not all(sizes)


def _ops_making_numbers(known: Known, work: list[Op]) -> dict[int, float | None]:
    """Rewrite of numbers that follow from sizes: id of an operator whose numbers are known, of ``work`` (which grows)
    or behind it -> the number that it makes; None for several, or an open one."""
    flow, made = known.flow, dict[int, float | None]()
    for op in work:
        new = len(op.outputs) == 1 and op.id not in named_ops(known) and op.id not in made
        if new and known.values.row(op.outputs[0]) is not None:
            made[op.id] = known.values.number(op.outputs[0])
            work += (flow.ops[use.op] for use in flow.uses[op.outputs[0]] if use.op != NONE)
    return made


def _number_to_store(flow: Dataflow, made: Mapping[int, float | None], op: int) -> float | None:
    """Rewrite of numbers that follow from sizes: the number that is stored in an operator's place; None where none is.
    Where an operator reads it that stays, so that it is the last of those in ``made``, and it is no output of a graph;
    a scalar or a vector of one, of a type that is stored, and small enough for float64 to hold it exactly."""
    number, value = made[op], flow.values[flow.ops[op].outputs[0]]
    uses = flow.uses[value.id]
    last = any(use.op not in made for use in uses) and not any(use.op == NONE for use in uses)
    fits = number is not None and abs(number) < MOST and value.dtype in STORED
    return number if last and fits and flow.shape(value.id) in ((), (1,)) else None


def _last_numbers_served(flow: Dataflow, made: Collection[int], numbers: Collection[int]) -> dict[int, int]:
    """Rewrite of numbers that follow from sizes: id of an operator of ``made`` that can be taken away, as it serves
    only ``numbers`` that are stored -> the id of the last of these; a stored number serves itself."""
    owners: dict[int, int] = {}
    for op in sorted(made, reverse=True):
        uses = flow.uses[flow.ops[op].outputs[0]]
        if op in numbers:
            owners[op] = op
        elif uses and all(use.op in owners and use.scope == flow.ops[op].scope for use in uses):
            owners[op] = max(owners[use.op] for use in uses)
    return owners
