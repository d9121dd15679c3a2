"""The report of `explain` as lines of text."""

from __future__ import annotations

from ..core.dataflow import FLOAT32
from .explain import Choice, Explanation, SlotReport
from .lines import in_rows

EXAMPLES = 3


def explanation_lines(*found: Explanation) -> list[str]:
    """The report of `explain`: one node in full, or a line each."""
    if len(found) == 1:
        return _in_full(found[0])
    rows = [(f"{one.kind} '{one.node}'", one.precision, _short(one)) for one in found]
    widths = [max(len(row[n]) for row in rows) for n in (0, 1)]
    return [f"{name:{widths[0]}}  {dtype:{widths[1]}}  {why}".rstrip() for name, dtype, why in rows]


def _short(found: Explanation) -> str:
    """Why, in a line: where slots differ, the first that is not low."""
    held = next((slot for slot in found.slots if slot.dtype == FLOAT32), next(iter(found.slots), None))
    return f"by {held.rule}: {held.reason}" if held else ""


def _in_full(found: Explanation) -> list[str]:
    rows = [
        ("node", f"{found.kind} '{found.node}' is {found.precision}"),
        ("options", f"level {found.level}, {found.dtype}, target {found.target}"),
    ]
    if found.scope:
        rows.append(("scope", found.scope))
    if found.layer:
        rows.append(("layer", found.layer))
    if found.listed:
        message = f"{found.listed}, {found.at_level} at {found.level}: {found.listed_reason}"
        rows.append(("list", f"{found.listed_at}: {message}"))
    else:
        rows.append(("list", f"{found.kind} is in no list"))
    if found.rule:
        rows.append(("rule", found.rule))
    if found.kernel:
        rows.append(("kernel", f"left to the cut, as on {found.target} it computes in float32: {found.kernel}"))
    if found.taken:
        rows.append(("kernel", f"left to the cut, as on {found.target} {found.taken} takes it into the product before"))
    if found.region:
        rows.append(("region", found.region))
    for slot in found.slots:
        rows += _slot_rows(slot, found.dtype)
    if not found.slots:
        rows.append(("", "nothing to decide: it has no float32 tensor"))
    if found.facts:
        rows.append(("given", ", ".join(f"'{name}' {dtype}" for name, dtype in found.facts)))
    return in_rows(rows)


def _slot_rows(slot: SlotReport, low: str) -> list[tuple[str, str]]:
    rows = [
        (f"slot {slot.slot}", f"{slot.dtype}, by {slot.rule}: {slot.reason}"),
        ("", f"holds {', '.join(repr(name) for name in slot.values) or 'no tensor'}"),
    ]
    if slot.shared:
        more = f" and {len(slot.shared) - EXAMPLES} more" if len(slot.shared) > EXAMPLES else ""
        rows.append(("", f"decided together with {', '.join(slot.shared[:EXAMPLES])}{more}"))
    if slot.cost:
        rows.append(("", "with the neighbours as they are:"))
        rows += [
            ("", f"  {name} costs {_cost(choice)}")
            for name, choice in ((low, slot.cost.low), (FLOAT32, slot.cost.float32))
        ]
    return rows


def _cost(choice: Choice) -> str:
    if choice.bytes is None:
        return "more than any cast: it is not possible here"
    message = [
        f"{what} {', '.join(map(repr, names))}"
        for what, names in (("casts", choice.casts), ("stores", choice.weights))
        if names
    ]
    return ", ".join([f"{choice.bytes:,} bytes", *message])
