"""Probabilities before a logarithm: small ones count as much as large ones, and float16 ends at 6e-8, where log is -17.

log(softmax(x)), log(sigmoid(x) + 1e-7), log(1 - clip(p, 1e-7, 1 - 1e-7)): float32 from what makes the probability on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.dataflow import NONE, Op
from ..facts.facts import Facts
from ..regions import Regions

LEAST = 6.2e-5  # a floor above the smallest normal number of float16 leaves every digit there; bfloat16 has more room


@dataclass(frozen=True)
class Probabilities:
    """Looks for what makes probabilities, behind sums with constants, bounds and moves."""

    facts: Facts
    regions: Regions

    def behind(self, op: Op) -> list[Op]:
        """All that must be float32 for a logarithm of probabilities; empty where it is none, or has a floor."""
        flow, borders = self.facts.flow, self.facts.borders
        made: dict[int, Op] = {}
        between: dict[int, Op] = {}
        work = [op.inputs[0]]
        while work:
            for value in borders.origins(work.pop()):
                writer = flow.writer(value)
                if writer is None or writer.id in made or writer.id in between or not writer.slots:
                    continue
                if self._makes(writer):
                    made[writer.id] = writer
                elif self._passes_on(writer):
                    between[writer.id] = writer
                    work += [v for v in writer.inputs if v != NONE and not flow.values[v].weight]
        low = self.facts.options.dtype == "float16" or any(self.turns(one) for one in between.values())
        return [op, *between.values(), *made.values()] if made and low else []

    def _makes(self, op: Op) -> bool:
        kind = self.regions.of_op.get(op.id, op.role)
        return self.facts.traits.has(kind, "probabilities")

    def _passes_on(self, op: Op) -> bool:
        """Whether an operator shifts by a constant, bounds or moves, and sets no floor that is high enough."""
        flow, traits = self.facts.flow, self.facts.traits
        if any(traits.has(op.role, trait) for trait in ("moves", "joins", "conversions", "nothing_in_inference")):
            return True
        if not any(traits.has(op.role, trait) for trait in ("bounds", "extremes", "cancels")):
            return False
        stored = [v for v in op.inputs[:2] if v != NONE and flow.values[v].weight]
        floor = flow.scalar(stored[0]) if stored else flow.number(op, "min")
        raises = traits.has(op.role, "adds_epsilon") and not self.turns(op)
        alone = len([v for v in op.inputs[:2] if v != NONE]) - len(stored) == 1
        return alone and not (raises and isinstance(floor, (int, float)) and floor >= LEAST)

    def turns(self, op: Op) -> bool:
        """Whether an operator is 1 - p."""
        traits = self.facts.traits
        return traits.has(op.role, "cancels") and not traits.has(op.role, "additions")
