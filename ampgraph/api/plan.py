"""`ampgraph.plan`: the decisions as data; `ampgraph.apply`: a conversion by a plan that is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ..core.collector import quiet_collector
from ..core.plan import Plan
from ..core.recipe import OtherFields, Recipe
from ..formats.checks import faults_reported
from . import pipeline
from .convert import convert
from .keywords import recipe_for, takes_recipe
from .kinds import Data, FromPath, InMemory, Model, OutPath, PathLike, path_of
from .measuring import Measuring
from .steps import ready

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_recipe
def plan(
    model: Model,
    level: str | int | None = None,
    *,
    recipe: Recipe | str | None = None,
    data: Data = None,
    **fields: Unpack[OtherFields],
) -> Plan:
    """The plan that `convert` would apply.

    Args:
        model: what `convert` takes.
        level: O0, O1, O2, O3 or auto; O2, or the policy's own, if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one.
        data: samples to measure ranges on, as in `convert`.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: for every mistake in the input or the arguments.
    """
    wanted = recipe_for(plan, recipe, {"level": level, **fields})
    source = path_of(model)
    with quiet_collector(), faults_reported(source):
        graph, options, low_io = ready(model, wanted, Measuring(data))
        return pipeline.planned(graph, options, low_io)[0]


@overload
def apply(model: Model, plan: Plan, *, output: OutPath) -> OutPath: ...


@overload
def apply(model: InMemory, plan: Plan, *, output: None = None) -> InMemory: ...


@overload
def apply(model: PathLike, plan: Plan, *, output: None = None) -> FromPath: ...


def apply(model: Model, plan: Plan, *, output: PathLike | None = None) -> object:
    """Applies a plan to the model that it was made for. Raises AmpError AMP403 for another model."""
    return convert(model, plan=plan, output=output)
