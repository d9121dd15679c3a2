"""Blocks that repeat in a row of operators: what an exporter that writes no names has made of a loop over layers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.arrays import Array

LEAST = 3  # operators of a block: fewer are no part of a model


@dataclass(frozen=True)
class Block:
    """One of the blocks that repeat: ``unit`` is the same for blocks of one kind; ``parts``: places of entries in the
    row, and blocks within it."""

    unit: int
    parts: tuple[int | Block, ...]


@dataclass
class _Token:
    """An entry, or blocks of one kind that follow each other. ``symbol``: equal for equal ones, of blocks their unit;
    ``first``: the place of its first entry; ``size``: how many entries; ``parts``: the entry, or the blocks."""

    symbol: int
    first: int
    size: int
    parts: list[int | Block] = field(default_factory=list)


def blocks(kinds: Sequence[Hashable], cuts: Sequence[int]) -> list[int | Block]:
    """A row of operators with blocks in the place of what repeats, for the picture.

    The shortest that follows itself is a unit, wherever it stands, alone too; units repeat in larger ones in turn.

    Args:
        kinds: of each entry; blocks are of one unit where their kinds are the same, and so are rows of one unit,
            however long.
        cuts: how many values pass in front of each entry: a block begins where the fewest do.
    """
    symbols: dict[Hashable, int] = {}
    tokens = [_Token(symbols.setdefault(kind, len(symbols)), i, 1, [i]) for i, kind in enumerate(kinds)]
    unit = len(symbols)
    repeated = _repeated_unit(tokens, cuts)
    while repeated is not None:
        tokens = _replace_units(tokens, repeated, unit)
        unit += 1
        repeated = _repeated_unit(tokens, cuts)
    return [part for token in tokens for part in token.parts]


def _repeated_unit(tokens: Sequence[_Token], cuts: Sequence[int]) -> tuple[int, ...] | None:
    """Picture: the symbols of a unit of nodes that repeats, with `LEAST` operators or more: the shortest, and of those
    the one with the longest run; None where none does. A row of one symbol is no unit."""
    symbols = np.array([token.symbol for token in tokens])
    sizes = np.cumsum([0, *(token.size for token in tokens)])
    ends = np.append(np.flatnonzero(np.diff(symbols)), len(symbols) - 1)  # of rows of one symbol
    row_lengths = ends[np.searchsorted(ends, np.arange(len(symbols)))] - np.arange(len(symbols)) + 1  # from each place
    for period in range(2, len(tokens) // 2 + 1):
        start, length = _longest_run((symbols[period:] == symbols[:-period]) & (row_lengths[:-period] < period))
        if length >= period and sizes[start + period] - sizes[start] >= LEAST:
            shift = _best_shift(tokens[start : start + length + period], period, cuts)
            return tuple(int(symbol) for symbol in symbols[start + shift : start + shift + period])
    return None


def _longest_run(alike: Array) -> tuple[int, int]:
    """For the picture's blocks: (start, length) of the longest run of true values in a vector; (0, 0) without any."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], alike.astype(np.int8), [0]))))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(starts):
        return 0, 0
    best = int(np.argmax(lengths))
    return int(starts[best]), int(lengths[best])


def _best_shift(row: Sequence[_Token], period: int, cuts: Sequence[int]) -> int:
    """Picture: by how many tokens to shift blocks of ``period`` tokens in a row so that the fewest values pass from one
    to the next; two blocks are left at least."""

    def passing(shift: int) -> float:
        ends = range(shift, len(row), period)
        return sum(cuts[row[place].first] for place in ends) / len(ends)

    return min(range(min(period, len(row) - 2 * period + 1)), key=passing)


def _replace_units(tokens: Sequence[_Token], unit: tuple[int, ...], symbol: int) -> list[_Token]:
    """Picture: the row of tokens with every occurrence of the symbols ``unit`` as one block; blocks that follow one
    another become one token, of the new ``symbol``."""
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
