"""MindSpore's rules by operator, as far as they go by operator: what ``export-mixlist`` writes."""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import AmpError
from ...oplists.levels import Level
from ...oplists.mindspore_lists import load_mindspore_rules
from ...oplists.mindspore_schemas import Operator
from ...oplists.operators import OpLists
from .registry import Answer, ByOperator


def by_operator(lists: OpLists, level: Level) -> ByOperator:
    """What becomes of each operator. Raises AmpError AMP303 where MindSpore goes by cell."""
    rules = load_mindspore_rules()
    named = rules.white_operators | rules.auto_white | rules.auto_black
    at = _at(lists, level)
    return lambda operator: Answer(at(operator), operator.name in named)


def _at(lists: OpLists, level: Level) -> Callable[[Operator], str]:
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
