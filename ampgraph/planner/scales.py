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
    """An operator and one of its units: it multiplies or divides by a known number beside a low product."""

    op: int
    unit: int
    why: Why


def find_scalings(facts: Facts, sides: Mapping[str, int]) -> Iterator[Scaling]:
    """Yields the scalings that a level would keep in float32 beside low products, on a target whose products take the
    number into their kernels. ``sides``: list class -> the side that the level gives it. In the low type they are
    rounded once more where the number is no power of two, and are no kernels of their own."""
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
    """The ids of those of some operators that alone read what a product makes, and scale it by a known number."""
    flow, options, found = facts.flow, facts.options, set[int]()
    if not options.kernels.scaled_products:
        return frozenset()
    for op in map(flow.ops.__getitem__, ops):
        if not op.slots or not facts.traits.has(op.role, "scalings"):
            continue
        if any(_kind_of_maker(flow, options, op, value) for value in op.inputs if value != NONE):
            data = _scaled_value(facts, op)  # asked for last: dear
            if data != NONE and _kind_of_maker(flow, options, op, data):
                found.add(op.id)
    return frozenset(found)


def _scaled_value(facts: Facts, op: Op) -> int:
    """Of numbers that scale: the operand that an operator scales by a known one, from `LEAST` to `MOST`, if the low
    type has that nearly exactly, or the product in front can make up for its rounding; else NONE."""
    flow = facts.flow
    divisors = facts.traits.positions(op.role, "divides")
    for place, value in enumerate(op.inputs if len(op.inputs) == 2 else ()):
        number, data = facts.values.number(value), op.inputs[1 - place]
        if number is None or data == NONE or flow.values[data].weight or (divisors and place not in divisors):
            continue
        factor = abs(1 / number) if divisors and number else abs(number)
        low = _round_to_low(number, facts.options.dtype)
        near = abs(low - number) <= NEAR * abs(number)
        if LEAST <= factor <= MOST and (near or _is_made_up_for(facts, value, data)):
            return data
    return NONE


def _is_made_up_for(facts: Facts, number: int, data: int) -> bool:
    """Of numbers that scale: whether what rounding takes from a stored ``number`` would be given to the stored operands
    of the product that makes ``data``, which it scales, if these become low (`LowStored`)."""
    if not facts.flow.values[number].weight:
        return False
    known = facts.flow.memo.setdefault(LowStored, {})
    if facts.options.dtype not in known:
        known[facts.options.dtype] = LowStored(facts.flow, facts.traits, facts.options.dtype)
    return bool(known[facts.options.dtype].parts_before(data))


def _round_to_low(number: float, dtype: str) -> float:
    """Of numbers that scale: one rounded to the low type's digits, as if it had no smallest and no largest number."""
    part, power = math.frexp(number)
    return math.ldexp(round(part * 2 ** low_type(dtype).bits), power - low_type(dtype).bits)


def _product_beside(flow: Dataflow, options: Options, op: Op, data: int) -> str:
    """Of numbers that scale a product: the kind of product that an operator can be scaled with, empty for none. That of
    all who read its result, where they are of one kind, else that of the product that makes ``data``, its operand that
    is scaled."""
    uses = flow.uses[op.outputs[0]]
    kinds = {flow.ops[use.op].kind if use.op != NONE and use.scope == op.scope else "" for use in uses}
    if len(kinds) == 1 and kinds <= options.kernels.scaled_products.keys():
        return kinds.pop()
    return _kind_of_maker(flow, options, op, data)


def _kind_of_maker(flow: Dataflow, options: Options, op: Op, data: int) -> str:
    """Of numbers that scale: the kind of the product that makes ``data`` for ``op`` alone; empty for none."""
    writer = flow.writer(data)
    if writer is None or writer.scope != op.scope or len(flow.uses[data]) != 1:
        return ""
    return writer.kind if writer.kind in options.kernels.scaled_products else ""
