"""For the picture: finds blocks that repeat in a row of operators, the layers of an exporter that writes no names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.arrays import Array

LEAST = 3  # operators of a block: fewer are no part of a model


@dataclass(frozen=True)
class Block:
    """A block of operators that repeats. ``unit``: a number, the same for all blocks of one kind; ``parts``: the places
    of its entries in the row, or blocks inside it."""

    unit: int
    parts: tuple[int | Block, ...]


@dataclass
class _Token:
    """An entry of the row, or blocks of one kind that follow each other. ``symbol``: equal for what is alike;
    ``first``: the place of its first entry; ``size``: how many entries it stands for."""

    symbol: int
    first: int
    size: int
    parts: list[int | Block] = field(default_factory=list)


def blocks(kinds: Sequence[Hashable], cuts: Sequence[int]) -> list[int | Block]:
    """For the picture: finds the blocks that repeat in a row of operators; returns the row, entries by place, with a
    block in the place of its entries.

    The shortest run of entries that follows itself becomes a unit, and each occurrence of it a block, also one that
    stands alone. Then the same is done to the new row, until nothing repeats: blocks may hold blocks.

    Args:
        kinds: of each entry, equal for those that are alike.
        cuts: how many values pass in front of each entry: a block begins where the fewest do.
    """
    symbols: dict[Hashable, int] = {}
    tokens = [_Token(symbols.setdefault(kind, len(symbols)), i, 1, [i]) for i, kind in enumerate(kinds)]
    unit = len(symbols)
    while (found := _find_unit(tokens, cuts)) is not None:
        tokens = _replace_unit(tokens, found, unit)
        unit += 1
    return [part for token in tokens for part in token.parts]


def _find_unit(tokens: Sequence[_Token], cuts: Sequence[int]) -> tuple[int, ...] | None:
    """Picture: the symbols of the shortest run of tokens that follows itself, of several the one that does so most
    often; None where nothing of `LEAST` operators or more repeats."""
    symbols = np.array([token.symbol for token in tokens])
    sizes = np.cumsum([0, *(token.size for token in tokens)])
    ends = np.append(np.flatnonzero(np.diff(symbols)), len(symbols) - 1)  # of rows of one symbol, which are no blocks
    same = ends[np.searchsorted(ends, np.arange(len(symbols)))] - np.arange(len(symbols)) + 1
    for period in range(2, len(tokens) // 2 + 1):
        start, length = _longest_run((symbols[period:] == symbols[:-period]) & (same[:-period] < period))
        if length >= period and sizes[start + period] - sizes[start] >= LEAST:
            shift = _shift(tokens[start : start + length + period], period, cuts)
            return tuple(int(symbol) for symbol in symbols[start + shift : start + shift + period])
    return None


def _longest_run(alike: Array) -> tuple[int, int]:
    """For the picture's blocks: start and length of the longest run of true values in an array; (0, 0) for none."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], alike.astype(np.int8), [0]))))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(starts):
        return 0, 0
    best = int(np.argmax(lengths))
    return int(starts[best]), int(lengths[best])


def _shift(row: Sequence[_Token], period: int, cuts: Sequence[int]) -> int:
    """Picture: the place in a row of repeated blocks, each of ``period`` tokens, at which to begin the first so that
    the fewest values pass from one to the next; two blocks fit behind it at least."""

    def mean_cut(shift: int) -> float:
        starts = range(shift, len(row), period)
        return sum(cuts[row[place].first] for place in starts) / len(starts)

    return min(range(min(period, len(row) - 2 * period + 1)), key=mean_cut)


def _replace_unit(tokens: Sequence[_Token], unit: tuple[int, ...], symbol: int) -> list[_Token]:
    """Picture: the row of tokens with a new one, of ``symbol``, for each run of occurrences of ``unit``, whose parts
    are a block for each occurrence. However long a run is, its token is alike."""
    made: list[_Token] = []
    place, period = 0, len(unit)
    symbols = [token.symbol for token in tokens]
    while place < len(tokens):
        if tuple(symbols[place : place + period]) != unit:
            made.append(tokens[place])
            place += 1
            continue
        inside = tokens[place : place + period]
        if not made or made[-1].symbol != symbol:
            made.append(_Token(symbol, inside[0].first, 0))
        made[-1].parts.append(Block(symbol, tuple(part for token in inside for part in token.parts)))
        made[-1].size += sum(token.size for token in inside)
        place += period
    return made
