"""What is quantized stays as it is, and sums of integers stay float32 until they have been scaled."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Note, Why
from ...core.walk import upstream
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
    """A low sum of integers would overflow: their Cast is held, all up to the scaling, and the scale."""
    facts, found = sight.facts, list[Ruling]()
    why = Why("integer-sum", f"integers beyond {facts.options.dtype} until they are scaled")
    summed = _summed(facts)
    for op in facts.flow.with_roles(facts.traits.operators("conversions")):
        source = facts.flow.values[op.inputs[0]] if op.slots and op.inputs[0] != NONE else None
        if source is None or not source.dtype.startswith(("int", "uint")):
            continue
        reach = list(_until_scaled(facts, sight.regions, op))
        narrow = int(source.dtype.lstrip("uint") or 0) <= EXACT_BITS
        if source.id in summed or (not narrow and len(reach) == 1 and _shrinks(facts, reach[0])):
            holds = [Hold(tuple(op.slots.values()), VALIDITY, why)]
            holds += [Hold(tuple(o.slots.values()), ACCURACY, why) for o in (*reach, *_scales(facts, reach))]
            found.append(Ruling(holds, Note(why.rule, describe(facts.flow, op), why.text)))
    return Findings(found)


def _summed(facts: Facts) -> Collection[int]:
    """Integers that are sums of products, or made of such."""
    flow, traits, found = facts.flow, facts.traits, set[int]()
    for op in flow.ops if flow.with_roles(traits.operators("integer_products")) else ():
        carries = traits.has(op.role, "integer_arithmetic") and any(v in found for v in op.inputs)
        if carries or traits.has(op.role, "integer_products"):
            for value in op.outputs:
                if value != NONE and flow.values[value].dtype not in (FLOAT32, "bool"):
                    found |= facts.borders.copies(value)
    return found


def _until_scaled(facts: Facts, regions: Regions, op: Op) -> Iterator[Op]:
    """What reads a value, up to where it is multiplied or divided."""
    flow, seen, work = facts.flow, {op.id}, [op]
    while work:
        reads = (r for v in work.pop().outputs for copy in facts.borders.copies(v) for r in flow.readers(copy))
        for reader in reads:
            if reader.id in seen or not reader.slots or regions.classes[reader.id] not in ("gray", "neutral"):
                continue
            seen.add(reader.id)
            yield reader
            if not facts.traits.has(reader.role, "scalings"):
                work.append(reader)


def _shrinks(facts: Facts, op: Op) -> bool:
    """Whether an operator scales by a constant that tells large numbers."""
    if not facts.traits.has(op.role, "scalings"):
        return False
    factor = abs(next((n for v in reversed(op.inputs) if (n := facts.flow.scalar(v)) is not None), 0.0))
    return factor >= LARGE if facts.traits.has(op.role, "divides") else 0 < factor <= 1 / LARGE


def _scales(facts: Facts, reach: list[Op]) -> list[Op]:
    """What computes the scales: a product of two small numbers."""
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
    """A Cast among integers would undo a fused kernel."""
    facts, found = sight.facts, list[Ruling]()
    if not facts.flow.with_roles(facts.traits.operators("quantized")):
        return Findings()
    fused = _fused(facts, sight.regions)
    for ops, text in (
        (fused, "between DequantizeLinear and QuantizeLinear, where runtimes compute in integers"),
        (
            _among(facts, sight.regions, decided, {op.id for op in fused}),
            "no product beside it is low: among quantized operators it would only be cast",
        ),
    ):
        if ops:
            why = Why("quantized", text)
            note = Note(why.rule, describe(facts.flow, ops[0]), "left as they are: " + why.text)
            found.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops], note, counted=True))
    return Findings(found)


def _fused(facts: Facts, regions: Regions) -> list[Op]:
    """Operators that read and write integers in truth, with what makes their floats and reads them."""
    flow, traits, inside, island = facts.flow, facts.traits, _inside(facts, regions), set[int]()
    for op in reversed(flow.ops):  # readers first
        readers = (reader for value in op.outputs if value != NONE for reader in flow.readers(value))
        product = op.id in inside and op.id in regions.white
        carries = op.id in inside or traits.has(op.role, "dequantizes")
        if product or (carries and any(r.id in island or traits.has(r.role, "quantizes") for r in readers)):
            island.add(op.id)
    for op in flow.ops:
        if traits.has(op.role, "quantizes") and flow.values[op.inputs[0]].producer in island:
            island.add(op.id)
    return [op for op in flow.ops if op.id in island and op.slots]


def _inside(facts: Facts, regions: Regions) -> set[int]:
    """Operators all of whose floats were integers: dequantized, moved, or made by one of these."""
    flow, traits, inside, made = facts.flow, facts.traits, set[int](), set[int]()
    stored: dict[int, bool] = {}  # a value that is dequantized or moved from such -> whether it is a constant
    apart = traits.operators("control_flow") | traits.operators("quantizes")
    for op in flow.ops:
        floats = _floats(facts, op)
        if traits.has(op.role, "dequantizes"):
            stored.update(dict.fromkeys(op.outputs, flow.values[op.inputs[0]].weight))
            continue
        if not floats or not op.slots or op.role in apart or not all(v in stored or v in made for v in floats):
            continue
        dequantized, moved = [v for v in floats if v in stored], made.isdisjoint(floats)
        constant = moved and all(stored[v] for v in dequantized)
        if op.id in regions.white:
            if len(dequantized) < 2 or constant:
                continue
        elif traits.has(op.role, "moves") and dequantized and moved:
            stored.update(dict.fromkeys(op.outputs, constant))
        inside.add(op.id)
        made.update(op.outputs)
    return inside


def _among(facts: Facts, regions: Regions, decided: Decisions, fused: Collection[int]) -> list[Op]:
    """The others of a part of the floats, which integers separate, without a low product, where some is quantized."""
    flow, traits = facts.flow, facts.traits
    parents = list(range(len(flow.values)))

    def find(value: int) -> int:
        while parents[value] != value:
            parents[value] = value = parents[parents[value]]
        return value

    def parts(op: Op) -> set[int]:
        """Of what it reads and makes; a scale that is computed is no data."""
        read = _floats(facts, op)
        if traits.has(op.role, "quantizes") or traits.has(op.role, "dequantizes"):
            read = [v for v in read if v == op.inputs[0]]
        return {find(v) for v in (*read, *op.outputs) if v != NONE and flow.values[v].dtype == FLOAT32}

    def join(roots: set[int]) -> None:
        for root in roots:
            parents[root] = min(roots)

    separate = {op.id for op in flow.ops if op.id in fused or traits.has(op.role, "quantized")}
    for op in flow.ops:
        if op.id not in separate:
            join(parts(op))
    for source, target in flow.passed:
        if NONE not in (source, target):
            join({find(source), find(target)})
    low = (op for op in flow.ops if op.id in regions.white and op.id not in fused)
    low = (op for op in low if not op.slots or any(map(decided.is_low, op.slots.values())))
    loud = {part for op in low for part in parts(op)}
    beside = {part for op in flow.ops if op.id in separate for part in parts(op)}
    rest = (op for op in flow.ops if op.slots and op.id not in fused)
    return [op for op in rest if not beside.isdisjoint(parts(op)) and loud.isdisjoint(parts(op))]


def _floats(facts: Facts, op: Op) -> list[int]:
    """The computed float32 values that an operator reads."""
    values = facts.flow.values
    return [v for v in dict.fromkeys(op.inputs) if v != NONE and values[v].dtype == FLOAT32 and not values[v].weight]
