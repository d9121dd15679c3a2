"""A detector as YOLO: convolutions, an upsampled level joined to a finer one, boxes from exp and anchors."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .graphs import Graph

SIDE, WIDTH, ANCHORS, CLASSES = 96, 24, 3, 6
EACH = 5 + CLASSES
STRIDES = {8: ((10, 13), (16, 30), (33, 23)), 16: ((59, 119), (116, 90), (156, 198))}


def feed(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rectangles on noise."""
    picture = rng.uniform(0, 0.3, (1, 3, SIDE, SIDE))
    for _ in range(4):
        top, left = rng.integers(0, SIDE - 16), rng.integers(0, SIDE - 16)
        high, wide = (int(size) for size in rng.integers(8, 40, 2))
        picture[0, :, top : top + high, left : left + wide] += rng.uniform(0, 0.7, (3, 1, 1))
    return {"images": picture.clip(0, 1).astype(np.float32)}


def build() -> ModelProto:
    g = Graph(seed=6, opset=18)
    x = conv(g, "images", "stem", 3, WIDTH, stride=2)
    x = conv(g, x, "down1", WIDTH, WIDTH, stride=2)
    fine = conv(g, x, "down2", WIDTH, WIDTH, stride=2)
    fine = g.op("Add", fine, conv(g, fine, "block", WIDTH, WIDTH))
    coarse = conv(g, fine, "down3", WIDTH, 2 * WIDTH, stride=2)
    grown = g.op("Resize", coarse, "", g.constant([1, 1, 2, 2]), mode="nearest", nearest_mode="floor",
                 coordinate_transformation_mode="asymmetric", name="upsample")  # fmt: skip
    smooth = g.op("Resize", coarse, "", g.constant([1, 1, 2, 2]), mode="linear", name="smooth")
    joined = conv(g, g.op("Concat", fine, grown, smooth, axis=1), "join", 5 * WIDTH, WIDTH)
    found = [head(g, joined, 8, WIDTH), head(g, coarse, 16, 2 * WIDTH)]
    g.op("Concat", *(boxes for boxes, _ in found), axis=1, name="boxes")
    g.op("Concat", *(scores for _, scores in found), axis=1, name="scores")
    count = sum(ANCHORS * (SIDE // stride) ** 2 for stride in STRIDES)
    return g.finish(
        {"images": ("float", (1, 3, SIDE, SIDE))}, {"boxes": (1, count, 4), "scores": (1, count, 1 + CLASSES)}
    )


def conv(g: Graph, x: str, name: str, width: int, out: int, stride: int = 1) -> str:
    """A convolution with SiLU."""
    kernel = g.random(f"{name}.weight", out, width, 3, 3, scale=(4.5 * width) ** -0.5)
    bias = g.random(f"{name}.bias", out, scale=0.1)
    y = g.op("Conv", x, kernel, bias, pads=[1] * 4, strides=[stride, stride], name=name)
    return g.op("Mul", y, g.op("Sigmoid", y))


def head(g: Graph, x: str, stride: int, width: int) -> tuple[str, str]:
    """(centre, size) of each box in pixels and its scores: sigmoid(t) * 2 - 0.5 + cell, and exp(t) * anchor."""
    cells = SIDE // stride
    kernel = g.random(f"head{stride}.weight", ANCHORS * EACH, width, 1, 1, scale=width**-0.5)
    y = g.op("Conv", x, kernel, g.random(f"head{stride}.bias", ANCHORS * EACH, scale=0.2), name=f"head{stride}")
    y = g.op("Reshape", y, g.ints(1, ANCHORS, EACH, cells, cells))
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 1, 3, 4, 2]), g.ints(1, -1, EACH))
    parts = [g.op("Slice", y, g.ints(start), g.ints(end), g.ints(-1)) for start, end in ((0, 2), (2, 4), (4, EACH))]
    rows, columns = np.meshgrid(np.arange(cells), np.arange(cells), indexing="ij")
    grid = np.tile(np.stack([columns, rows], -1).reshape(1, -1, 2), (1, ANCHORS, 1))
    anchor = np.repeat(np.array(STRIDES[stride]), cells * cells, 0)[None]
    place = g.op("Mul", g.op("Sigmoid", parts[0]), g.constant(2.0))
    place = g.op("Add", g.op("Sub", place, g.constant(0.5)), g.weight(f"grid{stride}", grid.astype(np.float32)))
    centre = g.op("Mul", place, g.constant(float(stride)))
    size = g.op("Mul", g.op("Exp", parts[1]), g.weight(f"anchors{stride}", anchor.astype(np.float32)))
    return g.op("Concat", centre, size, axis=-1), g.op("Sigmoid", parts[2])
