"""Guard: what is quantized stays as it is, and sums of integers stay float32 until they have been scaled."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Note, Why
from ..decisions import ACCURACY, VALIDITY, Hold, describe
from ..facts.facts import Facts
from ..findings import Findings, Ruling
from ..regions import Regions
from ..stages import Listed
from .islands import Islands

EXACT_BITS = 8  # integers of so many bits are exact in both low types
LARGE = 2048  # what is divided by so much is larger than float16 counts


@dataclass(frozen=True)
class Quantized(Findings):
    """Sums of integers with their scales, and what lies between quantized neighbours."""


def guard_integers(facts: Facts, regions: Regions, listed: Listed) -> Quantized:
    """Holds at every level: a low sum of integers would overflow, a Cast among integers would undo a fused kernel."""
    sums = _IntegerSums(facts, regions)
    conversions = facts.flow.with_roles(facts.traits.operators("conversions"))
    found = [finding for op in conversions if (finding := sums.finding(op)) is not None]
    if facts.flow.with_roles(facts.traits.operators("quantized")):
        found += _islands(facts, Islands(facts, regions, listed))
    return Quantized(found)


def _islands(facts: Facts, islands: Islands) -> list[Ruling]:
    """One finding for what runtimes fuse, one for what lies among it."""
    fused = Why("quantized", "between DequantizeLinear and QuantizeLinear, where runtimes compute in integers")
    among = Why("quantized", "no product beside it is low: among quantized operators it would only be cast")
    found = []
    for ops, why in ((islands.fused, fused), (islands.among, among)):
        if ops:
            note = Note(why.rule, describe(facts.flow, ops[0]), "left as they are: " + why.text)
            found.append(Ruling([Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops], note, counted=True))
    return found


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
