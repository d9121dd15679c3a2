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

ROUNDS, WARM = 20, 2
PLAIN, CPU = "cpu", "CPUExecutionProvider"
ALL, ONE = 0, 1


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
        lanes: list[_TimedModel] = []
        runtimes = list(_runtimes(target, [runtime] * bool(runtime) if isinstance(runtime, str) else runtime))
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
            for lane in lanes if number % 2 else lanes[::-1]:
                lane.time(kept=number >= WARM)
    notes = (*drawn.notes, *(f"{one.name}: {one.note}" for one in runtimes if one.note))
    return Benched(rounds, tuple(_timed_rows(lanes)), notes)


def _runtimes(target: str, pythons: Sequence[str]) -> Iterator[Runtime]:
    """For `bench`: each runtime once; raises AmpError where one that was named is not there."""
    kinds = (
        [_runtime_kind(target)]
        if target
        else list(dict.fromkeys((PLAIN, *filter(None, map(_executing_runtime, TARGETS["ONNX"])))))
    )
    seen: set[str] = set()
    for python in pythons if target and pythons else ("", *pythons):
        lacks, found = None, False
        for kind in kinds if python or target else filter(is_here, kinds):
            try:
                runtime = Runtime(kind, python)
            except AmpError as error:
                if error.code != "AMP501":
                    raise
                lacks = error
                continue
            found = True
            if runtime.name not in seen:
                seen.add(runtime.name)
                yield runtime
        if lacks is not None and not found:
            raise lacks


def _executing_runtime(target: str) -> str:
    """For `bench`: the runtime that executes a target's models, as its kernel table says."""
    return load_kernels(place_word(target)).executes


def _runtime_kind(target: str) -> str:
    """Where `bench` times files for a target: the kind of runtime. AmpError AMP404 where none executes them."""
    if load_kernels(place_word(target)).provider == CPU:
        return PLAIN
    if not _executing_runtime(target):
        raise lacking_runtime(target)
    return _executing_runtime(target)


@dataclass
class _TimedModel:
    """A model on a runtime with so many threads. ``refused``: why it does not run there."""

    runtime: Runtime
    model: str
    threads: int
    hint: str
    session: ExecutedSession | None = None
    refused: str = ""
    seconds: list[float] = field(default_factory=list)
    outputs: Mapping[str, Result] = field(default_factory=dict)

    def feed(self, sample: Feeds) -> None:
        """Gives a sample to a model that `bench` times, in the types of its inputs."""
        assert self.session is not None
        self.session.feed(in_types_of(sample, {name: port.dtype for name, port in self.session.inputs.items()}))

    def time(self, kept: bool) -> None:
        """Runs a model of `bench` once; its time counts if ``kept`` (no warm-up): CPU seconds on one thread, else
        elapsed."""
        if self.session is None:
            return
        wall, cpu = self.session.time()
        if kept:
            self.seconds.append(cpu if self.threads == ONE else wall)
        if not self.outputs:
            self.outputs = self.session.results()


def _lanes(runtime: Runtime, models: Iterable[PathLike], threads: int) -> Iterator[_TimedModel]:
    """For `bench`: a ``_TimedModel`` for each model; for the first, the base of the ratios, also one under each low
    type that the runtime can be told."""
    for number, model in enumerate(models):
        for hint in ("", *runtime.low) if number == 0 else ("",):
            lane = _TimedModel(runtime, os.fspath(model), threads, hint)
            try:
                lane.session = executed_session(runtime, model, threads=threads, hint=hint)
            except AmpError as error:
                if error.code != "AMP502":
                    raise
                lane.refused = error.message
            yield lane


def _timed_rows(lanes: Sequence[_TimedModel]) -> Iterator[Timed]:
    """What `bench` reports: median times, ratios to the first model of the same runtime run by run with their
    quartiles, and the largest error against it."""
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
