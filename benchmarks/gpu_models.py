"""The models that are timed on a GPU, built directly: nothing large has to travel, and no framework is needed.

The sequences of operators are those that torch's dynamo exporter writes for the same architectures: BatchNorm folded
into Conv, attention decomposed with its two scales, its mask and its test for rows without any allowed position,
RMSNorm from Pow to Mul, rotary positions by Slice, Neg and Concat. Weights are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from graph_builder import Builder

MASKED = float(np.finfo(np.float32).min)
END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class ResNet:
    """ResNet-50: `blocks` bottlenecks a stage; a stage's output is four times `width`, doubled from stage to stage."""

    batch: int = 64
    image: int = 224
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000


@dataclass(frozen=True)
class Bert:
    """BERT-base as an encoder."""

    batch: int = 32
    length: int = 128
    width: int = 768
    hidden: int = 3072
    heads: int = 12
    layers: int = 12
    vocabulary: int = 30522


@dataclass(frozen=True)
class Llama:
    """Eight layers of a Llama of 1.1 billion parameters, reading a prompt: 32 heads share 4 key/value heads."""

    length: int = 2048
    width: int = 2048
    hidden: int = 5632
    heads: int = 32
    kv_heads: int = 4
    layers: int = 8
    vocabulary: int = 32000


def conv(b: Builder, x: str, name: str, shape: tuple[int, int, int, int], stride: int = 1, gain: float = 2.0) -> str:
    """A convolution with the bias that a folded BatchNorm leaves."""
    out, inputs, size, _ = shape
    weight = b.weight(f"{name}.weight", shape, math.sqrt(gain / (inputs * size * size)))
    attributes = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4, "dilations": [1, 1]}
    return b.op("Conv", x, weight, b.weight(f"{name}.bias", [out], 0.05), group=1, **attributes)


def bottleneck(b: Builder, x: str, name: str, inputs: int, width: int, stride: int) -> str:
    """1 x 1, 3 x 3, 1 x 1, with a shortcut; the last gain is small, as training makes it, so that sums stay level."""
    h = b.op("Relu", conv(b, x, f"{name}.0", (width, inputs, 1, 1)))
    h = b.op("Relu", conv(b, h, f"{name}.1", (width, width, 3, 3), stride))
    h = conv(b, h, f"{name}.2", (4 * width, width, 1, 1), gain=0.2)
    if inputs != 4 * width or stride != 1:
        x = conv(b, x, f"{name}.shortcut", (4 * width, inputs, 1, 1), stride, gain=1.0)
    return b.op("Relu", b.op("Add", h, x))


def resnet50(path: Path, size: ResNet) -> None:
    """Images to the logits of their classes."""
    b = Builder(path, opset=18)
    shape = (size.batch, 3, size.image, size.image)
    x = b.input("pixel_values", b.rng.standard_normal(shape, dtype=np.float32))
    x = b.op("Relu", conv(b, x, "stem", (size.width, 3, 7, 7), stride=2))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inputs = size.width
    for stage, blocks in enumerate(size.blocks):
        width = size.width * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = bottleneck(b, x, f"stages.{stage}.{block}", inputs, width, stride)
            inputs = 4 * width
    x = b.op("ReduceMean", x, b.constant([-1, -2]), keepdims=1)
    x = b.op("Reshape", x, b.constant([size.batch, inputs]), allowzero=1)
    weight = b.weight("classifier.weight", (size.classes, inputs), 1 / math.sqrt(inputs))
    x = b.op("Gemm", x, weight, b.weight("classifier.bias", [size.classes], 0.05), transB=1)
    b.finish(x, (size.batch, size.classes))


def linear(b: Builder, x: str, name: str, inputs: int, outputs: int, bias: bool = True) -> str:
    """MatMul by a weight that is transposed already, and Add."""
    x = b.op("MatMul", x, b.weight(f"{name}.weight", (inputs, outputs), 1 / math.sqrt(inputs)))
    return b.op("Add", x, b.weight(f"{name}.bias", [outputs], 0.05)) if bias else x


def heads_of(b: Builder, x: str, batch: int, length: int, head: int) -> str:
    """[batch, length, width] -> [batch, heads, length, head]."""
    x = b.op("Reshape", x, b.constant([batch, length, -1, head]), allowzero=1)
    return b.op("Transpose", x, perm=[0, 2, 1, 3])


def attention(b: Builder, q: str, k: str, v: str, mask: str, shape: tuple[int, int, int, int]) -> str:
    """The exporter's decomposition of scaled dot product attention; `shape` is [batch, heads, length, head]."""
    batch, heads, length, head = shape
    k = b.op("Reshape", k, b.constant([-1, length, head]), allowzero=0)
    k = b.op("Transpose", k, perm=[0, 2, 1])
    k = b.op("Reshape", k, b.constant([batch, heads, head, length]), allowzero=0)
    # Both sides are scaled by the fourth root, so that the product stays in range.
    scale, zero = b.constant(head**-0.25, np.float32), b.constant(0.0, np.float32)
    scores = b.op("MatMul", b.op("Mul", q, scale), b.op("Mul", k, scale))
    weights = b.op("Softmax", b.op("Add", scores, mask), axis=-1)
    weights = b.op("Where", b.op("IsNaN", weights), zero, weights)
    mixed = b.op("Transpose", b.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    return b.op("Reshape", mixed, b.constant([batch, length, -1]), allowzero=1)


def layer_norm(b: Builder, x: str, name: str, width: int) -> str:
    """LayerNormalization over the last axis."""
    gain = b.tensor(f"{name}.weight", (1 + 0.1 * b.rng.standard_normal(width)).astype(np.float32))
    return b.op("LayerNormalization", x, gain, b.weight(f"{name}.bias", [width], 0.05), axis=-1, epsilon=1e-12)


def bert_mask(b: Builder, mask: str, size: Bert) -> str:
    """0 where a token may look, the lowest float32 where it may not: [batch, 1, length, length]."""
    rows, columns = np.meshgrid(np.arange(size.batch), np.arange(size.length), indexing="ij")
    picks = np.stack([rows, columns], -1)[:, None, None]
    allowed = b.op("GatherND", b.op("Cast", mask, to=9), b.constant(picks))
    allowed = b.op("And", b.constant(np.ones((1, 1, size.length, 1)), bool), allowed)
    return b.op("Where", allowed, b.constant(0.0, np.float32), b.constant(MASKED, np.float32))


def bert(path: Path, size: Bert) -> None:
    """Token ids and a padding mask to the last hidden state."""
    b, width = Builder(path, opset=20), size.width
    shape = (size.batch, size.length)
    ids = b.input("input_ids", b.rng.integers(0, size.vocabulary, shape))
    used = b.rng.integers(size.length // 2, size.length + 1, (size.batch, 1))
    given = b.input("attention_mask", (np.arange(size.length) < used).astype(np.int64))
    words = b.op("Gather", b.weight("words", (size.vocabulary, width), 0.5), ids, axis=0)
    kinds = b.op("Gather", b.weight("kinds", (2, width), 0.1), b.constant(np.zeros(shape)), axis=0)
    places = b.op("Gather", b.weight("places", (512, width), 0.1), b.constant(np.arange(size.length)[None]), axis=0)
    x = layer_norm(b, b.op("Add", b.op("Add", words, kinds), places), "embedding", width)
    mask, head = bert_mask(b, given, size), width // size.heads
    for layer in range(size.layers):
        name = f"layer.{layer}"
        q, k, v = (
            heads_of(b, linear(b, x, f"{name}.{part}", width, width), *shape, head)
            for part in ("query", "key", "value")
        )
        h = attention(b, q, k, v, mask, (size.batch, size.heads, size.length, head))
        h = linear(b, h, f"{name}.out", width, width)
        x = layer_norm(b, b.op("Add", h, x), f"{name}.norm1", width)
        h = b.op("Gelu", linear(b, x, f"{name}.up", width, size.hidden), approximate="none")
        h = linear(b, h, f"{name}.down", size.hidden, width)
        x = layer_norm(b, b.op("Add", h, x), f"{name}.norm2", width)
    b.finish(x, (*shape, width))


def rms_norm(b: Builder, x: str, name: str, width: int) -> str:
    """RMSNorm as the exporter decomposes it."""
    square = b.op("Pow", x, b.constant(2.0, np.float32))
    mean = b.op("ReduceMean", square, b.constant([-1]), keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-6, np.float32)))
    gain = b.tensor(f"{name}.weight", (1 + 0.1 * b.rng.standard_normal(width)).astype(np.float32))
    return b.op("Mul", gain, b.op("Mul", x, b.op("Reciprocal", root)))


def rotate(b: Builder, x: str, cos: str, sin: str, head: int) -> str:
    """Rotary positions."""
    one, axis, half = b.constant([1]), b.constant([3]), b.constant([head // 2])
    first = b.op("Slice", x, b.constant([0]), half, axis, one)
    second = b.op("Slice", x, half, b.constant([END]), axis, one)
    turned = b.op("Concat", b.op("Neg", second), first, axis=-1)
    return b.op("Add", b.op("Mul", x, cos), b.op("Mul", turned, sin))


def repeat(b: Builder, x: str, size: Llama, head: int) -> str:
    """One key/value head for each query head: [1, kv_heads, groups, length, head], not yet reshaped."""
    groups = size.heads // size.kv_heads
    x = b.op("Unsqueeze", x, b.constant([2]))
    return b.op("Expand", x, b.constant([1, size.kv_heads, groups, size.length, head]))


def positions(b: Builder, size: Llama, head: int) -> tuple[str, str, str]:
    """The cosines, sines and the causal mask, as constants."""
    rates = 10000.0 ** (-np.arange(0, head, 2) / head)
    angles = np.outer(np.arange(size.length), np.concatenate([rates, rates]))[None, None]
    causal = np.triu(np.full((size.length, size.length), MASKED, np.float32), 1)[None, None]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return b.tensor("cos", cos), b.tensor("sin", sin), b.tensor("causal", causal)


def llama(path: Path, size: Llama) -> None:
    """A whole prompt to the logits of every position, without a cache."""
    b, width, head = Builder(path, opset=20), size.width, size.width // size.heads
    kv_width = head * size.kv_heads
    ids = b.input("input_ids", b.rng.integers(0, size.vocabulary, (1, size.length)))
    x = b.op("Gather", b.weight("embedding", (size.vocabulary, width), 0.5), ids, axis=0)
    cos, sin, causal = positions(b, size, head)
    for layer in range(size.layers):
        name = f"layers.{layer}"
        h = rms_norm(b, x, f"{name}.norm1", width)
        q, k, v = (
            heads_of(b, linear(b, h, f"{name}.{part}", width, outputs, bias=False), 1, size.length, head)
            for part, outputs in (("q", width), ("k", kv_width), ("v", kv_width))
        )
        q, k = rotate(b, q, cos, sin, head), rotate(b, k, cos, sin, head)
        # The keys are reshaped by the attention's own first step, as the exporter folds the two.
        k = repeat(b, k, size, head)
        v = b.op("Reshape", repeat(b, v, size, head), b.constant([1, size.heads, size.length, head]), allowzero=1)
        h = attention(b, q, k, v, causal, (1, size.heads, size.length, head))
        x = b.op("Add", x, linear(b, h, f"{name}.o", width, width, bias=False))
        h = rms_norm(b, x, f"{name}.norm2", width)
        gate = linear(b, h, f"{name}.gate", width, size.hidden, bias=False)
        gate = b.op("Mul", gate, b.op("Sigmoid", gate))
        h = b.op("Mul", gate, linear(b, h, f"{name}.up", width, size.hidden, bias=False))
        x = b.op("Add", x, linear(b, h, f"{name}.down", size.hidden, width, bias=False))
    x = linear(b, rms_norm(b, x, "norm", width), "head", width, size.vocabulary, bias=False)
    b.finish(x, (1, size.length, size.vocabulary))


@dataclass(frozen=True)
class Timed:
    """A model to time, in its size here: `build(path, size)` writes it, and one run processes `items` of `unit`."""

    build: Callable[[Path, Any], None]
    size: ResNet | Bert | Llama
    unit: str

    @property
    def items(self) -> int:
        """Images, sequences or tokens in one run."""
        return self.size.length if isinstance(self.size, Llama) else self.size.batch

    def write(self, path: Path) -> None:
        """Write the model and its feeds."""
        self.build(path, self.size)


FULL: dict[str, Timed] = {
    "resnet50": Timed(resnet50, ResNet(), "images"),
    "bert": Timed(bert, Bert(), "sequences"),
    "llama": Timed(llama, Llama(), "tokens"),
}
# Small enough to try the whole benchmark on any CPU in seconds.
TINY: dict[str, Timed] = {
    "resnet50": Timed(resnet50, ResNet(batch=2, image=32, width=4, blocks=(1, 2), classes=10), "images"),
    "bert": Timed(bert, Bert(2, 8, width=32, hidden=64, heads=4, layers=2, vocabulary=64), "sequences"),
    "llama": Timed(llama, Llama(16, 32, hidden=64, heads=4, kv_heads=2, layers=2, vocabulary=64), "tokens"),
}
