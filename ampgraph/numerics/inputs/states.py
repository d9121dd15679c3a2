"""States: which output of a model is its input of the next step, by names, shapes and order; states that it reaches."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array, Result
from ...core.errors import AmpError, nearest
from ...runtime.ports import Port

FLOATS = ("float16", "bfloat16", "float32", "float64")
_PAST = re.compile(r"(past|present)[^a-z0-9]?key[^a-z0-9]?values?")
_WORD = re.compile(r"[a-z]+|[0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NEXT = re.compile(r"(?<![a-z])(h|c|state|hidden|cell)_?n(?![a-z])")  # torch's hn, and stateN
_AGAIN = re.compile(r"\.[0-9]+$")  # TorchScript's second value of a name
PLAIN = frozenset(["in", "out", "ins", "outs", "input", "output"])  # other inputs and outputs are called so as well
DIRECTIONS = PLAIN | {
    "past", "present", "new", "next", "old", "prev", "previous", "last", "updated", "init", "initial",
}  # fmt: skip
HOLDS = frozenset(["state", "states", "cache", "hidden", "cell", "memory", "mem"])  # what nothing but memory is called
REMEMBERS = frozenset(["state", "states", "cache", "hidden", "cell", "memory", "mem", "kv", "key", "value", "h", "c"])


@dataclass(frozen=True)
class CachePair:
    """An input and the output that is fed to it in the next step, by name; ``axis``: along which the output is longer
    than the input, None for a state, which keeps its size."""

    past: str
    present: str
    axis: int | None


def find_pairs(
    inputs: Mapping[str, Port], outputs: Mapping[str, Port], given: Sequence[str] = ()
) -> tuple[CachePair, ...]:
    """Pairs of an input and the output that feeds it: those ``given`` as ``IN=OUT`` (each with one ``*`` at most), else
    those that names and shapes tell.

    Names tell a pair where they differ in words such as past and present alone: ``past_key_values.0.key`` and
    ``present.0.key``, ``state_in`` and ``state_out``. Raises AmpError AMP312 where there is none.
    """
    if given:
        return tuple(pair for text in given for pair in _pairs_of_option(text, inputs, outputs))
    if pairs := pairs_by_name(inputs, outputs):
        return pairs
    message = "no output looks like the next step's input: --steps needs a cache or a state"
    raise AmpError("AMP312", message, hint="name the pairs: --cache IN=OUT, or --cache 'past_*=present_*'")


def pairs_by_name(inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> tuple[CachePair, ...]:
    """Samples with a cache: the pairs that names tell, of fitting types and shapes, and those that order tells."""
    known: dict[tuple[str, ...], list[str]] = {}
    for name in outputs:
        known.setdefault(_own_words(name), []).append(name)
    pairs = []
    for name, port in inputs.items():
        same = _AGAIN.sub("", name)
        named = [same] if same != name and same in outputs else known.get(_own_words(name), ())
        fits = [out for out in named if _are_paired_names(name, out) and _may_feed_back(port, outputs[out])]
        if len(fits) == 1:
            pairs.append(CachePair(name, fits[0], _growing_axis(port, outputs[fits[0]])))
    return (*pairs, *_pairs_by_order(inputs, outputs, pairs))


def _pairs_by_order(
    inputs: Mapping[str, Port], outputs: Mapping[str, Port], pairs: Sequence[CachePair]
) -> Iterator[CachePair]:  # fmt: skip
    """Samples with a cache: pairs beside ``pairs``: inputs with a word of `HOLDS` in their name, in order, with the
    outputs that have one of their types and shapes; none where these are not as many, the same in the same order."""
    done = {name for pair in pairs for name in (pair.past, pair.present)}
    held = {n: (p.dtype, p.shape) for n, p in inputs.items() if n not in done and HOLDS & {*_WORD.findall(_spaced(n))}}
    kinds = list(held.values())
    given = {n: (p.dtype, p.shape) for n, p in outputs.items() if n not in done and (p.dtype, p.shape) in kinds}
    if len(held) < len(inputs) and list(given.values()) == kinds:
        yield from (CachePair(past, present, None) for past, present in zip(held, given, strict=True))


def _spaced(name: str) -> str:
    """The name of a cache or state in lower case, its words apart: ``hn`` as h_next, past_key_values as past."""
    return _NEXT.sub(r"\1_next", _PAST.sub("past", _CAMEL.sub("_", name).lower()))


def _own_words(name: str) -> tuple[str, ...]:
    """Samples with a cache: the words of a name but for `DIRECTIONS`, which say past or present."""
    return tuple(word for word in _WORD.findall(_spaced(name)) if word not in DIRECTIONS)


def _are_paired_names(past: str, present: str) -> bool:
    """Samples with a cache: whether the names of an input and an output, equal in their own words, speak of memory: one
    says a direction as past or new, or one remembers (`REMEMBERS`) and they differ by in and out or a number."""
    words = {word for name in (past, present) for word in _WORD.findall(_spaced(name))}
    directed = bool(words & (DIRECTIONS - PLAIN))
    differ_plainly = bool(words & PLAIN) or _AGAIN.sub("", past) == present
    return past != present and (directed or (differ_plainly and bool(words & REMEMBERS)))


def _may_feed_back(past: Port, present: Port) -> bool:
    """Samples with a cache: whether an output has an input's rank and type (any float), and all sizes but one."""
    floats = past.dtype in FLOATS and present.dtype in FLOATS
    if len(past.shape) != len(present.shape) or not (floats or past.dtype == present.dtype):
        return False
    fixed = [
        (a, b) for a, b in zip(past.shape, present.shape, strict=True) if isinstance(a, int) and isinstance(b, int)
    ]
    return sum(a != b for a, b in fixed if a >= 0 and b >= 0) <= 1


def _growing_axis(past: Port, present: Port) -> int | None:
    """The axis along which a cache of samples grows: not the first, open in the input, another size in the output; the
    last but one if it is such, else the first of them. None for none."""
    sizes = enumerate(zip(past.shape, present.shape, strict=True))
    open_ones = [axis for axis, (a, b) in sizes if axis > 0 and a != b and not isinstance(a, int)]
    usual = len(past.shape) - 2
    return usual if usual in open_ones else next(iter(open_ones), None)


def _pairs_of_option(text: str, inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> Iterable[CachePair]:
    """Samples with a cache: the pairs that a text of --cache names, IN=OUT, or with one * on both sides for the same
    letters. Raises AmpError AMP312 where they are not there or do not fit."""
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
        if not _may_feed_back(inputs[name], outputs[other]):
            message = f"--cache {text}: output '{other}' is {outputs[other]}, input '{name}' {inputs[name]}"
            raise AmpError("AMP312", message, hint="an output that is fed back has its input's type and rank")
        yield CachePair(name, other, _growing_axis(inputs[name], outputs[other]))


class ReachedStates:
    """Samples with states that a model has really had: zero in the first, in each other what it made of the one before.
    States that are not finite, or do not fit, are those of the sample itself. Each is computed once."""

    def __init__(
        self,
        samples: Iterable[dict[str, Array]],
        pairs: Sequence[CachePair],
        run: Callable[[dict[str, Array]], Mapping[str, Result]],
    ) -> None:
        self._samples, self._pairs, self._run = samples, pairs, run
        self._known: list[dict[str, Array]] = []

    def __iter__(self) -> Iterator[dict[str, Array]]:
        before: dict[str, Array] | None = None
        for place, feeds in enumerate(self._samples):
            if place == len(self._known):
                self._known.append(self._zero_states(feeds) if before is None else self._next_states(before, feeds))
            before = {**feeds, **self._known[place]}
            yield before

    def _zero_states(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """For samples of a model with states: zeros for all of them by input, {} where zeros give no finite state."""
        zeros = {pair.past: np.zeros_like(feeds[pair.past]) for pair in self._pairs if pair.past in feeds}
        return zeros if len(self._next_states({**feeds, **zeros}, feeds)) == len(zeros) else {}

    def _next_states(self, before: dict[str, Array], feeds: dict[str, Array]) -> dict[str, Array]:
        """The states by input that a model makes of the sample ``before``: those finite and like those in ``feeds``."""
        made = self._run(before)
        with np.errstate(over="ignore"):
            found = {
                p.past: np.asarray(made[p.present]).astype(feeds[p.past].dtype) for p in self._pairs if p.past in feeds
            }
        fits = {name: array for name, array in found.items() if array.shape == feeds[name].shape}
        return {name: array for name, array in fits.items() if np.isfinite(array.astype(np.float64)).all()}
