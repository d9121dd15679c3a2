"""A recipe's words as what they name: the policy's level and list, the target's kernels."""

from __future__ import annotations

from ..core.plan import Plan
from ..core.recipe import Recipe
from ..oplists.kernels import load_kernels
from ..oplists.levels import Level, load_level
from ..oplists.operators import OpLists, load_op_lists
from ..oplists.options import DEFAULT_TARGETS, Options
from .order import check_rules
from .policies.registry import Setting, policy


def resolve(recipe: Recipe, model_format: str) -> Options:
    """A recipe with all that its words name, for models of a format; ranges are not read here.

    Raises AmpError AMP301 to AMP305 for a word that names nothing, or that has no meaning beside another.
    """
    chosen = policy(recipe.policy)
    chosen.check(recipe, model_format)
    check_rules(recipe.rule)
    target = DEFAULT_TARGETS[model_format] if recipe.target is None else recipe.target
    lists = lists_of(recipe, target)
    level = level_of(recipe, lists)
    return Options(
        recipe=recipe,
        level=level,
        lists=lists,
        kernels=load_kernels(target, model_format),
        target=target,
        store_weights=recipe.store_weights or chosen.stores.get(level.name, "keep"),
    )


def lists_of(recipe: Recipe, target: str | None = None) -> OpLists:
    """The lists of a recipe's policy. Raises AmpError AMP301 to AMP305 for lists, levels and policies that are none."""
    chosen = policy(recipe.policy)
    chosen.check(recipe)
    setting = Setting(chosen.level(recipe), recipe.dtype, target or recipe.target or DEFAULT_TARGETS["ONNX"])
    return load_op_lists(chosen.list_of(setting), recipe.lists)


def level_of(recipe: Recipe, lists: OpLists | None = None) -> Level:
    """The level of a recipe, its policy's where it says none."""
    lists = lists_of(recipe) if lists is None else lists
    return load_level(policy(recipe.policy).level(recipe), recipe.lists, lists.framework.names)


def lists_of_plan(plan: Plan) -> OpLists:
    """The lists of a plan's policy, without a user's. Raises AmpError AMP303 for a policy that is not there."""
    return load_op_lists(policy(plan.policy).list_of(Setting(plan.level, plan.dtype, plan.target)))
