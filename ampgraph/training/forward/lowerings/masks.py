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
    """Vectors of one int64: how many elements there are, where the rows' second words begin; and how many words."""

    size: ir.Value
    middle: ir.Value
    words: ir.Value  # a scalar
    whole: bool  # whether the last row is known to be full


def kept(b: Builder, border: ir.Value, x: ir.Value, step: ir.Value, key: int) -> ir.Value:
    """A vector of as many bools as ``x`` has elements: whether its random int32 is at least ``border``, a scalar."""
    sizes = _sizes(b, x)
    wide = b.op("Sub", random_numbers(b, sizes.words, step, key), b.constant(np.array(2**31, np.int64)))
    words = b.op("Cast", wide, to=int(INT32))
    ends = [b.ints(0), b.ints(COLUMNS), b.ints(2 * COLUMNS), sizes.middle, b.ints(2**31 - 1)]
    shapes = [b.ints(1, COLUMNS)] * 2 + [b.ints(-1, 1)] * 2
    column, more, factor, term = (
        b.op("Reshape", b.op("Slice", words, start, end, b.ints(0)), shape)
        for start, end, shape in zip(ends, ends[1:], shapes, strict=False)
    )
    t = b.op("Add", b.op("Mul", _odd(b, factor), column), term)
    drawn = b.op("Mul", t, b.op("Add", t, _odd(b, more)))
    flat = b.op("Reshape", b.op("GreaterOrEqual", drawn, border), b.ints(-1))
    return flat if sizes.whole else b.op("Slice", flat, b.ints(0), sizes.size, b.ints(0))


def _sizes(b: Builder, x: ir.Value) -> _Sizes:
    """Constants where the shape is known."""
    dims = None if x.shape is None else list(x.shape)
    if dims is not None and all(isinstance(dim, int) for dim in dims):
        size = math.prod(int(str(dim)) for dim in dims)
        rows = -(-size // COLUMNS)
        count = b.constant(np.array(2 * (rows + COLUMNS), np.int64))
        return _Sizes(b.ints(size), b.ints(2 * COLUMNS + rows), count, size % COLUMNS == 0)
    given = b.op("Reshape", b.op("Size", x), b.ints(1))
    used = b.op("Div", b.op("Add", given, b.ints(COLUMNS - 1)), b.ints(COLUMNS))
    middle = b.op("Add", used, b.ints(2 * COLUMNS))
    return _Sizes(given, middle, b.op("Reshape", b.op("Add", middle, used), b.ints()), False)


def _odd(b: Builder, value: ir.Value) -> ir.Value:
    return b.op("Add", b.op("Mul", value, _word(b, 2)), _word(b, 1))


def _word(b: Builder, number: int) -> ir.Value:
    return b.constant(np.array(number, np.int32))
