"""The lists in force as rows: operator, class, what the level does with it, why, and which line says so."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..core.errors import AmpError, nearest
from ..core.json_types import JsonObject
from .files import canonical_name, known_operators
from .kernels import TARGETS, load_kernels
from .levels import Level
from .operators import OpLists


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of `lists`: one operator; an empty ``cls``: it is in no list. ``float32_slots``: slot -> why it is always
    float32. ``inside``: target -> what its kernel computes in float32 on low data, where that leaves the operator to
    the cut at this level. ``asked``: the MindSpore name that was asked for. ``sort``: under policy mindspore, operator
    or cell. ``rule``: a framework's own rule, with its source."""

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
    """The rows of all listed operators, or of those that ``wanted`` means: a name in whatever case or domain, a glob,
    or MindSpore's name for one. Raises AmpError AMP309 for an operator that nothing knows."""
    if not wanted:
        return [_list_row(lists, level, kind) for kind, _ in lists.items()]
    kind = canonical_name(wanted)
    known = sorted({*lists.listings, *known_operators()})
    matches = (
        [name for name in known if name == kind],
        [name for name in known if name.lower() == kind.lower()],
        [name for name in known if name.rpartition("::")[2].lower() == kind.lower()],
        [name for name in known if fnmatch.fnmatchcase(name, kind)],
    )
    matched = next(filter(None, matches), [])
    if matched:
        return [_list_row(lists, level, name) for name in matched]
    own = mindspore_roles()
    names = [name for name in own if name.lower() == kind.removeprefix("mindspore::").lower()]
    if not names:
        hint = (
            nearest(kind, known) or nearest(kind, list(own)) or "operators are named like Conv or com.microsoft::Gelu"
        )
        raise AmpError("AMP309", f"unknown operator '{wanted}'", hint=hint)
    return [_list_row(lists, level, own[name], name) for name in names]


def mindspore_roles() -> Mapping[str, str]:
    """MindSpore's operators -> what the lists call them."""
    from .mindspore_schemas import operators

    return {name: operator.kind for name, operator in operators().items() if not operator.structural}


def _list_row(lists: OpLists, level: Level, kind: str, asked: str = "") -> ListRow:
    """A row of `lists`: what is in force for one operator. ``asked``: the name under which a user asked; "": this."""
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
    return ListRow(kind, listing.cls, at_level, listing.reason, listing.source, slots, tied, inside, asked, rule=rule)
