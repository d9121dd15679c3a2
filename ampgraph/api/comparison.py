"""The comparison of two models over samples, for the pair that `verify` is given and for what is tried instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.arrays import Result
from ..core.errors import AmpError
from ..core.progress import Progress
from ..core.verdict import chaotic_in_itself
from ..numerics.metrics.agreement import Agreement, Scores, apart, sensitivity
from ..numerics.metrics.metric import SAMPLE, Metric
from ..report.verification import StepError, within
from .decoding import Decoding, Run, decoding_of
from .kinds import Feeds
from .mending import Outcome
from .pairs import OnnxPair, Pair

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples


@dataclass(frozen=True)
class Compared:
    """What a comparison shows: the outputs over the runs, what a metric says of runs as a whole, the error of each
    step, whether all of it is right; ``kept`` as `FaultSearch` has it; ``seconds`` that it took."""

    outputs: list[Agreement]
    overall: Scores | None
    by_step: tuple[StepError, ...]
    ok: bool
    kept: tuple[int, Feeds, Feeds] | None
    seconds: float

    @property
    def error(self) -> float:
        """The largest that is judged."""
        if self.overall is not None:
            return self.overall.decisive
        errors = [output.scores.decisive for output in self.outputs if output.counts]
        return max((*errors, *(step.error for step in self.by_step)), default=0.0)


@dataclass(frozen=True)
class Comparison:
    """How models are compared: on which samples, by which metric; ``steps`` and ``cache`` as `verify` takes them."""

    drawn: Samples
    metric: Metric
    tolerance: float
    steps: int | None = None
    cache: Sequence[str] = ()

    def of(self, pair: Pair, decoding: Decoding | None, progress: Progress | None = None) -> Compared:
        """Compares a pair that is open."""
        start = time.monotonic()
        runs = _one_by_one(pair, self.drawn, progress) if decoding is None else decoding.runs(self.drawn, progress)
        outputs, overall = compared(runs, self.metric, None if decoding is None else decoding.heard)
        by_step = () if decoding is None else decoding.by_step(outputs)
        ok = within(outputs, overall, by_step, self.tolerance)
        kept = None if decoding is None else decoding.worst
        return Compared(outputs, overall, by_step, ok, kept, time.monotonic() - start)

    def again(self, pair: OnnxPair) -> Outcome:
        """How another model does, beside the same reference."""
        seen = self.of(pair, decoding_of(pair, self.steps, self.cache))
        return Outcome(seen.error, seen.ok, pair, seen.outputs, seen.kept)


def chaotic(
    run: Callable[[Feeds], Mapping[str, Result]], drawn: Samples, low: Sequence[str], tolerance: float,
    outputs: Sequence[Agreement],
) -> list[str]:  # fmt: skip
    """A note on a model that misses a tolerance, and would whatever was low in it: its inputs' rounding is enough."""
    if not low or all(output.within(tolerance) for output in outputs):
        return []
    name, found = sensitivity(run, drawn, low[0])
    return [f"{chaotic_in_itself(found)} at '{name}'"] if found > tolerance else []


def _one_by_one(pair: Pair, drawn: Samples, progress: Progress | None) -> Iterator[Run]:
    """The outputs of both models on each sample."""
    for number, feeds in enumerate(drawn):
        if progress:
            progress("comparing", number, len(drawn))
        yield pair.both(feeds)


def compared(
    runs: Iterable[Run], metric: Metric, heard: Callable[[int, float], None] | None = None
) -> tuple[list[Agreement], Scores | None]:
    """The outputs over the runs, and what the metric says of runs as a whole where it does that.

    ``heard``: is given each run's index and its largest error.
    """
    outputs: dict[str, Agreement] = {}
    overall: list[float] = []
    for number, (expected, found) in enumerate(runs):
        judged = metric.judge(expected, found)
        overall += [judged[SAMPLE].error()] if SAMPLE in judged else []
        for name, value in expected.items():
            output = outputs.setdefault(name, Agreement(name, over_all=metric.over_all))
            output.counts = name in judged
            output.add(apart(value, found[name]), judged.get(name))
        if heard is not None:
            heard(number, max(one.error() for one in judged.values()))
    if not outputs:
        raise AmpError("AMP209", "the models have no output to compare", hint="see `ampgraph inspect`")
    return list(outputs.values()), Scores(metric.name, overall) if overall else None
