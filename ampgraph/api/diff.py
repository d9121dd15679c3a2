"""`ampgraph.diff`: two conversions of one model, or two plans for it, side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.arguments import check_annotated
from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.plan import Plan
from ..core.progress import Progress
from ..formats.checks import faults_reported
from ..numerics.metrics.metric import Function
from ..report.diff import OutputErrors, SideBySide, compare_models, compare_plans
from .kinds import Data, Model, PathLike, path_of


def diff(
    first: Model | Plan,
    second: Model | Plan,
    *,
    reference: Model | None = None,
    data: Data = None,
    samples: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    metric: str | Function = "auto",
    progress: Progress | None = None,
) -> SideBySide:
    """Says which decisions, nodes, Casts and weights differ, and with a reference how large the errors of both are.

    Args:
        first: a model as `convert` takes it, or a plan: an `ampgraph.Plan` or the path of its .json file.
        second: another of the same sort, made from the same model.
        reference: the float32 model that both were made from: they are run strictly beside it. Of plans, the model that
            they are for.
        data: what to run it on, as `verify` takes it; generated from ``seed`` if not given.
        samples: how many at most.
        seed: for generated inputs.
        dims: sizes of symbolic dimensions, for generated inputs.
        metric: as `verify` takes it.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP208 for a plan and a model, and for models without a node in common, AMP403 for plans that are for
            two models, AMP312 for data without a reference, and what `inspect` and `verify` raise.
    """
    check_annotated(diff, locals())
    if reference is None and (data is not None or samples is not None):
        raise AmpError("AMP312", "data does nothing without the model that both were made from", hint="add --reference")
    found = _compare(first, second)
    if reference is None:
        return found
    how = {"data": data, "samples": samples, "seed": seed, "dims": dims, "metric": metric, "progress": progress}
    ours, theirs = (_errors_by_output(reference, item, **how) for item in (first, second))
    names = dict.fromkeys((*ours, *theirs))
    return replace(found, errors=tuple(OutputErrors(name, ours.get(name), theirs.get(name)) for name in names))


def _errors_by_output(reference: Model, item: Model | Plan, **options: Any) -> dict[str, float]:
    """For `diff`: the error of a model against the reference by output, infinite where a value is not finite that
    should be; where the metric judges all outputs together, one error by the metric's name. A plan is applied to the
    reference first. ``options``: of `verify`."""
    from .convert import convert
    from .verify import verify

    plan = _plan_of(item)
    model: Any = item if plan is None else convert(reference, plan=plan, check="off")
    seen = verify(reference, model, device="cpu", nodes=0, **options)
    if seen.overall is not None:
        return {seen.overall.name: seen.overall.decisive}
    return {
        output.name: math.inf if output.nonfinite_mismatches else output.scores.decisive
        for output in seen.outputs
        if output.counts
    }


def _compare(first: Model | Plan, second: Model | Plan) -> SideBySide:
    """For `diff`: compares two models or two plans. Raises AmpError AMP208 for one of each."""
    ours, theirs = (_plan_of(item) for item in (first, second))
    if ours is not None and theirs is not None:
        return compare_plans(ours, theirs, (_name_of(first), _name_of(second)))
    if ours is not None or theirs is not None:
        hint = "`ampgraph convert MODEL --plan-out FILE` writes the plan of a conversion"
        raise AmpError("AMP208", "one of the two is a plan, the other a model", hint=hint)
    sources: list[PathLike | None] = [path_of(first), path_of(second)]
    with quiet_collector(), faults_reported(*sources):
        return compare_models(first, second)


def _plan_of(item: Model | Plan) -> Plan | None:
    """The plan that `diff` was given, as a Plan or as the path of a .json file; None for a model."""
    if isinstance(item, Plan):
        return item
    path = path_of(item)
    return Plan.read(Path(path)) if path is not None and os.fspath(path).endswith(".json") else None


def _name_of(item: Model | Plan) -> str:
    """The name by which the verb `diff` speaks of one of its two plans: of its file, "plan" for one in memory."""
    path = path_of(item)
    return "plan" if path is None else os.path.basename(os.fspath(path))
