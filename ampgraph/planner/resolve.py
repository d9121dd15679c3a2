"""A recipe's words as what they name: the policy's level and list, the target's kernels."""

from __future__ import annotations

from dataclasses import replace

from ..core.annotations import target_in
from ..core.errors import AmpError
from ..core.graph import LOW, DescribedGraph, Graph
from ..core.plan import Plan
from ..core.recipe import Recipe
from ..oplists.kernels import TARGETS, load_kernels
from ..oplists.levels import Level, load_level
from ..oplists.operators import OpLists, load_op_lists
from ..oplists.options import DEFAULT_TARGETS, Options
from .order import check_rules
from .policies.registry import Setting, policy


def resolve(recipe: Recipe, model_format: str) -> Options:
    """The options of a recipe: all that its words name, for models of a format; ranges are not read here. Raises
    AmpError AMP301 to AMP305 for a word that names nothing, or that has no meaning beside another."""
    target = DEFAULT_TARGETS[model_format] if recipe.target is None else recipe.target
    recipe, kernels = with_target_level(recipe, target), load_kernels(target, model_format)
    if recipe.dtype in kernels.lacks:
        hint = f"convert to {' or '.join(low for low in LOW if low not in kernels.lacks)}"
        raise AmpError("AMP304", f"{target} runs no {recipe.dtype}: {kernels.lacks[recipe.dtype]}", hint=hint)
    chosen = policy(recipe.policy)
    chosen.check(recipe, model_format)
    check_rules(recipe.rule)
    lists = lists_of(recipe, target)
    level = level_of(recipe, lists)
    return Options(
        recipe=recipe,
        level=level,
        lists=lists,
        kernels=kernels,
        target=target,
        store_weights=recipe.store_weights or chosen.stores.get(level.name, "keep"),
    )


def with_target_of_file(recipe: Recipe, graph: Graph) -> Recipe:
    """Before planning: the recipe with the target of an earlier conversion, by the file's metadata, where it names
    none. Its low type is the target's then, or the one that it says, unless the target lacks that: then the recipe
    itself."""
    target = target_in(graph.metadata()) if recipe.target is None and isinstance(graph, DescribedGraph) else ""
    if target not in TARGETS[graph.format]:
        return recipe
    retargeted = Recipe.of(recipe, target=target)
    return recipe if retargeted.dtype in load_kernels(target, graph.format).lacks else retargeted


def with_target_level(recipe: Recipe, target: str) -> Recipe:
    """Before planning: a recipe of our policy with the level that is best on a target, where it says none and the
    target has one (`Kernels.level`); else the recipe itself."""
    model_format = "ONNX" if target in TARGETS["ONNX"] or target not in TARGETS["MindIR"] else "MindIR"
    best = load_kernels(target, model_format).level
    return replace(recipe, level=best or None) if recipe.policy == "ampgraph" and not recipe.level else recipe


def lists_of(recipe: Recipe, target: str | None = None) -> OpLists:
    """Before planning: the lists of a recipe's policy with the user's, for a target. Raises as `resolve` does."""
    target = target or recipe.target or DEFAULT_TARGETS["ONNX"]
    recipe = with_target_level(recipe, target)
    chosen = policy(recipe.policy)
    chosen.check(recipe)
    setting = Setting(chosen.level(recipe), recipe.dtype, target)
    return load_op_lists(chosen.list_of(setting), recipe.lists)


def level_of(recipe: Recipe, lists: OpLists | None = None) -> Level:
    """Before planning: the level of a recipe, else its target's, else its policy's. ``lists``: its own, if read."""
    recipe = with_target_level(recipe, recipe.target or DEFAULT_TARGETS["ONNX"])
    lists = lists_of(recipe) if lists is None else lists
    return load_level(policy(recipe.policy).level(recipe), recipe.lists, lists.framework.names)


def options_of_plan(plan: Plan, recipe: Recipe, model_format: str) -> Options:
    """What a plan says of its options: lists without a user's, and the level that its policy takes where none is named,
    as a plan may have one of the user's. Raises AmpError AMP303 for a policy that is not there. ``recipe``: what was
    said beside the plan."""
    words = Recipe.of(recipe, dtype=plan.dtype, policy=plan.policy, target=plan.target)
    lists = load_op_lists(policy(plan.policy).list_of(Setting(plan.level, plan.dtype, plan.target)))
    return replace(resolve(words, model_format), lists=lists)
