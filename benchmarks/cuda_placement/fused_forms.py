"""What ONNX Runtime makes one kernel of on CUDA, as text between two products: the models of `held.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests")]

import numpy as np  # noqa: E402
from onnx import ModelProto  # noqa: E402

from onnx_text import parse  # noqa: E402

ERF = "e = Div (a, root2)  t = Erf (e)  o = Add (t, one)"
CUBE = "c = Pow (a, three)  k = Mul (c, cubic)  i = Add (a, k)  s = Mul (i, factor)  t = Tanh (s)  o = Add (t, one)"
CENTRED = "m = ReduceMean (a, last)  d = Sub (a, m)  p = Pow (d, two)  v = ReduceMean (p, last)"
ROOT = "ve = Add (v, eps)  r = Sqrt (ve)"
NORM = f"{CENTRED}  {ROOT}  n = Div (d, r)  ns = Mul (n, g)  y = Add (ns, b)"
RMS = f"p = Pow (a, two)  v = ReduceMean (p, last)  {ROOT}"
HEADS = """qs = Reshape (x, split)  q = Transpose <perm = [0, 2, 1, 3]> (qs)  k = Transpose <perm = [0, 2, 3, 1]> (qs)
    u = Transpose <perm = [0, 2, 1, 3]> (qs)"""
WEIGHED = "c = MatMul (y1, u)  ct = Transpose <perm = [0, 2, 1, 3]> (c)  y = Reshape (ct, joined)"
MASKED = "ms = Sub (one, mask)  mm = Mul (ms, lowest)"
BIAS, BOTH = "a = Add (x, b)", "a0 = Add (x, b)  a = Add (a0, f)"

FORMS: Mapping[str, str] = {
    "Gelu": f"a = Relu (x)  {ERF}  h = Mul (a, o)  y = Mul (h, half)",
    "Gelu, half first": f"a = Relu (x)  {ERF}  h = Mul (a, half)  y = Mul (h, o)",
    "Gelu, half the sum": f"a = Relu (x)  {ERF}  h = Mul (o, half)  y = Mul (a, h)",
    "BiasGelu": f"{BIAS}  {ERF}  h = Mul (a, o)  y = Mul (h, half)",
    "FastGelu": f"a = Relu (x)  {CUBE}  h = Mul (a, half)  y = Mul (h, o)",
    "FastGelu with a bias": f"{BIAS}  {CUBE}  h = Mul (a, half)  y = Mul (h, o)",
    "FastGelu of squares": f"""{BIAS}  c = Mul (a, cubic)  k = Mul (c, a)  i = Add (k, one)  l = Mul (a, factor)
        s = Mul (l, i)  t = Tanh (s)  o = Add (t, one)  h = Mul (a, half)  y = Mul (h, o)""",
    "QuickGelu": "a = Relu (x)  s = Mul (a, slope)  t = Sigmoid (s)  y = Mul (a, t)",
    "QuickGelu, slope one": f"{BIAS}  t = Sigmoid (a)  y = Mul (a, t)",
    "Gelu operator": f"{BIAS}  y = Gelu (a)",
    "Gelu operator, tanh": f"{BIAS}  y = Gelu <approximate = 'tanh'> (a)".replace("'", '"'),
    "LayerNormalization": f"a = Relu (x)  {NORM}",
    "LayerNormalization operator": "a = Relu (x)  y = LayerNormalization <axis = -1> (a, g, b)",
    "RMSNorm": f"a = Relu (x)  {RMS}  n = Div (a, r)  y = Mul (n, g)",
    "RMSNorm, inverse": f"a = Relu (x)  {RMS}  iv = Reciprocal (r)  n = Mul (a, iv)  y = Mul (n, g)",
    "SkipLayerNormalization": "a = Add (x, f)  y = LayerNormalization <axis = -1> (a, g, b)",
    "SkipLayerNormalization, bias": f"{BOTH}  y = LayerNormalization <axis = -1> (a, g, b)",
    "SkipLayerNormalization written out": f"a = Add (x, f)  {NORM}",
    "SkipLayerNormalization, bias, written out": f"{BOTH}  {NORM}",
    "SkipLayerNormalization, its sum": "a = Add (x, f)  y0 = LayerNormalization <axis = -1> (a, g, b)  y = Add (y0, a)",
    "SkipSimplifiedLayerNormalization": f"a = Add (x, f)  {RMS}  n = Div (a, r)  y = Mul (n, g)",
    "BiasSoftmax": f"{HEADS}  s = MatMul (q, k)  a = Add (s, mask)  y1 = Softmax <axis = -1> (a)  {WEIGHED}",
    "BiasSoftmax, scale": f"""{HEADS}  s = MatMul (q, k)  l = Div (s, root)  a = Add (l, mask)
        y1 = Softmax <axis = -1> (a)  {WEIGHED}""",
    "BiasSoftmax, mask made": f"""{HEADS}  {MASKED}  s = MatMul (q, k)  l = Div (s, root)  a = Add (l, mm)
        y1 = Softmax <axis = -1> (a)  {WEIGHED}""",
    "FusedMatMul, scale before": f"""{HEADS}  l = Mul (q, scale)  s = MatMul (l, k)
        y1 = Softmax <axis = -1> (s)  {WEIGHED}""",
    "FusedMatMul, scales before": f"""{HEADS}  l = Mul (q, scale)  l2 = Mul (k, scale)  s = MatMul (l, l2)
        y1 = Softmax <axis = -1> (s)  {WEIGHED}""",
    "FusedMatMul, scale behind": f"""{HEADS}  s = MatMul (q, k)  l = Mul (s, scale)
        y1 = Softmax <axis = -1> (l)  {WEIGHED}""",
    "FusedMatMul, transpose": f"""qs = Reshape (x, split)  q = Transpose <perm = [0, 2, 1, 3]> (qs)
        k = Transpose <perm = [0, 1, 3, 2]> (q)  s = MatMul (q, k)  y1 = Softmax <axis = -1> (s)  u = Relu (q)
        {WEIGHED}""",
    "Gemm": "m = MatMul (x, w)  a = Add (m, b)  y = Relu (a)",
    "Gemm, sum": "m = Relu (x)  a = MatMul (m, w)  a1 = Add (a, b)  a2 = Relu (a1)  y = Add (a2, m)",
    "Sum of quotients": "i = Relu (x)  r = Div (one, i)  y = Mul (f, r)",
}
"""Bodies: `x` is what the product before makes, `y` what the one behind reads, `f` the model's input."""
TWO_ROWS: Mapping[str, str] = {
    "BatchNormalization": "c = Conv (x, kernel)  a = BatchNormalization (c, g, b, b, v)  y = Relu (a)",
    "Conv, Mul": "c = Conv (x, kernel)  a = Mul (c, column)  y = Relu (a)",
    "Conv, Add": "c = Conv (x, kernel)  a = Add (c, column)  y = Relu (a)",
    "Pad, Conv": "p = Pad (x, pads)  c = Conv (p, kernel)  y = Relu (c)",
    "Relu, Clip": "c = Conv (x, kernel)  a = Relu (c)  y = Clip (a, zero, six)",
    "HardSwish": "c = Conv (x, kernel)  h = HardSigmoid (c)  y = Mul (c, h)",
}
"""The same between convolutions."""

NUMBERS = {
    **{"root2": 1.4142135, "one": 1, "half": 0.5, "three": 3, "cubic": 0.044715, "factor": 0.7978845608},
    **{"slope": 1.702, "two": 2, "eps": 1e-3, "root": 2.828427, "scale": 0.35355338, "zero": 0, "six": 6},
    "lowest": -1000,
}
SHAPES = {"last": [-1], "split": [0, 0, 2, 8], "joined": [0, 0, 16], "pads": [0, 0, 1, 1, 0, 0, 1, 1]}


@dataclass(frozen=True)
class Form:
    """A model, and the names of the nodes between its first and its last product."""

    name: str
    model: ModelProto
    inner: tuple[str, ...]


def forms() -> Iterator[Form]:
    """Every form, its nodes named by what they make."""
    for name, body in FORMS.items():
        yield _form(name, f"x = MatMul (f, w)  {body}  z = MatMul (y, w)", "float[2,4,16]")
    for name, body in TWO_ROWS.items():
        yield _form(name, f"x = Conv (f, kernel)  {body}  z = Conv (y, kernel)", "float[1,4,9,9]")


def _form(name: str, body: str, shape: str) -> Form:
    rng, size = np.random.default_rng(1), 4 if "kernel" in body else 16
    stored: dict[str, Any] = {key: np.float32(number) for key, number in NUMBERS.items()}
    stored |= {key: np.array(numbers) for key, numbers in SHAPES.items()}
    stored |= {key: np.linspace(0.5, 2, size, dtype=np.float32) for key in "gbv"} if size == 4 else {}
    stored |= {key: np.linspace(0.5, 2, size, dtype=np.float32) for key in "gb"}
    stored |= {"w": rng.standard_normal((16, 16)).astype(np.float32) / 4}
    stored |= {"kernel": rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 4}
    stored |= {"column": np.linspace(0.5, 2, 4, dtype=np.float32).reshape(1, 4, 1, 1)}
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    result = shape if size == 16 else "float[1,4,H,W]"
    mask = ", float[2,1,1,4] mask" if "mask" in words else ""
    text = f"g ({shape} f{mask}) => ({result} z) {{ {body} }}"
    opset = 20 if "Gelu (" in text or "Gelu <" in text else 18
    model = parse(text, {key: held for key, held in stored.items() if key in words}, opset=opset)
    for node in model.graph.node:
        node.name = node.output[0]
    return Form(name, model, tuple(node.name for node in model.graph.node[1:-1]))
