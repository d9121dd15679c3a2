"""Sizes with which a model runs, where the guessed ones do not: learnt from what a runtime says of its failure."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from .sizes import Place

TRIALS = 48  # runs that fail early, mostly
MOST, ROWS = 4096, 64  # of a size, and of one in front
SECONDS = 60.0  # for all of them
COMMON = (32, 1, 2, 8, 16, 48, 224, 256, 80, 128, 512, 640)  # tried where no number in a message helps

Learnt = Mapping[Place, int]
Attempt = Callable[[Learnt], "tuple[str, Mapping[Place, int]]"]

_SOURCE = re.compile(r"\S*\.(?:h|cc|cpp|cu)\b\S*|0x[0-9a-fA-F]+|'[^']*'")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\w)")


def sizes_that_run(attempt: Attempt, hints: Sequence[int] = ()) -> tuple[Learnt | None, str]:
    """What has to be learnt for an attempt to succeed, or None and what the first one failed with.

    ``attempt`` runs a model with some sizes learnt; it gives what that failed with, empty if it did not, and the sizes
    of all open places. A failure elsewhere than before is a step forward, from where the search goes on. ``hints``:
    sizes that the model is made of, as not every message has numbers.
    """
    first, places = attempt({})
    if not first:
        return {}, ""
    trials, start = 1, time.monotonic()
    seen: set[frozenset[tuple[Place, int]]] = {frozenset()}
    work: list[tuple[dict[Place, int], Iterator[dict[Place, int]], str]] = [({}, changes(first, places, hints), first)]
    while work and trials < TRIALS and time.monotonic() - start < SECONDS:
        learnt, proposed, failure = work[-1]
        change = next(proposed, None)
        if change is None:
            work.pop()
            continue
        wanted = {**learnt, **change}
        if frozenset(wanted.items()) in seen:
            continue
        seen.add(frozenset(wanted.items()))
        trials += 1
        message, places = attempt(wanted)
        if not message:
            return wanted, ""
        if _stage(message) != _stage(failure):
            work.append((wanted, changes(message, places, hints), message))
    return None, first


def changes(message: str, places: Mapping[Place, int], hints: Sequence[int] = ()) -> Iterator[dict[Place, int]]:
    """Changes of one place each, the likeliest first: to a number of the message, in the ratio of two of them."""
    numbers = list(dict.fromkeys(int(n) for n in _NUMBER.findall(_SOURCE.sub(" ", _after_status(message)))))
    numbers.sort(key=lambda number: number == 1)  # which broadcasts, and says little
    inner = {place: size for place, size in places.items() if place[1]}
    for some in (inner, {place: size for place, size in places.items() if place not in inner}):
        for propose in (_named, _in_ratio, lambda *_: (*hints, *COMMON)):
            for place, size in some.items():
                most = MOST if some is inner else ROWS
                yield from ({place: n} for n in propose(size, numbers) if n != size and 0 < n <= most)


def _named(size: int, numbers: list[int]) -> list[int]:
    return numbers if size in numbers else []


def _in_ratio(size: int, numbers: list[int]) -> list[int]:
    pairs = [(got, wanted) for got in numbers for wanted in numbers if got > wanted > 0]
    return [size * wanted // got for got, wanted in pairs if not size * wanted % got]


def _stage(message: str) -> str:
    """A failure without its numbers: the operators with their names, from the outermost in; for one that has a name."""
    nodes = re.findall(r"running (\S+ node)\. Name:'([^']*)'", message)
    return " ".join(" ".join(node) for node in nodes) or _NUMBER.sub("", message)


def _after_status(message: str) -> str:
    return message.rpartition("Status Message:")[2]
