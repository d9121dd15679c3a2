"""Random numbers of a graph (drop path, noise) from a counter in the state, like Dropout's: a resumed run repeats."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ....core.errors import AmpError
from ...gradients.builder import Builder
from ...gradients.registry import attribute, place_of
from .dropout import BOOL
from .replace import replace_value
from .squares import random_numbers, stream_key

FLOAT = ir.DataType.FLOAT
UNIFORM, NORMAL = ("RandomUniform", "RandomUniformLike"), ("RandomNormal", "RandomNormalLike")
KINDS = (*UNIFORM, *NORMAL, "Bernoulli", "Multinomial")
KEEP = "random numbers: a low type rounds the chances"
STREAMS = 1 << 20  # the keys of Dropouts come before


def is_random(node: ir.Node) -> bool:
    return node.op_type in KINDS and node.domain in ("", "ai.onnx")


def lower_random(graph: ir.Graph, step_counter: ir.Value, seed: int) -> int:
    """Rewrites every random operator but Dropout of a flat graph, and returns how many.

    Raises AmpError AMP205 for Multinomial.
    """
    b = Builder(graph, "train")
    found = [node for node in graph if is_random(node)]
    for number, node in enumerate(found):
        b.before, b.scope = node, node.name or node.op_type
        if node.op_type == "Multinomial":
            hint = "draw outside of the graph, and give what was drawn as an input"
            raise AmpError("AMP205", "Multinomial cannot be repeated", where=place_of(node), hint=hint)
        keys = [stream_key(seed, STREAMS + 2 * number + stream) for stream in range(2)]
        old = node.outputs[0]
        with b.float32(KEEP):
            new = _drawn(b, node, step_counter, keys)
        replace_value(b, old, new)
        graph.remove(node, safe=True)
    return len(found)


def _drawn(b: Builder, node: ir.Node, step: ir.Value, keys: list[int]) -> ir.Value:
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
        known = b.given(shape)
        size = (
            b.op("Reshape", b.op("Size", like), b.ints())
            if known is None
            else b.constant(np.asarray(known.prod(dtype=np.int64)))
        )
        bits = b.op("Div", random_numbers(b, size, step, key), b.constant(np.array(256, np.int64)))
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
