"""A small model for tests that run one, and what it takes: a bias that may be fed, and a factor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from npz import write_npz
from onnx_text import parse

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
BIAS = np.array([1, 2, 3], np.float32)
FEEDS: dict[str, np.ndarray] = {"x": X, "scale": np.ones(4, np.float32), "n": np.array(2, np.int64)}


ADDED = """g (float[batch, 3] x, float[batch] scale, int64 n, float[3] bias) => (float[batch, 3] y, float[batch] rows) {
    sum = Add (x, bias)  factor = Cast <to = 1> (n)  [product] y = Mul (sum, factor)  rows = Neg (scale) }"""


def model() -> onnx.ModelProto:
    """``y = (x + bias) * n`` in float32, and ``rows``, a number a row; ``bias`` may be fed."""
    return parse(ADDED, bias=BIAS, opset=18)


def written(folder: Path) -> Path:
    """The folder, with ``m.onnx``, and ``data.npz`` with what it takes and labels beside."""
    onnx.save(model(), folder / "m.onnx")
    write_npz(folder / "data.npz", {**FEEDS, "labels": np.arange(4)})
    return folder
