"""Which elements of a tensor are kept: five passes of int32 over it, each as cheap as one of float32.

The elements lie in rows of 512. A row i has two random words e, f and a column j two words b, c, from Squares. Element
(i, j) is t (t + c) modulo 2^32 with t = e b + f, where e and c are odd. t alone, multiply and add, makes any two
elements independent (Dietzfelbinger, 1996); t (t + c) takes each even number for two t, so that chances stay what they
are, and is no line in the words any more. All of it is Mul and Add of int32, which wrap in every runtime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...gradients.builder import Builder
from .squares import random_numbers

COLUMNS = 512
LEAST = -(2**31)
INT32 = ir.DataType.INT32


@dataclass(frozen=True)
class _Sizes:
    """How many words there are, a scalar, and how many elements, a vector of one; None where all rows are full."""

    words: ir.Value
    size: ir.Value | None


def kept(b: Builder, border: ir.Value, x: ir.Value, step: ir.Value, key: int) -> ir.Value:
    """A vector of as many bools as ``x`` has elements: whether its random int32 is at least ``border``, a scalar."""
    sizes = _sizes(b, x)
    wide = b.op("Sub", random_numbers(b, sizes.words, step, key), b.constant(np.array(2**31, np.int64)))
    words = b.op("Cast", wide, to=int(INT32))
    column, more = _halves(b, words, 0, 2 * COLUMNS, (2, 1, COLUMNS))
    factor, term = _halves(b, words, 2 * COLUMNS, 2**31 - 1, (2, -1, 1))
    t = b.op("Add", b.op("Mul", _odd(b, factor), column), term)
    drawn = b.op("Mul", t, b.op("Add", t, _odd(b, more)))
    flat = b.op("Reshape", b.op("GreaterOrEqual", drawn, border), b.ints(-1))
    return flat if sizes.size is None else b.op("Slice", flat, b.ints(0), sizes.size, b.ints(0))


def _halves(b: Builder, words: ir.Value, start: int, end: int, shape: tuple[int, ...]) -> list[ir.Value]:
    """The first words of some columns or rows, and the second ones."""
    mine = b.op("Slice", words, b.ints(start), b.ints(end), b.ints(0))
    return b.ops("Split", 2, b.op("Reshape", mine, b.ints(*shape)), b.ints(1, 1), axis=0)


def _sizes(b: Builder, x: ir.Value) -> _Sizes:
    """Constants where the shape is known; else three operators on the host, where sizes are."""
    dims = None if x.shape is None else list(x.shape)
    if dims is not None and all(isinstance(dim, int) for dim in dims):
        size = math.prod(int(str(dim)) for dim in dims)
        count = b.constant(np.array(2 * (-(-size // COLUMNS) + COLUMNS), np.int64))
        return _Sizes(count, b.ints(size) if size % COLUMNS else None)
    more = b.op("Add", b.op("Size", x), b.constant(np.array(COLUMNS * (COLUMNS + 1) - 1, np.int64)))
    half = b.op("Div", more, b.constant(np.array(COLUMNS, np.int64)))
    size_of = b.op("Shape", b.op("Reshape", x, b.ints(-1)))
    return _Sizes(b.op("Add", half, half), size_of)


def _odd(b: Builder, value: ir.Value) -> ir.Value:
    return b.op("Add", b.op("Mul", value, _word(b, 2)), _word(b, 1))


def _word(b: Builder, number: int) -> ir.Value:
    return b.constant(np.array(number, np.int32))
