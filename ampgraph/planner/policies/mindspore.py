"""The policy ``mindspore``: what `mindspore.amp.auto_mixed_precision` does, from the float32 file alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping

from ...core.dataflow import Dataflow
from ...core.errors import AmpError, nearest
from ...oplists.files import canonical_name, data_folder, read_file
from ...oplists.framework_lists import OWN
from ...oplists.levels import Level
from ...oplists.mindspore_lists import load_mindspore_rules
from ...oplists.mindspore_schemas import Operator
from ...oplists.operators import OpLists
from ...oplists.options import Options
from ...oplists.rows import ListRow, mindspore_roles
from ..assemble import DecidedModel
from ..decisions import Ledger
from .forward import verdicts_of_types
from .mindspore_rules import LEVELS, notes
from .registry import Answer, ByOperator, Policy, register

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
"""Level -> (what becomes of what no rule speaks of, why)."""


def mindspore_rows(lists: OpLists, level: Level, wanted: str = "") -> list[ListRow]:
    """The policy MindSpore as rows of `lists`: its rules at a level, and what becomes of everything else. ``wanted``: a
    name or glob, of which the rows are then; "": all. A wanted operator without a rule of its own comes with the cells
    whose rule speaks of it. Raises AmpError AMP309 for a name that is neither an operator nor a cell of MindSpore's."""
    rows = _rule_rows(level.name)
    if not wanted:
        rest = "everything else" if rows else "everything"
        return [*rows, _rule_row(rest, "operator", "", *_ELSE[level.name])]
    known = {
        "cell": {row.operator for name in _RULES for row in _rule_rows(name) if row.sort == "cell"},
        "operator": set(mindspore_roles()),
    }
    matched = [row for row in rows if _matches_name(wanted, row.operator)]
    for sort, names in known.items():
        ruled = {row.operator for row in matched if row.sort == sort}
        for name in sorted(name for name in names - ruled if _matches_name(wanted, name)):
            for row in rows if sort == "operator" else ():
                if row not in matched and name in _made_by_cell(level.name, row.operator):
                    matched.append(row)
            matched.append(_rule_row(name, sort, "", *_ELSE[level.name]))
    if not matched:
        raise AmpError(
            "AMP309", f"MindSpore has no operator or cell '{wanted}'", hint=_hint_of_names(wanted, known["cell"])
        )
    return matched


def _matches_name(wanted: str, name: str) -> bool:
    """For rows of the policy MindSpore: whether ``wanted`` is a name, in whatever case, or a glob that matches it."""
    return name.lower() == wanted.lower() or fnmatch.fnmatchcase(name, wanted)


def _rule_row(name: str, sort: str, cls: str, at_level: str, reason: str, source: str = "") -> ListRow:
    """A row of the policy MindSpore in `lists`, of ``sort`` cell or operator, listed as ``cls``."""
    return ListRow(name, cls, at_level, reason, source, {}, (), {}, sort=sort)


def _rule_rows(level: str) -> list[ListRow]:
    """The rows of the policy MindSpore in `lists` for a level's rules, with the line that says each."""
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


def _made_by_cell(level: str, cell: str) -> Iterable[str]:
    """The operators that a cell of MindSpore's makes, where a level's rules (O1, O2) go by cells; empty elsewhere."""
    data = read_file(data_folder() / "mindspore.toml").data
    made: dict[str, Mapping[str, list[str]]] = {"O1": data["O1"]["white_cells"], "O2": data["O2"]["black_cells"]}
    return made.get(level, {}).get(cell, ())


def _hint_of_names(wanted: str, cells: Iterable[str]) -> str:
    """A hint where MindSpore has no name ``wanted``: its names for that standard operator, or whatever name is near."""
    own = mindspore_roles()
    names = [name for name, kind in own.items() if kind.lower() == canonical_name(wanted).lower()]
    if names:
        return f"MindSpore's names for it: {', '.join(names)}"
    return nearest(wanted, [*own, *cells]) or "names are MindSpore's, such as Conv2D or Dense"


def by_operator(lists: OpLists, level: Level) -> ByOperator:
    """For exported lists of the policy MindSpore: a function that says what becomes of an operator at a level. Raises
    AmpError AMP303 for a level that goes by cells."""
    rules = load_mindspore_rules()
    named = rules.white_operators | rules.auto_white | rules.auto_black
    at = _verdicts_at(lists, level)
    return lambda operator: Answer(at(operator), operator.name in named)


def _verdicts_at(lists: OpLists, level: Level) -> Callable[[Operator], str]:
    """For exported lists: a function that says what a level of MindSpore makes of an operator: ``low``, ``float32``, or
    ``cut`` where no list can say it. Raises AmpError AMP303 at O2 and O3, which go by cells."""
    rules = load_mindspore_rules()
    if level.name in ("O2", "O3"):
        raise AmpError(
            "AMP303",
            f"level {level.name} of policy 'mindspore' goes by cells, which a list of operators cannot say",
            hint=f"convert the file itself with --policy mindspore --level {level.name}, or export level auto or O1",
        )
    in_cells = frozenset().union(*rules.white_cells.values())

    def verdict(operator: Operator) -> str:
        if level.name == "O0":
            return "float32"
        if level.name == "auto":
            at = {**dict.fromkeys(rules.auto_black, "float32"), **dict.fromkeys(rules.auto_white, "low")}
            return at.get(operator.name, "cut")
        if operator.name in rules.white_operators:
            return "low"
        if operator.name in in_cells:  # low in a white cell, float32 elsewhere: no list can say that
            return "cut"
        listing = lists.entry(operator.kind)
        is_exact = listing is not None and listing.cls == "neutral"  # the same in either type, so no Casts for it
        return "cut" if is_exact else "float32"

    return verdict


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Decides every unit as MindSpore would type it, with the values that it rounds and widens again."""
    rules = LEVELS[options.level.name](flow, options)
    rules.settle()
    settled = Ledger(flow).take(verdicts_of_types(rules))
    return DecidedModel(flow, options, settled, roundings=rules.roundings(), notes=notes(rules))


register(
    Policy(
        name="mindspore",
        framework="MindSpore",
        rule=decide,
        levels={
            "O0": "off",
            "O1": "auto_mixed_precision O1: white cells and operators low",
            "O2": "auto_mixed_precision O2: all but norms low",
            "O3": "auto_mixed_precision O3: all low",
            "auto": "auto_mixed_precision auto: by operator",
        },
        default_level="O2",
        formats=("MindIR",),
        refusals={"ONNX": ("policy 'mindspore' goes by MindSpore's cells", "it is for .mindir files; omit --policy")},
        lists=lambda _: OWN,
        fixed="cannot change what MindSpore does",
        rows=mindspore_rows,
        by_operator=by_operator,
    )
)
