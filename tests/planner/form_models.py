"""Regions in the forms that exporters write, some of which ONNX Runtime fuses."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from onnx_text import parse

RMS = "q = Pow (x, two)  v = ReduceMean <axes = [-1]> (q)  a = Add (v, eps)  r = Sqrt (a)"
CENTRED = "m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  q = Pow (d, two)  v = ReduceMean <axes = [-1]> (q)"
ROOT = "a = Add (v, eps)  r = Sqrt (a)"
INVERSES = {"Reciprocal": "i = Reciprocal (r)", "1 / root": "i = Div (one, r)"}
GELUS = {"half the sum": "h = Mul (o, half)  y = Mul (x, h)", "swapped": "h = Mul (half, o)  y = Mul (h, x)"}
GROUPS = """g (float[1,8,6,6] f) => (float[1,8,6,6] o) {
    r = Reshape (f, split)  n = InstanceNormalization (r, ones, zeros)  b = Reshape (n, back)
    m = Mul (b, w)  o = Add (m, c) }"""
GROUPED = {
    **{"split": np.array([0, 4, -1]), "back": np.array([1, 8, 6, 6])},
    **{"ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)},
    **{name: np.ones((8, 1, 1), np.float32) for name in ("w", "c")},
}
FINE = {"half first": "h = Mul (x, half)  y = Mul (h, o)", "half last": "h = Mul (x, o)  y = Mul (h, half)"}


def model(body: str, opset: int = 16, epsilon: float = 1e-3) -> ModelProto:
    """A region between two products."""
    rng = np.random.default_rng(1)
    numbers = {"two": 2, "one": 1, "half": 0.5, "eps": epsilon, "root2": 1.4142135}
    stored: dict[str, Any] = {name: np.float32(number) for name, number in numbers.items()}
    stored |= {"w": rng.standard_normal((8, 8)).astype(np.float32), "g": np.linspace(0.5, 2, 8, dtype=np.float32)}
    if opset >= 18:
        body = body.replace("<axes = [-1]> (x)", "(x, last)").replace("<axes = [-1]> (q)", "(q, last)")
    graph = f"g (float[4,8] f) => (float[4,8] z) {{ x = MatMul (f, w)  {body}  z = MatMul (y, w) }}"
    return parse(graph, known={**stored, "last": np.array([-1])}, opset=opset)


def gelu(end: str) -> ModelProto:
    return model(f"e = Div (x, root2)  t = Erf (e)  o = Add (t, one)  {end}")


def rms(inverse: str, epsilon: float = 1e-3) -> ModelProto:
    return model(f"{RMS}  {inverse}  n = Mul (x, i)  y = Mul (n, g)", epsilon=epsilon)


def layer_norm(opset: int = 16) -> ModelProto:
    return model(f"{CENTRED}  {ROOT}  n = Div (d, r)  s = Mul (n, g)  y = Add (s, g)", opset)


def attention(lowest: float = -10000) -> ModelProto:
    """What ONNX Runtime makes one Attention of, with a mask of -10000, at an opset at which it does."""
    heads = "  ".join(
        f"{x}0 = MatMul (n, w{x})  {x}1 = Add ({x}0, b{x})  {x}2 = Reshape ({x}1, split)  "
        f"{x} = Transpose <perm = {perm}> ({x}2)"
        for x, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    graph = f"""g (float[2,8,16] x, int64[2,8] mask) => (float[2,8,16] y) {{
        a = Add (x, b)  n = LayerNormalization <axis = -1> (a, b, b)
        m1 = Unsqueeze <axes = [1]> (mask)  m2 = Unsqueeze <axes = [2]> (m1)  m3 = Cast <to = 1> (m2)
        m4 = Sub (one, m3)  m = Mul (m4, lowest)  {heads}
        s0 = MatMul (q, k)  s1 = Div (s0, root)  s2 = Add (s1, m)  s = Softmax <axis = 3> (s2)  c0 = MatMul (s, v)
        c1 = Transpose <perm = [0, 2, 1, 3]> (c0)  c = Reshape (c1, joined)  o = MatMul (c, wo)  o1 = Add (o, b)
        r = Add (o1, n)  y = LayerNormalization <axis = -1> (r, b, b) }}"""
    numbers = {"one": 1, "lowest": lowest, "root": 2.828427}
    stored: dict[str, Any] = {name: np.float32(number) for name, number in numbers.items()}
    shapes = {"split": np.array([0, 0, 2, 8]), "joined": np.array([0, 0, 16])}
    w = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)
    own = {f"w{x}": w for x in "qkvo"} | {f"b{x}": w[0] for x in "qkv"}
    return parse(graph, {"b": w[0], **own, **stored, **shapes}, opset=12)


def embeddings(norm: str = "n = LayerNormalization <axis = -1> (e, g, b)", attention: bool = True) -> ModelProto:
    """Words, places and kinds added up and normalised, before an Attention in one operator, as ONNX Runtime has it."""
    behind = "a = com.microsoft.Attention <num_heads = 2> (n, w_in, b_in)" if attention else "a = MatMul (n, w_out)"
    graph = f"""g (int64[B,S] ids, int64[B,S] kinds) => (float[B,S,16] y) {{
        sizes = Shape (ids)  length = Gather (sizes, one)  counted = Range (zero, length, one)
        row = Unsqueeze (counted, first)  sizes2 = Shape (ids)  all = Expand (row, sizes2)
        word = Gather (words, ids)  place = Gather (places, all)  kind = Gather (names, kinds)
        two = Add (word, place)  e = Add (two, kind)  {norm}  {behind}  o = MatMul (a, w_out)  y = Add (o, n) }}"""
    stored: dict[str, Any] = {
        **{"words": (30, 16), "places": (8, 16), "names": (2, 16), "w_out": (16, 16)},
        **{"g": np.ones(16, np.float32), "b": np.zeros(16, np.float32)},
        **{"one": np.int64(1), "zero": np.int64(0), "first": np.array([0])},
    }
    stored |= {"w_in": (16, 48), "b_in": (48,), "square": np.float32(2), "eps": np.float32(1e-5)}
    return parse(graph, known=stored, domains=["com.microsoft"])


WRITTEN_OUT = """m = ReduceMean <axes = [-1]> (e)  d = Sub (e, m)  q = Pow (d, square)  v = ReduceMean <axes = [-1]> (q)
    s = Add (v, eps)  r = Sqrt (s)  z = Div (d, r)  t = Mul (z, g)  n = Add (t, b)"""
