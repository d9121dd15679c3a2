"""A vision transformer with a massive channel of 2,000, and a T5 encoder whose feed-forward leaves float16."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .graphs import LOWEST, Graph

WIDTH, HIDDEN, LAYERS, HEADS = 96, 192, 6, 4
SIZE = WIDTH // HEADS
PATCHES, CLASSES = 64, 50
MASSIVE, FEATURE, UNIT = 23, 4, 9
VIT_PEAK, T5_PEAK = 2000.0, 1e5
VIT_RESIDUAL, T5_OVERFLOW = "layers.1.residual2", "block.2.wo"
WORDS, MARKED, LENGTH = 400, (1, 7), 40


def image(rng: np.random.Generator) -> dict[str, np.ndarray]:
    smooth = rng.standard_normal((1, 3, 8, 8)).repeat(8, 2).repeat(8, 3)
    return {"pixel_values": (smooth + 0.3 * rng.standard_normal((1, 3, 64, 64))).astype(np.float32)}


def vision() -> ModelProto:
    """Pre-norm, GELU by Erf, a class token; some places get a massive channel in the second layer and keep it."""
    g = Graph(seed=2, opset=18)
    kernel = g.random("patch.weight", WIDTH, 3, 8, 8, scale=192**-0.5)
    x = g.op("Conv", "pixel_values", kernel, g.random("patch.bias", WIDTH, scale=0.1), strides=[8, 8], name="patches")
    x = g.op("Transpose", g.op("Reshape", x, g.ints(1, WIDTH, PATCHES)), perm=[0, 2, 1])
    x = g.op("Concat", g.random("class_token", 1, 1, WIDTH, scale=0.5), x, axis=1)
    places = g.normal("positions", 1, PATCHES + 1, WIDTH, scale=0.3)
    places[0, [0, 17, 40], FEATURE] = 6.0
    x = g.op("Add", x, g.weight("positions", places), name="embeddings")
    mask = g.op("Where", g.weight("all", np.ones((1, 1, 1, PATCHES + 1), bool)), g.constant(0.0), g.constant(LOWEST))
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        h = g.layer_norm(x, f"{name}.norm1", WIDTH)
        q, k, v = (g.heads(g.dense(h, f"{name}.{part}", WIDTH, WIDTH), HEADS, SIZE) for part in "qkv")
        h = g.join(g.attend(q, k, v, SIZE, mask), WIDTH)
        x = g.op("Add", g.dense(h, f"{name}.o", WIDTH, WIDTH), x, name=f"{name}.residual1")
        h = g.layer_norm(x, f"{name}.norm2", WIDTH)
        x = g.op("Add", _gelu_layer(g, h, name, massive=layer == 1), x, name=f"{name}.residual2")
    h = g.layer_norm(x, "norm", WIDTH)
    first = g.op("Gather", h, g.constant(0, np.int64), axis=1)
    g.dense(first, "logits", WIDTH, CLASSES)
    return g.finish({"pixel_values": ("float", (1, 3, 64, 64))}, {"logits": (1, CLASSES)})


def _gelu_layer(g: Graph, h: str, name: str, massive: bool) -> str:
    up, down = g.normal(name, WIDTH, HIDDEN), g.normal(name, HIDDEN, WIDTH)
    shift = g.normal(name, HIDDEN, scale=0.05)
    if massive:
        up[:, UNIT], up[FEATURE, UNIT], shift[UNIT] = 0, 20.0, -60.0
        down[UNIT] *= 0.01
        down[UNIT, MASSIVE] = VIT_PEAK / 59.4
    inner = g.linear(h, f"{name}.up", up, shift)
    bent = g.op("Erf", g.op("Div", inner, g.constant(2**0.5)))
    half = g.op("Mul", g.constant(0.5), g.op("Add", bent, g.constant(1.0)))
    return g.linear(g.op("Mul", inner, half), f"{name}.down", down, g.normal(name, WIDTH, scale=0.05))


def sentence(rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids = rng.integers(20, WORDS, (1, LENGTH)).astype(np.int64)
    ids[0, rng.integers(2, 12)] = MARKED[1]
    mask = np.ones((1, LENGTH), np.int64)
    mask[0, rng.integers(16, LENGTH) :] = 0
    ids[0, int(mask.sum()) - 1] = MARKED[0]
    return {"input_ids": ids, "attention_mask": mask}


def t5() -> ModelProto:
    """RMSNorm, a position bias shared by all layers, gated GELU by Tanh; the third feed-forward reaches 1e5."""
    g = Graph(seed=3, opset=18)
    table = g.normal("shared", WORDS, WIDTH, scale=1.0)
    table[:, FEATURE] *= 0.1
    table[MARKED, FEATURE] = 6.0
    x = g.op("Gather", g.weight("shared", table), "input_ids", name="embed_tokens")
    kept = g.op("Unsqueeze", g.op("Cast", "attention_mask", to=9), g.ints(1, 2))
    mask = g.op("Where", kept, g.constant(0.0), g.constant(LOWEST), name="padding_mask")
    bias = g.random("position_bias", 1, HEADS, LENGTH, LENGTH, scale=1.0)
    for layer in range(LAYERS):
        name = f"block.{layer}"
        h = g.rms_norm(x, f"{name}.norm1", _ones(g))
        q, k, v = (g.heads(g.dense(h, f"{name}.{part}", WIDTH, WIDTH, bias=False), HEADS, SIZE) for part in "qkv")
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        weights = g.op("Softmax", g.op("Add", g.op("Add", scores, bias), mask), axis=-1)
        out = g.normal(name, WIDTH, WIDTH) * np.float32(0.3)
        out[:, FEATURE] *= 0.1  # the mark of a token stays what it is
        h = g.linear(g.join(g.op("MatMul", weights, v), WIDTH), f"{name}.o", out)
        x = g.op("Add", x, h, name=f"{name}.residual1")
        h = g.rms_norm(x, f"{name}.norm2", _ones(g))
        x = g.op("Add", x, _gated(g, h, name, massive=layer == 2), name=f"{name}.residual2")
    g.rms_norm(x, "last_hidden_state", _ones(g))
    ids = ("int64", (1, LENGTH))
    return g.finish({"input_ids": ids, "attention_mask": ids}, {"last_hidden_state": (1, LENGTH, WIDTH)})


def _ones(g: Graph) -> np.ndarray:
    return (1 + 0.2 * g.rng.standard_normal(WIDTH)).astype(np.float32)


def _gated(g: Graph, h: str, name: str, massive: bool) -> str:
    gate, up, down = (g.normal(name, *shape) for shape in ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    down *= np.float32(0.3)
    down[:, FEATURE] *= 0.1
    if massive:
        gate[:, UNIT] = up[:, UNIT] = 0
        gate[FEATURE, UNIT] = up[FEATURE, UNIT] = 8.0
        down[UNIT] *= 0.01
        down[UNIT, MASSIVE] = T5_PEAK / 930
    inner = g.linear(h, f"{name}.wi_0", gate)
    cube = g.op("Mul", g.op("Pow", inner, g.constant(3.0)), g.constant(0.044715))
    bent = g.op("Tanh", g.op("Mul", g.op("Add", inner, cube), g.constant((2 / np.pi) ** 0.5)))
    gelu = g.op("Mul", g.op("Mul", inner, g.constant(0.5)), g.op("Add", bent, g.constant(1.0)))
    return g.linear(g.op("Mul", gelu, g.linear(h, f"{name}.wi_1", up)), f"{name}.wo", down)
