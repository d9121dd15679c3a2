"""A conversion with the check with which it ends: a strict run of the result, in a child process with limits.

Where `--repair` is given, a result that misses is converted again with more in float32: by the ranges of the samples,
then by tune's search, then by what the check itself finds.
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
from .steps import SUFFIXES, Checking, Conversion, Job, convert_in_memory, summary_of, write_files

if TYPE_CHECKING:
    from .check_run import Request

MODES = ("auto", "off", "require")
DEFAULT = "AMPGRAPH_CHECK"  # the variable that says the mode where nothing else does
GENERATED, SAMPLES = 6, 8  # that a check runs: generated ones, or of the user's
MORE = 24  # that it runs of generated ones at most, where the first come close to the tolerance
SECONDS, MEMORY = 60.0, 4 << 30  # the budget of a check, memory in bytes: what needs more is not checked
SHARES = 0.5, 0.75  # of SECONDS for samples, generated or the user's; the rest is for opening models, and for causes
WHOLE = 0.9  # of SECONDS, by which a search for repairs ends; the rest is for starting the process
SLACK = 2 << 30  # beyond the budget, for what the runtime holds besides weights and values
RUNTIMES = {"ONNX": ("onnxruntime", "cpu"), "MindIR": ("mindspore", "mindspore")}  # by format: a package, its extra
COPIES = 2.5  # of the float32 weights: both models, and what a runtime packs
FEWEST = 4  # comparisons of all samples that a search by tune makes at least


def convert_and_check(job: Job, progress: Progress = silent) -> Conversion:
    """Converts, checks the result, and repairs it where it missed and the job asks for that; writes the job's files.

    The file is written before the check, which takes longer, unless the verdict may change what is written: by repairs,
    by ranges that turn out to harm, or where the check is required. A result that misses a required check is not
    written, and ``output`` is None then. Raises AmpError for every mistake in the model or in what was asked."""
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
        return replace(done, verdict=verdict, summary=summary)


def check_before_writing(done: Conversion, mode: str, progress: Progress) -> Conversion:
    """For `convert` with a check: the conversion with its verdict; where it missed, one without measured ranges or
    repaired, if that helps. A KeyboardInterrupt goes on, but unless the ``mode`` is "require" the result as it was
    converted is written first."""
    try:
        done = drop_harmful_ranges(replace(done, verdict=verdict_before_writing(done, progress)), progress)
        if done.job.checking.repair and done.job.plan is None:
            return repair(done, progress)
    except KeyboardInterrupt:
        if mode != "require":
            write_files(done)
        raise
    return done


# -- whether and how --------------------------------------------------------------------------------------------------


def fill_in_checking(checking: Checking) -> Checking:
    """For `convert`: how to check, with the mode filled in (from the environment, else ``auto``) and the metric as an
    address. Raises AmpError AMP301 for a word that is no mode, AMP312 for a tolerance or memory that is no positive
    number, or a metric that the child process would not find."""
    mode: object = checking.mode
    if mode is None:
        mode = os.environ.get(DEFAULT) or "auto"
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
    """The text by which the child process of a check finds a metric: its name, or an address like module:function; None
    for the check's own measure. Raises AmpError AMP312 for a function that has no address, or no such metric."""
    if metric is None:
        return None
    metric_of(metric)
    found = metric if isinstance(metric, str) else address_of(metric)
    if not found:
        message = f"metric {getattr(metric, '__name__', metric)} cannot be found by the process that checks"
        raise AmpError("AMP312", message, hint="define it in a module; or check with ampgraph.verify, which takes any")
    return found


def mode_of(done: Conversion) -> str:
    """How `convert` checks a result, ``auto`` or ``require``; "" where it does not: the check is off, it is a dry run,
    or nothing is low and each operator is known."""
    mode, decisions = done.job.checking.mode or "", done.plan.decisions
    if mode == "off" or done.job.dry_run:
        return ""
    lowered = done.changed and any(decision.dtype in LOW for decision in decisions)
    # an operator of ONNX's own domain that no opset has: only a runtime tells whether the model can be run
    unknown = any(decision.why.rule == "unknown" and "::" not in decision.kind for decision in decisions)
    return mode if lowered or (done.graph.format == "ONNX" and unknown) else ""


def verdict_not_checked(graph: Graph, memory: int) -> CheckVerdict | None:
    """For `convert`: the verdict "not checked", with the reason, for a model that cannot be checked: a training step, a
    format whose runtime is not installed, or one that needs more than ``memory`` bytes; None for any other."""
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


class FirstKept:
    """An iterator of samples given to `convert`: measuring reads it, and the first `SAMPLES` of what was read stay in
    ``kept`` for the check that follows."""

    def __init__(self, source: Iterable[Feeds]) -> None:
        self.source = source
        self.kept: list[Feeds] = []

    def __iter__(self) -> Iterator[Feeds]:
        """Reads the samples of `convert` once, and copies the first ones."""
        for feeds in self.source:
            if len(self.kept) < SAMPLES and isinstance(feeds, Mapping):
                self.kept.append({name: np.array(array) for name, array in feeds.items()})
            yield feeds


def with_data_kept(measuring: Measuring, often: bool) -> Measuring:
    """For `convert`: the measuring with data that the check can read after it. An iterator is read into a list if
    ``often``, as a repair reads all of it several times; else its first samples are kept."""
    data = measuring.data
    if not isinstance(data, Iterator):
        return measuring
    return replace(measuring, data=list(data) if often else FirstKept(data))


# -- the verdict ------------------------------------------------------------------------------------------------------


def verdict_before_writing(done: Conversion, progress: Progress, repairing: float = 0.0) -> CheckVerdict | None:
    """For `convert` with a check: the verdict on a result that is not written yet, by a file that is removed again;
    None where it is not to be checked.

    ``repairing``: how many seconds it may take where it looks for what mends the result as well; 0: it does not."""
    if not mode_of(done):
        return None
    folder = None if done.output is None else done.output.parent  # it has room for the file
    reported = contextlib.nullcontext() if done.output is None else refusals_reported(done.output, done.job.option)
    with reported, tempfile.TemporaryDirectory(prefix=".ampgraph-", dir=folder) as scratch:
        tried = Path(scratch) / f"result{SUFFIXES[done.graph.format]}"
        if verdict_not_checked(done.graph, memory_budget(done)) is None:
            done.graph.save(tried, progress)
        return verdict_on(done, tried, progress, repairing)


def verdict_on(done: Conversion, written: Path, progress: Progress, repairing: float = 0.0) -> CheckVerdict:
    """For `convert` with a check: the verdict of a strict run of a ``written`` file beside the model that was given; a
    model in memory is saved for it. ``repairing``: as in `verdict_before_writing`."""
    progress("checking", 0, 0)
    unchecked_verdict = verdict_not_checked(done.graph, memory_budget(done))
    if unchecked_verdict is not None:
        return unchecked_verdict
    with contextlib.ExitStack() as files:
        reference = done.job.source
        if reference is None:
            folder = files.enter_context(tempfile.TemporaryDirectory(prefix="ampgraph-"))
            reference = Path(folder) / f"reference{SUFFIXES[done.graph.format]}"
            adapters.load(done.job.model)[0].save(reference)
        given = files.enter_context(_samples_file(done.job.measuring.data))
        request = request_for(done, reference, written, given)
        if repairing:
            request = replace(request, recipe=done.made_with(), whole=repairing)
        return ask(request, memory_budget(done), progress)


def request_for(done: Conversion, reference: PathLike, written: Path, given: str | None) -> Request:
    """What the child process of a check is asked: to run a reference and the ``written`` result. ``given``: the file or
    folder of the user's samples; None generates them."""
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
    """The error that the check of a conversion allows: the one that was asked for, else the low type's own."""
    return done.job.checking.tolerance or TOLERANCES.get(done.plan.dtype, TOLERANCES["float16"])


def memory_budget(done: Conversion) -> int:
    """How many bytes of memory the check of a conversion may take; the job says gigabytes."""
    given = done.job.checking.memory
    return MEMORY if given is None else int(given * 1e9)


def ask(request: Request, memory: int = MEMORY, progress: Progress = silent) -> CheckVerdict:
    """Runs the check of a conversion in a child process, of ``memory`` bytes and some slack for the runtime; returns
    the last verdict that it answered, or "not checked" where a crash or the end of its time came before the first."""
    from .check_run import VERIFY, answer_request

    def on_answer(answer: Any) -> None:
        if isinstance(answer, list):  # the other answers are verdicts, as dicts
            progress(*answer)

    ended = in_child(answer_request, request, seconds=SECONDS, memory=memory + SLACK, on_answer=on_answer)
    verdicts = [answer for answer in ended.answers if isinstance(answer, dict)]
    return CheckVerdict.from_dict(verdicts[-1]) if verdicts else unchecked(ended.said, VERIFY)


@contextlib.contextmanager
def _samples_file(data: Data) -> Iterator[str | None]:
    """The path of the user's samples for the child process of a check; None for none. Samples in memory, as many as a
    check runs, are written to a folder that is removed at the end."""
    if data is None or isinstance(data, (str, os.PathLike)):
        yield None if data is None else os.fspath(data)
        return
    if isinstance(data, FirstKept):
        data = data.kept
    elif isinstance(data, Mapping):
        data = [data]
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        for number, feeds in enumerate(islice(data, SAMPLES)):
            save_npz(Path(folder) / f"{number:03}.npz", feeds)
        yield folder


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
    until = time.monotonic() + SECONDS * WHOLE
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
    measuring = Measuring(samples=verdict.samples, until=until)
    done = convert_in_memory(replace(job, measuring=measuring), progress)
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


def _convert_with_pins(job: Job, patterns: tuple[str, ...], progress: Progress) -> Conversion:
    """For `convert --repair`: converts again with the nodes of ``patterns`` in float32 too, and checks the result."""
    recipe = replace(job.recipe, fp32=(*job.recipe.fp32, *patterns))
    return _check_repair(convert_in_memory(replace(job, recipe=recipe), progress), patterns, progress)


def _check_repair(done: Conversion, pinned: tuple[str, ...], progress: Progress) -> Conversion:
    """For `convert --repair`: the conversion with the verdict of its check, which says what was ``pinned`` to float32
    (a pattern, or the reason, of each node); the verdict is None where nothing is low any more."""
    found = verdict_before_writing(done, progress)
    return replace(done, verdict=None if found is None else replace(found, pinned=pinned))
