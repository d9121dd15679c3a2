"""Two models compared on the same samples, whole or step by step; whether the difference is their own sensitivity."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.arrays import Feeds
from ..core.errors import AmpError
from ..core.progress import Progress
from ..core.verdict import chaotic_in_itself
from .decoding import Decoding, Run, StepError, decoding_of
from .inputs.samples import Samples
from .metrics.agreement import sensitivity
from .metrics.metric import Metric
from .metrics.verdict import Compared
from .pairs import OnnxPair, Pair


@dataclass(frozen=True)
class Outcome:
    """How a model was judged.

    Attributes:
        error: the largest error of an output, or step, that is judged; ``ok``: whether all are within the tolerance.
        pair: what was run; ``compared``: what came out.
        kept: when decoding, the number of the worst run, and the feeds of both sides in it.
        by_step: when decoding, the error of each step.
        seconds: that it took.
    """

    error: float
    ok: bool
    pair: Pair
    compared: Compared
    kept: tuple[int, Feeds, Feeds] | None = None
    by_step: tuple[StepError, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """How models are compared: on which samples, by which metric; ``steps`` and ``cache`` as `verify` takes them."""

    drawn: Samples
    metric: Metric
    tolerance: float
    steps: int | None = None
    cache: Sequence[str] = ()

    def compare(self, pair: Pair, decoding: Decoding | None, progress: Progress | None = None) -> Outcome:
        """Compares the outputs of a pair of models that is open, sample by sample, or for ``decoding`` step by step."""
        start = time.monotonic()
        runs = self._one_by_one(pair, progress) if decoding is None else decoding.runs(self.drawn, progress)
        seen = Compared(self.metric)
        for number, (expected, found) in enumerate(runs):
            error = seen.add(expected, found)
            if decoding is not None:
                decoding.keep_worst(number, error)
        if not seen.found:
            raise AmpError("AMP209", "the models have no output to compare", hint="see `ampgraph inspect`")
        by_step = () if decoding is None else decoding.errors_by_step(seen.outputs)
        largest = max((seen.error, *(step.error for step in by_step)))
        ok = seen.within(self.tolerance) and all(step.error <= self.tolerance for step in by_step)
        kept = None if decoding is None else decoding.worst
        return Outcome(largest, ok, pair, seen, kept, by_step, time.monotonic() - start)

    def compare_repaired(self, pair: OnnxPair) -> Outcome:
        """Compares another model, as a repair made it, with the same reference."""
        return self.compare(pair, decoding_of(pair, self.steps, self.cache))

    def _one_by_one(self, pair: Pair, progress: Progress | None) -> Iterator[Run]:
        """Runs both models to compare on each sample, one after the other; gives their outputs."""
        for number, feeds in enumerate(self.drawn):
            if progress:
                progress("comparing", number, len(self.drawn))
            yield pair.run_both(feeds)


def chaos_notes(pair: Pair, drawn: Samples, tolerance: float, compared: Compared) -> list[str]:
    """For the comparison of two models, as ``compared``: a note if an output misses the tolerance, and would whatever
    was low in the model: rounding its inputs is enough. Else none; it runs the reference on all samples."""
    if not pair.low or all(output.within(tolerance) for output in compared.outputs):
        return []
    name, found = sensitivity(pair.run_reference, drawn, pair.low[0])
    return [chaotic_in_itself(found, name)] if found > tolerance else []
