"""What fails behind a Cast of low values reads float32 alone: TensorRT's recurrent kernels."""

from __future__ import annotations

import numpy as np
import pytest

import ampgraph
from onnx_text import parse

TEXT = """g (float[3,2,8] x) => (float[3,1,2,4] y, float[3,2,4] e) {
    f = MatMul (x, a)  o = Tanh (f)  w = Concat <axis = 2> (f, o)  t = Transpose <perm = [0, 1, 2]> (w)
    y = GRU <hidden_size = 4> (t, k, r)  z = Sigmoid (f)  e = Relu (z) }"""
WEIGHTS = {"a": (8, 4), "k": (1, 12, 8), "r": (1, 12, 4)}
DATA = {"MatMul", "Tanh", "Concat", "Transpose", "GRU"}


@pytest.mark.parametrize(("target", "wide"), [("tensorrt", DATA), ("cuda", {"GRU"})])
def test_what_computes_and_moves_its_data_is_float32(target: str, wide: set[str]) -> None:
    model = parse(TEXT, {name: np.full(shape, 0.1, np.float32) for name, shape in WEIGHTS.items()})
    found = ampgraph.plan(model, "O3", target=target, fp32=["op:GRU"]).decisions
    assert {one.kind for one in found if one.dtype == "float32" and one.index >= 0} == wide
    why = {one.kind: one.why for one in found}["MatMul"]
    assert target == "cuda" or why.rule == "kernel" and "makes what GRU reads, which fails behind a Cast: " in why.text
