"""Which cells operators and parameters are of, by their scopes and names.

A function that moves data, such as `ops.reshape`, may have the scope of its first call wherever it is called.
Names and scopes differ. A list that is given its cells after it was set as an attribute is in the scope and not in the
names: ``0.table`` is read in ``layers-CellList/0-Block``; lists in such a list get names twice over. And cells of one
class that a network calls one after the other may all have the scope of the first. So a path is known by where it has
names and where numbers, and a name by what it ends with.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache

from ...core.dataflow import NONE, Dataflow, Op
from ...oplists.traits import Traits

Cell = tuple[tuple[str, str], ...]
"""(name, class) of the cells around an operator, from the outermost one."""


@lru_cache(maxsize=1024)
def _shape(cells: Cell, containers: Set[str], end: str) -> re.Pattern[str]:
    """What the owners of a cell's parameters look like."""
    parts = [r"(?:^|(?<=\.))" if cells else "^"]
    for name, kind in cells:
        if kind in containers:
            parts.append(rf"(?:{re.escape(name)}\.)?")
        else:
            parts.append(r"\d+\." if name.isdigit() else r"(?!\d+\.)[^.]+\.")
    return re.compile("".join(parts) + end)


def placed(flow: Dataflow, traits: Traits) -> list[Cell]:
    """The cells around every operator. What is given a cell's value and hands it back to that cell is called there,
    unless its own cell is inside: a value that leaves a cell does not come back."""
    cells: list[Cell] = [tuple(flow.cells(op)) for op in flow.ops]
    for op in flow.ops:
        maker = flow.writer(op.inputs[0]) if op.inputs and op.inputs[0] != NONE else None
        if maker is not None and traits.has(op.role, "reshapes"):
            home = cells[maker.id]
            if not _in(cells[op.id], home) and _comes_back(flow, traits, op, home, cells):
                cells[op.id] = home
    return cells


def _comes_back(flow: Dataflow, traits: Traits, op: Op, home: Cell, cells: list[Cell]) -> bool:
    """Whether what an operator passes on is read in a cell, through others that only pass it on."""
    waiting, seen = [op], {op.id}
    while waiting:
        for reader in flow.readers(waiting.pop().outputs[0]):
            if _in(cells[reader.id], home):
                return True
            if reader.id not in seen and traits.has(reader.role, "reshapes"):
                seen.add(reader.id)
                waiting.append(reader)
    return False


def _in(cells: Cell, home: Cell) -> bool:
    return cells[: len(home)] == home


def paths(cells: Cell, containers: Set[str]) -> set[str]:
    """What the names of a cell's own parameters begin with: with its lists, or without them."""
    return {".".join(name for name, kind in cells if kind not in left_out) for left_out in (containers, frozenset())}


def is_of(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner`` is a cell such as the last of ``cells``."""
    return _shape(cells, containers, "$").search(_path(owner)) is not None


def is_within(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner`` is such a cell or inside one; else it is around it, and handed its parameter down."""
    return _shape(cells, containers, "").search(_path(owner)) is not None


def _path(owner: str) -> str:
    return f"{owner}." if owner else ""
