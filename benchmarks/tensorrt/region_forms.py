"""Written-out regions: in which form TensorRT makes one kernel of them with the product before.

The net is Swin's: rows that are moved back from windows, a sum, a norm, a product, the region, a product, and windows
again. The builder moves a Reshape up from behind into a region whose last node reads the data.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from attention_forms import TYPES, started  # noqa: E402
from engines import built  # noqa: E402
from onnx import ModelProto, helper, numpy_helper  # noqa: E402

from ampgraph.runtime.tensorrt_rtx import BuildJob  # noqa: E402

GELU = {
    "half inside": "inner = Div (x, root2) e = Erf (inner) more = Add (e, one) p = Mul (half, more) y = Mul (x, p)",
    "half last": "inner = Div (x, root2) e = Erf (inner) more = Add (e, one) p = Mul (x, more) y = Mul (p, half)",
}
"""The region from x to y, by where it halves."""
OPERATORS = ("Add", "Div", "Erf", "Mul")
NUMBERS = {"root2": 2**0.5, "one": 1.0, "half": 0.5}
NET = """<ir_version: 10, opset_import: ["" : 20]> g (LOW[1,64,32] rows, LOW[4,16,32] windows) => (LOW[4,16,32] made)
    <int64[6] split = {1,2,2,4,4,32}, int64[3] flat = {1,64,32}, int64[6] apart = {1,2,4,2,4,32},
     int64[3] window = {4,16,32}> {
    seen = MatMul (windows, square) told = Add (seen, shift) w1 = Reshape (told, split)
    w2 = Transpose <perm = [0,1,3,2,4,5]> (w1) w3 = Reshape (w2, flat) sum = Add (rows, w3)
    norm = LayerNormalization (sum, scale, shift) wide = MatMul (norm, up) x = Add (wide, bias)
    REGION
    back = MatMul (y, down) narrow = Add (back, shift) total = Add (narrow, sum)
    norm2 = LayerNormalization (total, scale, shift) z1 = Reshape (norm2, apart)
    z2 = Transpose <perm = [0,1,3,2,4,5]> (z1) z3 = Reshape (z2, window) made = MatMul (z3, square) }"""
STORED = {"square": (32, 32), "up": (32, 128), "down": (128, 32), "scale": (32,), "shift": (32,), "bias": (128,)}


def net(region: str, low: str) -> ModelProto:
    """A low net around a region."""
    model = onnx.parser.parse_model(NET.replace("LOW", low).replace("REGION", region))
    dtype = helper.tensor_dtype_to_np_dtype(TYPES[low])
    for name, shape in STORED.items():
        array = np.linspace(-0.1, 0.1, int(np.prod(shape))).reshape(shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for name, number in NUMBERS.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, dtype), name))
    return model


def rows(python: str, kept: str) -> dict[str, dict[str, object]]:
    """The row of a GELU where halving last takes fewer kernels in every low type."""
    low_types = [name for name in TYPES if name != "float32"]
    answers = built([BuildJob(net(GELU[form], low)) for low in low_types for form in GELU], python, kept)
    counts = list(map(started, answers))
    pairs = list(zip(counts[::2], counts[1::2], strict=True))
    if not all(0 < last < inside for inside, last in pairs):
        return {}
    (inside, last), *_ = pairs
    why = (
        f"one kernel with the product before it where it halves last: {last} kernels for {inside} in a block of Swin's"
    )
    return {"Gelu": {"why": why, "operators": list(OPERATORS), "half_last": True}}
