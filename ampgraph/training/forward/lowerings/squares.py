"""Numbers that look random and are a function of a counter: a resumed run repeats.

They are those of Widynski, Squares: A Fast Counter-Based RNG (2020): four rounds of squaring a counter times a key,
modulo 2^64. That is Mul, Add and Div of uint64, which every provider has and computes alike.
"""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir

from ...gradients.builder import INT64, Builder

UINT64 = ir.DataType.UINT64
HALF = 2**32  # of the bits of a counter: the numbers of one step


def random_numbers(b: Builder, size: ir.Value, step: ir.Value, key: int) -> ir.Value:
    """A vector of ``size`` int64 numbers, uniform from 0 below 2^32. ``size`` and ``step`` are int64 scalars."""
    index = b.op("Range", b.constant(np.array(0, np.int64)), size, b.constant(np.array(1, np.int64)))
    counter = b.op("Add", index, b.op("Mul", step, b.constant(np.array(HALF, np.int64))))
    half, constant = _word(b, HALF), _word(b, key)
    y = b.op("Mul", b.op("Cast", counter, to=int(UINT64)), constant)
    z = b.op("Add", y, constant)
    x = y
    for term in (y, z, y):
        x = b.op("Add", b.op("Mul", x, x), term)
        x = b.op("Add", b.op("Div", x, half), b.op("Mul", x, half))  # its halves change places
    x = b.op("Div", b.op("Add", b.op("Mul", x, x), z), half)
    return b.op("Cast", x, to=int(INT64))


def _word(b: Builder, number: int) -> ir.Value:
    return b.constant(np.array(number, np.uint64))


def stream_key(seed: int, number: int) -> int:
    """As the paper wants keys: odd, and the hexadecimal digits of either half differ from each other and from 0."""
    noise = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    key = 0
    for half in range(2):
        digits = list(range(1, 16))
        for place in range(8 * half, 8 * half + 8):
            left = digits if place else digits[::2]
            digit = left[int.from_bytes(noise[2 * place : 2 * place + 2], "big") % len(left)]
            digits.remove(digit)
            key += digit << (4 * place)
    return key
