"""A conversion with the check with which it ends, and what takes its place where the check says so.

By itself: a conversion without the measured ranges, where these do harm; with those of generated inputs, where float16
overflows on these; with more in float32, where the error is too large or may be. Where `--repair` is given, a
result that misses is converted again with more in float32: by the ranges of the samples, then by tune's search, then by
what the check itself finds, and as above where that finds nothing.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.plan import Note
from ..core.progress import Progress, silent
from ..core.verdict import ALL, CLOSE, DOUBTFUL, CheckVerdict
from ..formats import adapters
from ..formats.checks import faults_reported
from .calibrate import Measuring
from .check import (
    fill_in_checking,
    mode_of,
    time_limit,
    tolerance_of,
    verdict_before_writing,
    verdict_on,
    with_data_kept,
)
from .steps import Conversion, Job, convert_in_memory, summary_of, write_files

GUARDED = "float16 overflows on generated inputs or comes near it: --data DIR, samples of yours, may need less float32"
HELD = (
    "what makes most of the error is float32; NVIDIA's TF32, on by default, rounds operands of products too (in ONNX "
    "Runtime use_tf32=0 turns it off)"
)
CLEARED = 0.75  # the share that may be left of an error that few generated inputs show: a smaller fall may be chance
FEWEST = 4  # comparisons of all samples that a search by tune makes at least


def convert_and_check(job: Job, progress: Progress = silent) -> Conversion:
    """Converts, checks the result, and repairs it where it missed and the job asks for that; writes the job's files.

    The file is written before the check, which takes longer, unless the verdict decides what is written: by repairs, by
    ranges that turn out to harm, or where the check is required; and again where another is better. A result that
    misses a required check is not written, and ``output`` is None then. Raises AmpError for every mistake in the model
    or in what was asked."""
    job = replace(
        job, checking=fill_in_checking(job.checking), measuring=with_data_kept(job.measuring, job.checking.repair)
    )
    with quiet_collector(), faults_reported(job.model):
        done = convert_in_memory(job, progress)
        mode = mode_of(done)
        verdict_decides = job.checking.repair or job.measuring.options_given() or done.output is None
        if mode == "require" or (mode and verdict_decides):
            done = check_before_writing(done, mode, progress)
            if mode == "require" and done.verdict is not None and not done.verdict.passes_require:
                done = replace(done, output=None)
                return replace(done, summary=summary_of(done))
            return write_files(done, progress)
        done = write_files(done, progress)
        if not mode or done.output is None:
            return done
        verdict = verdict_on(done, done.output, progress)
        summary = None if done.summary is None else replace(done.summary, check=verdict)
        done = replace(done, verdict=verdict, summary=summary)
        better = mend(done, progress)
        return done if better is done else write_files(better, progress)


def check_before_writing(done: Conversion, mode: str, progress: Progress) -> Conversion:
    """For `convert` with a check: the conversion with its verdict; where it missed, one without measured ranges, with
    those of generated inputs, or repaired, if that helps. A KeyboardInterrupt goes on, but unless the ``mode`` is
    "require" the result as it was converted is written first."""
    try:
        done = drop_harmful_ranges(replace(done, verdict=verdict_before_writing(done, progress)), progress)
        done = mend(done, progress)
        if done.job.checking.repair and done.job.plan is None:
            done = repair(done, progress)
            if done.verdict is not None and done.verdict.missed:
                with contextlib.suppress(AmpError):  # its verdict stands, and announces it
                    done = hold_some(done, progress)
    except KeyboardInterrupt:
        if mode != "require":
            write_files(done)
        raise
    return done


def mend(done: Conversion, progress: Progress) -> Conversion:
    """For `convert` with a check: the conversion by ranges of generated inputs, or else with more in float32, where one
    of the two helps; else ``done``. With `--repair` a search finds more.

    What cannot be converted or run once more (an AmpError) leaves ``done`` with its verdict, which announces it."""
    for attempt in (guard_by_generated_ranges,) if done.job.checking.repair else (guard_by_generated_ranges, hold_some):
        with contextlib.suppress(AmpError):
            done = attempt(done, progress)
    return done


def drop_harmful_ranges(done: Conversion, progress: Progress) -> Conversion:
    """For `convert` with a check: where the result with measured ranges missed and the one without them does not, the
    latter, with a note; else ``done``. The ranges stay with it, for --ranges-out."""
    verdict, job = done.verdict, done.job
    if verdict is None or not verdict.missed or verdict.refused or not job.measuring.options_given():
        return done
    unmeasured = convert_in_memory(replace(job, measuring=replace(job.measuring, used=False)), progress)
    found = verdict_before_writing(unmeasured, progress)
    if found is None or not found.passes_require:
        return done
    error = "what is infinite" if verdict.error == math.inf else f"an error of {verdict.error:.2g}"
    text = f"the ranges that were measured are not used: with them the result has {error} at '{verdict.output}'"
    unmeasured.plan.notes.append(Note("samples", "", text))
    return replace(unmeasured, verdict=found, ranges=done.ranges)


def guard_by_generated_ranges(done: Conversion, progress: Progress) -> Conversion:
    """For `convert` with a check: where float16 overflows on generated inputs or comes near its end, the conversion by
    the ranges that values have on these, with a note, if something is low and no value overflows then, even where the
    error is too large, for which more is tried (`hold_some`); else ``done``.

    Ranges that were given, levels and policies without guards, and formats without ranges are left as they are."""
    job, options = done.job, done.options
    if done.verdict is None or not done.verdict.overflows or options is None or job.measuring.options_given():
        return done
    if options.ranges is not None or not options.holds_guards or done.graph.format != "ONNX":
        return done
    from .check_run import FAR, MEASURED

    job = replace(job, recipe=replace(job.recipe, range_margin=float(FAR)))
    guarded = _convert_by_ranges(job, MEASURED, time_limit(), progress)
    found = verdict_before_writing(guarded, progress)
    if found is None or found.overflows or not (found.passes_require or found.inexact):
        return done
    guarded.plan.notes.append(Note("samples", "", GUARDED))
    return replace(guarded, verdict=found)


def hold_some(done: Conversion, progress: Progress) -> Conversion:
    """For `convert` with a check: where the error is finite and too large, or may be, a conversion with more float32,
    of a few that are likely to help: the first that is right, else the best with only ends in float32; ``done`` where
    none is better, or the time is up. Where the result is right and came close to the tolerance, the first one if it
    comes less close by far enough (`CLEARED`).

    A doubt about answers near zero, of which generated inputs give few, stands unless their error falls as far.
    Levels and policies without guards are left as they are, and what more than a recipe has made."""
    from ..planner.promotions import all_but_costliest, ends

    verdict, options, recipe = done.verdict, done.options, done.made_with()
    if verdict is None or options is None or recipe is None or not options.holds_guards:
        return done
    if not verdict.inexact and verdict.nearest <= CLOSE:
        return done
    measured, until = replace(done.job.measuring, used=False), time_limit()  # by the ranges that are in the recipe
    job, best = replace(done.job, recipe=recipe, measuring=measured), done
    flow = adapters.load(done.job.model)[0].dataflow()
    tried, others = ends(flow, options), all_but_costliest(flow, options)
    for patterns in [*tried, *others] if verdict.inexact else tried[:1]:
        if time.monotonic() > until:
            break
        found = _convert_with_pins(job, patterns, progress, verdict.samples)
        if found.verdict is None or (patterns in others and not found.verdict.ok):
            continue
        if not _clears(found.verdict, verdict):
            found = replace(found, verdict=replace(found.verdict, outcome=DOUBTFUL))
        best = max(best, found, key=_rank)
        if verdict.inexact and found.verdict is not None and found.verdict.ok:
            break
    if best is not done:
        best.plan.notes.append(Note("held", "", HELD))
    return best


def _clears(again: CheckVerdict, first: CheckVerdict) -> bool:
    """For `convert` with a check: whether a trial that is right clears what the ``first`` verdict left open and few
    generated inputs show: answers near zero, or errors that come close. Their errors have to fall to `CLEARED`."""
    if not again.ok or (first.inexact and (first.at_a_tie or not first.is_critical)):
        return True
    return again.critical <= CLEARED * first.critical if first.inexact else again.nearest <= CLEARED * first.nearest


def _rank(done: Conversion) -> tuple[int, float]:
    """For `convert` with a check: what the better one of two conversions has more of, by their verdicts."""
    verdict = done.verdict
    if verdict is None or not (verdict.ok or verdict.doubtful):
        return 0, 0.0
    return 1 + verdict.ok, -verdict.nearest


# -- repairs ----------------------------------------------------------------------------------------------------------


def repair(missed: Conversion, progress: Progress) -> Conversion:
    """For `convert --repair`: the first conversion by one of the ways below that is right and has something low. Where
    there is none: a conversion with nothing low that one of them made, with a note that this is no repair; else
    ``missed``, with why nothing mends it. A result that is right, or was not run, is returned as it is."""
    verdict = missed.verdict
    if verdict is None or verdict.ok or not (verdict.refused or verdict.samples):
        return missed
    if not verdict.refused and missed.graph.format != "ONNX":
        return replace(missed, verdict=replace(verdict, reason=f"{missed.graph.format} models are not repaired"))
    until = time_limit()
    all_float32 = None
    for repair_by in () if verdict.refused else (repair_by_ranges, repair_by_search):
        found = repair_by(missed, verdict, until, progress)
        if found is not None and found.verdict is None:
            all_float32 = found
        elif found is not None and found.verdict is not None and found.verdict.ok:
            return found
    if all_float32 is None:
        found = repair_by_patterns(missed, verdict, until, progress)
        if found.job is missed.job or (found.verdict is not None and found.verdict.ok):
            return found
        if found.verdict is not None:
            return missed
        all_float32 = found
    all_float32.plan.notes.append(Note("repair", "", ALL))
    return all_float32


def repair_by_ranges(missed: Conversion, verdict: CheckVerdict, until: float, progress: Progress) -> Conversion | None:
    """For `convert --repair`: the conversion by ranges measured on as many samples as it missed on, or fewer, as many
    as begin ``until`` a time of `time.monotonic`; None where it was made by ranges already, or not one would end."""
    job = missed.job
    if job.recipe.ranges is not None or job.measuring.options_given() or time.monotonic() + verdict.seconds > until:
        return None
    done = _convert_by_ranges(job, verdict.samples, until, progress)
    reasons = {(d.scope, d.index): d.why.text for d in done.plan.decisions if d.why.rule == "range" and d.index >= 0}
    return _check_repair(done, tuple(reasons.values()), progress)


def repair_by_search(missed: Conversion, verdict: CheckVerdict, until: float, progress: Progress) -> Conversion | None:
    """For `convert --repair`: the conversion with the nodes in float32 that `tune` finds; None where it finds none, or
    would not end ``until`` a time of `time.monotonic`, or something other than the recipe made the result too."""
    from .tune import bench_of

    count, recipe, job = verdict.samples, missed.made_with(), missed.job
    if not verdict.exceeded or recipe is None or time.monotonic() + FEWEST * count * verdict.seconds > until:
        return None
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        data, metric = job.measuring.data, job.checking.metric or "l2"
        bench = bench_of(job.model, recipe, data, count, metric, Path(scratch), progress, until=until)
        best = bench.search(tolerance_of(missed))
        if best is None or (bench.late() and len(best.promoted) == len(bench.groups)):
            return None  # in time it knew only that all in float32 is right
        patterns = bench.patterns(best.promoted)
    return _convert_with_pins(job, patterns, progress) if patterns else None


def repair_by_patterns(missed: Conversion, verdict: CheckVerdict, until: float, progress: Progress) -> Conversion:
    """For `convert --repair`: the conversion with the patterns in float32 that the check finds and tries ``until`` a
    time of `time.monotonic`; where it finds none, ``missed`` with a verdict that says why."""
    left = until - time.monotonic()
    if left < verdict.seconds * verdict.samples:
        return replace(missed, verdict=replace(verdict, unrepaired="none found: the time is up"))
    found = verdict_before_writing(missed, progress, repairing=left)
    if found is None or not found.mended_by:
        return replace(missed, verdict=found or verdict)
    return _convert_with_pins(missed.job, found.mended_by, progress)


def _convert_by_ranges(job: Job, samples: int, until: float, progress: Progress) -> Conversion:
    """For `convert`: converts again by the ranges of at most so many generated samples, measured ``until`` a time of
    `time.monotonic`. Its job is the one given with these ranges, so that as many samples are checked as without."""
    done = convert_in_memory(replace(job, measuring=Measuring(samples=samples, until=until)), progress)
    return replace(done, job=replace(job, recipe=replace(job.recipe, ranges=done.ranges)))


def _convert_with_pins(job: Job, patterns: tuple[str, ...], progress: Progress, least: int = 0) -> Conversion:
    """For `convert`: converts again with the nodes of ``patterns`` in float32 too, and checks the result on ``least``
    generated inputs at least, as far as there is time."""
    recipe = replace(job.recipe, fp32=(*job.recipe.fp32, *patterns))
    return _check_repair(convert_in_memory(replace(job, recipe=recipe), progress), patterns, progress, least)


def _check_repair(done: Conversion, pinned: tuple[str, ...], progress: Progress, least: int = 0) -> Conversion:
    """For `convert`: the conversion with the verdict of its check, which says what was ``pinned`` to float32
    (a pattern, or the reason, of each node); the verdict is None where nothing is low any more. ``least``: as in
    `_convert_with_pins`."""
    found = verdict_before_writing(done, progress, least=least)
    return replace(done, verdict=None if found is None else replace(found, pinned=pinned))
