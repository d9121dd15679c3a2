"""What a decided model says of one operator: each decision with its reason, and what the other type would have cost."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.dataflow import FLOAT32, NONE, Op
from ..core.plan import Why
from .assemble import DecidedModel
from .costs import extra_of, net_of
from .cut import INFINITE, Problem
from .decisions import CUT, HIGH, LOW


@dataclass(frozen=True)
class Price:
    """Bytes that a type costs, a kernel's start included (None: not possible): the values that are cast for it, the
    weights that are stored for it."""

    bytes: int | None
    casts: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Reason:
    """One decision of an operator: its slots and what they hold, by value; ``shared``: other operators with it.

    ``low`` and ``float32``: what each type costs while all around stays as decided; None where the cut did not decide.
    """

    slots: tuple[str, ...]
    values: tuple[int, ...]
    dtype: str
    why: Why
    shared: tuple[int, ...] = ()
    low: Price | None = None
    float32: Price | None = None


def reasons_of(decided: DecidedModel, op: Op) -> tuple[Reason, ...]:
    """The decisions of an operator in the order of its slots; none where it has no float32 tensor."""
    together: dict[int, list[str]] = {}
    for name, unit in op.slots.items():
        together.setdefault(decided.settled.find(unit), []).append(name)
    return tuple(_reason(decided, op, tuple(names), root) for root, names in together.items())


def _reason(decided: DecidedModel, op: Op, slots: tuple[str, ...], root: int) -> Reason:
    flow, settled = decided.flow, decided.settled
    find = settled.find
    values = [
        v
        for v in op.inputs
        if v != NONE and any(use.op == op.id and use.unit != NONE and find(use.unit) == root for use in flow.uses[v])
    ]
    values += [v for v in op.outputs if flow.values[v].unit != NONE and find(flow.values[v].unit) == root]
    shared = {u.op for u in flow.units if u.op not in (NONE, op.id) and find(u.id) == root}
    by_cut = settled.ranks[root] == CUT
    low, float32 = _prices(decided, root) if by_cut else (None, None)
    return Reason(
        slots,
        tuple(dict.fromkeys(values)),
        decided.options.dtype if settled.sides[root] == LOW else FLOAT32,
        settled.whys[root] or Why("cut", "no neighbour asks for low"),
        tuple(sorted(shared)),
        low,
        float32,
    )


def _prices(decided: DecidedModel, root: int) -> tuple[Price, Price]:
    """What low and float32 cost for one unit while all others stay as decided."""
    flow, task = decided.flow, decided.task
    costs, sides = task.costs, decided.settled.sides
    found = {value: net_of(task, value, costs) for value in _touched(decided, root)}
    nets = {value: net for value, net in found.items() if net is not None and root in (net.writer, *net.readers)}
    others = {u for net in nets.values() for u in (*net.readers, net.writer) if u is not None and u != root}
    problem = Problem(list(nets.values()), {unit: sides[unit] for unit in others})
    problem.extra[root] = extra_of(task, root, flow.ops, costs)

    def price(side: int) -> Price:
        total = problem.cost({root: side})
        paid = [flow.values[v] for v, net in nets.items() if Problem([net], problem.fixed).cost({root: side})]
        casts, weights = ([v.id for v in paid if v.weight == stored] for stored in (False, True))
        return Price(total if total < INFINITE else None, tuple(casts), tuple(weights))

    return price(LOW), price(HIGH)


def _touched(decided: DecidedModel, root: int) -> list[int]:
    """The values that a unit reads or writes."""
    flow, find = decided.flow, decided.settled.find
    return [
        value.id
        for value in flow.values
        if (value.unit != NONE and find(value.unit) == root)
        or any(use.unit != NONE and find(use.unit) == root for use in flow.uses[value.id])
    ]
