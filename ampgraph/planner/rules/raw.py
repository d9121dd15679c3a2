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
    """What a model computes with its raw inputs before the first products. ``ops``: the ids of operators, no products,
    that read float32 only from inputs of the model, constants and one another; ``values``: these inputs, and what the
    operators make; ``products``: the ids of the products that read these, with their biases."""

    ops: set[int]
    values: set[int]
    products: set[int]


def find_raw(sight: Sight) -> Raw:
    """Follows the model's float32 inputs to the first products."""
    facts, regions = sight.facts, sight.regions
    flow, crossings = facts.flow, facts.crossings
    values = {value.id for value in flow.values if value.producer == NONE and _is_input(facts, value.id)}
    computed_constants = set[int]()
    constants = {NONE, *facts.stored}  # stored and computed ones
    values_or_products = set(values)
    ops, products = set[int](), set[int]()
    holders = {scope.op for scope in flow.scopes}  # calls, and nodes with bodies: what is inside computes

    def is_among(value: int, among: Collection[int]) -> bool:
        """Whether a value, or all that is passed to it across a boundary, is among some."""
        sources = crossings.before.get(value, ())
        return value in among or (len(sources) > 0 and all(v in among for v in sources))

    for op in flow.ops:
        if not crossings.before and values_or_products.isdisjoint(op.inputs) and not constants.issuperset(op.inputs):
            continue  # most of a model: neither before its first products nor made of constants
        data = [v for v in op.inputs if v not in constants and not is_among(v, computed_constants)]
        if not data:
            computed_constants.update(op.outputs)
            constants.update(op.outputs)
        elif regions.of_op.get(op.id) == "Bias" and any(flow.values[v].producer in products for v in data):
            products.add(op.id)
            values_or_products.update(op.outputs)
        elif all(is_among(v, values) or flow.values[v].dtype != FLOAT32 for v in data):
            if not any(is_among(v, values) for v in data) or not op.slots or op.id in holders:
                continue
            if regions.classes[op.id] == "allow":
                products.add(op.id)
                values_or_products.update(op.outputs)
            elif regions.classes[op.id]:
                ops.add(op.id)
                values.update(op.outputs)
                values_or_products.update(op.outputs)
    return Raw(ops, values, products)


def _is_input(facts: Facts, value: int) -> bool:
    """Rule `raw`: whether a value is an input of the main graph that comes in float32, or in float64."""
    flow = facts.flow
    item = flow.values[value]
    is_given = item.producer == NONE and not item.weight and item.dtype in (FLOAT32, "float64")
    return is_given and value not in facts.crossings.before and not flow.scopes[item.scope].path


@runs(
    "raw",
    trigger="arithmetic that adds, subtracts, bends or scales down by much the model's inputs before the first product",
    action="float32 for it, with all that lies before it, and for what scales it down behind",
)
def raw_inputs(sight: Sight, decided: Decisions) -> Findings:
    """Holds arithmetic on raw inputs up to its last scaling, where part of it needs digits that the low type lacks."""
    facts, regions, found = sight.facts, sight.regions, sight.compute_once(find_raw)
    ops = map(facts.flow.ops.__getitem__, sorted(found.ops))
    careful = {op for op in found.ops if regions.classes[op] in ("deny", "fp32")}

    def normalises(op: Op) -> bool:
        """Whether an operator divides its one raw operand by so much that this comes near the end of the low type."""
        values = found.values.intersection(op.inputs)
        return len(values) == 1 and _divisor(facts, op, *values) > facts.low.largest / 4

    # what may make a small number of large ones, or one in the range of one out of it
    sinks = [op for op in ops if op.id in careful or facts.traits.has(op.role, "cancels") or normalises(op)]
    if sinks:  # a Cast is for the products behind
        sinks = [op for op in sinks if op.id in facts.with_all_before(regions.allowed)]
    if not sinks:
        return Findings()
    dtype = facts.options.dtype
    why = Why("raw", f"computes with an input of the model before any product: {dtype} may not hold its digits")
    scaled = [one for op in sinks for one in _ops_to_last_scale(facts, found, op)]
    return Findings([ruling(facts, why, _ops_leading_to(facts, found, sinks + scaled), where=sinks[0])])


def _ops_to_last_scale(facts: Facts, found: Raw, op: Op) -> list[Op]:
    """Rule `raw`: the operators behind ``op`` that alone read, and move, shift or scale, its result, up to the last one
    that scales it down: a Cast behind that costs no more than one before. Empty where none scales it down."""
    chain, end = list[Op](), 0
    for value, reader in sole_readers(facts.flow, op, op.scope):
        if reader.id not in found.ops or not found.values.isdisjoint({*reader.inputs} - {value}):
            break
        if reader.role not in facts.traits.operators("affine", "moves", "conversions"):
            break
        chain.append(reader)
        if _divisor(facts, reader, value) > 1:
            end = len(chain)
    return chain[:end]


def _divisor(facts: Facts, op: Op, value: int) -> float:
    """Rule `raw`: the largest magnitude by which a Mul or Div divides an operand ``value``, as far as the other operand
    is known: the other's largest, or the inverse of a factor's smallest. 0 where it is not known, or not divided."""
    if not facts.traits.has(op.role, "scalings") or len(op.inputs) != 2:
        return 0.0
    index = op.inputs.index(value)
    low, high = sorted(map(abs, facts.values.interval(op.inputs[1 - index])[:2]))
    if facts.traits.has(op.role, "divides"):
        return high if index == 0 and high < math.inf else 0.0
    return 1 / low if low else 0.0


def _ops_leading_to(facts: Facts, found: Raw, sinks: list[Op]) -> list[Op]:
    """Rule `raw`: the operators that it found which are ``sinks`` or lead to them."""
    values = [v for op in sinks for v in op.outputs]
    before = upstream(facts.flow, values, lambda op: op.inputs if op.id in found.ops else (), facts.crossings.origins)
    return [op for op in before if op.id in found.ops]


DEPTH = 8  # operators looked back from a softmax, and from an addition before it
READ = 1 << 22  # elements of a stored tensor that are read


@looks(
    "positions",
    "periodic",
    "softmaxes",
    trigger="positions into sine and cosine; scores with positions added, as ALiBi does, before a softmax",
    action="float32 for what computes the angles, products included, or for the softmax and the additions before it",
)
def positions(sight: Sight, op: Op) -> Spoilt:
    """What positions spoil, with why; None for nothing. Of a sine or cosine the operators that compute its angles, as a
    step of float16 above 2048 is 2 rad; of a softmax the additions of positions before it, and itself."""
    dtype = sight.facts.options.dtype
    if sight.facts.traits.has(op.role, "periodic"):
        return f"angles of {op.kind} lose their period in {dtype}", sight.compute_once(Angles).of_op[op.id]
    ops = _scores_with_positions(sight.facts, op)
    text = f"{op.kind} reads scores with positions added: {dtype} loses the differences of large ones"
    return (text, ops) if ops else None


class Angles:
    """What computes the angles of a model's sines and cosines, as the rule on positions asks it."""

    def __init__(self, sight: Sight) -> None:
        self.facts, self.regions = sight.facts, sight.regions
        self.raw: Raw = sight.compute_once(find_raw)

    @cached_property
    def of_op(self) -> Mapping[int, list[Op]]:
        """Id of a sine or cosine -> itself and the operators that compute its angles, products included: back to
        activations and integers, and but for what an earlier sine or cosine has."""
        facts, flow, seen = self.facts, self.facts.flow, set[int]()
        found: dict[int, list[Op]] = {}

        def computes(op: Op) -> bool:
            return bool(op.slots) and op.id not in seen and op.id not in self.activations

        def further(op: Op) -> list[int]:
            is_first = facts.traits.has(op.role, "conversions") and flow.values[op.inputs[0]].dtype != FLOAT32
            return op.inputs if computes(op) and not is_first else []

        for op in flow.with_roles(facts.traits.operators("periodic")):
            if op.slots:
                seen.add(op.id)
                before = list(upstream(flow, op.inputs, further, facts.crossings.origins))
                found[op.id] = [op, *filter(computes, before)]
                seen.update(other.id for other in found[op.id])
        return found

    @cached_property
    def activations(self) -> Collection[int]:
        """The ids of operators that see data, not positions: norms, products, and all behind them. A product of a raw
        input (Fourier features) makes angles, which stay such as long as they are moved, scaled or shifted; one of
        nothing but integers and constants makes positions."""
        flow, crossings = self.facts.flow, self.facts.crossings
        found, seen, angles = set[int](), set[int](), set[int]()
        for op in flow.ops:
            cls, reads_angles = self.regions.classes[op.id], any(v in angles for v in op.inputs)
            if op.id in self.raw.products or (reads_angles and self._keeps_angles(op)):
                angles.update(copy for value in op.outputs for copy in crossings.copies(value))
                continue
            is_product = cls == "allow" and not _is_of_integers(flow, crossings, op)
            if is_product or reads_angles or cls == "fp32" or any(v in seen for v in op.inputs):
                found.add(op.id)
                seen.update(copy for value in op.outputs for copy in crossings.copies(value))
        return found

    def _keeps_angles(self, op: Op) -> bool:
        """Rule on positions: whether a reader of an angle moves it, or scales or shifts it by stored tensors."""
        flow, traits = self.facts.flow, self.facts.traits
        if op.role in traits.operators("moves", "conversions", "joins"):
            return True
        weights = [v for v in op.inputs if v != NONE and flow.values[v].weight]
        return traits.has(op.role, "affine") and len(weights) == len(op.inputs) - 1


def _scores_with_positions(facts: Facts, softmax: Op) -> list[Op]:
    """Rule on positions: a softmax, the additions and moves before it, at most `DEPTH` operators back, and what scales
    the positions, where an addition adds positions (`_chain_of_positions`); empty where none does."""
    before, work = {softmax.id: softmax}, [(softmax.inputs[0], DEPTH)]
    chains, traits = list[list[Op]](), facts.traits
    while work:
        value, left = work.pop()
        for origin in facts.crossings.origins(value):
            op = facts.flow.writer(origin)
            if op is None or not left or op.id in before:
                continue
            if traits.has(op.role, "additions"):
                before[op.id] = op
                added = [_chain_of_positions(facts, v, DEPTH) for v in op.inputs]
                chains += [chain for chain in added if chain is not None]
                work += [(v, left - 1) for v in op.inputs]
            elif op.role in traits.operators("moves", "conversions", "joins"):
                before[op.id] = op
                work += [(v, left - 1) for v in op.inputs if v != NONE]
    if not chains:
        return []
    before.update((op.id, op) for chain in chains for op in chain)
    return [op for op in before.values() if op.slots]


def _chain_of_positions(facts: Facts, value: int, left: int) -> list[Op] | None:
    """Rule on positions: the operators, at most ``left`` back, that count, scale and move positions to a value; None
    where it holds none. Positions are what a prefix sum counts, or stored numbers that reach a quarter of where the low
    type stops counting, for which the list is empty."""
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
    chains = [_chain_of_positions(facts, v, left - 1) for v in op.inputs if v != NONE]
    found = [chain for chain in chains if chain is not None]
    return [op, *(other for chain in found for other in chain)] if found else None


def _is_of_integers(flow: Dataflow, crossings: Crossings, op: Op, depth: int = 0) -> bool:
    """Rule on positions: whether an operator sees only constants and integers made float, and no activations. False
    where that is not known after 12 operators back; ``depth``: how many it is back from the first."""
    if depth > 12:
        return False
    for source in op.inputs:
        for value in crossings.origins(source) if source != NONE else ():
            item = flow.values[value]
            if item.weight or item.dtype != FLOAT32 or value in crossings.before:
                continue
            writer = flow.writer(value)
            if writer is None or not _is_of_integers(flow, crossings, writer, depth + 1):
                return False
    return True
