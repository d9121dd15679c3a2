"""Dropout as it trains, its random numbers a function of a counter in the state: a resumed run repeats.

The numbers are those of Widynski, Squares: A Fast Counter-Based RNG (2020): four rounds of squaring a counter times a
key, modulo 2^64. That is Mul, Add and Div of uint64, which every provider has and computes alike. Each Dropout has a
key of its own; the counter is the step and the position. A number decides over two elements, 16 bits for each: a ratio
holds to 1 / 131,072.
"""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir

from ....core.errors import AmpError
from ...gradients.builder import INT64, Builder
from ...gradients.registry import place_of
from .replace import replace_value

BOOL, UINT64 = ir.DataType.BOOL, ir.DataType.UINT64
HALF = 2**32  # of the bits of a counter: the numbers of one step
CHANCES = 2**16


def lower_dropout(graph: ir.Graph, step_counter: ir.Value, seed: int, *, force: bool = False) -> int:
    """Rewrites every Dropout of a flat graph, and returns how many drop something.

    Args:
        step_counter: an int64 scalar, another one in each step.
        seed: other seeds, other masks.
        force: those that were exported for inference drop too.

    Raises:
        AmpError: AMP205 if the mode of a Dropout is computed by the graph.
    """
    b = Builder(graph, "train")
    found = [node for node in graph if node.op_type == "Dropout" and node.domain in ("", "ai.onnx")]
    count = 0
    for number, node in enumerate(found):
        b.before, b.scope = node, node.name or node.op_type
        if force or _trains(b, node):
            made, count = _dropped(b, node, step_counter, stream_key(seed, number)), count + 1
        else:
            made = _kept(b, node)
        for old, new in zip(node.outputs, made, strict=False):
            replace_value(b, old, new)
        graph.remove(node, safe=True)
    return count


def _trains(b: Builder, node: ir.Node) -> bool:
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    given = b.given(mode)
    if mode is not None and given is None:
        hint = "export the model in the mode that it is to have"
        raise AmpError("AMP205", "the graph computes whether it drops", where=place_of(node), hint=hint)
    return given is not None and bool(given.reshape(()))


def _kept(b: Builder, node: ir.Node) -> list[ir.Value]:
    x = node.inputs[0]
    assert x is not None
    found = [b.typed(b.op("Identity", x), x)]
    if len(node.outputs) > 1:
        found.append(b.typed(b.op("Expand", b.constant(np.array(True)), b.shape(x)), BOOL, *(x.shape or ())))
    return found


def _dropped(b: Builder, node: ir.Node, step: ir.Value, key: int) -> list[ir.Value]:
    """x / (1 - ratio) where 16 random bits are at least ratio 2^16, else 0."""
    x, ratio = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert x is not None
    given = np.array(0.5) if ratio is None else b.given(ratio)
    if given is not None:
        share = float(given.reshape(()))
        border = b.constant(np.array(round(share * CHANCES), np.int64))
        factor = b.number(1 / (1 - share) if share < 1 else 0.0, x)
    else:
        wide = b.op("Cast", ratio, to=int(ir.DataType.DOUBLE))
        border = b.op("Cast", b.op("Mul", wide, b.constant(np.array(float(CHANCES)))), to=int(INT64))
        rest = b.op("Max", b.op("Sub", b.constant(np.array(1.0)), wide), b.constant(np.array(1 / HALF)))
        factor = b.op("Cast", b.op("Reciprocal", rest), to=int(x.dtype or ir.DataType.FLOAT))
        b.typed(factor, x.dtype or ir.DataType.FLOAT)
    size = _size(b, x)
    keep = b.op("Reshape", _at_least(b, border, size, step, key), b.shape(x), allowzero=1)
    b.typed(keep, BOOL, *(x.shape or ()))
    scaled = b.typed(b.op("Mul", x, factor), x)
    return [b.typed(b.op("Where", keep, scaled, b.number(0, x)), x), keep]


def _size(b: Builder, x: ir.Value) -> ir.Value:
    """The number of elements, a number of the file where it is known: no int64 arithmetic when the step runs."""
    if x.shape is not None and x.shape.is_static():
        sizes = [dim for dim in x.shape if isinstance(dim, int)]
        return b.constant(np.array(np.prod(sizes, dtype=np.int64), np.int64))
    return b.op("Reshape", b.op("Size", x), b.ints())


def _at_least(b: Builder, border: ir.Value, size: ir.Value, step: ir.Value, key: int) -> ir.Value:
    """For each of ``size`` elements whether its 16 bits are at least the border."""
    one, chances = b.constant(np.array(1, np.int64)), b.constant(np.array(CHANCES, np.int64))
    words = b.op("Div", b.op("Add", size, one), b.constant(np.array(2, np.int64)))
    numbers = random_numbers(b, words, step, key)
    high = b.op("Div", numbers, chances)
    low = b.op("Sub", numbers, b.op("Mul", high, chances))
    both = b.op("Concat", *(b.op("GreaterOrEqual", part, border) for part in (high, low)), axis=0)
    return b.op("Slice", both, b.ints(0), b.op("Reshape", size, b.ints(1)), b.ints(0))


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
