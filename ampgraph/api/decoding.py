"""`verify --steps`: both models run step by step, each on its own cache, with the reference's tokens."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..core.arrays import Array, Result
from ..core.errors import AmpError, is_whole, nearest
from ..core.graph import LOW
from ..core.low_types import numpy_type
from ..core.progress import Progress
from ..numerics.metrics.agreement import QUANTILE, Agreement, quantile
from ..report.verification import StepError
from ..runtime.ports import Port
from .kinds import Feeds
from .pairs import OnnxPair, Pair

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples

FLOATS = ("float16", "bfloat16", "float32", "float64")
_PAST = re.compile(r"(past|present)[^a-z0-9]?key[^a-z0-9]?values?")
_WORD = re.compile(r"[a-z]+|[0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
DIRECTIONS = frozenset(
    ["past", "present", "in", "out", "new", "next", "old", "prev", "previous", "last", "updated", "input", "output"]
)
PLAIN = frozenset(["in", "out", "input", "output"])  # other inputs and outputs are called so as well
REMEMBERS = frozenset(["state", "states", "cache", "hidden", "cell", "memory", "mem", "kv", "key", "value", "h", "c"])


@dataclass(frozen=True)
class CachePair:
    """An input and the output that is fed to it in the next step; ``axis``: along which it grows, None for none."""

    past: str
    present: str
    axis: int | None


def find_pairs(
    inputs: Mapping[str, Port], outputs: Mapping[str, Port], given: Sequence[str] = ()
) -> tuple[CachePair, ...]:
    """The pairs that are given as ``IN=OUT`` (each with one ``*`` at most), else those that names and shapes tell.

    Names tell a pair where they differ in words such as past and present alone: ``past_key_values.0.key`` and
    ``present.0.key``, ``state_in`` and ``state_out``. Raises AmpError AMP312 where there is none.
    """
    if given:
        return tuple(pair for text in given for pair in _given(text, inputs, outputs))
    known: dict[tuple[str, ...], list[str]] = {}
    for name in outputs:
        known.setdefault(_words(name), []).append(name)
    pairs = []
    for name, port in inputs.items():
        fits = [out for out in known.get(_words(name), ()) if _told(name, out) and _alike(port, outputs[out])]
        if len(fits) == 1:
            pairs.append(CachePair(name, fits[0], _axis(port, outputs[fits[0]])))
    if not pairs:
        message = "no output looks like the next step's input: --steps needs a cache or a state"
        raise AmpError("AMP312", message, hint="name the pairs: --cache IN=OUT, or --cache 'past_*=present_*'")
    return tuple(pairs)


def _words(name: str) -> tuple[str, ...]:
    """What a name says besides the direction."""
    text = _PAST.sub("past", _CAMEL.sub("_", name).lower())
    return tuple(word for word in _WORD.findall(text) if word not in DIRECTIONS)


def _told(past: str, present: str) -> bool:
    """Whether two names speak of memory, not of what goes in and comes out."""
    words = {word for name in (past, present) for word in _WORD.findall(_CAMEL.sub("_", name).lower())}
    return past != present and bool(words & (DIRECTIONS - PLAIN) or (words & PLAIN and words & REMEMBERS))


def _alike(past: Port, present: Port) -> bool:
    floats = past.dtype in FLOATS and present.dtype in FLOATS
    if len(past.shape) != len(present.shape) or not (floats or past.dtype == present.dtype):
        return False
    fixed = [
        (a, b) for a, b in zip(past.shape, present.shape, strict=True) if isinstance(a, int) and isinstance(b, int)
    ]
    return sum(a != b for a, b in fixed if a >= 0 and b >= 0) <= 1


def _axis(past: Port, present: Port) -> int | None:
    """Where one is longer: the dimension that differs, of several the one that keys and values grow along."""
    sizes = enumerate(zip(past.shape, present.shape, strict=True))
    open_ones = [i for i, (a, b) in sizes if i and a != b and not isinstance(a, int)]
    usual = len(past.shape) - 2
    return usual if usual in open_ones else next(iter(open_ones), None)


def _given(text: str, inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> Iterable[CachePair]:
    left, sign, right = text.partition("=")
    if not sign or left.count("*") > 1 or left.count("*") != right.count("*"):
        hint = "for example --cache state=new_state, or --cache 'past_*=present_*'"
        raise AmpError("AMP312", f"--cache {text} is not IN=OUT", hint=hint)
    head, _, tail = left.partition("*")
    found = [name for name in inputs if name == left or ("*" in left and fnmatch.fnmatchcase(name, left))]
    if not found:
        hint = nearest(left, list(inputs)) or f"there are: {', '.join(inputs)}"
        raise AmpError("AMP312", f"--cache {text}: the model has no input '{left}'", hint=hint)
    for name in found:
        other = right.replace("*", name[len(head) : len(name) - len(tail)]) if "*" in left else right
        if other not in outputs:
            hint = nearest(other, list(outputs)) or f"there are: {', '.join(outputs)}"
            raise AmpError("AMP312", f"--cache {text}: the model has no output '{other}'", hint=hint)
        if not _alike(inputs[name], outputs[other]):
            message = f"--cache {text}: output '{other}' is {outputs[other]}, input '{name}' {inputs[name]}"
            raise AmpError("AMP312", message, hint="an output that is fed back has its input's type and rank")
        yield CachePair(name, other, _axis(inputs[name], outputs[other]))


# -- what it is fed, step by step -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoder:
    """A model with a cache, by the names of what it takes and gives.

    Attributes:
        pairs: what is fed back.
        tokens: the input that takes the token sampled last, empty for none.
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

    def start(self, feeds: Mapping[str, Result], ports: Mapping[str, Port], generated: bool) -> dict[str, Result]:
        """The first step: as the sample has it, with an empty cache and a zero state where it has none.

        In generated samples the cache is empty always: random numbers are no keys.
        """
        first = dict(feeds)
        behind = 0
        for pair in self.pairs:
            if pair.past in first and not generated:
                continue
            given = first.get(pair.past)
            shape = list(given.shape) if given is not None else self._shape(ports[pair.past], feeds)
            behind = shape[pair.axis] if pair.axis is not None and given is not None else behind
            if pair.axis is not None:
                shape[pair.axis] = 0
            first[pair.past] = np.zeros(shape, given.dtype if given is not None else numpy_type(ports[pair.past].dtype))
        if behind:
            first |= {name: first[name][..., behind:] for name in self.masks}
            first |= {name: np.maximum(first[name] - behind, 0).astype(first[name].dtype) for name in self.positions}
        return first | {name: np.zeros_like(first[name]) for name in self.flags if name in first}

    def after(
        self,
        fed: Mapping[str, Result],
        own: Mapping[str, Result],
        reference: Mapping[str, Result],
        others: Mapping[str, Result],
    ) -> dict[str, Result]:
        """The next step of one side.

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
        token = sampled(reference[self.scores]).astype(before.dtype)
        following[self.tokens] = token if before.ndim == 1 else token[:, None]
        for name in self.masks:
            mask = fed[name]
            following[name] = np.concatenate([mask, np.ones_like(mask[..., -1:])], -1)
        following |= {name: fed[name][..., -1:] + np.ones_like(fed[name][..., -1:]) for name in self.positions}
        return following

    def _shape(self, port: Port, feeds: Mapping[str, Result]) -> list[int]:
        """Of a state that the sample does not have: open sizes as in the tokens, or the first of what is fed."""
        like = feeds.get(self.tokens, next(iter(feeds.values()), None))
        batch = like.shape[0] if like is not None and np.ndim(like) else 1
        return [d if isinstance(d, int) and d >= 0 else batch if i == 0 else 1 for i, d in enumerate(port.shape)]


def sampled(scores: Array) -> Array:
    """The likeliest token at the last place, [batch]; integers are tokens themselves."""
    last = scores.reshape(scores.shape[0], -1, scores.shape[-1])[:, -1] if scores.ndim > 1 else scores
    if scores.dtype.kind in "iu":
        return last[..., -1] if scores.ndim > 1 else last
    wide = np.asarray(last, np.float32) if scores.dtype.name in LOW else last
    found: Array = np.atleast_1d(wide.argmax(-1))
    return found


def decoder_of(inputs: Mapping[str, Port], outputs: Mapping[str, Port], pairs: tuple[CachePair, ...]) -> Decoder:
    """The parts that inputs and outputs play, by their names, types and ranks."""
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
    tokens = (
        next(iter(named or texts), "") if len(named or texts) == 1 else next((n for n in named if n == "input_ids"), "")
    )
    scores = _scores({name: port for name, port in outputs.items() if name not in held}) if tokens else ""
    if not scores:
        tokens, masks, positions = "", (), ()
    return Decoder(pairs, tokens, scores, masks, positions, flags)


def _scores(outputs: Mapping[str, Port]) -> str:
    """The output that tokens are sampled from: called logits, else the first of scores, else tokens themselves."""
    floats = [name for name, port in outputs.items() if port.dtype in FLOATS and len(port.shape) in (2, 3)]
    whole = [name for name, port in outputs.items() if port.dtype in ("int32", "int64") and 1 <= len(port.shape) <= 2]
    return next((name for name in floats if "logit" in name.lower()), next(iter([*floats, *whole]), ""))


# -- both models, each on its own cache, with the reference's tokens --------------------------------------------------

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
        ports = self.pair.given.inputs
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
    inputs, outputs = pair.given.inputs, pair.given.outputs
    return Decoding(pair, decoder_of(inputs, outputs, find_pairs(inputs, outputs, cache)), int(steps))
