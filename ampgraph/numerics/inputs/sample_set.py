"""Samples, however they came about."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...core.arrays import Array
from ...core.errors import AmpError
from .fitting import Learnt, sizes_that_run
from .sizes import Place

Feeds = dict[str, Array]


@dataclass(frozen=True)
class Samples:
    """Feeds (arrays by input name), one after the other, as often as asked for. ``notes`` say where they are from."""

    generated: bool
    notes: tuple[str, ...]
    _count: int = field(repr=False)
    _start: Callable[[], Iterator[Feeds]] = field(repr=False)
    _resized: Callable[[Learnt], tuple[Samples, Mapping[Place, int]]] | None = field(default=None, repr=False)
    _hints: tuple[int, ...] = field(default=(), repr=False)

    def fitted(self, run: Callable[[Feeds], object]) -> Samples:
        """Samples of sizes with which a model runs: generated ones get others where the guessed ones do not.

        ``run`` runs the model on one sample. Raises AmpError AMP504 where none is found."""
        if self._resized is None or not self._resized({})[1]:
            return self
        resized = self._resized

        def attempt(learnt: Learnt) -> tuple[str, Mapping[Place, int]]:
            samples, places = resized(learnt)
            try:
                run(next(iter(samples)))
            except AmpError as error:
                if error.code != "AMP504" or "memory" in error.message:
                    raise
                return error.message, places
            return "", places

        learnt, failure = sizes_that_run(attempt, self._hints)
        if learnt is None:
            raise AmpError("AMP504", f"no generated input fits: {failure}", hint="give --data, or sizes with --dim")
        return resized(learnt)[0]

    def first(self, number: int) -> Samples:
        """The first so many."""
        return replace(self, _count=min(number, self._count), _start=lambda: itertools.islice(self._start(), number))

    def within(self, number: int, seconds: float) -> Samples:
        """The first so many, each pass as far as it comes in a time; one at least."""

        def some() -> Iterator[Feeds]:
            until = time.monotonic() + seconds
            for place, feeds in enumerate(self.first(number)):
                if place and time.monotonic() > until:
                    return
                yield feeds

        return replace(self.first(number), _start=some)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Feeds]:
        return self._start()
