"""The lists in force as rows: operator, class, what the level does with it, why, and which line says so."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..core.errors import AmpError, nearest
from ..core.json_types import JsonObject
from .files import known_operators, plain
from .kernels import TARGETS, load_kernels
from .levels import Level
from .operators import OpLists


@dataclass(frozen=True, slots=True)
class ListRow:
    """One operator; an empty ``cls``: it is in no list and stays float32. ``inside``: targets whose kernel computes in
    float32 on low data, where that leaves the operator to the cut at this level. ``asked``: the MindSpore name that was
    asked for. ``sort``: under policy mindspore, operator or cell. ``rule``: a framework's own rule, with its source."""

    operator: str
    cls: str
    at_level: str
    reason: str
    source: str
    float32_slots: dict[str, str]
    tied: tuple[tuple[str, ...], ...]
    inside: dict[str, str]
    asked: str = ""
    sort: str = ""
    rule: str = ""

    @property
    def title(self) -> str:
        """The operator's name in a row of `lists`."""
        return f"cell {self.operator}" if self.sort == "cell" else self.operator

    def to_dict(self) -> JsonObject:
        """A row of `lists` as plain data for JSON; ``asked``, ``sort`` and ``rule`` only where they say something."""
        data = {k: v for k, v in asdict(self).items() if k not in ("operator", "cls", "asked", "sort", "rule")}
        extra = {k: v for k, v in (("asked", self.asked), ("sort", self.sort), ("rule", self.rule)) if v}
        return {"operator": self.operator, "class": self.cls, **data, **extra}


def list_rows(lists: OpLists, level: Level, wanted: str = "") -> list[ListRow]:
    """All operators, or those that a name or glob means; MindSpore's name for one means its role.

    Raises AmpError AMP309 for an operator that nothing knows.
    """
    if not wanted:
        return [_list_row(lists, level, kind) for kind, _ in lists.items()]
    kind = plain(wanted)
    known = sorted({*lists.listings, *known_operators()})
    same = [k for k in known if k.lower() == kind.lower()]
    same = same or [k for k in known if k.rpartition("::")[2].lower() == kind.lower()]
    matched = [kind] if kind in known else same or [k for k in known if fnmatch.fnmatchcase(k, kind)]
    if matched:
        return [_list_row(lists, level, kind) for kind in matched]
    own = mindspore_roles()
    names = [name for name in own if name.lower() == kind.removeprefix("mindspore::").lower()]
    if not names:
        raise AmpError(
            "AMP309",
            f"unknown operator '{wanted}'",
            hint=nearest(kind, known)
            or nearest(kind, list(own))
            or "operators are named like Conv or com.microsoft::Gelu",
        )
    return [_list_row(lists, level, own[name], name) for name in names]


def mindspore_roles() -> Mapping[str, str]:
    """MindSpore's operators -> what the lists call them."""
    from .mindspore_schemas import operators

    return {name: operator.kind for name, operator in operators().items() if not operator.structural}


def _list_row(lists: OpLists, level: Level, kind: str, asked: str = "") -> ListRow:
    """A row of `lists`, what is in force for one operator: class, level, reason, slots, kernels; ``asked``: the name
    under which a user asked."""
    listing = lists.entry(kind)
    slots = dict(lists.float32_slots.get(kind, {}))
    tied = tuple(tuple(sorted(group)) for group in lists.tied.get(kind, ()))
    if listing is None:
        return ListRow(kind, "", lists.unlisted(level), "in no list", "", slots, tied, {}, asked)
    inside = {}
    if level.trusts_kernels(listing.cls):
        kernels = {target: load_kernels(target).float32_inside for target in TARGETS["ONNX"]}
        inside = {target: reasons[kind] for target, reasons in kernels.items() if kind in reasons}
    at_level, rule = lists.at(listing.cls, level), lists.framework.meaning(listing.cls)
    said = listing.cls, at_level, listing.reason, listing.source
    return ListRow(kind, *said, slots, tied, inside, asked, rule=rule)
