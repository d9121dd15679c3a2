"""A set of samples, in memory, in mapped files or from an iterable, and the batches that it is trained in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ...core.arrays import Array
from .normalized import Normalized

Batches: TypeAlias = "Iterable[Mapping[str, ArrayLike] | Sequence[ArrayLike]]"
TrainingData: TypeAlias = "str | os.PathLike[str] | Mapping[str, ArrayLike] | Dataset | Normalized | Batches"
"""A path of an .npz file or a folder, arrays by input name, or what gives batches every time that it is iterated."""
Prepare: TypeAlias = "Callable[[Mapping[str, Array]], dict[str, Array]]"
PIECE = 1 << 24  # bytes of the samples that are looked at together


def unchanged(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return dict(arrays)


@dataclass(frozen=True)
class Dataset:
    """Arrays by input name; the first axis counts the samples. ``prepare`` makes of rows what the step takes."""

    arrays: Mapping[str, Array]
    samples: int
    prepare: Prepare = unchanged
    note: str = ""  # what `prepare` does beyond types and axes

    def then(self, more: Prepare, note: str) -> Dataset:
        """The same samples, and ``more`` done to their rows; ``note`` tells it from others."""
        return replace(self, prepare=_both(self.prepare, more), note=f"{self.note}{note}\n")

    def digest(self) -> str:
        """Changes with names, types, sizes and numbers, and with what is done to them."""
        made = hashlib.blake2b(self.note.encode(), digest_size=16)
        for name, array in sorted(self.arrays.items()):
            made.update(f"{name}:{array.dtype}:{list(array.shape)}\n".encode())
            step = rows_at_once({name: array})
            for start in range(0, len(array), step):
                made.update(np.ascontiguousarray(array[start : start + step]).reshape(-1).view(np.uint8).data)
        return made.hexdigest()

    def shuffled(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0, *, last: bool = False
    ) -> Iterator[Mapping[str, Array]]:
        """The whole batches of an epoch in a random order, without the first ``skip``; ``last``: and a smaller one."""
        order = np.random.default_rng([seed, epoch]).permutation(self.samples)
        end = self.samples if last else self.samples - self.samples % batch_size
        for start in range(skip * batch_size, end, batch_size):
            yield Drawn(self, order[start : start + batch_size])

    def in_order(self, batch_size: int, whole: bool) -> Iterator[dict[str, Array]]:
        """All samples from the first to the last; ``whole`` leaves out a last batch that is smaller."""
        end = self.samples - self.samples % batch_size if whole else self.samples
        for start in range(0, end, batch_size):
            yield self.prepare({name: array[start : start + batch_size] for name, array in self.arrays.items()})


class Drawn(Mapping[str, Array]):
    """Rows of a data set, read when they are asked for: of a batch that several share, each reads its own."""

    def __init__(self, data: Dataset, rows: Array) -> None:
        self._data, self._rows = data, rows
        self._whole: dict[str, Array] = {}

    @property
    def samples(self) -> int:
        return len(self._rows)

    def part(self, start: int, end: int) -> dict[str, Array]:
        """Some of the samples as the step takes them."""
        rows = self._rows[start:end]
        return self._data.prepare({name: array[rows] for name, array in self._data.arrays.items()})

    def column(self, name: str) -> Array | None:
        """One array of all samples, its numbers as they are stored and of the type that the step takes."""
        made = self.part(0, 1).get(name)
        return None if made is None else self._data.arrays[name][self._rows].astype(made.dtype)

    def __getitem__(self, name: str) -> Array:
        self._whole = self._whole or self.part(0, self.samples)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data.arrays)

    def __len__(self) -> int:
        return len(self._data.arrays)


@dataclass(frozen=True)
class Stream(Dataset):
    """Batches of any sizes from an iterable, in its own order, put together anew; never held as a whole."""

    source: Iterable[object] = ()
    named: Callable[[object], dict[str, Array]] = lambda batch: {}

    def digest(self) -> str:
        """That of its size: another order is other data, and it may be shuffled."""
        return f"stream of {self.samples}" + self.note

    def then(self, more: Prepare, note: str) -> Dataset:
        named = self.named
        return replace(self, named=lambda given: more(named(given)), note=f"{self.note}{note}\n")

    def shuffled(
        self, batch_size: int, seed: int, epoch: int, skip: int = 0, *, last: bool = False
    ) -> Iterator[Mapping[str, Array]]:
        for number, batch in enumerate(self.in_order(batch_size, whole=not last)):
            if number >= skip:
                yield batch

    def in_order(self, batch_size: int, whole: bool) -> Iterator[dict[str, Array]]:
        held: list[dict[str, Array]] = []
        for given in self.source:
            held.append(self.named(given))
            count = sum(_rows(part) for part in held)
            if count >= batch_size:
                rows = {name: np.concatenate([part[name] for part in held]) for name in held[0]}
                end = count - count % batch_size
                for start in range(0, end, batch_size):
                    yield {name: array[start : start + batch_size] for name, array in rows.items()}
                held = [{name: array[end:] for name, array in rows.items()}] if end < count else []
        if held and not whole:
            yield {name: np.concatenate([part[name] for part in held]) for name in held[0]}


def rows_at_once(arrays: Mapping[str, Array]) -> int:
    """How many samples make a piece, counted as float32 at least."""
    widths = [array[:1].size * max(array.dtype.itemsize, 4) for array in arrays.values() if len(array)]
    return max(1, PIECE // max(sum(widths), 1))


def _both(first: Prepare, then: Prepare) -> Prepare:
    return lambda rows: then(first(rows))


def _rows(part: Mapping[str, Array]) -> int:
    return len(next(iter(part.values())))
