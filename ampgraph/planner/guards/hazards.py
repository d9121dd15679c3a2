"""What a hazard does downstream: it ties gray operators to float32 up to the next product, norm or bounded function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...core.dataflow import FLOAT32, NONE, Use
from ...core.plan import Why
from ..decisions import ACCURACY, RANGE, Hold, describe
from ..facts.facts import Facts
from ..findings import Findings, Ruling, Source
from ..regions import Regions


@dataclass(frozen=True)
class Hazards(Findings):
    """What reads a hazard, held."""


def spread_hazards(facts: Facts, regions: Regions, *found: Findings) -> Hazards:
    """Follows every source. A hazard of accuracy ties gray operators; one of range ties all but products, and what a
    bounded function or a norm reads."""
    flow, bounded = facts.flow, facts.traits.operators("bounded")
    seen: set[tuple[int, bool]] = set()
    holds: list[Hold] = []
    for source in (source for findings in found for source in findings.sources):
        if flow.ops[source.op].role in bounded:
            continue
        work = [source.op]
        why = _why(facts, source)
        rank = RANGE if source.of_range else ACCURACY
        while work:
            op = work.pop()
            if (op, source.of_range) in seen:
                continue
            seen.add((op, source.of_range))
            for use in _reads(facts, op):
                reader = flow.ops[use.op]
                cls = regions.classes[reader.id]
                ends = reader.role in bounded or cls in ("white", "kept", "")
                if cls != "white" if source.of_range else not ends and cls in ("gray", "black"):
                    holds.append(Hold(tuple(reader.slots.values()), rank, why))
                if not ends:
                    work.append(reader.id)
    return Hazards([Ruling(holds)])


def _why(facts: Facts, source: Source) -> Why:
    origin = describe(facts.flow, facts.flow.ops[source.op])
    return Why("hazard", f"reads what '{origin}' made in float32 ({source.why.text})")


def _reads(facts: Facts, op: int) -> Iterable[Use]:
    """Who reads the values that carry on from an operator, into and out of bodies as well; those that are low in the
    file too, which a cast back makes float32 again."""
    flow, low = facts.flow, facts.options.dtype
    for value in flow.ops[op].outputs:
        if flow.values[value].dtype not in (FLOAT32, low):
            continue
        for copy in facts.borders.copies(value):
            if flow.values[copy].dtype == low:
                yield from (use for use in flow.uses[copy] if use.op != NONE)
            elif flow.values[copy].unit != NONE:
                yield from (use for use in flow.uses[copy] if use.op != NONE and (use.unit != NONE or use.given_cast))
