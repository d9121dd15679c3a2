"""Range guard: what was measured to pass the limit of the low type stays float32, whatever list or level say.

Each value is judged by itself: its writer and its readers stay float32 in the slot that holds it, so that a product is
low unless one of its own tensors passes the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.dataflow import NONE
from ...core.plan import Note, Why
from ..decisions import RANGE, Hold
from ..facts.facts import Facts
from ..facts.measured import Passing
from ..findings import Findings, Ruling, Source
from ..stages import Settled, Weighed

VANISHING_LIMIT = 0.5  # of the elements that are not zero: above it a low value is named


@dataclass(frozen=True)
class Overflows(Findings):
    """Values that pass the limit: their writers and readers, and the writers as hazards."""


def guard_ranges(facts: Facts, passing: Passing, weighed: Weighed) -> Overflows:
    """Holds the writer and the readers of every value that passes the limit; the writer is a hazard to what follows."""
    flow = facts.flow
    found, sources = [], []
    for value, text in sorted(passing.items()):
        item, why = flow.values[value], Why("range", text)
        units = dict.fromkeys(u for u in (item.unit, *(use.unit for use in flow.uses[value])) if u != NONE)
        found.append(Ruling([Hold(tuple(units), RANGE, why)]))
        writer = flow.writer(value)
        if writer is not None and item.unit != NONE and weighed.would_be_high(item.unit, RANGE):
            sources.append(Source(writer.id, why, True))
    return Overflows(found, sources)


def report_ranges(facts: Facts, passing: Passing, settled: Settled) -> Iterator[Note]:
    """Values beyond the limit, those that are low by a stronger right, and values that vanish."""
    options, flow = facts.options, facts.flow
    if options.ranges is None:
        return
    for value, text in sorted(passing.items()):
        yield Note("range", flow.values[value].name, text)
        unit = flow.values[value].unit
        why = settled.why(unit) if settled.is_low(unit) else None
        if why is not None:
            yield Note("overflow", flow.values[value].name, f"{text} but is low: {why.text}")
    for value, held in facts.measured.ranges.items():
        share = held.vanishing(options.dtype) if settled.is_low(flow.values[value].unit) else 0.0
        if share > VANISHING_LIMIT:
            message = f"{100 * share:.3g} % of its elements flush to zero in {options.dtype}"
            yield Note("vanishing", flow.values[value].name, message)
