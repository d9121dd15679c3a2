"""What the model's own inputs say in digits that a low type has not: arithmetic on them, and positions.

Inputs come in units of the world: pressures of 1013 and a few, years, prices of millions, samples of a quiet
microphone. What takes their mean off needs the digits that a rounding of the input would take; behind it the low type
has enough. In float32 it costs no more Casts: the one before it stands behind it, and behind the deviation that it is
divided by, without which it may be out of range. Angles of large positions lose their
period, and scores to which they are added their differences.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.plan import Why
from ...core.walk import Crossings, sole_readers, upstream
from ..decisions import Decisions
from ..facts.facts import Facts
from .rule import Findings, Sight, Spoilt, looks, ruling, runs


@dataclass(frozen=True)
class Raw:
    """``ops``: operators, no products, that see float32 inputs of the model, and constants beside them; ``values``:
    what they make, and those inputs; ``products``: products of these, with their biases."""

    ops: set[int]
    values: set[int]
    products: set[int]


def raw(sight: Sight) -> Raw:
    """Follows the model's float32 inputs to the first products."""
    facts, regions = sight.facts, sight.regions
    flow, crossings = facts.flow, facts.crossings
    constant, values = set[int](), {v.id for v in flow.values if v.producer == NONE and _is_input(facts, v.id)}
    fixed, seen = {NONE, *facts.stored}, set(values)  # with stored ones, with products'
    ops, products = set[int](), set[int]()
    holders = {scope.op for scope in flow.scopes}  # calls, and nodes with bodies: what is inside computes

    def known(value: int, among: Collection[int]) -> bool:
        sources = crossings.before.get(value, ())
        return value in among or (len(sources) > 0 and all(v in among for v in sources))

    for op in flow.ops:
        if not crossings.before and seen.isdisjoint(op.inputs) and not fixed.issuperset(op.inputs):
            continue  # most of a model: neither before its first products nor made of constants
        plain = [v for v in op.inputs if v not in fixed and not known(v, constant)]
        if not plain:
            constant.update(op.outputs)
            fixed.update(op.outputs)
        elif regions.of_op.get(op.id) == "Bias" and any(flow.values[v].producer in products for v in plain):
            products.add(op.id)
            seen.update(op.outputs)
        elif all(known(v, values) or flow.values[v].dtype != FLOAT32 for v in plain):
            if not any(known(v, values) for v in plain) or not op.slots or op.id in holders:
                continue
            if regions.classes[op.id] == "allow":
                products.add(op.id)
                seen.update(op.outputs)
            elif regions.classes[op.id]:
                ops.add(op.id)
                values.update(op.outputs)
                seen.update(op.outputs)
    return Raw(ops, values, products)


def _is_input(facts: Facts, value: int) -> bool:
    """Whether a value is an input of the model that comes in float32, or in float64."""
    flow = facts.flow
    item = flow.values[value]
    plain = item.producer == NONE and not item.weight and item.dtype in (FLOAT32, "float64")
    return plain and value not in facts.crossings.before and not flow.scopes[item.scope].path


@runs(
    "raw",
    trigger="arithmetic that adds, subtracts, bends or scales down by much the model's inputs before the first product",
    action="float32 for it, with all that lies before it, and for what scales it down behind",
)
def raw_inputs(sight: Sight, decided: Decisions) -> Findings:
    """Holds arithmetic on raw inputs up to its last scaling, where something in it needs digits that the low type
    lacks."""
    facts, regions, found = sight.facts, sight.regions, sight.of(raw)
    ops = map(facts.flow.ops.__getitem__, sorted(found.ops))
    careful = {op for op in found.ops if regions.classes[op] in ("deny", "fp32")}

    def normalises(op: Op) -> bool:
        """Whether it scales an input down by so much that this comes near the end of the type."""
        values = found.values.intersection(op.inputs)
        return len(values) == 1 and _divisor(facts, op, *values) > facts.low.largest / 4

    # what makes a small number of large ones, or a usual one of one out of range
    sinks = [op for op in ops if op.id in careful or facts.traits.has(op.role, "cancels") or normalises(op)]
    if sinks:  # a Cast is for the products behind
        sinks = [op for op in sinks if op.id in facts.with_all_before(regions.allowed)]
    if not sinks:
        return Findings()
    dtype = facts.options.dtype
    why = Why("raw", f"computes with an input of the model before any product: {dtype} may not hold its digits")
    scaled = [one for op in sinks for one in _to_last_scale(facts, found, op)]
    return Findings([ruling(facts, why, _with_all_before(facts, found, sinks + scaled), where=sinks[0])])


def _to_last_scale(facts: Facts, found: Raw, op: Op) -> list[Op]:
    """The operators behind ``op`` that move, shift and scale its result, up to the last one that scales it down: a Cast
    behind that costs no more than one before."""
    chain, end = list[Op](), 0
    for value, reader in sole_readers(facts.flow, op, op.scope):
        if reader.id not in found.ops or not found.values.isdisjoint({*reader.inputs} - {value}):
            break
        if reader.role not in facts.traits.operators("affine", "moves", "conversions"):
            break
        chain.append(reader)
        end = len(chain) if _divisor(facts, reader, value) > 1 else end
    return chain[:end]


def _divisor(facts: Facts, op: Op, value: int) -> float:
    """The largest number by which an operator divides a value, or by whose inverse it multiplies it, if a constant; 0
    where there is none."""
    if not facts.traits.has(op.role, "scalings") or len(op.inputs) != 2:
        return 0.0
    index = op.inputs.index(value)
    low, high = sorted(map(abs, facts.values.of(op.inputs[1 - index])[:2]))
    if facts.traits.has(op.role, "divides"):
        return high if index == 0 and high < math.inf else 0.0
    return 1 / low if low else 0.0


def _with_all_before(facts: Facts, found: Raw, sinks: list[Op]) -> list[Op]:
    """The found operators that are ``sinks`` or lead to them."""
    values = [v for op in sinks for v in op.outputs]
    before = upstream(facts.flow, values, lambda op: op.inputs if op.id in found.ops else (), facts.crossings.origins)
    return [op for op in before if op.id in found.ops]


DEPTH = 8  # operators looked back
READ = 1 << 22  # elements of a stored tensor that are read


@looks(
    "positions",
    "periodic",
    "softmaxes",
    trigger="positions into sine and cosine; scores with positions added, as ALiBi does, before a softmax",
    action="float32 for what computes the angles, products included, or for the softmax and the additions before it",
)
def positions(sight: Sight, op: Op) -> Spoilt:
    """Of a sine or cosine what computes its angles, since a step of float16 above 2048 is 2 rad; of a softmax the
    additions of positions before it. The text and the operators that are spoilt, None for none.

    A sine or cosine has slots: no rule is asked of others.
    """
    dtype = sight.facts.options.dtype
    if sight.facts.traits.has(op.role, "periodic"):
        return f"angles of {op.kind} lose their period in {dtype}", sight.of(Angles).of_op[op.id]
    ops = _scores_with_positions(sight.facts, op)
    text = f"{op.kind} reads scores with positions added: {dtype} loses the differences of large ones"
    return (text, ops) if ops else None


class Angles:
    """What computes the angles of a model."""

    def __init__(self, sight: Sight) -> None:
        self.facts, self.regions = sight.facts, sight.regions
        self.raw: Raw = sight.of(raw)

    @cached_property
    def of_op(self) -> Mapping[int, list[Op]]:
        """Periodic operator -> it and the operators that compute its angles, products included, but for those found
        before."""
        facts, flow, seen = self.facts, self.facts.flow, set[int]()
        found: dict[int, list[Op]] = {}

        def computes(op: Op) -> bool:
            return bool(op.slots) and op.id not in seen and op.id not in self.activations

        def further(op: Op) -> list[int]:
            begins = facts.traits.has(op.role, "conversions") and flow.values[op.inputs[0]].dtype != FLOAT32
            return op.inputs if computes(op) and not begins else []

        for op in (op for op in flow.with_roles(facts.traits.operators("periodic")) if op.slots):
            seen.add(op.id)
            before = list(upstream(flow, op.inputs, further, facts.crossings.origins))
            found[op.id] = [op, *filter(computes, before)]
            seen.update(one.id for one in found[op.id])
        return found

    @cached_property
    def activations(self) -> Collection[int]:
        """Operators that see data, not positions: behind a product or norm of data. A product with a scaled input
        (Fourier features) does not count."""
        flow, found, seen, angles = self.facts.flow, set[int](), set[int](), set[int]()
        for op in flow.ops:
            cls = self.regions.classes[op.id]
            raw = op.id in self.raw.products or (any(v in angles for v in op.inputs) and self._keeps_angles(op))
            product = cls == "allow" and not raw and not _from_integers(self.facts.flow, self.facts.crossings, op)
            bent = not raw and any(v in angles for v in op.inputs)
            known = angles if raw else seen
            if raw or product or bent or cls == "fp32" or any(v in seen for v in op.inputs):
                found |= set[int]() if raw else {op.id}
                for value in op.outputs:
                    known |= self.facts.crossings.copies(value)
        return found

    def _keeps_angles(self, op: Op) -> bool:
        """Rule on angles: whether an operator moves an angle, or multiplies or shifts it by constants."""
        flow, traits = self.facts.flow, self.facts.traits
        weights = [v for v in op.inputs if v != NONE and flow.values[v].weight]
        return op.role in traits.operators("moves", "conversions", "joins") or (
            traits.has(op.role, "affine") and len(weights) == len(op.inputs) - 1
        )


def _scores_with_positions(facts: Facts, softmax: Op) -> list[Op]:
    """A softmax and the additions before it, where one of them adds what a prefix sum counted, or stored numbers that
    reach a quarter of where the type stops counting; empty elsewhere."""
    held, work, far = {softmax.id: softmax}, [(softmax.inputs[0], DEPTH)], list[Op]()
    traits, found = facts.traits, False
    while work:
        value, left = work.pop()
        for origin in facts.crossings.origins(value):
            op = facts.flow.writer(origin)
            if op is None or not left or op.id in held:
                continue
            if traits.has(op.role, "additions"):
                held[op.id] = op
                ways = [way for v in op.inputs if (way := _way_of_positions(facts, v, DEPTH)) is not None]
                found |= bool(ways)
                far += [other for way in ways for other in way]
                work += [(v, left - 1) for v in op.inputs]
            elif op.role in traits.operators("moves", "conversions", "joins"):
                held[op.id] = op
                work += [(v, left - 1) for v in op.inputs if v != NONE]
    return [op for op in {**held, **{op.id: op for op in far}}.values() if op.slots] if found else []


def _way_of_positions(facts: Facts, value: int, left: int) -> list[Op] | None:
    """What scales and moves positions to a value; None where it holds none."""
    flow, traits = facts.flow, facts.traits
    if flow.values[value].weight:
        array = flow.weights.array(flow.values[value], limit=READ)
        if array is None or array.dtype.kind != "f":
            return None
        largest = float(array[np.isfinite(array)].max(initial=0.0))  # below zero are masks: positions count upwards
        return [] if largest >= facts.low.exact_up_to / 4 else None
    op = flow.writer(value)
    if op is None or not left:
        return None
    if traits.has(op.role, "prefix_sums"):
        return [op]
    if op.role not in traits.operators("affine", "moves", "conversions"):
        return None
    ways = [way for v in op.inputs if v != NONE and (way := _way_of_positions(facts, v, left - 1)) is not None]
    return [op, *(other for way in ways for other in way)] if ways else None


def _from_integers(flow: Dataflow, crossings: Crossings, op: Op, depth: int = 0) -> bool:
    """Rule on positions: whether an operator sees only constants and integers made float, and no activations."""
    if depth > 12:
        return False
    for source in op.inputs:
        for value in crossings.origins(source) if source != NONE else ():
            item = flow.values[value]
            if item.weight or item.dtype != FLOAT32 or value in crossings.before:
                continue
            writer = flow.writer(value)
            if writer is None or not _from_integers(flow, crossings, writer, depth + 1):
                return False
    return True
