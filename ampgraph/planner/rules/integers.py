"""Integers in float: index and length arithmetic, where floor(8191 / 2) must stay 4095 at every level; what is
quantized, which stays as it is; and sums of integers, float32 until they have been scaled."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...core.dataflow import FLOAT32, NONE, Op, Ties
from ...core.graph import LOW
from ...core.plan import Note, Why
from ...core.walk import carried_values, downstream, upstream
from ...oplists.traits import Trait
from ..decisions import ACCURACY, VALIDITY, Decisions, Hold, describe
from ..facts.facts import Facts
from ..regions import Regions
from .rule import Findings, Ruling, Sight, runs

EXACT_BITS = 8  # integers of so many bits are exact in both low types
LARGE = 2048  # what is divided by so much is larger than float16 counts


@runs(
    "integer-sum",
    trigger="sums of integers before they are scaled",
    action="float32 up to the scaling, with the scale",
    levels="every",
    validity=True,
)
def integer_sums(sight: Sight, decided: Decisions) -> Findings:
    """Holds, where integers that would overflow the low type become float, their Cast, all that reads it up to the
    scaling, and what computes the scale. That is sums of products, and wide integers that a large number scales."""
    facts, found = sight.facts, list[Ruling]()
    why = Why("integer-sum", f"integers beyond {facts.options.dtype} until they are scaled")
    summed = _sums_of_integers(facts)
    for op in facts.flow.with_roles(facts.traits.operators("conversions")):
        source = facts.flow.values[op.inputs[0]] if op.slots and op.inputs[0] != NONE else None
        if source is None or not source.dtype.startswith(("int", "uint")):
            continue
        reach = list(_readers_until_scaled(facts, sight.regions, op))
        narrow = int(source.dtype.lstrip("uint") or 0) <= EXACT_BITS
        if source.id in summed or (not narrow and len(reach) == 1 and _scales_large_numbers(facts, reach[0])):
            holds = [Hold(tuple(op.slots.values()), VALIDITY, why)]
            holds += [
                Hold(tuple(o.slots.values()), ACCURACY, why) for o in (*reach, *_ops_computing_scales(facts, reach))
            ]
            found.append(Ruling(holds, Note(why.rule, describe(facts.flow, op), why.text)))
    return Findings(found)


def _sums_of_integers(facts: Facts) -> Collection[int]:
    """Rule `integer-sum`: integer values that are sums of products, or made of such by integer arithmetic."""
    flow, traits = facts.flow, facts.traits
    made, carries = traits.operators("integer_products"), traits.operators("integer_arithmetic")

    def integers(value: int) -> Collection[int]:
        is_integer = value != NONE and flow.values[value].dtype not in (FLOAT32, "bool")
        return facts.crossings.copies(value) if is_integer else ()

    ops = flow.ops if flow.with_roles(made) else ()
    return carried_values(ops, lambda op: op.role in made, lambda op: op.role in carries, integers)


def _readers_until_scaled(facts: Facts, regions: Regions, op: Op) -> Iterator[Op]:
    """Rule `integer-sum`: the operators that read what ``op`` makes, and so on, each up to the one that multiplies or
    divides it; of classes that take the type of what they read alone."""

    def carries(reader: Op) -> bool:
        return bool(reader.slots) and regions.classes[reader.id] in ("infer", "neutral")

    def further(reader: Op) -> list[int]:
        return reader.outputs if carries(reader) and not facts.traits.has(reader.role, "scalings") else []

    uses = downstream(facts.flow, op.outputs, further, facts.crossings.copies)
    readers = dict.fromkeys(use.op for use in uses if use.op not in (NONE, op.id))
    return filter(carries, map(facts.flow.ops.__getitem__, readers))


def _scales_large_numbers(facts: Facts, op: Op) -> bool:
    """Rule `integer-sum`: whether an operator divides by a stored number of `LARGE` or more, or by its inverse."""
    if not facts.traits.has(op.role, "scalings"):
        return False
    stored = [number for v in reversed(op.inputs) if (number := facts.flow.scalar(v)) is not None]
    factor = abs(stored[0]) if stored else 0.0
    return factor >= LARGE if facts.traits.has(op.role, "divides") else 0 < factor <= 1 / LARGE


def _ops_computing_scales(facts: Facts, reach: list[Op]) -> list[Op]:
    """Rule `integer-sum`: the operators that compute the scales by which those of ``reach`` multiply."""
    scaling, reached = facts.traits.operators("scalings"), {op.id for op in reach}
    through = scaling | facts.traits.operators("reshapes")

    def read(op: Op) -> list[int]:
        return [v for v in op.inputs if v != NONE] if op.role in through and op.slots and op.id not in reached else []

    before = upstream(facts.flow, [v for op in reach if op.role in scaling for v in op.inputs], read)
    return [op for op in before if read(op)]


@runs(
    "quantized",
    trigger="what runtimes fuse between DequantizeLinear and QuantizeLinear, and floats among it beside no low product",
    action="left as it is",
    levels="every",
)
def quantized(sight: Sight, decided: Decisions) -> Findings:
    """Holds the float operators in a quantized part in float32: a Cast would undo a kernel that the runtime fuses."""
    facts, found = sight.facts, list[Ruling]()
    if not facts.flow.with_roles(facts.traits.operators("quantized")):
        return Findings()
    fused = _quantized_ops(facts, sight.regions)
    between = _ops_between_quantized(facts, sight.regions, decided, {op.id for op in fused})
    for ops, text in (
        (fused, "between DequantizeLinear and QuantizeLinear, where runtimes compute in integers"),
        (between, "no product beside it is low: among quantized operators it would only be cast"),
    ):
        if ops:
            why = Why("quantized", text)
            note = Note(why.rule, describe(facts.flow, ops[0]), "left as they are: " + why.text)
            found.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops], note, says_count=True))
    return Findings(found)


def _quantized_ops(facts: Facts, regions: Regions) -> list[Op]:
    """Rule `quantized`: the operators that a runtime computes in integers: products of dequantized operands, what leads
    from a DequantizeLinear to one of these or to a QuantizeLinear, and these two themselves."""
    flow, traits, inside, island = facts.flow, facts.traits, _computes_with_integers(facts, regions), set[int]()
    for op in reversed(flow.ops):  # readers first
        readers = [reader for value in op.outputs if value != NONE for reader in flow.readers(value)]
        is_read = any(reader.id in island or traits.has(reader.role, "quantizes") for reader in readers)
        is_product = op.id in inside and op.id in regions.allowed
        if is_product or (is_read and (op.id in inside or traits.has(op.role, "dequantizes"))):
            island.add(op.id)
    for op in flow.ops:
        if traits.has(op.role, "quantizes") and flow.values[op.inputs[0]].producer in island:
            island.add(op.id)
    return [op for op in flow.ops if op.id in island and op.slots]


def _computes_with_integers(facts: Facts, regions: Regions) -> set[int]:
    """Rule `quantized`: the ids of operators all of whose computed floats were integers: dequantized, moved from there,
    or made by such an operator. Of products only those of two dequantized operands, not both constants."""
    flow, traits, inside, made = facts.flow, facts.traits, set[int](), set[int]()
    stored: dict[int, bool] = {}  # a value that is dequantized or moved from such -> whether it is a constant
    never_inside = traits.operators("control_flow", "quantizes")
    for op in flow.ops:
        floats = _computed_floats(facts, op)
        if traits.has(op.role, "dequantizes"):
            stored.update(dict.fromkeys(op.outputs, flow.values[op.inputs[0]].weight))
            continue
        if not floats or not op.slots or op.role in never_inside or not all(v in stored or v in made for v in floats):
            continue
        dequantized, only_dequantized = [v for v in floats if v in stored], made.isdisjoint(floats)
        constant = only_dequantized and all(stored[v] for v in dequantized)
        if op.id in regions.allowed:
            if len(dequantized) < 2 or constant:
                continue
        elif traits.has(op.role, "moves") and only_dequantized:
            stored.update(dict.fromkeys(op.outputs, constant))
        inside.add(op.id)
        made.update(op.outputs)
    return inside


def _ops_between_quantized(facts: Facts, regions: Regions, decided: Decisions, fused: Collection[int]) -> list[Op]:
    """Rule `quantized`: float operators in a part of the model that has no low product and touches quantized operators
    (``fused``: ids of those that a runtime computes in integers), which separate it from the other parts."""
    flow, traits = facts.flow, facts.traits
    ties = Ties(range(len(flow.values)))

    def parts(op: Op) -> set[int]:
        """The parts, by representative, of the floats that an operator reads and makes; of its scales none."""
        read = _computed_floats(facts, op)
        if traits.has(op.role, "quantizes") or traits.has(op.role, "dequantizes"):
            read = [v for v in read if v == op.inputs[0]]
        return {ties.find(v) for v in (*read, *op.outputs) if v != NONE and flow.values[v].dtype == FLOAT32}

    separate = {op.id for op in flow.ops if op.id in fused or traits.has(op.role, "quantized")}
    for op in flow.ops:
        together = parts(op) if op.id not in separate else set()
        if together:
            ties.tie(together)
    for source, target in flow.passed:
        if NONE not in (source, target):
            ties.tie((source, target))
    products = [op for op in flow.ops if op.id in regions.allowed and op.id not in fused]
    low = [op for op in products if not op.slots or any(map(decided.is_low, op.slots.values()))]
    low_parts = {part for op in low for part in parts(op)}
    quantized_parts = {part for op in flow.ops if op.id in separate for part in parts(op)}
    rest = (op for op in flow.ops if op.slots and op.id not in fused)
    return [op for op in rest if not quantized_parts.isdisjoint(parts(op)) and low_parts.isdisjoint(parts(op))]


def _computed_floats(facts: Facts, op: Op) -> list[int]:
    """Rule `quantized`: the float32 values that an operator reads, each once, without stored tensors."""
    values = facts.flow.values
    return [v for v in dict.fromkeys(op.inputs) if v != NONE and values[v].dtype == FLOAT32 and not values[v].weight]


FLOATS = (FLOAT32, *LOW)
SINKS: tuple[Trait, ...] = ("compares", "conversions", "lengths", "scales")
"""Traits of operators that make something of a float which must be exact."""


@runs(
    "index",
    trigger="index and length arithmetic in float: what an integer, a size or a comparison of integers is made of",
    action="float32 for it: floor(8191 / 2) stays 4095",
    levels="every",
    validity=True,
)
def index_arithmetic(sight: Sight, decided: Decisions) -> Findings:
    """Holds everything of which a whole number, a size or a comparison of integers is made, and finds the float values
    that hold integers. A Cast to an integer is held too, but not counted in the note."""
    facts, regions = sight.facts, sight.regions
    flow, traits = facts.flow, facts.traits
    counted = _integer_valued(facts)
    seen, found = set[int](), list[Ruling]()
    sinks = frozenset().union(*(traits.operators(trait) for trait in SINKS))
    for op in flow.with_roles(sinks):
        sink = _exact_operands(facts, op, counted)
        if sink is None:
            continue
        text, values = sink
        why = Why("index", f"{text} '{describe(flow, op)}'")
        own = Hold(tuple(op.slots.values()), VALIDITY, why)
        holds = list(_holds_behind(facts, regions, values, why, seen))
        if traits.has(op.role, "compares"):
            holds.append(own)
        silent = [own] if traits.has(op.role, "conversions") else []
        note = Note("index", describe(flow, op), "of index arithmetic stay float32")
        found.append(Ruling(holds, note, says_count=True, silent=silent))
    return Findings(found, integer_valued=frozenset(counted))


def _exact_operands(facts: Facts, op: Op, counted: Collection[int]) -> tuple[str, list[int]] | None:
    """Rule `index`: what an operator makes of floats that must be exact (an integer, a size), in words, and these
    floats; None where it makes no such thing. ``counted``: float values that hold integers."""
    values, traits = facts.flow.values, facts.traits
    if traits.has(op.role, "conversions") and op.slots and values[op.outputs[0]].dtype.startswith(("int", "uint")):
        return "an integer is computed from it in", [op.inputs[0]]
    if traits.has(op.role, "scales"):
        read = [op.inputs[i] for i in traits.positions(op.role, "scales") if i < len(op.inputs)]
        return "a size is computed from it in", read[-1:]
    if op.slots and traits.has(op.role, "lengths"):
        read = [op.inputs[i] for i in traits.positions(op.role, "lengths") if i < len(op.inputs)]
        return "a length is computed from it in", read
    if traits.has(op.role, "compares") and any(v in counted for v in op.inputs):
        return "integers are compared in", list(op.inputs)
    return None


def _integer_valued(facts: Facts) -> set[int]:
    """Rule `index`: float values that hold integers: made by Casts of integers, or of such and stored numbers alone."""
    flow, found = facts.flow, set[int]()
    conversions, arithmetic = (facts.traits.operators(t) for t in ("conversions", "integer_arithmetic"))
    for op in flow.with_roles(conversions | arithmetic) if flow.with_roles(conversions) else ():
        if op.role in conversions:
            source, made = flow.values[op.inputs[0]], flow.values[op.outputs[0]].dtype in FLOATS
            integer = made and (source.dtype.startswith(("int", "uint")) or source.id in found)
        elif any(v in found for v in op.inputs):
            floats = [flow.values[v] for v in op.inputs if v != NONE and flow.values[v].dtype in FLOATS]
            integer = all(item.weight or item.id in found for item in floats)
        else:
            continue
        if integer:
            found |= facts.crossings.copies(op.outputs[0])
    return found


def _holds_behind(facts: Facts, regions: Regions, values: list[int], why: Why, seen: set[int]) -> Iterator[Hold]:
    """Rule `index`: holds of the operators that compute ``values``, back to products, norms and bounded functions, and
    of what is passed to bodies on the way. ``seen``: values that an earlier call has followed; it adds its own."""
    flow, crossings = facts.flow, facts.crossings

    def unseen_origins(value: int) -> set[int]:
        found = crossings.origins(value) - seen if flow.values[value].dtype == FLOAT32 else set[int]()
        seen.update(found)
        return found

    def is_exact(op: Op) -> bool:
        ends = regions.classes[op.id] in ("allow", "fp32") or facts.traits.has(op.role, "bounded")
        return bool(op.slots) and not ends

    known = set(seen)
    before = upstream(flow, values, lambda op: op.inputs if is_exact(op) else (), unseen_origins)
    yield from (Hold(tuple(op.slots.values()), VALIDITY, why) for op in before if is_exact(op))
    crossed = (flow.values[v].unit for v in sorted(seen - known) if v in crossings.before)  # in a body, or by a caller
    yield from (Hold((unit,), VALIDITY, why) for unit in crossed if unit != NONE)
