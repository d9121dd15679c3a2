"""CANN's list of operator types for its own mixed precision (ATC's --modify_mixlist), from the lists and levels here.

mixlist = build_mixlist("ampgraph", "auto")
mixlist.white                        # ('BatchMatMul', 'BatchMatMulV2', 'Conv2D', ...): may compute low
mixlist.black                        # ('Acos', 'Asin', ...): stay float32
write_mixlist(mixlist, "mixlist.json")
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ..core.arguments import check_annotated
from ..core.errors import AmpError
from ..core.files import refuse_output, sources_of, text_file
from ..core.recipe import Recipe, RecipeFields, Unpack
from ..oplists.files import data_folder, read_file
from ..oplists.kernels import load_kernels
from ..oplists.levels import Level
from ..oplists.mindspore_schemas import Operator, operators
from ..oplists.operators import OpLists
from ..planner.policies.registry import Answer, ByOperator
from ..planner.policies.registry import policy as policy_of
from ..planner.resolve import level_of, lists_of
from ..report.listing import Mixlist
from .keywords import recipe_for, takes_recipe
from .kinds import PathLike

NAMES_FILE = "ascend_names.toml"
CAUTION = ("low", "cut", "float32")
"""What a level does with an operator, the most careful last, which wins where operators share an operator type: it is
made low, is in neither list (CANN decides), or stays float32."""

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@cache
def ascend_names() -> Mapping[str, tuple[str, ...]]:
    """For `export-mixlist`: MindSpore operator -> its operator types on Ascend, sorted. Raises AmpError AMP901."""
    file = read_file(data_folder() / "schemas" / NAMES_FILE)
    for name, types in file.data.items():
        if name not in operators():
            raise AmpError("AMP901", f"MindSpore has no operator '{name}'", where=file.where("", name))
        if not types or types != sorted(set(types)) or not all(_TYPE.fullmatch(one) for one in types):
            raise AmpError(
                "AMP901", f"the operator types of '{name}' are not a sorted list", where=file.where("", name)
            )
    return MappingProxyType({name: tuple(types) for name, types in file.data.items()})


def build_mixlist(policy: str, level: str | None = None, extra: Sequence[str | Path] = ()) -> Mixlist:
    """What a level of a policy makes low and what it keeps in float32, as Ascend's operator types.

    ``level``: the policy's own if not given. Files in ``extra`` are merged over the lists. Raises AmpError AMP301 to
    AMP305 for lists, levels and policies that do not exist, and for a level that no list of operators can say."""
    recipe = Recipe.of(policy=policy, level=level, lists=extra)
    rules, lists = policy_of(policy), lists_of(recipe)
    chosen = level_of(recipe, lists)
    verdict = rules.by_operator(lists, chosen) if rules.by_operator else _listed_verdict(lists, chosen)
    decided: dict[str, str] = {}
    unnamed = []
    for name, operator in sorted(operators().items()):
        if operator.structural:
            continue
        answer = verdict(operator)
        if name in ascend_names():
            for one in ascend_names()[name]:
                decided[one] = max(answer.at, decided.get(one, answer.at), key=CAUTION.index)
        elif answer.at != "cut" and answer.listed:
            unnamed.append(name)
    return Mixlist(
        policy=policy,
        level=chosen.name,
        white=tuple(sorted(one for one, answer in decided.items() if answer == "low")),
        black=tuple(sorted(one for one, answer in decided.items() if answer == "float32")),
        unnamed=tuple(unnamed),
    )


def _listed_verdict(lists: OpLists, level: Level) -> ByOperator:
    """For `export-mixlist`: a function from an operator to what the ampgraph lists say of it at a level: ``low``,
    ``float32``, or ``cut`` for neither list, as for the kernels that compute in float32 inside at a level that trusts
    them."""
    inside = load_kernels("ascend", "MindIR").float32_inside

    def verdict(operator: Operator) -> Answer:
        listing = lists.entry(operator.kind)
        if listing is None:
            return Answer(_list_for(lists.unlisted(level)), listed=False)
        if level.trusts_kernels(listing.cls) and operator.kind in inside:
            return Answer("cut", listed=True)
        at = lists.at(listing.cls, level)
        if listing.cls == "deny" and at == "cut":  # at that level rules look at numbers too, which CANN does not
            at = "float32"
        return Answer(_list_for(at), listed=True)

    return verdict


def _list_for(at_level: str) -> str:
    """For `export-mixlist`: what a level does to a class, in the words of `CAUTION`; any other word means cut."""
    return at_level if at_level in CAUTION else "cut"


@takes_recipe
def export_mixlist(output: PathLike, *, recipe: Recipe | str | None = None, **fields: Unpack[RecipeFields]) -> Mixlist:
    """Writes the lists as CANN's modify_mixlist file, for its own mixed precision on Ascend.

    Args:
        output: where the list goes, whole or not at all.
        recipe: whose level, policy and lists count, or its short text.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: AMP105 where nothing can be written, AMP106 for one of the lists, and for names that are not known.
    """
    check_annotated(export_mixlist, locals())
    wanted = recipe_for(export_mixlist, recipe, fields)
    mixlist = build_mixlist(wanted.policy, wanted.level, wanted.lists)
    write_mixlist(mixlist, output, wanted.lists)
    return mixlist


def write_mixlist(mixlist: Mixlist, path: str | os.PathLike[str], sources: Sequence[str | Path] = ()) -> None:
    """For `export-mixlist`: writes its file, whole or not at all.

    Raises AmpError AMP105 where that cannot be done, AMP106 where ``path`` is one of ``sources``."""
    path = Path(path)
    refuse_output(path, sources_of(*sources), "-o")
    with text_file(path, mixlist.to_json, "-o"):
        pass
