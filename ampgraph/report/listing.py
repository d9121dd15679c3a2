"""The lists in force as a table: operator, class, what the level does with it, why, and which line says so."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..core.errors import AmpError, nearest
from ..core.json_types import JsonObject
from ..oplists.files import data_folder, plain, read_file
from ..oplists.kernels import TARGETS, load_kernels
from ..oplists.levels import Level
from ..oplists.operators import OpLists, load_op_lists
from ..oplists.schemas import known_operators


@dataclass(frozen=True, slots=True)
class ListRow:
    """One operator; an empty ``cls``: it is in no list and stays float32. ``inside``: targets whose kernel computes in
    float32 on low data, where that leaves the operator to the cut at this level. ``asked``: the MindSpore name that was
    asked for. ``sort``: under policy mindspore, operator or cell."""

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

    @property
    def title(self) -> str:
        """The name in a table."""
        return f"cell {self.operator}" if self.sort == "cell" else self.operator

    def to_dict(self) -> JsonObject:
        """Plain data for JSON; ``asked`` and ``sort`` only where they say something."""
        data = {k: v for k, v in asdict(self).items() if k not in ("operator", "cls", "asked", "sort")}
        extra = {k: v for k, v in (("asked", self.asked), ("sort", self.sort)) if v}
        return {"operator": self.operator, "class": self.cls, **data, **extra}


def listed(policy: str, level: Level, files: Sequence[str | Path], wanted: str = "") -> list[ListRow]:
    """The rows of a policy. Raises AmpError AMP301 or AMP303 for the lists and the policy, AMP309 for ``wanted``."""
    lists = load_op_lists(policy, files)
    return mindspore_rows(level, wanted) if policy == "mindspore" else list_rows(lists, level, wanted)


# -- policy ampgraph --------------------------------------------------------------------------------------------------


def list_rows(lists: OpLists, level: Level, wanted: str = "") -> list[ListRow]:
    """All operators, or those that a name or glob means; MindSpore's name for one means its role.

    Raises AmpError AMP309 for an operator that nothing knows.
    """
    if not wanted:
        return [_row(lists, level, kind) for kind, _ in lists.items()]
    kind = plain(wanted)
    known = sorted({*lists.listings, *known_operators()})
    same = [k for k in known if k.lower() == kind.lower()]
    matched = [kind] if kind in known else same or [k for k in known if fnmatch.fnmatchcase(k, kind)]
    if matched:
        return [_row(lists, level, kind) for kind in matched]
    own = _mindspore_roles()
    names = [name for name in own if name.lower() == kind.removeprefix("mindspore::").lower()]
    if not names:
        raise AmpError(
            "AMP309",
            f"unknown operator '{wanted}'",
            hint=nearest(kind, known)
            or nearest(kind, list(own))
            or "operators are named like Conv or com.microsoft::Gelu",
        )
    return [_row(lists, level, own[name], name) for name in names]


def _mindspore_roles() -> Mapping[str, str]:
    """MindSpore's operators -> what the lists call them."""
    from ..oplists.mindspore_schemas import operators

    return {name: operator.kind for name, operator in operators().items() if not operator.structural}


def _row(lists: OpLists, level: Level, kind: str, asked: str = "") -> ListRow:
    listing = lists.of(kind)
    slots = dict(lists.float32_slots.get(kind, {}))
    tied = tuple(tuple(sorted(group)) for group in lists.tied.get(kind, ()))
    if listing is None:
        return ListRow(kind, "", "float32", "in no list", "", slots, tied, {}, asked)
    inside = {}
    if level.float32_inside == "cut" and listing.cls in ("black", "kept"):
        kernels = {target: load_kernels(target).float32_inside for target in TARGETS["ONNX"]}
        inside = {target: reasons[kind] for target, reasons in kernels.items() if kind in reasons}
    at_level = level.of(listing.cls)
    return ListRow(kind, listing.cls, at_level, listing.reason, listing.source, slots, tied, inside, asked)


# -- policy mindspore -------------------------------------------------------------------------------------------------

WIDEST = "widest"
"""What ``promote`` does: the widest type of the operands."""

_RULES = {
    "O0": (),
    "O1": (
        ("O1.white_cells", "cell", "white", "low", "makes"),
        ("O1.helper_cells", "cell", "black", "float32", "what functions beside its class compute is not rewritten"),
        ("O1.white_operators", "operator", "white", "low", "its result is float32 again"),
        (
            "O1.python_operators",
            "operator",
            "black",
            "float32",
            "not rewritten where `construct` writes it as a Python operator",
        ),
    ),
    "O2": (("O2.black_cells", "cell", "black", "float32", "rounds what enters and leaves; makes"),),
    "O3": (),
    "auto": (
        ("follow.cells", "cell", "promote", "input's", "its scale and shift take the type of its input first"),
        ("auto.white", "operator", "white", "low", "computes low wherever it stands"),
        ("auto.black", "operator", "black", "float32", "computes in float32 wherever it stands"),
        ("auto.promote", "operator", "promote", WIDEST, "takes the widest type of its operands"),
    ),
}
_ELSE = {
    "O0": ("float32", "nothing changes at O0"),
    "O1": ("float32", "neither a white operator nor in a white cell"),
    "O2": ("low", "not in a black cell"),
    "O3": ("low", "nothing is kept in float32"),
    "auto": ("follows", "takes the types that come, float32 where they differ"),
}


def mindspore_rows(level: Level, wanted: str = "") -> list[ListRow]:
    """MindSpore's own rules at a level, cells first, or those for a name or glob.

    An operator without a rule of its own comes with the cells whose rule speaks of it. Raises AmpError AMP309 for a
    name that is neither an operator nor a cell of MindSpore's.
    """
    rows = _rule_rows(level.name)
    if not wanted:
        rest = "everything else" if rows else "everything"
        return [*rows, _rule_row(rest, "operator", "", *_ELSE[level.name])]
    known = {
        "cell": {row.operator for name in _RULES for row in _rule_rows(name) if row.sort == "cell"},
        "operator": set(_mindspore_roles()),
    }
    matched = [row for row in rows if _means(wanted, row.operator)]
    for sort, names in known.items():
        ruled = {row.operator for row in matched if row.sort == sort}
        for name in sorted(name for name in names - ruled if _means(wanted, name)):
            if sort == "operator":
                matched += [row for row in rows if row not in matched and name in _made(level.name, row.operator)]
            matched.append(_rule_row(name, sort, "", *_ELSE[level.name]))
    if not matched:
        raise AmpError(
            "AMP309", f"MindSpore has no operator or cell '{wanted}'", hint=_other_names(wanted, known["cell"])
        )
    return matched


def _means(wanted: str, name: str) -> bool:
    return name.lower() == wanted.lower() or fnmatch.fnmatchcase(name, wanted)


def _rule_row(name: str, sort: str, cls: str, at_level: str, reason: str, source: str = "") -> ListRow:
    return ListRow(name, cls, at_level, reason, source, {}, (), {}, sort=sort)


def _rule_rows(level: str) -> list[ListRow]:
    """Every rule of a level, with the line that says it."""
    file = read_file(data_folder() / "mindspore.toml")
    rows = []
    for place, sort, cls, at_level, reason in _RULES[level]:
        table, _, key = place.partition(".")
        entries: Mapping[str, list[str]] | list[str] = file.data[table][key]
        for name in entries:
            made = f" {', '.join(entries[name])}" if isinstance(entries, dict) else ""
            source = file.where(place, name) if made else file.where(table, key)
            rows.append(_rule_row(name, sort, cls, at_level, reason + made, source))
    return rows


def _made(level: str, cell: str) -> Iterable[str]:
    """The operators that a cell makes, where a level's rules go by cells."""
    data = read_file(data_folder() / "mindspore.toml").data
    made: dict[str, Mapping[str, list[str]]] = {"O1": data["O1"]["white_cells"], "O2": data["O2"]["black_cells"]}
    return made.get(level, {}).get(cell, ())


def _other_names(wanted: str, cells: Iterable[str]) -> str:
    """MindSpore's names for a standard operator, or whatever is near."""
    own = _mindspore_roles()
    names = [name for name, kind in own.items() if kind.lower() == plain(wanted).lower()]
    if names:
        return f"MindSpore's names for it: {', '.join(names)}"
    return nearest(wanted, [*own, *cells]) or "names are MindSpore's, such as Conv2D or Dense"
