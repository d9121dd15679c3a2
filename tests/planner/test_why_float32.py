"""Why slots and operators are float32 whatever the level says: lists, schemas, and kernels of the target."""

from __future__ import annotations

import numpy as np
import pytest

import ampgraph
from onnx_text import parse

NORM = "y = BatchNormalization (m, s, s, s, s)"
SAMPLED = "y = GridSample (m, i)"
COORDINATES = "T2 of GridSample stays float32: coordinates: float16 is coarser than a pixel above 2048"
REASONS = [
    (NORM, 17, "tensorrt", "T2", "slot", "T2 of BatchNormalization stays float32: mean and variance are statistics"),
    (NORM, 17, "cuda", "T2", "", ""),  # its kernel wants all in one type
    (SAMPLED, 16, "cpu", "T2", "slot", COORDINATES),
    (SAMPLED, 16, "tensorrt", "T2", "slot", COORDINATES),  # in one type as well, and firm: the data are float32 too
    (SAMPLED, 16, "tensorrt", "T1", "slot", COORDINATES),
    (
        "y = Resize (m, s, s)",
        17,
        "cuda",
        "scales:tensor(float)",
        "slot",
        "scales:tensor(float) of Resize stays float32: a ",
    ),
    ("y = Softplus (m)", 17, "cuda bfloat16", "T", "opset", "Softplus-1 does not admit bfloat16 for T; opset 22 does"),
    (
        "y = Softplus (m)",
        17,
        "cpu bfloat16",
        "T",
        "schema",
        "Softplus-1 does not admit bfloat16 for T; opset 22 does, but ",
    ),
    (
        "y = Clip <max = 6.0> (m)",
        7,
        "cuda",
        "T",
        "opset",
        "CUDAExecutionProvider has no float16 kernel for Clip-6 (T); o",
    ),
    (SAMPLED, 20, "cuda", "T1", "kernel", "CUDAExecutionProvider has no float16 kernel for GridSample-20 (T1)"),
    (
        "y = HardSwish (m)",
        22,
        "tensorrt bfloat16",
        "T",
        "kernel",
        "(T): Only FLOAT, HALF or INT8 input is supported for",
    ),
]


@pytest.mark.parametrize(("text", "opset", "target", "slot", "rule", "said"), REASONS)
def test_why_a_slot_cannot_be_low(text: str, opset: int, target: str, slot: str, rule: str, said: str) -> None:
    body = f"g (float[1,2,4,4] x, float[1,2,4,2] i) => (float[1,2,A,B] y) {{ m = Conv (x, k)  {text} }}"
    stored = {"k": np.ones((2, 2, 1, 1), np.float32), "s": np.ones(4 if "Resize" in text else 2, np.float32)}
    model = parse(body, {name: array for name, array in stored.items() if f"{name})" in body}, opset=opset)
    name, _, dtype = target.partition(" ")
    found = ampgraph.plan(model, "O3", target=name, dtype=dtype or "float16").decisions
    [why] = [one.why for one in found if one.slot == slot and one.kind == text.split()[2]]
    assert (why.rule == rule and said in why.text) if rule else why.rule not in ("slot", "opset", "schema", "kernel")


# What fails behind a Cast of low values reads float32 alone: TensorRT's recurrent kernels.

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
