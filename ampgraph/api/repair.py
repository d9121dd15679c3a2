"""A conversion that mends itself: what the check has missed is held in float32 by ranges, then by tune's search."""

from __future__ import annotations

from dataclasses import replace

from ..core.progress import Progress, silent
from ..core.verdict import OK, CheckVerdict
from ..numerics.inputs.samples import load_samples
from ..numerics.tune.search import BUDGET
from ..planner.resolve import resolve
from .check import GENERATED, SAMPLES
from .kinds import Data
from .measuring import Measuring
from .steps import Conversion, Job, format_of, run
from .tune import tune

SECONDS = 600.0  # that a search may take, by what one strict run took


def convert_and_repair(job: Job, progress: Progress = silent) -> Conversion:
    """Does a job, and again with more in float32 where its check has missed and it is to be repaired."""
    done = run(job, progress)
    verdict = done.verdict
    if verdict is None or verdict.ok or not verdict.samples or not job.checking.repair or job.plan is not None:
        return done
    found = by_ranges(job, verdict, progress)
    if (found is None or not _ok(found)) and verdict.exceeded:
        found = by_search(job, verdict, progress) or found
    if found is None:
        return done
    return found if _ok(found) else run(job, progress)  # the file is again what was asked for


def _ok(done: Conversion) -> bool:
    return done.verdict is not None and done.verdict.ok


def by_ranges(job: Job, missed: CheckVerdict, progress: Progress) -> Conversion | None:
    """The conversion steered by the ranges of the samples on which it missed; None where it was steered already."""
    if job.recipe.ranges is not None or job.measuring.given():
        return None
    done = run(replace(job, measuring=Measuring(_same(job))), progress)
    held = {(d.scope, d.index): d.why.text for d in done.plan.decisions if d.why.rule == "range" and d.index >= 0}
    return _said(done, missed, tuple(held.values()))


def by_search(job: Job, missed: CheckVerdict, progress: Progress) -> Conversion | None:
    """The conversion with what `tune` finds; None where that would take too long, or finds nothing."""
    count = GENERATED if job.measuring.data is None else min(SAMPLES, job.measuring.samples or SAMPLES)
    if BUDGET * count * missed.seconds > SECONDS:
        return None
    limit, metric = missed.tolerance or 0.0, job.checking.metric or "l2"
    tuned = tune(
        job.model, recipe=job.recipe, data=_same(job), tolerance=limit, metric=metric, samples=count, progress=progress
    )
    if not tuned.met:
        return None
    recipe = replace(job.recipe, fp32=(*job.recipe.fp32, *tuned.patterns))
    return _said(run(replace(job, recipe=recipe), progress), missed, tuple(tuned.patterns))


def _said(done: Conversion, missed: CheckVerdict, held: tuple[str, ...]) -> Conversion:
    """The conversion with what it holds in its verdict, which is of the samples that the first one missed on."""
    exact = CheckVerdict(
        OK, 0.0, missed.tolerance, missed.samples, output=missed.output, seconds=missed.seconds
    )  # nothing is low any more
    verdict = replace(done.verdict or exact, generated=missed.generated, held=held)
    summary = None if done.summary is None else replace(done.summary, check=verdict)
    return replace(done, verdict=verdict, summary=summary)


def _same(job: Job) -> Data:
    """The samples that the check ran on: the user's, or those that it generated."""
    if job.measuring.data is not None:
        return job.measuring.data
    options = resolve(job.recipe, format_of(job.model))
    return list(load_samples(job.model, count=GENERATED, dims=options.dims))
