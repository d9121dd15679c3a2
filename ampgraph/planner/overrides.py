"""What the user's patterns, --fp32 and --low, ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.dataflow import Dataflow
from ..core.errors import Unmatched
from ..core.plan import Note, Why
from ..core.selection import matched_ops, unmatched_hint
from .decisions import HIGH, LOW, USER, Decisions, Verdict, Verdicts, describe
from .facts.facts import Facts
from .regions import Regions

Wish = tuple[Sequence[int], int, Why]
"""Units, the side that is asked for, and the pattern that asks for it."""


def read_overrides(facts: Facts, regions: Regions, tied: Decisions) -> Verdicts:
    """What the user's patterns ask for, in the order of the command line, then what an earlier conversion pinned.
    ``tied``: the decisions so far. Raises AmpError AMP305 for a pattern that matches nothing."""
    flow, options = facts.flow, facts.options
    wanted: list[Wish] = []
    notes: list[Note] = []
    for option, patterns, side in (("--fp32", options.fp32, HIGH), ("--low", options.low, LOW)):
        for pattern in patterns:
            why = Why("user", f"{option} {pattern}")
            matched = {op.id: units for op, units in matched_ops(flow, pattern)}
            if not matched:
                message = f"{option} {pattern} matches no float32 node"
                raise Unmatched("AMP305", message, hint=unmatched_hint(flow, pattern), word=pattern)
            wanted += [(units, side, why) for units in matched.values()]
            notes += _notes_on_regions(flow, regions, tied, f"{option} {pattern}", set(matched))
    wanted += _pinned_wishes(flow, options.pinned, tied, wanted.copy())
    return Verdicts([(unit, Verdict(side, USER, why)) for units, side, why in wanted for unit in units], notes)


def _pinned_wishes(flow: Dataflow, patterns: Sequence[str], tied: Decisions, wanted: Sequence[Wish]) -> Iterator[Wish]:
    """Yields wishes for what an earlier conversion pinned to float32, by ``patterns`` of the file's metadata, which may
    match nothing by now; without units that ``wanted``, the user's wishes, ask for in the low type."""
    low = {tied.find(unit) for units, side, _ in wanted if side == LOW for unit in units}
    for pattern in patterns:
        units = [unit for _, units in matched_ops(flow, pattern) for unit in units if tied.find(unit) not in low]
        yield units, HIGH, Why("user", f"--fp32 {pattern}, as the file says it was converted with")


def _notes_on_regions(
    flow: Dataflow, regions: Regions, tied: Decisions, text: str, matched: set[int]
) -> Iterator[Note]:
    """Yields a note for each region of which a pattern (``text``: its option and words) names some nodes (``matched``:
    their ids), as all of it is decided: which nodes came along."""
    together: dict[int, list[int]] = {}
    for op in regions.of_op:
        for root in tied.units_of(flow.ops[op]):
            together.setdefault(root, []).append(op)
    for members in together.values():
        hit = [op for op in members if op in matched]
        rest = [describe(flow, flow.ops[op]) for op in members if op not in matched]
        if hit and rest:
            kind, where = regions.of_op[hit[0]], describe(flow, flow.ops[hit[0]])
            names = ", ".join(rest[:4])
            if len(rest) > 4:
                names += f" and {len(rest) - 4} more"
            yield Note("pattern", where, f"{text} is part of a {kind} region and takes it whole: {names}")
