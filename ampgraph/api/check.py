"""The check with which a conversion ends: a strict run of the result, in a child process with limits."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from ..core.errors import AmpError, is_number, nearest
from ..core.graph import LOW, Graph, StepGraph
from ..core.plan import Plan
from ..core.recipe import Recipe
from ..core.verdict import TOLERANCES, UNCHECKED, CheckVerdict, unchecked
from ..numerics.metrics.custom import Function, address_of
from ..numerics.metrics.metric import metric_of
from ..runtime.data import save_npz
from .check_request import Request
from .kinds import Data, Feeds, PathLike
from .measuring import Measuring
from .opening import CPU, died

MODES = ("auto", "off", "require")
DEFAULT = "AMPGRAPH_CHECK"  # the variable that says the mode where nothing else does
GENERATED, SAMPLES = 6, 8  # that a check runs, generated or the user's
MORE = 24  # generated ones where the first come close to the tolerance
SECONDS, MEMORY = 60.0, 4 << 30  # the budget of a check: what passes it is not checked
SHARES = 0.5, 0.75  # of the time for samples, generated or the user's; the rest is for opening models, and for causes
WHOLE = 0.9  # of the time by which a search for repairs ends; the rest is for starting the process
SLACK = 2 << 30  # beyond the budget, for what the runtime holds besides weights and values
CRASHED = "the run crashed"
RUNTIMES = {"ONNX": "onnxruntime", "MindIR": "mindspore"}  # by format, what a model is run with
COPIES = 2.5  # of the float32 weights: both models, and what a runtime packs
START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from ampgraph.api.check_run import main; "


@dataclass(frozen=True)
class Checking:
    """How a conversion is checked. ``mode`` None: as the environment's AMPGRAPH_CHECK says, else ``auto``; ``metric``
    None: the check's own measure."""

    mode: str | None = "off"
    tolerance: float | None = None
    repair: bool = False
    metric: str | Function | None = None

    def resolved(self) -> Checking:
        """With its mode. Raises AmpError AMP301 for a word that is none, AMP312 for a tolerance that is none."""
        mode: object = self.mode if self.mode is not None else os.environ.get(DEFAULT) or "auto"
        if not isinstance(mode, str) or mode not in MODES:
            hint = nearest(str(mode), list(MODES)) or f"one of {', '.join(MODES)}"
            raise AmpError("AMP301", f"--check {mode} is none", hint=hint)
        given = self.tolerance
        if given is not None and not (is_number(given) and math.isfinite(given) and given > 0):
            raise AmpError("AMP312", f"tolerance {given!r} is no positive number", hint="for example 1e-2")
        return replace(self, mode=mode, metric=_address(self.metric))


def _address(metric: str | Function | None) -> str | None:
    """A metric as another process finds it. Raises AmpError AMP312 for one that is none, or that only this one has."""
    if metric is None:
        return None
    metric_of(metric)
    found = metric if isinstance(metric, str) else address_of(metric)
    if not found:
        message = f"metric {getattr(metric, '__name__', metric)} cannot be found by the process that checks"
        raise AmpError("AMP312", message, hint="define it in a module; or check with ampgraph.verify, which takes any")
    return found


def lowers(plan: Plan) -> bool:
    """Whether a plan makes anything low, so that there is something to check."""
    return any(decision.dtype in LOW for decision in plan.decisions)


def check(
    reference: PathLike, model: PathLike, plan: Plan, checking: Checking, measuring: Measuring, dims: Mapping[str, int],
    recipe: Recipe | None = None,
) -> CheckVerdict:  # fmt: skip
    """Runs both files on a few samples, the user's or generated. ``recipe``: all that made the model, where that is
    known: repairs are tried with it."""
    data = measuring.data
    tolerance = checking.tolerance or TOLERANCES.get(plan.dtype, TOLERANCES["float16"])
    count = min(GENERATED if data is None else SAMPLES, measuring.samples or SAMPLES)
    with _file_of(data) as given:
        request = Request(
            os.fspath(reference), os.fspath(model), given, count, dict(dims), tolerance,
            SECONDS * SHARES[data is not None], MEMORY + SLACK,
            checking.metric if isinstance(checking.metric, str) else None,
            MORE if data is None and measuring.samples is None else 0,
            SECONDS * WHOLE, None if recipe is None else recipe.to_dict(), plan.target,
        )  # fmt: skip
        return in_child(request)


def beyond(graph: Graph) -> str:
    """Why a result is not checked, empty if it can be."""
    if isinstance(graph, StepGraph) and graph.is_step():
        return "it is a training step, of which every run changes the parameters"
    runtime = RUNTIMES[graph.format]
    if importlib.util.find_spec(runtime) is None:
        return f"{runtime} is not installed"
    stored = graph.census().weights
    size = COPIES * sum(held.bytes * (2 if dtype in LOW else 1) for dtype, held in stored.items())
    if size > MEMORY:
        return f"it would take {size / 1e9:.0f} GB of memory, and the budget is {MEMORY / 1e9:.0f} GB"
    return ""


class Replayed:
    """An iterable that can be read once, with its first samples kept for the check behind the measuring."""

    def __init__(self, source: Iterable[Feeds]) -> None:
        self.source = source
        self.kept: list[Feeds] = []

    def __iter__(self) -> Iterator[Feeds]:
        for feeds in self.source:
            if len(self.kept) < SAMPLES and isinstance(feeds, Mapping):
                self.kept.append({name: np.array(array) for name, array in feeds.items()})
            yield feeds


def replayed(data: Data) -> Data:
    """Data that is there a second time."""
    return Replayed(data) if isinstance(data, Iterator) else data


@contextmanager
def _file_of(data: Data) -> Iterator[str | None]:
    """The samples as files: a child reads no iterable."""
    if data is None or isinstance(data, (str, os.PathLike)):
        yield None if data is None else os.fspath(data)
        return
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        given = data.kept if isinstance(data, Replayed) else [data] if isinstance(data, Mapping) else data
        for number, feeds in enumerate(islice(given, SAMPLES)):
            save_npz(Path(folder) / f"{number:03}.npz", feeds)
        yield folder


def in_child(request: Request) -> CheckVerdict:
    """The verdict of a process of its own, whose crash or time-out is none. Where it is only the opening that crashes,
    this is a fault of the file if it is meant for the CPU."""
    verdict, crashed = _asked(request)
    if not crashed or not request.target:
        return verdict
    without, _ = _asked(replace(request, target=""))
    if without.outcome == UNCHECKED:
        return verdict
    return died(request) if request.target == CPU else without


def _asked(request: Request) -> tuple[CheckVerdict, bool]:
    """The answer of a process, and whether it crashed without one."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        asked, answer = Path(folder, "request.json"), Path(folder, "verdict.jsonl")
        asked.write_text(request.to_json(), encoding="utf-8")
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        words = [sys.executable, "-I", "-c", f"{START}main({str(asked)!r}, {str(answer)!r})", paths]
        ended = _run(words)
        lines = answer.read_text(encoding="utf-8").splitlines(keepends=True) if answer.is_file() else []
        whole = [line for line in lines if line.endswith("\n")]
        if whole:
            return CheckVerdict.from_dict(json.loads(whole[-1])), False
        return unchecked(ended), ended.startswith(CRASHED)


def _run(words: list[str]) -> str:
    """Runs a child to its end or to that of its time; how it ended, in words."""
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
    except OSError as error:
        return f"no process could be started: {error.strerror or error}"
    try:
        _, said = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"the run took more than {SECONDS:g} seconds"
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    code = child.returncode
    if code < 0:
        return f"{CRASHED}: {signal.strsignal(-code) or f'signal {-code}'}"
    last = (said.strip().splitlines() or [""])[-1]
    return f"the run failed: {last or f'exit status {code}'}"
