"""The check of a conversion: a strict run of the result beside its reference, in a child process with limits."""

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

from ..core.errors import AmpError, is_number, nearest
from ..core.files import refusals_reported
from ..core.graph import LOW, Graph, StepGraph
from ..core.installing import pip_install
from ..core.progress import Progress, silent
from ..core.verdict import TOLERANCES, CheckVerdict, unchecked
from ..formats import adapters
from ..numerics.metrics.metric import Function, address_of, metric_of
from ..runtime.child import in_child
from ..runtime.data import save_npz
from .calibrate import Measuring
from .kinds import Data, Feeds, PathLike
from .steps import SUFFIXES, Checking, Conversion

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


def verdict_before_writing(
    done: Conversion, progress: Progress, repairing: float = 0.0, least: int = 0
) -> CheckVerdict | None:
    """For `convert` with a check: the verdict on a result that is not written yet, by a file that is removed again;
    None where it is not to be checked.

    ``repairing``: how many seconds it may take where it looks for what mends the result as well; 0: it does not.
    ``least``: how many generated samples to run at least, as far as there is time."""
    if not mode_of(done):
        return None
    folder = None if done.output is None else done.output.parent  # it has room for the file
    reported = contextlib.nullcontext() if done.output is None else refusals_reported(done.output, done.job.option)
    with reported, tempfile.TemporaryDirectory(prefix=".ampgraph-", dir=folder) as scratch:
        tried = Path(scratch) / f"result{SUFFIXES[done.graph.format]}"
        if verdict_not_checked(done.graph, memory_budget(done)) is None:
            done.graph.save(tried, progress)
        return verdict_on(done, tried, progress, repairing, least)


def verdict_on(
    done: Conversion, written: Path, progress: Progress, repairing: float = 0.0, least: int = 0
) -> CheckVerdict:
    """For `convert` with a check: the verdict of a strict run of a ``written`` file beside the model that was given; a
    model in memory is saved for it. ``repairing``, ``least``: as in `verdict_before_writing`."""
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
        if given is None:
            request = replace(request, samples=max(request.samples, least))
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


def time_limit() -> float:
    """The time of `time.monotonic` by which attempts to mend a result have to end, if they begin now."""
    return time.monotonic() + SECONDS * WHOLE


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
