"""Numbers, stored or of known sizes, that scale what a product reads or makes: its kernel takes them on the target."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..core.dataflow import NONE, Dataflow, Op
from ..core.low_types import low_type
from ..core.plan import Why
from ..core.ranges import NEAR
from ..oplists.options import Options
from ..rules.together import LowStored
from .decisions import HIGH, LOW
from .facts.facts import Facts

LEAST, MOST = 1 / 64, 1.0
"""How large such a number is: one that shrinks more may keep what it scales within the low range."""


@dataclass(frozen=True)
class Scaling:
    """An operator and its unit: it multiplies or divides by a known number beside a low product."""

    op: int
    unit: int
    why: Why


def find_scalings(facts: Facts, sides: Mapping[str, int]) -> Iterator[Scaling]:
    """Scalings that a level would keep in float32 between low products and what they scale. ``sides``: by list class.

    In the low type they are rounded once more where the number is no power of two, and are no kernels of their own.
    """
    flow, options = facts.flow, facts.options
    if not options.kernels.scaled_products or sides["allow"] != LOW or sides["infer"] != HIGH:
        return
    for op in flow.with_roles(facts.traits.operators("scalings")):
        listing = options.lists.entry(op.role)
        if not op.slots or listing is None or listing.cls != "infer":
            continue
        data = _scaled_value(facts, op)
        product = _product_beside(flow, options, op, data) if data != NONE else ""
        if product:
            fusion = options.kernels.scaled_products[product]
            text = f"{product} takes this number into its kernel on {options.target}: {fusion}"
            yield from (Scaling(op.id, unit, Why("region", text)) for unit in op.slots.values())


def scaled_results(facts: Facts, ops: Collection[int]) -> frozenset[int]:
    """Those of some operators that scale what a product makes, before anybody else reads it."""
    flow, options = facts.flow, facts.options
    if not options.kernels.scaled_products:
        return frozenset()
    scalings = (op for op in map(flow.ops.__getitem__, ops) if facts.traits.has(op.role, "scalings") and op.slots)
    behind = (op for op in scalings if any(_made_by(flow, options, op, value) for value in op.inputs if value != NONE))
    found = ((op, _scaled_value(facts, op)) for op in behind)
    return frozenset(op.id for op, data in found if data != NONE and _made_by(flow, options, op, data))


def _scaled_value(facts: Facts, op: Op) -> int:
    """What an operator scales by a known number, if the low type has that number nearly exactly, or the product in
    front can make up for its rounding; else NONE."""
    flow = facts.flow
    divides = facts.traits.positions(op.role, "divides")
    for place, value in enumerate(op.inputs):
        number, data = facts.values.number(value), op.inputs[1 - place] if len(op.inputs) == 2 else NONE
        if number is None or data == NONE or flow.values[data].weight or (divides and place not in divides):
            continue
        factor = abs(1 / number) if divides and number else abs(number)
        low = _rounded(number, facts.options.dtype)
        near = abs(low - number) <= NEAR * abs(number)
        if LEAST <= factor <= MOST and (near or _is_made_up_for(facts, value, data)):
            return data
    return NONE


def _is_made_up_for(facts: Facts, number: int, data: int) -> bool:
    """Whether what rounding takes from a stored number is given to the stored operands of the product that makes what
    it scales, if these become low."""
    if not facts.flow.values[number].weight:
        return False
    known = facts.flow.memo.setdefault(LowStored, {})
    if facts.options.dtype not in known:
        known[facts.options.dtype] = LowStored(facts.flow, facts.traits, facts.options.dtype)
    return bool(known[facts.options.dtype].before(data))


def _rounded(number: float, dtype: str) -> float:
    """A number as the low type rounds it, if it is in the range of normal ones."""
    part, power = math.frexp(number)
    return math.ldexp(round(part * 2 ** low_type(dtype).bits), power - low_type(dtype).bits)


def _product_beside(flow: Dataflow, options: Options, op: Op, data: int) -> str:
    """Of numbers that scale a product: the kind of product that an operator can be scaled with, empty for none.

    That of all who read its result, where they are of one kind, else that of the product that makes ``data``, its
    operand that is scaled.
    """
    scaled, uses = options.kernels.scaled_products, flow.uses[op.outputs[0]]
    readers = {flow.ops[use.op].kind if use.op != NONE and use.scope == op.scope else "" for use in uses}
    if len(readers) == 1 and (kind := next(iter(readers))) in scaled:
        return kind
    return _made_by(flow, options, op, data)


def _made_by(flow: Dataflow, options: Options, op: Op, data: int) -> str:
    """The kind of the product that makes ``data``, where this operator alone reads it; empty for none."""
    writer = flow.writer(data)
    alone = writer is not None and writer.scope == op.scope and len(flow.uses[data]) == 1
    return writer.kind if alone and writer is not None and writer.kind in options.kernels.scaled_products else ""
