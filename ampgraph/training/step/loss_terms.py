"""A loss as named terms with weights, as a user writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...core.errors import AmpError, is_number
from .loss import LOSSES

FORM = f"{', '.join(LOSSES)}, or the name of an output that is a float32 scalar; or several: a=1.0 b=0.5"


def loss_terms(given: object) -> dict[str, float] | None:
    """Name -> weight, of a name, of words ``NAME`` and ``NAME=WEIGHT``, or of a mapping; None for None.

    Raises AmpError AMP213 for anything else, a weight that is 0 or no number, and two losses that want labels.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return {given: 1.0}
    if isinstance(given, Mapping):
        rows = list(given.items())
    elif isinstance(given, Sequence):
        rows = [_word(word) for word in given]
    else:
        rows = []
    names = [name for name, _ in rows]
    if not rows or not all(isinstance(name, str) and name for name in names):
        raise AmpError("AMP213", f"loss={given!r} is no name, and holds none", hint=FORM)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AmpError("AMP213", f"loss '{twice}' is given twice", hint="give each its weight once")
    for name, weight in rows:
        if not is_number(weight) or not math.isfinite(weight) or not weight:
            raise AmpError("AMP213", f"the weight of loss '{name}' is {weight!r}", hint=f"{name}=0.5")
    if sum(name in LOSSES for name in names) > 1:
        message = f"{' and '.join(LOSSES)} would read the same labels"
        raise AmpError("AMP213", message, hint="compute one of them in the module, and name its output")
    return {name: float(weight) for name, weight in rows}


def spelled(terms: Mapping[str, float]) -> str:
    """``a=1.0, b=0.5``; one that counts whole is its name."""
    [name, *more] = terms
    return name if not more and terms[name] == 1 else ", ".join(f"{n}={weight}" for n, weight in terms.items())


def read_spelled(text: str) -> dict[str, float]:
    """What `spelled` says."""
    try:
        return dict(map(_term, text.split(", ")))
    except ValueError:  # a name alone
        return {text: 1.0}


def parse_losses(words: Sequence[str]) -> str | list[str] | None:
    """The options of a command line: the last of those without a weight, or terms."""
    if not any("=" in word for word in words):
        return words[-1] if words else None
    return list(words)


def _term(word: str) -> tuple[str, float]:
    name, _, weight = word.rpartition("=")
    return name, float(weight)


def _word(word: object) -> tuple[object, float]:
    if not isinstance(word, str):
        return word, 1.0
    name, _, weight = word.rpartition("=")
    try:
        return (name, float(weight)) if name else (word, 1.0)
    except ValueError:
        return word, 1.0
