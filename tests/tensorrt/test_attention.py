"""Written attention with a test for NaN behind its Softmax is one kernel, and never what the builder dies of."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.runtime.tensorrt_rtx import BuildJob, build_all
from onnx_text import parse
from planner.support import dtype_of
from tensorrt.environment import ROOT

sys.path.append(str(ROOT / "benchmarks" / "tensorrt"))

WEIGHTS = {name: np.eye(256, dtype=np.float32) for name in ("wq", "wk", "wv", "wo")}
HEADS = {"split": np.array([2, 64, 4, 64]), "joined": np.array([2, 64, 256]), "zero": np.zeros((), np.float32)}
NET = """g (float[2,64,256] x, float[2,1,64,64] mask) => (float[2,64,256] y) {
    q0 = MatMul (x, wq)  k0 = MatMul (x, wk)  v0 = MatMul (x, wv)
    q1 = Reshape (q0, split)  k1 = Reshape (k0, split)  v1 = Reshape (v0, split)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)  k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    s = MatMul (q, k)  a = Add (s, mask)  p = Softmax <axis = -1> (a)  n = IsNaN (p)  w = Where (n, zero, p)
    c = MatMul (w, v)  t = Transpose <perm = [0, 2, 1, 3]> (c)  j = Reshape (t, joined)  y = MatMul (j, wo) }"""
FP32 = ("op:Softmax", "op:IsNaN", "op:Where")
WAYS = [(level, dtype) for level in ("O1", "O2", "O3", "auto") for dtype in ("float16", "bfloat16")]


def made(level: str, dtype: str, target: str = "tensorrt", fp32: tuple[str, ...] = ()) -> ModelProto:
    model = parse(NET, {**WEIGHTS, **HEADS}, opset=20)
    return ampgraph.convert(model, level, dtype=dtype, target=target, fp32=list(fp32), check="off")


@pytest.mark.slow
def test_each_way_is_one_kernel(trt_python: str) -> None:
    for way, answer in zip(WAYS, build_all([BuildJob(made(*way)) for way in WAYS], python=trt_python), strict=True):
        assert answer.ok and answer.engine is not None and answer.engine.attentions == 1, way


@pytest.mark.slow
def test_what_the_builder_dies_of_is_not_written(trt_python: str) -> None:
    """Softmax, IsNaN and Where in float32 before a low product: the user's patterns do not lead there."""
    jobs = [BuildJob(made(level, dtype, fp32=FP32)) for level, dtype in WAYS]
    assert [answer.why for answer in build_all(jobs, python=trt_python)] == [""] * len(WAYS)
    attention_forms = pytest.importorskip("attention_forms")
    wide = BuildJob(attention_forms.attention("float16", *["float32"] * 3))
    assert not next(build_all([wide], python=trt_python)).ok


@pytest.mark.parametrize("level", ["O1", "auto"])
def test_the_softmax_goes_with_its_products_where_the_target_wants_it(level: str) -> None:
    assert dtype_of(made(level, "bfloat16"), "Softmax") == "bf16"
    assert dtype_of(made(level, "float16"), "Softmax") == "f32"  # it is one kernel either way
    assert dtype_of(made("O1", "bfloat16", "cpu"), "Softmax") == "f32"


def test_the_users_pattern_holds_the_softmax_alone() -> None:
    model = made("O2", "bfloat16", fp32=("op:Softmax",))
    assert dtype_of(model, "Softmax") == "f32" and dtype_of(model, "MatMul") == "bf16"
