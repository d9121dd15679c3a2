"""`ampgraph.diff`: two conversions of one model, or two plans for it, side by side."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.plan import Plan
from ..formats.checks import faults_reported
from ..report.diff import SideBySide, models_apart, plans_apart
from .kinds import Model, PathLike, path_of


def diff(first: Model | Plan, second: Model | Plan) -> SideBySide:
    """Says which decisions, nodes, Casts and weights differ.

    Args:
        first: a model as `convert` takes it, or a plan: an `ampgraph.Plan` or the path of its .json file.
        second: another of the same sort, made from the same model.

    Raises:
        AmpError: AMP208 for a plan and a model, and for models without a node in common, AMP403 for plans that are for
            two models, and what `inspect` raises.
    """
    plans = [_plan(item) for item in (first, second)]
    ours, theirs = plans
    if ours is not None and theirs is not None:
        return plans_apart(ours, theirs, (_name(first), _name(second)))
    if ours is not None or theirs is not None:
        hint = "`ampgraph convert MODEL --plan-out FILE` writes the plan of a conversion"
        raise AmpError("AMP208", "one of the two is a plan, the other a model", hint=hint)
    sources: list[PathLike | None] = [path_of(first), path_of(second)]
    with quiet_collector(), faults_reported(*sources):
        return models_apart(first, second)


def _plan(item: Model | Plan) -> Plan | None:
    if isinstance(item, Plan):
        return item
    path = path_of(item)
    return Plan.read(Path(path)) if path is not None and os.fspath(path).endswith(".json") else None


def _name(item: Model | Plan) -> str:
    path = path_of(item)
    return "plan" if path is None else os.path.basename(os.fspath(path))
