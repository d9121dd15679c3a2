"""`verify --steps`: both models run step by step, each on its own cache, with the reference's tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..core.arrays import Array, Feeds, Result
from ..core.errors import AmpError, is_whole
from ..core.graph import LOW
from ..core.low_types import numpy_type
from ..core.progress import Progress
from ..core.shown import Data
from ..core.verdict import QUANTILE
from ..runtime.ports import Port
from .inputs.states import FLOATS, CachePair, find_pairs
from .metrics.agreement import Agreement, quantile
from .pairs import OnnxPair, Pair

if TYPE_CHECKING:
    from .inputs.samples import Samples

# -- what it is fed, step by step -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoder:
    """A model with a cache, by the names of what it takes and gives.

    Attributes:
        pairs: what is fed back.
        tokens: the input that takes the token sampled last, empty for none; then so are the next three.
        scores: the output that it is sampled from, by argmax over the last axis at the last place.
        masks: inputs with a place for every token so far: ones are added.
        positions: inputs with the place of every token of the step.
        flags: truth values that say whether there is a past.
    """

    pairs: tuple[CachePair, ...]
    tokens: str = ""
    scores: str = ""
    masks: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def first_feeds(self, feeds: Mapping[str, Result], ports: Mapping[str, Port], generated: bool) -> dict[str, Result]:
        """What is fed in the first step of decoding: the sample, with an empty cache and a zero state where it has
        none. Masks and positions lose what they had for a cache that is emptied.

        In generated samples the cache is empty always: random numbers are no keys.
        """
        first = dict(feeds)
        behind = 0  # tokens of a cache that is emptied
        for pair in self.pairs:
            if pair.past in first and not generated:
                continue
            given = first.get(pair.past)
            shape = list(given.shape) if given is not None else self._state_shape(ports[pair.past], feeds)
            behind = shape[pair.axis] if pair.axis is not None and given is not None else behind
            if pair.axis is not None:
                shape[pair.axis] = 0
            first[pair.past] = np.zeros(shape, given.dtype if given is not None else numpy_type(ports[pair.past].dtype))
        if behind:
            first |= {name: first[name][..., behind:] for name in self.masks}
            first |= {name: np.maximum(first[name] - behind, 0).astype(first[name].dtype) for name in self.positions}
        return first | {name: np.zeros_like(first[name]) for name in self.flags if name in first}

    def next_feeds(
        self,
        fed: Mapping[str, Result],
        own: Mapping[str, Result],
        reference: Mapping[str, Result],
        others: Mapping[str, Result],
    ) -> dict[str, Result]:
        """What one side is fed in the next step of decoding.

        Args:
            fed: what this side was fed in the step before.
            own: what it gave then.
            reference: what the reference gave then, whose token both sides go on with.
            others: inputs that follow the sample: those of the next one, where no token is sampled.
        """
        following = dict(fed) | {pair.past: own[pair.present] for pair in self.pairs}
        following |= {name: np.ones_like(fed[name]) for name in self.flags}
        if not self.tokens:
            held = {pair.past for pair in self.pairs}
            return following | {name: value for name, value in others.items() if name not in held}
        before = fed[self.tokens]
        token = sample_tokens(reference[self.scores]).astype(before.dtype)
        following[self.tokens] = token if before.ndim == 1 else token[:, None]
        for name in self.masks:
            mask = fed[name]
            following[name] = np.concatenate([mask, np.ones_like(mask[..., -1:])], -1)
        following |= {name: fed[name][..., -1:] + np.ones_like(fed[name][..., -1:]) for name in self.positions}
        return following

    def _state_shape(self, port: Port, feeds: Mapping[str, Result]) -> list[int]:
        """The shape of a decoding state that the sample ``feeds`` lacks: as ``port`` says; if open, the first size is
        that of the tokens, or of the first input, any other 1."""
        like = feeds.get(self.tokens, next(iter(feeds.values()), None))
        batch = like.shape[0] if like is not None and np.ndim(like) else 1
        return [d if isinstance(d, int) and d >= 0 else batch if i == 0 else 1 for i, d in enumerate(port.shape)]


def sample_tokens(scores: Array) -> Array:
    """In decoding step by step: the likeliest token at the last place, [batch], of scores [batch, ..., classes] or
    [classes]; integers, [batch, places] or [batch], are tokens themselves."""
    last = scores.reshape(scores.shape[0], -1, scores.shape[-1])[:, -1] if scores.ndim > 1 else scores
    if scores.dtype.kind in "iu":
        return last[..., -1] if scores.ndim > 1 else last
    wide = np.asarray(last, np.float32) if scores.dtype.name in LOW else last
    found: Array = np.atleast_1d(wide.argmax(-1))
    return found


def decoder_of(inputs: Mapping[str, Port], outputs: Mapping[str, Port], pairs: tuple[CachePair, ...]) -> Decoder:
    """For decoding step by step: the parts that inputs and outputs play, by their names, types and ranks."""
    held = {name for pair in pairs for name in (pair.past, pair.present)}
    free = {name: port for name, port in inputs.items() if name not in held}
    whole = {name: port for name, port in free.items() if port.dtype in ("int32", "int64")}
    masks = tuple(
        n for n, p in free.items() if "mask" in n.lower() and len(p.shape) == 2 and "encoder" not in n.lower()
    )
    positions = tuple(n for n in whole if "position" in n.lower())
    flags = tuple(n for n, p in free.items() if p.dtype == "bool" and n not in masks)
    texts = [n for n, p in whole.items() if n not in (*masks, *positions) and 1 <= len(p.shape) <= 2]
    named = [n for n in texts if any(word in n.lower() for word in ("ids", "token")) and "encoder" not in n.lower()]
    candidates = named or texts
    tokens = "input_ids" if "input_ids" in named else ""
    if len(candidates) == 1:
        tokens = candidates[0]
    scores = _scores_output({name: port for name, port in outputs.items() if name not in held}) if tokens else ""
    if not scores:
        tokens, masks, positions = "", (), ()
    return Decoder(pairs, tokens, scores, masks, positions, flags)


def _scores_output(outputs: Mapping[str, Port]) -> str:
    """In decoding step by step: the output that tokens are sampled from: called logits, else scores, else tokens."""
    floats = [name for name, port in outputs.items() if port.dtype in FLOATS and len(port.shape) in (2, 3)]
    whole = [name for name, port in outputs.items() if port.dtype in ("int32", "int64") and 1 <= len(port.shape) <= 2]
    return next((name for name in floats if "logit" in name.lower()), next(iter([*floats, *whole]), ""))


# -- both models, each on its own cache, with the reference's tokens --------------------------------------------------

MOST_STEPS = 10_000


@dataclass(frozen=True)
class StepError(Data):
    """The error of one step of decoding, which is counted from 0, and the output that has it."""

    step: int
    error: float
    output: str


Run = tuple[dict[str, Result], dict[str, Result]]


@dataclass
class Decoding:
    """How `verify --steps` runs a pair of models step by step.

    Attributes:
        pair: the two models; ``decoder``: what their inputs and outputs are for; ``steps``: of each sample.
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
        """The inputs that a sample of verify may lack (the cache of the first step): they start empty."""
        return frozenset(pair.past for pair in self.decoder.pairs)

    def runs(self, drawn: Samples, progress: Progress | None) -> Iterator[Run]:
        """The outputs of reference and model in each step, all steps of the first sample, then those of the next."""
        ports = self.pair.given.inputs
        for number, feeds in enumerate(drawn):
            others = itertools.chain(itertools.islice(iter(drawn), number + 1, None), itertools.cycle(drawn))
            ours: Feeds = self.decoder.first_feeds(feeds, ports, drawn.generated)
            theirs: Feeds = self.pair.feeds(ours)[1]
            for step in range(self.steps):
                if progress:
                    progress("running step by step", number * self.steps + step, len(drawn) * self.steps)
                self._feeds = ours, theirs
                expected, found = self.pair.run_sides(ours, theirs)
                yield expected, found
                if step + 1 < self.steps:
                    rest: Mapping[str, Result] = {} if self.decoder.tokens else next(others)
                    ours = self.decoder.next_feeds(ours, expected, expected, rest)
                    theirs = self.decoder.next_feeds(theirs, found, expected, self.pair.feeds(rest)[1])
                    theirs = self.pair.feeds(theirs)[1]  # in the types that it takes

    def keep_worst(self, index: int, error: float) -> None:
        """Keeps for verify's report the feeds of the decoding step that was just run, if none had a larger error."""
        if error > self._largest:
            self._largest, self.worst = error, (index, *self._feeds)

    def notes(self, generated: bool) -> list[str]:
        """Notes on decoding for the report: what is fed back, and where tokens are from."""
        pairs = [f"{pair.past} from {pair.present}" for pair in self.decoder.pairs]
        more = f" and {len(pairs) - 2} more" if len(pairs) > 2 else ""
        lines = [f"{self.steps} steps, each model on its own cache: {', '.join(pairs[:2])}{more}"]
        if generated:
            lines.append("the cache is empty at first, whatever was generated")
        if self.decoder.tokens:
            return [*lines, f"{self.decoder.tokens} is the likeliest of the reference's {self.decoder.scores}"]
        return [*lines, "the other inputs of a step are those of the next sample"]

    def errors_by_step(self, outputs: Sequence[Agreement]) -> tuple[StepError, ...]:
        """The error of each step of decoding: of the worst of ``outputs`` that is no cache, for 9 of 10 samples."""
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
    """How `verify --steps` runs a pair of models step by step, each fed its own cache (``cache``: pairs like
    ``past_*=present_*``); None where that was not asked for.

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
    inputs, outputs = pair.given.inputs, pair.given.outputs
    return Decoding(pair, decoder_of(inputs, outputs, find_pairs(inputs, outputs, cache)), int(steps))
