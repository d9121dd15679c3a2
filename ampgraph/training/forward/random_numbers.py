"""Dropout's masks and random numbers (drop path, noise) in training graphs, as functions of a counter in the state: a
resumed run repeats them. Each node has a key of its own; it draws by the step and the place of the element.

Numbers are those of Widynski, Squares: A Fast Counter-Based RNG (2020): four rounds of squaring a counter times a key,
modulo 2^64. That is Mul, Add and Div of uint64, which every provider has and computes alike.

Masks take five passes of int32 over the elements, each as cheap as one of float32. The elements lie in rows of 512. A
row i has two random words e, f and a column j two words b, c, from Squares. Element (i, j) is t (t + c) modulo 2^32
with t = e b + f, where e and c are odd. t alone, multiply and add, makes any two elements independent (Dietzfelbinger,
1996); t (t + c) takes each even number for two t, so that probabilities stay what they are, and is not linear in the
words any more. All of it is Mul and Add of int32, which wrap in every runtime.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError
from ...formats.onnx.nodes import attribute, kind_of, operand, place_of
from ..gradients.builder import INT64, Builder

FLOAT, BOOL, INT32, UINT64 = ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.UINT64
UNIFORM, NORMAL = ("RandomUniform", "RandomUniformLike"), ("RandomNormal", "RandomNormalLike")
KINDS = (*UNIFORM, *NORMAL, "Bernoulli", "Multinomial")
KEEP = "random numbers: a low type rounds the chances"
STREAMS = 1 << 20  # keys up to here are those of Dropouts
HALF = 2**32  # a counter's lower 32 bits count the numbers of one step, the upper ones the steps
COLUMNS = 512  # in a row of a mask
LEAST, LARGEST, CHANCES = -(2**31), 2.0**31 - 1, 2.0**32  # int32's least, greatest, and how many there are


def random_numbers(b: Builder, size: ir.Value, step: ir.Value, key: int) -> ir.Value:
    """Adds random numbers of a training step: a vector of ``size`` int64 numbers, uniform from 0 below 2^32, that
    ``step`` and ``key`` determine. ``size`` and ``step`` are int64 scalars of the graph, ``key`` is a `stream_key`."""
    index = b.op("Range", b.int64(0), size, b.int64(1))
    counter = b.op("Add", index, b.op("Mul", step, b.int64(HALF)))
    half, constant = (b.constant(np.array(number, np.uint64)) for number in (HALF, key))
    y = b.op("Mul", b.op("Cast", counter, to=int(UINT64)), constant)
    z = b.op("Add", y, constant)
    x = y
    for term in (y, z, y):
        x = b.op("Add", b.op("Mul", x, x), term)
        x = b.op("Add", b.op("Div", x, half), b.op("Mul", x, half))  # swaps its halves
    x = b.op("Div", b.op("Add", b.op("Mul", x, x), z), half)
    return b.op("Cast", x, to=int(INT64))


def stream_key(seed: int, number: int) -> int:
    """Random numbers of a training step: the key number ``number`` of a seed, as Squares' paper wants it: odd, and the
    hexadecimal digits of either half differ from each other and from 0."""
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


# -- Dropout -----------------------------------------------------------------------------------------------------------


def lower_dropout(graph: ir.Graph, step_counter: ir.Value, seed: int) -> None:
    """Rewrites every Dropout of a flat forward graph as a product with a mask that a counter of steps determines.

    Args:
        step_counter: an int64 scalar, another one in each step.
        seed: other seeds, other masks.

    Raises:
        AmpError: AMP205 if the mode of a Dropout is computed by the graph.
    """
    b = Builder(graph, "train")
    for number, node in enumerate(b.in_front_of_each(lambda node: kind_of(node) == "Dropout")):
        drops = _is_active(b, node)
        made = (
            _write_dropout(b, node, step_counter, stream_key(seed, number))
            if drops
            else _write_inactive_dropout(b, node)
        )
        b.replace_node(node, made)


def _is_active(b: Builder, node: ir.Node) -> bool:
    """Whether a Dropout drops anything, by its third input. Raises AmpError AMP205 where the graph computes that."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    given = b.known_numbers(mode)
    if mode is not None and given is None:
        hint = "export the model in the mode that it is to have"
        raise AmpError("AMP205", "the graph computes whether Dropout is active", where=place_of(node), hint=hint)
    return given is not None and bool(given.reshape(()))


def _write_inactive_dropout(b: Builder, node: ir.Node) -> list[ir.Value]:
    """The outputs of a Dropout that drops nothing: its data, and a mask of True."""
    x = operand(node)
    found = [b.copy(x)]
    if len(node.outputs) > 1:
        found.append(b.typed(b.op("Expand", b.constant(np.array(True)), b.shape(x)), BOOL, *(x.shape or ())))
    return found


def _write_dropout(b: Builder, node: ir.Node, step: ir.Value, key: int) -> list[ir.Value]:
    """The outputs of an active Dropout: x times a mask of 1 / (1 - ratio) and zeros, and the mask as truth values. As
    torch's, it makes NaN of an infinite number that is dropped."""
    x, ratio = operand(node), node.inputs[1] if len(node.inputs) > 1 else None
    threshold, factor = _threshold_and_factor(b, x, ratio)
    flat = dropout_mask(b, threshold, x, step, key)
    keep = b.typed(b.op("Reshape", flat, b.shape(x), allowzero=1), BOOL, *(x.shape or ()))
    mask = b.typed(b.op("Where", keep, factor, b.number(0, x)), x)
    return [b.typed(b.op("Mul", x, mask), x), keep]


def _threshold_and_factor(b: Builder, x: ir.Value, ratio: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Of a Dropout: the number that a random int32 must reach for its element to be kept, and 1 / (1 - ratio) in the
    type of ``x``; constants where the ratio is one. ``ratio``: None for the default, 0.5."""
    given = np.array(0.5) if ratio is None else b.known_numbers(ratio)
    if given is not None:
        share = float(given.reshape(()))
        threshold = min(round(share * CHANCES) + LEAST, LARGEST)
        return b.constant(np.array(threshold, np.int32)), b.number(1 / (1 - share) if share < 1 else 0.0, x)
    assert ratio is not None
    wide = b.cast(ratio, ir.DataType.DOUBLE)
    place = b.op("Add", b.op("Mul", wide, b.number(CHANCES, wide)), b.number(LEAST, wide))
    least = b.op("Cast", b.op("Min", place, b.number(LARGEST, wide)), to=int(INT32))
    rest = b.op("Max", b.op("Sub", b.number(1, wide), wide), b.number(1 / CHANCES, wide))
    factor = b.op("Cast", b.op("Reciprocal", rest), to=int(x.dtype or ir.DataType.FLOAT))
    return least, b.typed(factor, x.dtype or ir.DataType.FLOAT)


def dropout_mask(b: Builder, threshold: ir.Value, x: ir.Value, step: ir.Value, key: int) -> ir.Value:
    """Adds Dropout's mask of ``x`` as a vector of truth values: whether the random int32 of each element, by the method
    at the head of the file, is at least ``threshold``, a scalar."""
    count, size = _word_counts(b, x)
    wide = b.op("Sub", random_numbers(b, count, step, key), b.int64(2**31))
    words = b.op("Cast", wide, to=int(INT32))
    column, more = _split_words(b, words, 0, 2 * COLUMNS, (2, 1, COLUMNS))
    factor, term = _split_words(b, words, 2 * COLUMNS, 2**31 - 1, (2, -1, 1))
    t = b.op("Add", b.op("Mul", _odd(b, factor), column), term)
    drawn = b.op("Mul", t, b.op("Add", t, _odd(b, more)))
    flat = b.op("Reshape", b.op("GreaterOrEqual", drawn, threshold), b.ints(-1))
    return flat if size is None else b.op("Slice", flat, b.ints(0), size, b.ints(0))


def _split_words(b: Builder, words: ir.Value, start: int, end: int, shape: tuple[int, ...]) -> list[ir.Value]:
    """Of a Dropout's mask: the random words from ``start`` to ``end`` as two tensors: reshaped to ``shape``, whose
    first axis is 2, and split along that."""
    mine = b.op("Slice", words, b.ints(start), b.ints(end), b.ints(0))
    return b.ops("Split", 2, b.op("Reshape", mine, b.ints(*shape)), b.ints(1, 1), axis=0)


def _word_counts(b: Builder, x: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Of a Dropout's mask: how many random words are drawn for ``x``, a scalar, and how many elements it has, a vector
    of one, or None where all rows are full. Constants where the shape is known; else operators on the host."""
    dims = None if x.shape is None else list(x.shape)
    if dims is not None and all(isinstance(dim, int) for dim in dims):
        size = math.prod(int(str(dim)) for dim in dims)
        return b.int64(2 * (-(-size // COLUMNS) + COLUMNS)), b.ints(size) if size % COLUMNS else None
    more = b.op("Add", b.op("Size", x), b.int64(COLUMNS * (COLUMNS + 1) - 1))
    half = b.op("Div", more, b.int64(COLUMNS))
    size_of = b.op("Shape", b.op("Reshape", x, b.ints(-1)))
    return b.op("Add", half, half), size_of


def _odd(b: Builder, value: ir.Value) -> ir.Value:
    """Of a Dropout's mask: 2 x + 1, which is odd for any int32 x."""
    two, one = (b.constant(np.array(number, np.int32)) for number in (2, 1))
    return b.op("Add", b.op("Mul", value, two), one)


# -- random operators --------------------------------------------------------------------------------------------------


def is_random(node: ir.Node) -> bool:
    """Whether a node of a forward graph draws random numbers, other than a Dropout."""
    return node.op_type in KINDS and node.domain in ("", "ai.onnx")


def lower_random(graph: ir.Graph, step_counter: ir.Value, seed: int) -> None:
    """Rewrites every random operator but Dropout of a flat forward graph as a function of a counter of steps, an int64
    scalar, and of ``seed``. Raises AmpError AMP205 for Multinomial."""
    b = Builder(graph, "train")
    for number, node in enumerate(b.in_front_of_each(is_random)):
        if node.op_type == "Multinomial":
            hint = "draw outside of the graph, and give what was drawn as an input"
            raise AmpError("AMP205", "Multinomial cannot be repeated", where=place_of(node), hint=hint)
        keys = [stream_key(seed, STREAMS + 2 * number + stream) for stream in range(2)]
        with b.float32(KEEP):
            made = _random_tensor(b, node, step_counter, keys)
        b.replace_node(node, [made])


def _random_tensor(b: Builder, node: ir.Node, step: ir.Value, keys: list[int]) -> ir.Value:
    """The result of a random node (uniform, normal, Bernoulli) by the step and two keys (one but for normal)."""
    like = node.inputs[0] if node.inputs else None
    sizes = attribute(node, "shape", ()) if like is None else like.shape
    dims = None if sizes is None else list(sizes)
    shape = b.ints(*attribute(node, "shape", ())) if like is None else b.shape(like)
    dtype = ir.DataType(attribute(node, "dtype", int(FLOAT if like is None else like.dtype or FLOAT)))

    def typed(value: ir.Value, kind: ir.DataType = FLOAT) -> ir.Value:
        value.type, value.shape = ir.TensorType(kind), None if dims is None else ir.Shape(dims)
        return value

    def uniform(key: int) -> ir.Value:
        """From 0 below 1, in steps of 2^-24: float32 holds each."""
        known = b.known_numbers(shape)
        count = None if known is None else int(known.prod(dtype=np.int64))
        size = b.op("Reshape", b.op("Size", like), b.ints()) if count is None else b.int64(count)
        bits = b.op("Div", random_numbers(b, size, step, key), b.int64(256))
        flat = b.op("Mul", b.op("Cast", bits, to=int(FLOAT)), b.number(2.0**-24))
        return typed(b.op("Reshape", flat, shape, allowzero=1))

    if node.op_type == "Bernoulli":
        assert like is not None
        chance = like if like.dtype == FLOAT else typed(b.op("Cast", like, to=int(FLOAT)))
        return typed(b.op("Cast", typed(b.op("Less", uniform(keys[0]), chance), BOOL), to=int(dtype)), dtype)
    if node.op_type in UNIFORM:
        low, high = float(attribute(node, "low", 0.0)), float(attribute(node, "high", 1.0))
        drawn, factor, start = uniform(keys[0]), high - low, low
    else:
        logarithm = typed(b.op("Log", typed(b.op("Sub", b.number(1), uniform(keys[0])))))
        radius = typed(b.op("Sqrt", typed(b.op("Mul", logarithm, b.number(-2)))))  # Box and Muller
        angle = typed(b.op("Mul", uniform(keys[1]), b.number(2 * math.pi)))
        drawn = typed(b.op("Mul", radius, typed(b.op("Cos", angle))))
        factor, start = float(attribute(node, "scale", 1.0)), float(attribute(node, "mean", 0.0))
    if (factor, start) != (1.0, 0.0):
        drawn = typed(b.op("Add", typed(b.op("Mul", drawn, b.number(factor))), b.number(start)))
    return drawn if dtype == FLOAT else typed(b.op("Cast", drawn, to=int(dtype)), dtype)
