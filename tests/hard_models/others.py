"""A byte classifier (one-hot by equality, division by counts) and an LSTM whose input picks a branch."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from .graphs import Graph

WIDTH, LONGEST, LABELS = 64, 3000, 20
FEATURES, STATE, STEPS, TARGETS = 12, 48, 30, 8


def text(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Two rows of bytes, the shorter one padded with zero: counts go past 2,048, where float16 skips integers."""
    ids = rng.integers(32, 127, (2, int(rng.integers(1000, LONGEST))))
    ids[1, rng.integers(20, ids.shape[1]) :] = 0
    return {"ids": ids.astype(np.int64)}


def byte_classifier() -> ModelProto:
    """A convolution over one-hot bytes, then the mean over those that are not padding."""
    g = Graph(seed=4, opset=18)
    number = g.op("Cast", g.op("Unsqueeze", "ids", g.ints(-1)), to=1)
    same = g.op("Equal", number, g.weight("alphabet", np.arange(256, dtype=np.float32)))
    hot = g.op("Cast", same, to=1, name="one_hot")
    x = g.op("Transpose", g.linear(hot, "embed", g.normal("embed", 256, WIDTH, scale=1.0)), perm=[0, 2, 1])
    for layer in range(2):
        kernel = g.random(f"conv{layer}.weight", WIDTH, WIDTH, 5, scale=(5 * WIDTH) ** -0.5)
        y = g.op("Conv", x, kernel, g.random(f"conv{layer}.bias", WIDTH, scale=0.1), pads=[2, 2], name=f"conv{layer}")
        x = g.op("Add", x, g.op("Relu", y))
    x = g.op("Transpose", x, perm=[0, 2, 1])
    there = g.op("Cast", g.op("Not", g.op("Equal", "ids", g.constant(0, np.int64))), to=1)
    there = g.op("Unsqueeze", there, g.ints(-1))
    total = g.op("ReduceSum", g.op("Mul", x, there), g.ints(1), keepdims=0, name="total")
    count = g.op("ReduceSum", there, g.ints(1), keepdims=0, name="count")
    mean = g.op("Div", total, g.op("Add", count, g.constant(1e-6)), name="mean")
    h = g.op("Tanh", g.dense(mean, "hidden", WIDTH, WIDTH))
    logits = g.dense(h, "head", WIDTH, LABELS)
    g.op("LogSoftmax", logits, axis=-1, name="scores")
    return g.finish({"ids": ("int64", (2, "length"))}, {"scores": (2, LABELS)})


def series(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A random walk, with a trend or without."""
    steps = rng.standard_normal((1, STEPS, FEATURES)) * 0.4 + rng.choice([-0.1, 0.1])
    return {"series": steps.cumsum(1).astype(np.float32)}


def lstm() -> ModelProto:
    """A bidirectional LSTM, then a cell of its own for rising and for falling series, then a head."""
    g = Graph(seed=5, opset=18)
    x = g.dense("series", "project", FEATURES, STATE)
    x = g.op("Transpose", g.layer_norm(x, "norm", STATE, eps=1e-5), perm=[1, 0, 2])
    x = _lstm(g, x, "encoder", STATE, STATE // 2, directions=2)
    last = g.op("Squeeze", g.op("Slice", x, g.ints(-1), g.ints(2**63 - 1), g.ints(0)), g.ints(0))
    rising = g.op("Greater", g.op("ReduceMean", "series", g.ints(0, 1, 2), keepdims=0), g.constant(0.0))
    branches = [_branch(g, up, x, last) for up in (True, False)]
    h = g.op("If", rising, then_branch=branches[0], else_branch=branches[1], name="chosen")
    h = g.op("Add", g.layer_norm(h, "norm_out", STATE, eps=1e-5), last)
    g.dense(h, "forecast", STATE, TARGETS)
    return g.finish({"series": ("float", (1, STEPS, FEATURES))}, {"forecast": (1, TARGETS)})


def _lstm(g: Graph, x: str, name: str, width: int, state: int, directions: int) -> str:
    """[length, batch, directions * state]"""
    weights = [
        g.random(f"{name}.{part}", directions, 4 * state, columns, scale=columns**-0.5)
        for part, columns in (("w", width), ("r", state))
    ]
    bias = g.random(f"{name}.b", directions, 8 * state, scale=0.1)
    zero = g.weight(f"{name}.zero", np.zeros((directions, 1, state), np.float32))
    way = "bidirectional" if directions == 2 else "forward"
    y = g.op("LSTM", x, *weights, bias, "", zero, zero, name=name, hidden_size=state, direction=way)
    return g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, directions * state))


def _branch(g: Graph, up: bool, x: str, last: str) -> onnx.GraphProto:
    """A body that reads the outer values: another LSTM, or two products with GELU."""
    outer, g.nodes = g.nodes, []
    if up:
        y = _lstm(g, x, "rising", STATE, STATE, directions=1)
        name = g.op("ReduceMean", y, g.ints(0), keepdims=0, name="rising_out")
    else:
        inner = g.dense(last, "falling1", STATE, 2 * STATE)
        bent = g.op("Add", g.op("Erf", g.op("Div", inner, g.constant(2**0.5))), g.constant(1.0))
        gelu = g.op("Mul", g.op("Mul", inner, bent), g.constant(0.5))
        name = g.dense(gelu, "falling2", 2 * STATE, STATE)
    nodes, g.nodes = g.nodes, outer
    return helper.make_graph(
        nodes, "up" if up else "down", [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, STATE))]
    )
