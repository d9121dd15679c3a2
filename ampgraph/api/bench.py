"""`ampgraph.bench`: how long models take, side by side, on the runtimes that are here, and how far apart they are."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.arguments import check_annotated
from ..core.arrays import Result
from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_whole
from ..core.progress import Progress, silent
from ..core.spellings import place_word
from ..formats.adapters import load_onnx
from ..numerics.inputs.samples import load_samples
from ..numerics.metrics.agreement import compare_outputs
from ..numerics.pairs import in_types_of
from ..oplists.kernels import TARGETS, load_kernels
from ..report.benched import Benched, Timed
from ..runtime.executed import ExecutedSession, Runtime, is_here
from ..runtime.targets import executed_session, lacking_runtime
from .kinds import Data, Feeds, PathLike

ROUNDS, WARM = 20, 2  # of runs that count, and of runs before them that do not
PLAIN, CPU = "cpu", "CPUExecutionProvider"  # the runtime of this environment's ONNX Runtime, and its provider
ALL, ONE = 0, 1  # threads


def bench(
    models: Sequence[PathLike],
    *,
    data: Data = None,
    target: str = "",
    runtime: str | Sequence[str] = (),
    rounds: int = ROUNDS,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    progress: Progress = silent,
) -> Benched:
    """Times models in turn, with one thread and with all, on ONNX Runtime's CPU and on what executes low precision.

    Args:
        models: .onnx files that take the same inputs; the others are held against the first one, which is float32 in
            most cases. It is timed with the runtime's own low precision too, where the runtime has that.
        data: one sample as `verify` takes them; generated from ``seed`` if not given.
        target: only the runtime of this target; else all that are here, and in the environments of ``runtime``.
        runtime: the Python of an environment with it, or several; ONNX Runtime is this environment's.
        rounds: how often each model runs, one after the other.
        dims: sizes of symbolic dimensions, for a generated sample.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP312 for a number that makes no sense, and what `run` raises.
    """
    check_annotated(bench, locals())
    if not models or not is_whole(rounds) or rounds < 1:
        raise AmpError("AMP312", "nothing to time", hint="name one model or more, and 1 round or more")
    with quiet_collector():
        reference = load_onnx(models[0])
        drawn = load_samples(reference, data, count=1, seed=seed, dims=dims)
        if isinstance(runtime, str):
            runtime = [runtime] if runtime else []
        runtimes = list(_runtimes(target, runtime))
        lanes: list[_TimedModel] = []
        for one in runtimes:
            for threads in (ONE, ALL) if (os.cpu_count() or 1) > 1 else (ONE,):
                lanes += _lanes(one, models, threads)
        sample: Feeds | None = None
        for lane in lanes:
            if lane.session is not None:
                sample = next(iter(drawn.fit_to(lane.session.run))) if sample is None else sample
                lane.feed(sample)
        for number in range(WARM + rounds):
            progress("timing", number, WARM + rounds)
            for lane in lanes if number % 2 else lanes[::-1]:  # there and back, so that drifts of the machine even out
                lane.time(kept=number >= WARM)
    notes = (*drawn.notes, *(f"{one.name}: {one.note}" for one in runtimes if one.note))
    return Benched(rounds, tuple(_timed_rows(lanes)), notes)


def _runtimes(target: str, pythons: Sequence[str]) -> Iterator[Runtime]:
    """For `bench`: opens each runtime once, by name and version: the target's in the environments of ``pythons``, or in
    this one without any; for no target ("") all that are in this environment or in one of ``pythons``.

    Raises AmpError AMP501 for an environment with none of them, and as `_runtime_kind` does."""
    if target:
        kinds, environments = [_runtime_kind(target)], pythons or ("",)
    else:
        executing = filter(None, map(_executing_runtime, TARGETS["ONNX"]))
        kinds, environments = list(dict.fromkeys((PLAIN, *executing))), ("", *pythons)
    seen: set[str] = set()
    for python in environments:
        not_installed, found = None, False
        for kind in kinds if python or target else filter(is_here, kinds):
            try:
                runtime = Runtime(kind, python)
            except AmpError as error:
                if error.code != "AMP501":
                    raise
                not_installed = error
                continue
            found = True
            if runtime.name not in seen:
                seen.add(runtime.name)
                yield runtime
        if not_installed is not None and not found:
            raise not_installed


def _executing_runtime(target: str) -> str:
    """For `bench`: the kind of runtime that executes a target's models, as its kernel table says; "" for none."""
    return load_kernels(place_word(target)).executes


def _runtime_kind(target: str) -> str:
    """The kind of runtime on which `bench` times models for a target. Raises AmpError AMP404 where there is none."""
    if load_kernels(place_word(target)).provider == CPU:
        return PLAIN
    if not _executing_runtime(target):
        raise lacking_runtime(target)
    return _executing_runtime(target)


@dataclass
class _TimedModel:
    """A model that `bench` times on a runtime, with ``threads`` `ONE` or `ALL`: a lane of the race. ``hint``: the low
    type that the runtime is told to compute in, "" for the types of the file; ``session``: None where the runtime
    refuses the model, and ``refused`` says why; ``seconds``: of each run that counts; ``outputs``: of the first run."""

    runtime: Runtime
    model: str
    threads: int
    hint: str
    session: ExecutedSession | None = None
    refused: str = ""
    seconds: list[float] = field(default_factory=list)
    outputs: Mapping[str, Result] = field(default_factory=dict)

    def feed(self, sample: Feeds) -> None:
        """Hands the sample of `bench` to a model that is open, in the types of its inputs, before it is timed."""
        assert self.session is not None
        self.session.feed(in_types_of(sample, {name: port.dtype for name, port in self.session.inputs.items()}))

    def time(self, kept: bool) -> None:
        """Runs a model of `bench` once, if it is open. The time is kept if ``kept`` (False in warm-up): CPU seconds on
        one thread, elapsed seconds on several."""
        if self.session is None:
            return
        wall, cpu = self.session.time()
        if kept:
            self.seconds.append(cpu if self.threads == ONE else wall)
        if not self.outputs:
            self.outputs = self.session.results()


def _lanes(runtime: Runtime, models: Iterable[PathLike], threads: int) -> Iterator[_TimedModel]:
    """For `bench`: opens each model on a runtime; the first, to which the others are compared, once more for each low
    type in which the runtime can be told to compute. A model that it refuses gets a lane that says why."""
    for number, model in enumerate(models):
        hints = ("", *runtime.low) if number == 0 else ("",)
        for hint in hints:
            lane = _TimedModel(runtime, os.fspath(model), threads, hint)
            try:
                lane.session = executed_session(runtime, model, threads=threads, hint=hint)
            except AmpError as error:
                if error.code != "AMP502":
                    raise
                lane.refused = error.message
            yield lane


def _timed_rows(lanes: Sequence[_TimedModel]) -> Iterator[Timed]:
    """What `bench` reports of each lane: the median time; the median and the quartiles of how many times faster than
    the first model of the same runtime and threads it is, round by round; the largest error against that model."""
    first: dict[tuple[str, int], _TimedModel] = {}
    for lane in lanes:
        base = first.setdefault((lane.runtime.name, lane.threads), lane)
        if lane.session is None:
            yield Timed(lane.runtime.name, lane.model, lane.hint, lane.threads, refused=lane.refused)
            continue
        ratios = [a / b for a, b in zip(base.seconds, lane.seconds, strict=False)]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        pairs = [
            compare_outputs(value, lane.outputs[name]) for name, value in base.outputs.items() if name in lane.outputs
        ]
        errors = [one.error for one in pairs if one.floating]
        yield Timed(
            lane.runtime.name, lane.model, lane.hint, lane.threads, statistics.median(lane.seconds),
            statistics.median(ratios) if ratios else None, (quartiles[0], quartiles[2]) if ratios else None,
            max(errors, default=None),
        )  # fmt: skip
