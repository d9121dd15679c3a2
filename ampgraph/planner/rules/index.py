"""Validity guard: index and length arithmetic in float. floor(8191 / 2) must stay 4095 at every level."""

from __future__ import annotations

from collections.abc import Collection

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.graph import LOW
from ...core.plan import Note, Why
from ...oplists.traits import Trait
from ..decisions import VALIDITY, Decisions, Hold, describe
from ..facts.facts import Facts
from ..regions import Regions
from .rule import Findings, Ruling, Sight, runs

FLOATS = (FLOAT32, *LOW)
SINKS: tuple[Trait, ...] = ("compares", "conversions", "lengths", "scales")
"""What makes something of a float that must be exact."""


@runs(
    "index",
    trigger="index and length arithmetic in float: what an integer, a size or a comparison of integers is made of",
    action="float32 for it: floor(8191 / 2) stays 4095",
    levels="every",
    validity=True,
)
def index_arithmetic(sight: Sight, decided: Decisions) -> Findings:
    facts, regions = sight.facts, sight.regions
    flow, traits = facts.flow, facts.traits
    counted = _integer_valued(facts)
    upstream = _Upstream(facts, regions)
    found = []
    sinks = frozenset().union(*(traits.operators(trait) for trait in SINKS))
    for op in flow.with_roles(sinks):
        sink = _sink(facts, op, counted)
        if sink is None:
            continue
        text, values = sink
        why = Why("index", f"{text} '{describe(flow, op)}'")
        own = Hold(tuple(op.slots.values()), VALIDITY, why)
        holds = upstream.holds(values, why) + ([own] if traits.has(op.role, "compares") else [])
        silent = [own] if traits.has(op.role, "conversions") else []
        note = Note("index", describe(flow, op), "of index arithmetic stay float32")
        found.append(Ruling(holds, note, counted=True, silent=silent))
    return Findings(found, counted=frozenset(counted))


def _sink(facts: Facts, op: Op, counted: Collection[int]) -> tuple[str, list[int]] | None:
    """What an operator makes of a float that must be exact, and the float inputs concerned."""
    values, traits = facts.flow.values, facts.traits
    if traits.has(op.role, "conversions") and op.slots and values[op.outputs[0]].dtype.startswith(("int", "uint")):
        return "an integer is computed from it in", [op.inputs[0]]
    if traits.has(op.role, "scales"):
        places = [i for i in traits.positions(op.role, "scales") if i < len(op.inputs)]
        return "a size is computed from it in", [op.inputs[i] for i in places[-1:] if op.inputs[i] != NONE]
    if op.slots and traits.has(op.role, "lengths"):
        places = [i for i in traits.positions(op.role, "lengths") if i < len(op.inputs)]
        return "a length is computed from it in", [op.inputs[i] for i in places]
    if traits.has(op.role, "compares") and any(v in counted for v in op.inputs):
        return "integers are compared in", list(op.inputs)
    return None


def _integer_valued(facts: Facts) -> set[int]:
    """Floats that are integers in disguise, low ones of the file too: a Cast of integers, what moves or adds them."""
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
            found |= facts.borders.copies(op.outputs[0])
    return found


class _Upstream:
    """The elementwise arithmetic behind values, back to products, norms and bounded functions; each node once."""

    def __init__(self, facts: Facts, regions: Regions) -> None:
        self.facts, self.classes = facts, regions.classes
        self.seen: set[int] = set()  # what an earlier sink has held already

    def holds(self, values: list[int], why: Why) -> list[Hold]:
        flow, before, holds = self.facts.flow, self.facts.borders.before, []
        work = [v for v in values if v != NONE]
        while work:
            value = work.pop()
            item = flow.values[value]
            if value in self.seen or item.dtype != FLOAT32:
                continue
            self.seen.add(value)
            if value in before:  # made in a body, or by a caller
                holds += [Hold((item.unit,), VALIDITY, why)] if item.unit != NONE else []
                work += before[value]
                continue
            op = flow.writer(value)
            if op is None or self._ends(op):
                continue
            holds.append(Hold(tuple(op.slots.values()), VALIDITY, why))
            if not self._starts(op):
                work += [v for v in op.inputs if v != NONE]
        return holds

    def _ends(self, op: Op) -> bool:
        products = self.classes[op.id] in ("white", "kept")
        return not op.slots or products or self.facts.traits.has(op.role, "bounded")

    def _starts(self, op: Op) -> bool:
        """Whether an operator makes floats of something else."""
        conversion = self.facts.traits.has(op.role, "conversions")
        return conversion and self.facts.flow.values[op.inputs[0]].dtype != FLOAT32
