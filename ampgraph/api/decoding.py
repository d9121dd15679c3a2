"""`verify --steps`: both models run step by step, each on its own cache, with the reference's tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.arrays import Result
from ..core.errors import AmpError, is_whole
from ..core.progress import Progress
from ..numerics.decoding import Decoder, decoder_of, find_pairs
from ..numerics.metrics.agreement import QUANTILE, Agreement, quantile
from ..report.verification import StepError
from .kinds import Feeds
from .pairs import OnnxPair, Pair

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples

MOST_STEPS = 10_000
Run = tuple[dict[str, Result], dict[str, Result]]


@dataclass
class Decoding:
    """How a pair of models is run step by step.

    Attributes:
        worst: the run with the largest error so far, as its index among all runs, and the feeds of both sides.
    """

    pair: OnnxPair
    decoder: Decoder
    steps: int
    worst: tuple[int, Feeds, Feeds] | None = None
    _largest: float = -1.0
    _feeds: tuple[Feeds, Feeds] = field(default_factory=lambda: ({}, {}))

    @property
    def optional(self) -> frozenset[str]:
        """The inputs that a sample may lack: they start empty."""
        return frozenset(pair.past for pair in self.decoder.pairs)

    def runs(self, drawn: Samples, progress: Progress | None) -> Iterator[Run]:
        """The outputs of both models, all steps of the first sample, then those of the next."""
        ports = self.pair.takes_of_reference()
        for number, feeds in enumerate(drawn):
            others = itertools.chain(itertools.islice(iter(drawn), number + 1, None), itertools.cycle(drawn))
            ours: Feeds = self.decoder.start(feeds, ports, drawn.generated)
            theirs: Feeds = self.pair.feeds(ours)[1]
            for step in range(self.steps):
                if progress:
                    progress("running step by step", number * self.steps + step, len(drawn) * self.steps)
                self._feeds = ours, theirs
                expected, found = self.pair.sides(ours, theirs)
                yield expected, found
                if step + 1 < self.steps:
                    rest: Mapping[str, Result] = {} if self.decoder.tokens else next(others)
                    ours = self.decoder.after(ours, expected, expected, rest)
                    theirs = self.pair.feeds(self.decoder.after(theirs, found, expected, self.pair.feeds(rest)[1]))[1]

    def heard(self, index: int, error: float) -> None:
        """Keeps the feeds of the run that was just made, if none was worse."""
        if error > self._largest:
            self._largest, self.worst = error, (index, *self._feeds)

    def notes(self, generated: bool) -> list[str]:
        """What is fed back, and where tokens are from."""
        pairs = [f"{pair.past} from {pair.present}" for pair in self.decoder.pairs]
        more = f" and {len(pairs) - 2} more" if len(pairs) > 2 else ""
        lines = [f"{self.steps} steps, each model on its own cache: {', '.join(pairs[:2])}{more}"]
        if generated:
            lines.append("the cache is empty at first, whatever was generated")
        if self.decoder.tokens:
            return [*lines, f"{self.decoder.tokens} is the likeliest of the reference's {self.decoder.scores}"]
        return [*lines, "the other inputs of a step are those of the next sample"]

    def by_step(self, outputs: Sequence[Agreement]) -> tuple[StepError, ...]:
        """What each step's error is: of the worst output that is no cache, for 9 of 10 samples."""
        held = {pair.present for pair in self.decoder.pairs}
        judged = [output for output in outputs if output.counts and output.name not in held]
        errors = {output.name: output.judged_errors for output in judged or outputs}
        found = []
        for step in range(self.steps):
            at = {name: quantile(of_output[step :: self.steps], QUANTILE) for name, of_output in errors.items()}
            worst = max(at, key=lambda name: at[name])
            found.append(StepError(step, at[worst], worst))
        return tuple(found)


def decoding_of(pair: Pair, steps: int | None, cache: Sequence[str]) -> Decoding | None:
    """How a pair is run step by step; None where that was not asked for.

    Raises AmpError AMP304 for MindIR models, AMP312 for a number of steps or a cache that makes no sense.
    """
    if steps is None:
        if cache:
            raise AmpError("AMP312", f"--cache {cache[0]} does nothing without steps", hint="add --steps N")
        return None
    if not is_whole(steps) or not 0 < steps <= MOST_STEPS:
        raise AmpError("AMP312", f"--steps {steps!r} is out of range", hint=f"give 1 to {MOST_STEPS:,}")
    if not isinstance(pair, OnnxPair):
        raise AmpError("AMP304", "MindIR models are not run step by step yet", hint="omit --steps")
    inputs, outputs = pair.takes_of_reference(), pair.gives_of_reference()
    return Decoding(pair, decoder_of(inputs, outputs, find_pairs(inputs, outputs, cache)), int(steps))
