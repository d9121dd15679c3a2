"""The lists in force as a table: operator, class, what the level does with it, why, and which line says so."""

from __future__ import annotations

import fnmatch
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import AmpError, nearest
from ..oplists import TARGETS, Level, OpLists, load_kernels
from ..oplists_validate import known_operators, plain


@dataclass(frozen=True, slots=True)
class ListRow:
    """One operator; an empty ``cls``: it is in no list and stays float32. ``inside``: targets whose kernel computes in
    float32 on low data, where that leaves the operator to the cut at this level."""

    operator: str
    cls: str
    at_level: str
    reason: str
    source: str
    float32_slots: dict[str, str]
    tied: tuple[tuple[str, ...], ...]
    inside: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "operator": self.operator,
            "class": self.cls,
            **{k: v for k, v in asdict(self).items() if k not in ("operator", "cls")},
        }


def list_rows(lists: OpLists, level: Level, wanted: str = "") -> list[ListRow]:
    """All operators, or those that a name or glob means. Raises AmpError AMP309 for an operator that nothing knows."""
    if not wanted:
        return [_row(lists, level, kind) for kind, _ in lists.items()]
    kind = plain(wanted)
    known = sorted({*lists.listings, *known_operators()})
    same = [k for k in known if k.lower() == kind.lower()]
    matched = [kind] if kind in known else same or [k for k in known if fnmatch.fnmatchcase(k, kind)]
    if not matched:
        raise AmpError(
            "AMP309",
            f"unknown operator '{wanted}'",
            hint=nearest(kind, known) or "operators are named like Conv or com.microsoft::Gelu",
        )
    return [_row(lists, level, kind) for kind in matched]


def _row(lists: OpLists, level: Level, kind: str) -> ListRow:
    listing = lists.of(kind)
    slots = dict(lists.float32_slots.get(kind, {}))
    tied = tuple(tuple(sorted(group)) for group in lists.tied.get(kind, ()))
    if listing is None:
        return ListRow(kind, "", "float32", "in no list", "", slots, tied, {})
    inside = {}
    if level.float32_inside == "cut" and listing.cls in ("black", "kept"):
        kernels = {target: load_kernels(target).float32_inside for target in TARGETS}
        inside = {target: reasons[kind] for target, reasons in kernels.items() if kind in reasons}
    return ListRow(kind, listing.cls, level.of(listing.cls), listing.reason, listing.source, slots, tied, inside)
