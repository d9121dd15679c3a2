"""What is quantized stays as it is, and sums of integers stay float32 until they have been scaled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cached_property

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Note, Why
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
    """A low sum of integers would overflow."""
    facts, sums = sight.facts, _IntegerSums(sight.facts, sight.regions)
    conversions = facts.flow.with_roles(facts.traits.operators("conversions"))
    return Findings([finding for op in conversions if (finding := sums.finding(op)) is not None])


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
    islands = _Islands(facts, sight.regions, decided)
    fused = Why("quantized", "between DequantizeLinear and QuantizeLinear, where runtimes compute in integers")
    among = Why("quantized", "no product beside it is low: among quantized operators it would only be cast")
    for ops, why in ((islands.fused, fused), (islands.among, among)):
        if ops:
            note = Note(why.rule, describe(facts.flow, ops[0]), "left as they are: " + why.text)
            found.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops], note, counted=True))
    return Findings(found)


class _IntegerSums:
    """Integers that are made float before they are scaled."""

    def __init__(self, facts: Facts, regions: Regions) -> None:
        self.facts, self.classes = facts, regions.classes

    @cached_property
    def summed(self) -> Collection[int]:
        """Integers that are sums of products, or made of such."""
        return _summed(self.facts)

    def finding(self, op: Op) -> Ruling | None:
        """What a Cast of such integers holds: itself, all up to the scaling, and the scale."""
        source = self.facts.flow.values[op.inputs[0]] if op.slots and op.inputs[0] != NONE else None
        if source is None or not source.dtype.startswith(("int", "uint")):
            return None
        why = Why("integer-sum", f"integers beyond {self.facts.options.dtype} until they are scaled")
        reach = list(self._until_scaled(op))
        if source.id not in self.summed:
            narrow = int(source.dtype.lstrip("uint") or 0) <= EXACT_BITS
            if narrow or len(reach) != 1 or not self._shrinks(reach[0]):
                return None
        holds = [Hold(tuple(op.slots.values()), VALIDITY, why)]
        holds += [Hold(tuple(other.slots.values()), ACCURACY, why) for other in (*reach, *self._scales(reach))]
        return Ruling(holds, Note(why.rule, describe(self.facts.flow, op), why.text))

    def _until_scaled(self, op: Op) -> Iterator[Op]:
        """What reads a value, up to where it is multiplied or divided."""
        flow, seen, work = self.facts.flow, {op.id}, [op]
        while work:
            reads = (r for v in work.pop().outputs for copy in self.facts.borders.copies(v) for r in flow.readers(copy))
            for reader in reads:
                if reader.id in seen or not reader.slots or self.classes[reader.id] not in ("gray", "neutral"):
                    continue
                seen.add(reader.id)
                yield reader
                if not self.facts.traits.has(reader.role, "scalings"):
                    work.append(reader)

    def _shrinks(self, op: Op) -> bool:
        """Whether an operator scales by a constant that tells large numbers."""
        flow, divides = self.facts.flow, self.facts.traits.has(op.role, "divides")
        if not self.facts.traits.has(op.role, "scalings"):
            return False
        factor = next((n for v in reversed(op.inputs) if (n := flow.scalar(v)) is not None), None)
        return factor is not None and (abs(factor) >= LARGE if divides else 0 < abs(factor) <= 1 / LARGE)

    def _scales(self, reach: list[Op]) -> Iterator[Op]:
        """What computes the scales: a product of two small numbers."""
        flow, traits = self.facts.flow, self.facts.traits
        seen = {op.id for op in reach}
        work = [v for op in reach if traits.has(op.role, "scalings") for v in op.inputs]
        while work:
            writer = flow.writer(work.pop())
            scale = writer is not None and (traits.has(writer.role, "scalings") or traits.has(writer.role, "reshapes"))
            if writer is not None and scale and writer.slots and writer.id not in seen:
                seen.add(writer.id)
                yield writer
                work += [v for v in writer.inputs if v != NONE]


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


class _Islands:
    """``fused``: operators that read and write integers in truth, with what makes their floats and reads them;
    ``among``: the others of a connected part without a low product, where some of it is quantized."""

    def __init__(self, facts: Facts, regions: Regions, decided: Decisions) -> None:
        self.facts, self.classes, self.decided = facts, regions.classes, decided
        self.flow, self.traits = facts.flow, facts.traits
        self._stored: dict[int, bool] = {}  # a value that is dequantized or moved from such -> whether it is a constant

    @cached_property
    def fused(self) -> list[Op]:
        """In the order of the model."""
        inside = self._inside()
        island: set[int] = set()
        for op in reversed(self.flow.ops):  # readers first
            if op.id in inside and self._is_product(op):
                island.add(op.id)
            elif op.id in inside or self.traits.has(op.role, "dequantizes"):
                island |= {op.id} if any(self._takes(reader, island) for reader in self._readers(op)) else set()
        for op in self.flow.ops:
            if self.traits.has(op.role, "quantizes") and (writer := self.flow.writer(op.inputs[0])) is not None:
                island |= {op.id} if writer.id in island else set()
        return [op for op in self.flow.ops if op.id in island and op.slots]

    @cached_property
    def among(self) -> list[Op]:
        """In the order of the model."""
        parts = _Parts(self)
        fused = {op.id for op in self.fused}
        return [op for op in self.flow.ops if op.slots and op.id not in fused and parts.is_quiet(op)]

    def floats(self, op: Op) -> list[int]:
        """The computed float32 values that an operator reads."""
        values = self.flow.values
        return [
            v for v in dict.fromkeys(op.inputs) if v != NONE and values[v].dtype == FLOAT32 and not values[v].weight
        ]

    def _inside(self) -> set[int]:
        """Operators all of whose floats were integers: dequantized, moved, or made by one of these."""
        inside, made = set[int](), set[int]()
        for op in self.flow.ops:
            floats = self.floats(op)
            if self.traits.has(op.role, "dequantizes"):
                data = self.flow.values[op.inputs[0]]
                self._stored.update(dict.fromkeys(op.outputs, data.weight))
            elif floats and op.slots and all(v in self._stored or v in made for v in floats):
                self._enter(op, floats, inside, made)
        return inside

    def _enter(self, op: Op, floats: list[int], inside: set[int], made: set[int]) -> None:
        if self.traits.has(op.role, "control_flow") or self.traits.has(op.role, "quantizes"):
            return
        dequantized = [v for v in floats if v in self._stored]
        constant = all(self._stored[v] for v in dequantized) and not any(v in made for v in floats)
        if self._is_product(op):
            if len(dequantized) < 2 or constant:
                return
        elif self.traits.has(op.role, "moves") and dequantized and not any(v in made for v in floats):
            self._stored.update(dict.fromkeys(op.outputs, constant))
        inside.add(op.id)
        made.update(op.outputs)

    def _is_product(self, op: Op) -> bool:
        return self.classes[op.id] == "white"

    def _takes(self, reader: Op, island: set[int]) -> bool:
        return reader.id in island or self.traits.has(reader.role, "quantizes")

    def _readers(self, op: Op) -> Iterator[Op]:
        return (reader for value in op.outputs if value != NONE for reader in self.flow.readers(value))


class _Parts:
    """The floats of a model, in parts that integers separate."""

    def __init__(self, islands: _Islands) -> None:
        self.islands, self.flow = islands, islands.flow
        self._parents = list(range(len(self.flow.values)))
        self._apart = {op.id for op in islands.fused}
        for op in self.flow.ops:
            if not self._separates(op):
                self._join(self._values(op))
        for source, target in self.flow.passed:
            if NONE not in (source, target):
                self._join([source, target])
        self._quantized = self._marked(self._separates)
        self._low = self._marked(self._is_low_product)

    def is_quiet(self, op: Op) -> bool:
        """Whether no float beside an operator is in a part with a low product, and some part of it is quantized."""
        roots = {self._find(v) for v in self._values(op)}
        return bool(roots & self._quantized) and not roots & self._low

    def _separates(self, op: Op) -> bool:
        return op.id in self._apart or self.islands.traits.has(op.role, "quantized")

    def _is_low_product(self, op: Op) -> bool:
        low = any(self.islands.decided.is_low(unit) for unit in op.slots.values()) or not op.slots
        return self.islands.classes[op.id] == "white" and low and op.id not in self._apart

    def _marked(self, holds: Callable[[Op], bool]) -> set[int]:
        return {self._find(v) for op in self.flow.ops if holds(op) for v in self._values(op)}

    def _values(self, op: Op) -> list[int]:
        """What it reads and makes; a scale that is computed is no data."""
        traits, read = self.islands.traits, self.islands.floats(op)
        if traits.has(op.role, "quantizes") or traits.has(op.role, "dequantizes"):
            read = [v for v in read if v == op.inputs[0]]
        return [*read, *(v for v in op.outputs if v != NONE and self.flow.values[v].dtype == FLOAT32)]

    def _join(self, values: list[int]) -> None:
        roots = {self._find(v) for v in values}
        for root in roots:
            self._parents[root] = min(roots)

    def _find(self, value: int) -> int:
        parents = self._parents
        while parents[value] != value:
            parents[value] = value = parents[parents[value]]
        return value
