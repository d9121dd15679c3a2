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
from attention_forms import TYPES, Written, started  # noqa: E402
from engines import built  # noqa: E402
from onnx import ModelProto, helper, numpy_helper  # noqa: E402

from ampgraph.runtime.tensorrt_rtx import BuildJob  # noqa: E402

GELU = {
    "half inside": "inner = Div (x, root2) e = Erf (inner) more = Add (e, one) p = Mul (half, more) y = Mul (x, p)",
    "half last": "inner = Div (x, root2) e = Erf (inner) more = Add (e, one) p = Mul (x, more) y = Mul (p, half)",
}
"""The region from x to y, by where it halves."""
OPERATORS = ("Add", "Div", "Erf", "Mul")
GROUP_OPERATORS = ("Add", "InstanceNormalization", "Mul", "Reshape")
GROUPS = "normal"  # what its instances make
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


def groups(low: str, wide: bool) -> ModelProto:
    """A norm of groups between convolutions, as torch exports it; ``wide``: its instances are normalized in float32."""
    written = Written()
    dtype = {name: helper.tensor_dtype_to_np_dtype(TYPES[name]) for name in (low, "float32")}
    inside, weight = "float32" if wide else low, np.linspace(-0.1, 0.1, 9 * 32**2).reshape(32, 32, 3, 3)
    stored = {
        "weight": weight.astype(dtype[low]),
        "split": np.array([0, 8, -1]),
        "ones": np.ones(8, dtype[inside]),
        "zeros": np.zeros(8, dtype[inside]),
        "back": np.array([1, 32, 16, 16]),
        "scale": np.linspace(0.5, 1, 32).reshape(32, 1, 1).astype(dtype[low]),
    }
    written.types = dict.fromkeys(("x", "weight", "scale"), low) | dict.fromkeys(("ones", "zeros"), inside)
    written.add("Conv", ["x", "weight"], "made", low, pads=[1] * 4)
    written.add("Reshape", ["made", "split"], "groups", low)
    written.add("InstanceNormalization", ["groups", "ones", "zeros"], "normal", inside)
    written.add("Reshape", ["normal", "back"], "whole", low)
    written.add("Mul", ["whole", "scale"], "scaled", low)
    written.add("Add", ["scaled", "scale"], "shifted", low)
    written.add("Sigmoid", ["shifted"], "share", low)
    written.add("Mul", ["shifted", "share"], "silu", low)
    written.add("Conv", ["silu", "weight"], "y", low, pads=[1] * 4)
    values = [helper.make_tensor_value_info(name, TYPES[low], (1, 32, 16, 16)) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(written.nodes, "groups", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def rows(python: str, kept: str) -> dict[str, dict[str, object]]:
    """By region, what TensorRT makes one kernel of in every low type: of a GELU only where it halves last, of a norm of
    groups only where all of it has one type; its kernel hands float32 statistics on where it is low."""
    low_types = [name for name in TYPES if name != "float32"]
    halves = [BuildJob(net(GELU[form], low)) for low in low_types for form in ("half last", "half inside")]
    norms = [BuildJob(groups(low, wide)) for low in low_types for wide in (False, True)]
    found: dict[str, dict[str, object]] = {}
    if counts := _fewer(halves, python, kept):
        why = f"with the product before it where it halves last: {counts} kernels in a block of Swin's"
        found["Gelu"] = {"why": why, "operators": list(OPERATORS), "half_last": True}
    engines = [answer.engine for answer in built(norms[::2], python, kept)]
    inside = [one for engine in engines if engine for one in engine.kernels if GROUPS in one.computes]
    statistics = [one for one in inside if "float32" in one.makes - one.reads]
    if (counts := _fewer(norms, python, kept)) and len(statistics) == len(low_types):
        why = f"with float32 statistics where all of it has one type: {counts} kernels between convolutions"
        found["GroupNormalization"] = {"why": why, "operators": list(GROUP_OPERATORS), "float32_inside": True}
    return found


def _fewer(jobs: list[BuildJob], python: str, kept: str) -> str:
    """`5 for 6` where the first of each two forms takes fewer kernels than the second, or an empty string."""
    counts = list(map(started, built(jobs, python, kept)))
    pairs = list(zip(counts[::2], counts[1::2], strict=True))
    return f"{counts[0]} for {counts[1]}" if all(0 < one < other for one, other in pairs) else ""
