"""A conversion that mends itself: what the check has missed is held in float32 by ranges, by what the check has tried,
then by tune's search."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from ..core.progress import Progress, silent
from ..core.verdict import OK, CheckVerdict
from ..numerics.tune.search import BUDGET
from .measuring import Measuring
from .steps import Conversion, Job, run
from .tune import tune

SECONDS = 600.0  # that a search may take, by what one strict run took


def convert_and_repair(job: Job, progress: Progress = silent) -> Conversion:
    """Does a job, and again with more in float32 where its check has missed and it is to be repaired."""
    data = job.measuring.data
    if job.checking.repair and isinstance(data, Iterator):
        job = replace(job, measuring=replace(job.measuring, data=list(data)))  # it is read more than once
    done = run(job, progress)
    verdict = done.verdict
    if verdict is None or verdict.ok or not job.checking.repair or job.plan is not None:
        return done
    if verdict.refused and verdict.repair:
        opened = by_patterns(job, verdict, progress)
        return opened if _ok(opened) else run(job, progress)
    if not verdict.samples:
        return done
    if done.graph.format != "ONNX":
        return _with(done, replace(verdict, reason=f"{done.graph.format} models are not repaired"))
    found = by_ranges(job, verdict, progress)
    if (found is None or not _ok(found)) and verdict.repair:
        found = by_patterns(job, verdict, progress)
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
    done = run(replace(job, measuring=Measuring(samples=missed.samples)), progress)
    held = {(d.scope, d.index): d.why.text for d in done.plan.decisions if d.why.rule == "range" and d.index >= 0}
    return _said(done, missed, tuple(held.values()))


def by_patterns(job: Job, missed: CheckVerdict, progress: Progress) -> Conversion:
    """The conversion with what the check has found, and tried."""
    patterns = tuple(shlex.split(text)[1] for text in missed.repair)
    recipe = replace(job.recipe, fp32=(*job.recipe.fp32, *patterns))
    return _said(run(replace(job, recipe=recipe), progress), missed, patterns)


def by_search(job: Job, missed: CheckVerdict, progress: Progress) -> Conversion | None:
    """The conversion with what `tune` finds; None where that would take too long, or finds nothing."""
    count, limit = missed.samples, missed.tolerance or 0.0
    if job.optimize:
        return None  # its names are of the model as it is given
    if BUDGET * count * missed.seconds > SECONDS:
        return None
    data, metric = job.measuring.data, job.checking.metric or "l2"
    tuned = tune(
        job.model, recipe=job.recipe, data=data, tolerance=limit, metric=metric, samples=count, progress=progress
    )
    if not tuned.met:
        return None
    recipe = replace(job.recipe, fp32=(*job.recipe.fp32, *tuned.patterns))
    return _said(run(replace(job, recipe=recipe), progress), missed, tuple(tuned.patterns))


def _said(done: Conversion, missed: CheckVerdict, held: tuple[str, ...]) -> Conversion:
    """The conversion with what it holds in its verdict, which is of the samples that the first one missed on."""
    of = missed  # which is all that is known where nothing is low any more
    exact = CheckVerdict(OK, 0.0, of.tolerance, of.samples, of.generated, of.output, seconds=of.seconds)
    return _with(done, replace(done.verdict or exact, held=held))


def _with(done: Conversion, verdict: CheckVerdict) -> Conversion:
    summary = None if done.summary is None else replace(done.summary, check=verdict)
    return replace(done, verdict=verdict, summary=summary)
