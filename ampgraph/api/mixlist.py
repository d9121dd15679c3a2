"""CANN's list of operator types for its own mixed precision (ATC's --modify_mixlist), from the lists and levels here.

mixlist = build_mixlist("ampgraph", "auto")
mixlist.white                        # ('BatchMatMul', 'BatchMatMulV2', 'Conv2D', ...): may compute low
mixlist.black                        # ('Acos', 'Asin', ...): stay float32
write_mixlist(mixlist, "mixlist.json")
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ..core.errors import AmpError
from ..core.files import refuse_output, sources_of, text_file
from ..core.json_types import JsonObject
from ..oplists.files import data_folder, read_file
from ..oplists.kernels import load_kernels
from ..oplists.levels import Level, load_level
from ..oplists.mindspore_lists import load_mindspore_rules
from ..oplists.mindspore_schemas import Operator, operators
from ..oplists.operators import OpLists, load_op_lists

NAMES_FILE = "ascend_names.toml"
CAUTION = ("low", "cut", "float32")
"""What a level does with an operator, the most careful last: it wins where operators share an operator type."""

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
Verdict = Callable[[Operator], str]


@dataclass(frozen=True)
class Mixlist:
    """Operator types of Ascend's compiler by what a level does with them; what is in neither follows its neighbours."""

    policy: str
    level: str
    white: tuple[str, ...]
    black: tuple[str, ...]
    unnamed: tuple[str, ...]
    """MindSpore operators that would be in one of the lists, but whose operator type is not known."""

    def content(self) -> JsonObject:
        """The file's data. Only additions: to take out what a target's own list does not have is an error there."""
        return {"black-list": {"to-add": list(self.black)}, "white-list": {"to-add": list(self.white)}}

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.content(), indent=2) + "\n"

    def to_dict(self) -> JsonObject:
        """Plain data for a report."""
        return {
            "policy": self.policy,
            "level": self.level,
            "white": list(self.white),
            "black": list(self.black),
            "unnamed": list(self.unnamed),
        }


@cache
def ascend_names() -> Mapping[str, tuple[str, ...]]:
    """MindSpore operator -> its operator types on Ascend, sorted. Raises AmpError AMP901 for a mistake in our file."""
    file = read_file(data_folder() / "schemas" / NAMES_FILE)
    for name, types in file.data.items():
        if name not in operators():
            raise AmpError("AMP901", f"MindSpore has no operator '{name}'", where=file.where("", name))
        if not types or types != sorted(set(types)) or not all(_TYPE.fullmatch(one) for one in types):
            raise AmpError(
                "AMP901", f"the operator types of '{name}' are not a sorted list", where=file.where("", name)
            )
    return MappingProxyType({name: tuple(types) for name, types in file.data.items()})


def build_mixlist(policy: str, level: str, extra: Sequence[str | Path] = ()) -> Mixlist:
    """What a level of a policy makes low and what it keeps in float32, as Ascend's operator types.

    Files in ``extra`` are merged over the lists. Raises AmpError AMP301 to AMP303 for lists, levels and policies that
    do not exist, and for a level that no list of operators can say.
    """
    lists, chosen = load_op_lists(policy, extra), load_level(level, extra)
    if policy == "mindspore":
        if extra:
            hint = "leave --lists away, or take --policy ampgraph"
            raise AmpError("AMP303", "policy 'mindspore' goes by its own lists alone", hint=hint)
        verdict = _mindspore_verdict(lists, chosen)
    else:
        verdict = _listed_verdict(lists, chosen)
    decided: dict[str, str] = {}
    unnamed = []
    for name, operator in sorted(operators().items()):
        if operator.structural:
            continue
        answer = verdict(operator)
        if name in ascend_names():
            for one in ascend_names()[name]:
                decided[one] = max(answer, decided.get(one, answer), key=CAUTION.index)
        elif answer != "cut" and _is_listed(operator, policy, lists):
            unnamed.append(name)
    return Mixlist(
        policy=policy,
        level=chosen.name,
        white=tuple(sorted(one for one, answer in decided.items() if answer == "low")),
        black=tuple(sorted(one for one, answer in decided.items() if answer == "float32")),
        unnamed=tuple(unnamed),
    )


def _listed_verdict(lists: OpLists, level: Level) -> Verdict:
    """By the operator's role; one in no list stays float32, as it does in a converted file."""
    inside = load_kernels("ascend", "MindIR").float32_inside if level.float32_inside == "cut" else {}

    def verdict(operator: Operator) -> str:
        listing = lists.of(operator.kind)
        if listing is None:
            return "float32"
        if listing.cls in ("black", "kept") and operator.kind in inside:
            return "cut"
        return level.of(listing.cls)

    return verdict


def _mindspore_verdict(lists: OpLists, level: Level) -> Verdict:
    """MindSpore's own rules, as far as they go by operator. Raises AmpError AMP303 where they go by cell."""
    rules = load_mindspore_rules()
    if level.name in ("O2", "O3"):
        raise AmpError(
            "AMP303",
            f"level {level.name} of policy 'mindspore' goes by cells, which a list of operators cannot say",
            hint=f"convert the file itself with --policy mindspore --level {level.name}, or export level auto or O1",
        )
    if level.name == "auto":
        return lambda op: "low" if op.name in rules.auto_white else "float32" if op.name in rules.auto_black else "cut"
    if level.name != "O1":
        return lambda op: "float32"
    in_cells = frozenset().union(*rules.white_cells.values())

    def verdict(operator: Operator) -> str:
        if operator.name in rules.white_operators:
            return "low"
        if operator.name in in_cells:  # low in a white cell, float32 elsewhere: no list can say that
            return "cut"
        listing = lists.of(operator.kind)
        exact = listing is not None and listing.cls == "neutral"  # the same numbers in either type, so no casts for it
        return "cut" if exact else "float32"

    return verdict


def _is_listed(operator: Operator, policy: str, lists: OpLists) -> bool:
    """Whether somebody wrote the operator into a list: only then is a missing operator type worth a word."""
    if policy == "mindspore":
        rules = load_mindspore_rules()
        return operator.name in rules.white_operators | rules.auto_white | rules.auto_black
    return lists.of(operator.kind) is not None


def write_mixlist(mixlist: Mixlist, path: str | os.PathLike[str], sources: Sequence[str | Path] = ()) -> None:
    """Writes the file whole or not at all.

    Raises AmpError AMP105 where that cannot be done, AMP106 where ``path`` is one of ``sources``.
    """
    path = Path(path)
    refuse_output(path, sources_of(*sources), "-o")
    with text_file(path, mixlist.to_json, "-o"):
        pass


def mixlist_lines(mixlist: Mixlist, path: str) -> list[str]:
    """The report of ``export-mixlist``."""
    rows = [
        ("result", path),
        ("options", f"level {mixlist.level}, policy {mixlist.policy}"),
        ("white list", f"{len(mixlist.white)} operator types that may compute low"),
        ("black list", f"{len(mixlist.black)} operator types that stay float32"),
    ]
    if mixlist.unnamed:
        first = ", ".join(mixlist.unnamed[:3]) + (" ..." if len(mixlist.unnamed) > 3 else "")
        message = f"{len(mixlist.unnamed)} operators of MindSpore go to neither: no operator type is known ({first})"
        rows.append(("left out", message))
    return [f"{name:<11} {text}" for name, text in rows]
