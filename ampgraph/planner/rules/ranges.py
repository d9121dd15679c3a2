"""What was measured to pass the limit of the low type stays float32, whatever list or level say.

Each value is judged by itself: its writer and its readers stay float32 in the slot that holds it, so that a product is
low unless one of its own tensors passes the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...core.dataflow import FLOAT32, NONE, Use
from ...core.plan import Note, Why
from ..decisions import ACCURACY, HIGH, RANGE, Decisions, Hold, Source, describe
from ..facts.facts import Facts
from ..facts.measured import VANISHING_LIMIT
from .rule import Findings, Ruling, Sight, runs


def report_ranges(facts: Facts, found: Findings, settled: Decisions) -> Iterator[Note]:
    """Yields notes on values that were measured beyond the limit, on those of them that are low by a stronger right,
    and on low values of which most elements become zero."""
    options, flow = facts.options, facts.flow
    if options.ranges is None:
        return
    for value, text in sorted(facts.passing.items()):
        yield Note("range", flow.values[value].name, text)
        unit = flow.values[value].unit
        why = settled.why(unit) if settled.is_low(unit) else None
        if why is not None:
            yield Note("overflow", flow.values[value].name, f"{text} but is low: {why.text}")
    for value, held in facts.measured.ranges.items():
        share = held.vanishing_share(options.dtype) if settled.is_low(flow.values[value].unit) else 0.0
        if share > VANISHING_LIMIT:
            message = f"{100 * share:.3g} % of its elements become zero in {options.dtype}"
            yield Note("vanishing", flow.values[value].name, message)


@runs(
    "range",
    trigger="a value that was measured to pass the limit of the low type, with a margin, or is coarse before a softmax",
    action="float32 for its writer and its readers, in the slot that holds it",
    levels="every",
    report=report_ranges,
)
def measured_overflows(sight: Sight, decided: Decisions) -> Findings:
    """Holds the slot of each value that leaves the range, on both sides, and marks its writer as a source of taint."""
    flow = sight.facts.flow
    found, sources = [], []
    for value, text in sorted(sight.facts.passing.items()):
        item, why = flow.values[value], Why("range", text)
        units = dict.fromkeys((item.unit, *(use.unit for use in flow.uses[value])))
        found.append(Ruling([Hold(tuple(unit for unit in units if unit != NONE), RANGE, why)]))
        writer = flow.writer(value)
        root = decided.find(item.unit) if item.unit != NONE else NONE
        if writer is not None and root != NONE and (decided.sides[root] == HIGH or decided.ranks[root] <= RANGE):
            sources.append(Source(writer.id, why, True))
    return Findings(found, sources)


@runs(
    "taint",
    trigger="an operator that reads what a guard pinned to float32, or what passes the limit",
    action="float32 for operators of class `infer` or `deny` up to the next product, norm or bounded function; behind "
    "what passes the limit, for all but products",
    levels="every",
)
def taint(sight: Sight, decided: Decisions) -> Findings:
    """Holds what reads a source of taint, operator after operator, up to products, norms and bounded functions: of
    sources that leave the range all but products, of others the classes infer and deny."""
    facts = sight.facts
    flow, bounded = facts.flow, facts.traits.operators("bounded")
    seen: set[tuple[int, bool]] = set()
    holds: list[Hold] = []
    for source in decided.sources:
        if flow.ops[source.op].role in bounded:
            continue
        work = [source.op]
        name = describe(flow, flow.ops[source.op])
        why = Why("taint", f"reads what '{name}' made in float32 ({source.why.text})", name)
        rank = RANGE if source.of_range else ACCURACY
        while work:
            op = work.pop()
            if (op, source.of_range) in seen:
                continue
            seen.add((op, source.of_range))
            for use in _uses_of_results(facts, op):
                reader = flow.ops[use.op]
                cls = sight.regions.classes[reader.id]
                inner = reader.id in sight.regions.shared
                ends = not inner and (reader.role in bounded or cls in ("allow", "fp32", ""))
                held = cls != "allow" if source.of_range else not ends and cls in ("infer", "deny")
                if held:
                    holds.append(Hold(tuple(reader.slots.values()), rank, why))
                if not ends:
                    work.append(reader.id)
    return Findings([Ruling(holds)])


def _uses_of_results(facts: Facts, op: int) -> Iterable[Use]:
    """Rule `taint`: yields the reads of an operator's results (``op``: its id), into and out of bodies as well: of
    float32 ones, and of those that are low in the file, which a Cast may make float32 again."""
    flow, low = facts.flow, facts.options.dtype
    for value in flow.ops[op].outputs:
        if flow.values[value].dtype not in (FLOAT32, low):
            continue
        for copy in facts.crossings.copies(value):
            if flow.values[copy].dtype == low:
                yield from (use for use in flow.uses[copy] if use.op != NONE)
            elif flow.values[copy].unit != NONE:
                yield from (use for use in flow.uses[copy] if use.op != NONE and (use.unit != NONE or use.given_cast))
