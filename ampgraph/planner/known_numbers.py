"""Numbers that follow from a size which the file says, in a shape of which it leaves others open: stored, since no
runtime computes them beforehand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.plan import NUMBER, Rewrite
from .facts.facts import Facts
from .selection import touched

STORED = (FLOAT32, "int64")
"""Types of such numbers."""
MOST = 2.0**53  # a plan holds numbers as JSON has them


def find_known_numbers(facts: Facts) -> list[Rewrite]:
    """Each node that makes a number from such sizes for others that do more, with the nodes that nobody reads then.

    A shape that the file gives whole is the runtime's to fold. What a pattern names stays, and what it reads.
    """
    flow = facts.flow
    starts = [op for op in flow.with_roles(facts.traits.operators("shapes")) if _is_open(flow, op)]
    if not starts:
        return []
    made = _made(facts, starts)
    numbers = {op: number for op in made if (number := _number(facts, made, op)) is not None}
    gone: dict[int, list[int]] = {op: [] for op in sorted(numbers)}
    for op, owner in _owners(flow, made, numbers).items():
        if op != owner:
            gone[owner].append(flow.ops[op].index)
    return [_rewrite(flow, flow.ops[op], sorted(gone[op]), numbers[op]) for op in gone]


def _is_open(flow: Dataflow, op: Op) -> bool:
    shape = flow.shape(op.inputs[0]) if op.inputs and flow.scopes[op.scope].kind != "function" else None
    sizes = [isinstance(size, int) for size in shape or ()]
    return any(sizes) and not all(sizes)


def _made(facts: Facts, starts: Collection[Op]) -> dict[int, float | None]:
    """Operators by which numbers follow from sizes, with the number that each makes, None for several or open ones."""
    flow, numbers = facts.flow, facts.numbers
    named, made, work = touched(flow, facts.options.named), dict[int, float | None](), list(starts)
    for op in work:
        new = len(op.outputs) == 1 and op.id not in named and op.id not in made
        row = numbers.row(op.outputs[0]) if new else None
        if row is not None:
            made[op.id] = numbers.number(op.outputs[0])
            work += (flow.ops[use.op] for use in flow.uses[op.outputs[0]] if use.op != NONE)
    return made


def _number(facts: Facts, made: dict[int, float | None], op: int) -> float | None:
    """What is stored in the place of an operator: what somebody reads who makes no such number."""
    flow, number = facts.flow, made[op]
    value = flow.values[flow.ops[op].outputs[0]]
    uses = flow.uses[value.id]
    last = any(use.op not in made for use in uses) and not any(use.op == NONE for use in uses)
    fits = number is not None and abs(number) < MOST and value.dtype in STORED
    return number if last and fits and flow.shape(value.id) in ((), (1,)) else None


def _owners(flow: Dataflow, made: Collection[int], numbers: Collection[int]) -> dict[int, int]:
    """The operators that go, each with the last of the numbers that it is read for."""
    owners: dict[int, int] = {}
    for op in sorted(made, reverse=True):
        uses = flow.uses[flow.ops[op].outputs[0]]
        if op in numbers:
            owners[op] = op
        elif uses and all(use.op in owners and use.scope == flow.ops[op].scope for use in uses):
            owners[op] = max(owners[use.op] for use in uses)
    return owners


def _rewrite(flow: Dataflow, op: Op, gone: Sequence[int], number: float) -> Rewrite:
    axes = len(flow.shape(op.outputs[0]) or ())
    return Rewrite(flow.scopes[op.scope].path, NUMBER, (*gone, op.index), (), axes, number, "number")
