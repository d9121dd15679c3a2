"""A Llama: RMSNorm, rotary positions, grouped queries, gated feed-forward, and one massive residual channel.

As in trained Llamas, the second layer's feed-forward writes about 1,500 into one channel at the first token and at
delimiters, the channel stays to the end, and the norms after it scale that channel down.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .graphs import LOWEST, Graph

WORDS, WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS = 256, 128, 256, 6, 4, 2
SIZE = WIDTH // HEADS
MASSIVE, FEATURE, UNIT = 37, 5, 11  # the channel, the channel that marks the tokens, the hidden unit between them
MARKED = (1, 13)  # beginning of text, delimiter
PEAK = 1500.0
RESIDUAL = "layers.1.residual2"  # where the channel first stands in the residual stream


def feed(rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids = rng.integers(20, WORDS, (1, int(rng.integers(24, 48))))
    ids[0, 0] = MARKED[0]
    ids[0, rng.integers(4, ids.shape[1], 2)] = MARKED[1]
    return {"input_ids": ids.astype(np.int64)}


def build() -> ModelProto:
    g = Graph(seed=1)
    table = g.normal("embed", WORDS, WIDTH, scale=1.0)
    table[:, FEATURE] *= 0.1
    table[MARKED, FEATURE] = 6.0
    x = g.op("Gather", g.weight("embed", table), "input_ids", name="embed_tokens")
    cos, sin, mask = positions(g)
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        h = g.rms_norm(x, f"{name}.norm1", norm(g, layer))
        x = g.op("Add", x, attention(g, h, f"{name}.attention", cos, sin, mask), name=f"{name}.residual1")
        h = g.rms_norm(x, f"{name}.norm2", norm(g, layer))
        x = g.op("Add", x, feed_forward(g, h, f"{name}.mlp", massive=layer == 1), name=f"{name}.residual2")
    h = g.rms_norm(x, "norm", norm(g, LAYERS))
    g.linear(h, "logits", table.T * np.float32(0.3))
    return g.finish({"input_ids": ("int64", (1, "length"))}, {"logits": (1, "length", WORDS)})


def norm(g: Graph, layer: int) -> np.ndarray:
    """What a norm multiplies with: small in the massive channel once it is there."""
    weight = (1 + 0.2 * g.rng.standard_normal(WIDTH)).astype(np.float32)
    if layer > 1:
        weight[MASSIVE] = 0.05
    return weight


def positions(g: Graph) -> tuple[str, str, str]:
    """Rotary tables and the causal mask, computed from the length of the input."""
    length = g.op("Squeeze", g.op("Shape", "input_ids", start=1, end=2))
    steps = g.op("Range", g.constant(0, np.int64), length, g.constant(1, np.int64))
    column = g.op("Unsqueeze", steps, g.ints(1))
    frequency = g.weight("frequency", (1 / 10000 ** (np.arange(0, SIZE, 2) / SIZE)).astype(np.float32)[None])
    angle = g.op("MatMul", g.op("Cast", column, to=1), frequency)
    angles = g.op("Concat", angle, angle, axis=-1)
    seen = g.op("LessOrEqual", g.op("Unsqueeze", steps, g.ints(0)), column)
    mask = g.op("Where", seen, g.constant(0.0), g.constant(LOWEST), name="causal_mask")
    return g.op("Cos", angles), g.op("Sin", angles), g.op("Unsqueeze", mask, g.ints(0, 1))


def rotate(g: Graph, t: str, cos: str, sin: str) -> str:
    first = g.op("Slice", t, g.ints(0), g.ints(SIZE // 2), g.ints(3), g.ints(1))
    second = g.op("Slice", t, g.ints(SIZE // 2), g.ints(2**63 - 1), g.ints(3), g.ints(1))
    turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
    return g.op("Add", g.op("Mul", t, cos), g.op("Mul", turned, sin))


def attention(g: Graph, h: str, name: str, cos: str, sin: str, mask: str) -> str:
    narrow = KEY_HEADS * SIZE
    q = g.heads(g.dense(h, f"{name}.q", WIDTH, WIDTH, bias=False), HEADS, SIZE)
    k = g.heads(g.dense(h, f"{name}.k", WIDTH, narrow, bias=False), KEY_HEADS, SIZE)
    v = g.heads(g.dense(h, f"{name}.v", WIDTH, narrow, bias=False), KEY_HEADS, SIZE)
    k, v = repeat(g, rotate(g, k, cos, sin)), repeat(g, v)
    mixed = g.attend(rotate(g, q, cos, sin), k, v, SIZE, mask)
    return g.linear(g.join(mixed, WIDTH), f"{name}.o", g.normal(name, WIDTH, WIDTH) * np.float32(0.5))


def repeat(g: Graph, t: str) -> str:
    """Each key head serves several query heads."""
    wide = g.op("Expand", g.op("Unsqueeze", t, g.ints(2)), g.ints(1, 1, HEADS // KEY_HEADS, 1, 1))
    return g.op("Reshape", wide, g.ints(0, HEADS, -1, SIZE))


def feed_forward(g: Graph, h: str, name: str, massive: bool) -> str:
    gate, up = g.normal(name, WIDTH, HIDDEN), g.normal(name, WIDTH, HIDDEN)
    down = g.normal(name, HIDDEN, WIDTH) * np.float32(0.5)
    if massive:
        gate[:, UNIT] = up[:, UNIT] = 0
        gate[FEATURE, UNIT] = up[FEATURE, UNIT] = 6.0
        down[UNIT] *= 0.01
        down[UNIT, MASSIVE] = PEAK / 1025
    gated = g.linear(h, f"{name}.gate", gate)
    silu = g.op("Mul", gated, g.op("Sigmoid", gated))
    return g.linear(g.op("Mul", silu, g.linear(h, f"{name}.up", up)), f"{name}.down", down)
