"""A conversion with the check with which it ends: a strict run of the result, in a child process with limits.

Where that is asked for, a result that misses is repaired: what is to blame is pinned to float32 by the ranges of the
samples, by tune's search, then by what the check itself finds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number, nearest
from ..core.files import refusals_reported
from ..core.graph import LOW, Graph, StepGraph
from ..core.installing import pip_install
from ..core.plan import Note
from ..core.progress import Progress, silent
from ..core.verdict import ALL, TOLERANCES, CheckVerdict, unchecked
from ..formats import adapters
from ..formats.checks import faults_reported
from ..numerics.metrics.metric import Function, address_of, metric_of
from ..runtime.child import in_child
from ..runtime.data import save_npz
from .calibrate import Measuring
from .kinds import Data, Feeds, PathLike
from .steps import SUFFIXES, Checking, Conversion, Job, finished, made, report

if TYPE_CHECKING:
    from .check_run import Request

MODES = ("auto", "off", "require")
DEFAULT = "AMPGRAPH_CHECK"  # the variable that says the mode where nothing else does
GENERATED, SAMPLES = 6, 8  # that a check runs, generated or the user's
MORE = 24  # generated ones where the first come close to the tolerance
SECONDS, MEMORY = 60.0, 4 << 30  # the budget of a check: what passes it is not checked
SHARES = 0.5, 0.75  # of the time for samples, generated or the user's; the rest is for opening models, and for causes
WHOLE = 0.9  # of the time by which a search for repairs ends; the rest is for starting the process
SLACK = 2 << 30  # beyond the budget, for what the runtime holds besides weights and values
RUNTIMES = {"ONNX": ("onnxruntime", "cpu"), "MindIR": ("mindspore", "mindspore")}  # by format: a package, its extra
COPIES = 2.5  # of the float32 weights: both models, and what a runtime packs
FEWEST = 4  # comparisons of all samples that a search by tune makes


def convert_and_check(job: Job, progress: Progress = silent) -> Conversion:
    """Does a job, checks the result, and repairs it where it has missed and that is asked for.

    Raises AmpError for every mistake in the model or in what was asked."""
    job = replace(job, checking=resolved(job.checking), measuring=again(job.measuring, job.checking.repair))
    with quiet_collector(), faults_reported(job.model):
        done = made(job, progress)
        mode = mode_of(done)
        first = job.checking.repair or job.measuring.given() or done.output is None
        if mode == "require" or (mode and first):
            done = known_before(done, mode, progress)  # nothing is written before it is known what
            if mode == "require" and done.verdict is not None and not done.verdict.passes_require:
                done = replace(done, output=None)
                return replace(done, summary=report(done))
            return finished(done, progress)
        done = finished(done, progress)
        if not mode or done.output is None:
            return done
        verdict = verdict_on(done, done.output, progress)
        summary = None if done.summary is None else replace(done.summary, check=verdict)
        return replace(done, verdict=verdict, summary=summary)


def known_before(done: Conversion, mode: str, progress: Progress) -> Conversion:
    """For `convert` with a check: the conversion with its verdict, repaired where that is asked for. An interrupt keeps
    the file as it is, unless ``mode`` requires more of it."""
    try:
        done = by_lists(replace(done, verdict=trial(done, progress)), progress)
        if done.job.checking.repair and done.job.plan is None:
            return repaired(done, progress)
    except KeyboardInterrupt:
        if mode != "require":
            finished(done)
        raise
    return done


# -- whether and how --------------------------------------------------------------------------------------------------


def resolved(checking: Checking) -> Checking:
    """What `convert` was told of its check, with the mode filled in. Raises AmpError AMP301 for a word that is no mode,
    AMP312 for a tolerance or memory that is no positive number."""
    mode: object = checking.mode if checking.mode is not None else os.environ.get(DEFAULT) or "auto"
    if not isinstance(mode, str) or mode not in MODES:
        hint = nearest(str(mode), list(MODES)) or f"one of {', '.join(MODES)}"
        raise AmpError("AMP301", f"invalid value for --check: {mode}", hint=hint)
    given = checking.tolerance
    if given is not None and not (is_number(given) and math.isfinite(given) and given > 0):
        raise AmpError("AMP312", f"the tolerance must be a positive number, not {given!r}", hint="for example 1e-2")
    memory = checking.memory
    if memory is not None and not (is_number(memory) and math.isfinite(memory) and memory > 0):
        message = f"--check-memory must be a positive number, not {memory!r}"
        raise AmpError("AMP312", message, hint="in GB: for example 8")
    return replace(checking, mode=mode, metric=_address(checking.metric))


def _address(metric: str | Function | None) -> str | None:
    """Check in its child: the place (module:function) by which it finds the metric. AmpError AMP312 without one."""
    if metric is None:
        return None
    metric_of(metric)
    found = metric if isinstance(metric, str) else address_of(metric)
    if not found:
        message = f"metric {getattr(metric, '__name__', metric)} cannot be found by the process that checks"
        raise AmpError("AMP312", message, hint="define it in a module; or check with ampgraph.verify, which takes any")
    return found


def mode_of(done: Conversion) -> str:
    """How `convert` checks a result, empty where it does not: nothing is lowered or written, or nobody wants it."""
    mode, decisions = done.job.checking.mode or "", done.plan.decisions
    if mode == "off" or done.job.dry_run:
        return ""
    lowered = done.changed and any(decision.dtype in LOW for decision in decisions)
    # an operator of ONNX's own domain that no opset has: only a runtime tells whether the model can be run
    unknown = any(decision.why.rule == "unknown" and "::" not in decision.kind for decision in decisions)
    return mode if lowered or (done.graph.format == "ONNX" and unknown) else ""


def beyond(graph: Graph, memory: int) -> CheckVerdict | None:
    """The verdict "not checked" of `convert` for what ``memory`` bytes or the runtimes here do not allow; else None."""
    if isinstance(graph, StepGraph) and graph.is_step():
        reason = "it is a training step, of which every run changes the parameters"
        return unchecked(reason, "ampgraph train runs it on data of yours")
    runtime, extra = RUNTIMES[graph.format]
    if importlib.util.find_spec(runtime) is None:
        return unchecked(f"{runtime} is not installed", pip_install(extra))
    stored = graph.census().weights
    size = COPIES * sum(held.bytes * (2 if dtype in LOW else 1) for dtype, held in stored.items())
    if size > memory:
        reason = f"it would take {size / 1e9:.1f} GB of memory, and the budget is {memory / 1e9:.1f} GB"
        return unchecked(reason, f"--check-memory {math.ceil(size / 1e9)} allows it")
    return None


class Replayed:
    """The data of `convert` that can be read once, with its first samples kept for the check behind the measuring."""

    def __init__(self, source: Iterable[Feeds]) -> None:
        self.source = source
        self.kept: list[Feeds] = []

    def __iter__(self) -> Iterator[Feeds]:
        for feeds in self.source:
            if len(self.kept) < SAMPLES and isinstance(feeds, Mapping):
                self.kept.append({name: np.array(array) for name, array in feeds.items()})
            yield feeds


def again(measuring: Measuring, often: bool) -> Measuring:
    """For `convert`: the measuring with data that the check of the result can read again: an iterator becomes a list
    where repairs read it ``often``, or keeps its first samples."""
    data = measuring.data
    if not isinstance(data, Iterator):
        return measuring
    return replace(measuring, data=list(data) if often else Replayed(data))


# -- the verdict ------------------------------------------------------------------------------------------------------


def trial(done: Conversion, progress: Progress, repairing: float = 0.0) -> CheckVerdict | None:
    """For `convert` with a check: checks a result by a file that is removed again; None where nothing is to check.

    ``repairing``: seconds for all of it where it looks for what mends the result as well."""
    if not mode_of(done):
        return None
    folder = None if done.output is None else done.output.parent
    reported = contextlib.nullcontext() if done.output is None else refusals_reported(done.output, done.job.option)
    with reported, tempfile.TemporaryDirectory(prefix=".ampgraph-", dir=folder) as scratch:
        tried = Path(scratch) / f"result{SUFFIXES[done.graph.format]}"
        if beyond(done.graph, budget(done)) is None:
            done.graph.save(tried, progress)
        return verdict_on(done, tried, progress, repairing)


def verdict_on(done: Conversion, written: Path, progress: Progress, repairing: float = 0.0) -> CheckVerdict:
    """For `convert` with a check: what a strict run says of a written file, held against the model that was given."""
    progress("checking", 0, 0)
    if found := beyond(done.graph, budget(done)):
        return found
    with contextlib.ExitStack() as files:
        reference = done.job.source
        if reference is None:
            folder = files.enter_context(tempfile.TemporaryDirectory(prefix="ampgraph-"))
            reference = Path(folder) / f"reference{SUFFIXES[done.graph.format]}"
            adapters.load(done.job.model)[0].save(reference)
        given = files.enter_context(_file_of(done.job.measuring.data))
        request = request_for(done, reference, written, given)
        if repairing:
            request = replace(request, recipe=done.made_with(), whole=repairing)
        return ask(request, budget(done), progress)


def request_for(done: Conversion, reference: PathLike, written: Path, given: str | None) -> Request:
    """What the child that checks is asked: to run two files on a few samples, the user's or generated ones."""
    from .check_run import Request

    checking, samples = done.job.checking, done.job.measuring.samples
    return Request(
        os.fspath(reference), os.fspath(written), given,
        samples=min(GENERATED if given is None else SAMPLES, samples or SAMPLES),
        dims=dict(done.job.recipe.dims if done.options is None else done.options.dims),
        tolerance=tolerance_of(done),
        seconds=SECONDS * SHARES[given is not None],
        metric=checking.metric if isinstance(checking.metric, str) else None,
        more=MORE if given is None and samples is None else 0,
        whole=SECONDS * WHOLE, target=done.plan.target,
    )  # fmt: skip


def tolerance_of(done: Conversion) -> float:
    """To what the check holds a whole output; parts have more."""
    return done.job.checking.tolerance or TOLERANCES.get(done.plan.dtype, TOLERANCES["float16"])


def budget(done: Conversion) -> int:
    """How many bytes of memory the check of a conversion may take."""
    given = done.job.checking.memory
    return MEMORY if given is None else int(given * 1e9)


def ask(request: Request, memory: int = MEMORY, progress: Progress = silent) -> CheckVerdict:
    """The verdict of the check of a conversion, which runs in a process of its own; that one's crash or time-out is no
    verdict."""
    from .check_run import VERIFY, answer_request

    def on_answer(answer: Any) -> None:
        if isinstance(answer, list):
            progress(*answer)

    ended = in_child(answer_request, request, seconds=SECONDS, memory=memory + SLACK, on_answer=on_answer)
    verdicts = [answer for answer in ended.answers if isinstance(answer, dict)]
    return CheckVerdict.from_dict(verdicts[-1]) if verdicts else unchecked(ended.said, VERIFY)


@contextlib.contextmanager
def _file_of(data: Data) -> Iterator[str | None]:
    """Check in its child: the samples as a file that it can read; an iterable is written to one first."""
    if data is None or isinstance(data, (str, os.PathLike)):
        yield None if data is None else os.fspath(data)
        return
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        given = data.kept if isinstance(data, Replayed) else [data] if isinstance(data, Mapping) else data
        for number, feeds in enumerate(islice(given, SAMPLES)):
            save_npz(Path(folder) / f"{number:03}.npz", feeds)
        yield folder


def by_lists(done: Conversion, progress: Progress) -> Conversion:
    """For `convert` with a check: the conversion without measured ranges, if only that meets the tolerance."""
    verdict, job = done.verdict, done.job
    if verdict is None or not verdict.missed or verdict.refused or not job.measuring.given():
        return done
    plain = made(replace(job, measuring=replace(job.measuring, steers=False)), progress)
    found = trial(plain, progress)
    if found is None or not found.passes_require:
        return done
    error = "what is infinite" if verdict.error == math.inf else f"an error of {verdict.error:.2g}"
    text = f"the ranges that were measured are not used: with them the result has {error} at '{verdict.output}'"
    plain.plan.notes.append(Note("samples", "", text))
    return replace(plain, verdict=found, ranges=done.ranges)


# -- repairs ----------------------------------------------------------------------------------------------------------


def repaired(missed: Conversion, progress: Progress) -> Conversion:
    """For `convert --repair`: the first of some conversions that is right and has something low; else the model as it
    is, which is no repair, where only that is right; else what is given, with why nothing mends it."""
    verdict = missed.verdict
    if verdict is None or verdict.ok or not (verdict.refused or verdict.samples):
        return missed
    if not verdict.refused and missed.graph.format != "ONNX":
        return replace(missed, verdict=replace(verdict, reason=f"{missed.graph.format} models are not repaired"))
    whole, until = None, time.monotonic() + SECONDS * WHOLE
    for way in (by_patterns,) if verdict.refused else (by_ranges, by_search, by_patterns):
        found = None if way is by_patterns and whole is not None else way(missed, verdict, until, progress)
        if found is None:
            continue
        if found.verdict is None:
            whole = found
        elif found.verdict.ok:
            return found
        elif found.job is missed.job:
            missed = found
    if whole is None:
        return missed
    whole.plan.notes.append(Note("repair", "", ALL))
    return whole


def by_ranges(missed: Conversion, verdict: CheckVerdict, until: float, progress: Progress) -> Conversion | None:
    """For `convert --repair`: the conversion by ranges measured on the samples on which it missed; None where it had
    some. ``until``, when other ways end, is not looked at."""
    job = missed.job
    if job.recipe.ranges is not None or job.measuring.given():
        return None
    done = made(replace(job, measuring=Measuring(samples=verdict.samples)), progress)
    held = {(d.scope, d.index): d.why.text for d in done.plan.decisions if d.why.rule == "range" and d.index >= 0}
    return _tried(done, tuple(held.values()), progress)


def by_search(missed: Conversion, verdict: CheckVerdict, until: float, progress: Progress) -> Conversion | None:
    """For `convert --repair`: the conversion with what `tune` finds; None where it would not be done ``until`` the time
    given, or finds nothing."""
    from .tune import bench_of

    count, recipe, job = verdict.samples, missed.made_with(), missed.job
    if not verdict.exceeded or recipe is None or time.monotonic() + FEWEST * count * verdict.seconds > until:
        return None
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        data, metric = job.measuring.data, job.checking.metric or "l2"
        bench = bench_of(job.model, recipe, data, count, metric, Path(scratch), progress, until=until)
        best = bench.search(tolerance_of(missed))
        if best is None or (bench.late() and len(best.promoted) == len(bench.groups)):
            return None
        patterns = bench.patterns(best.promoted)
    return _holding(job, patterns, progress) if patterns else None


def by_patterns(missed: Conversion, verdict: CheckVerdict, until: float, progress: Progress) -> Conversion | None:
    """For `convert --repair`: the conversion with patterns that the check finds and tries ``until`` a time; without any
    as it was, with why."""
    left = until - time.monotonic()
    if left < verdict.seconds * verdict.samples:
        return replace(missed, verdict=replace(verdict, unrepaired="none found: the time is up"))
    found = trial(missed, progress, repairing=left)
    if found is None or not found.mended_by:
        return replace(missed, verdict=found or verdict)
    return _holding(missed.job, found.mended_by, progress)


def _holding(job: Job, patterns: tuple[str, ...], progress: Progress) -> Conversion:
    """For `convert --repair`: converts again, with patterns that hold more nodes in float32."""
    recipe = replace(job.recipe, fp32=(*job.recipe.fp32, *patterns))
    return _tried(made(replace(job, recipe=recipe), progress), patterns, progress)


def _tried(done: Conversion, held: tuple[str, ...], progress: Progress) -> Conversion:
    """For `convert --repair`: the conversion with the verdict of its check, in which ``held`` names what was pinned;
    without one where nothing is low any more."""
    found = trial(done, progress)
    return replace(done, verdict=None if found is None else replace(found, pinned=held))
