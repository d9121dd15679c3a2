"""What is written down of the kernels of an Arm CPU is what they do, on an emulated one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.arrays import Array
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.oplists.kernels import load_kernels
from ampgraph.runtime.executed import Runtime
from ampgraph.runtime.targets import executed_session, runtime_of
from onnx_text import parse
from planner.support import dtype_of
from set_up import ROOT
from webgpu.test_accumulators import H, drawn, shape_of

PRODUCTS = {
    "MatMul": (f"({H}[64,768] x) => ({H}[64,40] y) {{ y = MatMul (x, w) }}", (768, 40)),
    "Gemm": (f"({H}[24,66] x) => ({H}[24,40] y) {{ y = Gemm (x, w, b) }}", (66, 40)),
    "Gemm of a layer": (f"({H}[24,64] x) => ({H}[24,40] y) {{ y = Gemm <transB = 1> (x, w, b) }}", (40, 64)),
    "Conv": (f"({H}[2,32,8,8] x) => ({H}[2,40,8,8] y) {{ y = Conv <pads = [1,1,1,1]> (x, w, b) }}", (40, 32, 3, 3)),
    "Conv of groups": (f"({H}[2,16,9,9] x) => ({H}[2,32,7,7] y) {{ y = Conv <group = 4> (x, w) }}", (32, 4, 3, 3)),
}
ROUNDED_TWICE = 2e-4
"""Relative L2 of a product there from ours: a strict run rounds each step to float32 first."""
NORMS = {
    "LayerNormalization": (17, f"({H}[8,4096] x) => ({H}[8,4096] y) {{ y = LayerNormalization (x, s) }}"),
    "RMSNormalization": (23, f"({H}[8,4096] x) => ({H}[8,4096] y) {{ y = RMSNormalization (x, s) }}"),
}


@pytest.fixture(scope="module")
def runtime(arm_python: str) -> Runtime:
    return Runtime("cpu", arm_python)


def both(runtime: Runtime, text: str, x: Array, opset: int = 17, **weights: Array) -> tuple[Array, Array]:
    """A model's result there, and in a strict run for it."""
    used = {key: value for key, value in weights.items() if f"{key})" in text or f"{key}," in text}
    model = parse(f"g {text}", used, opset=opset)
    session = executed_session(runtime, model)
    real, strict = session.run({"x": x})["y"], StrictSession(model, target="cpu-arm64").run({"x": x})["y"]
    session.close()
    assert isinstance(real, np.ndarray) and isinstance(strict, np.ndarray)
    return real.astype(np.float64), strict.astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_add_up_as_a_strict_run_does(runtime: Runtime, name: str) -> None:
    text, shape = PRODUCTS[name]
    real, strict = both(runtime, text, drawn(*shape_of(text)), w=drawn(*shape), b=drawn(40))
    assert np.linalg.norm(real - strict) <= ROUNDED_TWICE * np.linalg.norm(real)
    assert np.mean(real == strict) > 0.9


def test_a_long_sum_stops_where_float16_does(runtime: Runtime) -> None:
    text = f"({H}[1,4096] x) => ({H}[1,8] y) {{ y = MatMul (x, w) }}"
    real, strict = both(runtime, text, np.ones((1, 4096), np.float16), w=np.ones((4096, 8), np.float16))
    assert real.tolist() == strict.tolist() == [[2048.0] * 8]


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_float32_inside(runtime: Runtime, name: str) -> None:
    opset, text = NORMS[name]
    assert name in load_kernels("cpu-arm64").float32_inside
    real, strict = both(runtime, text, drawn(8, 4096, scale=300.0), opset, s=drawn(4096))
    assert np.linalg.norm(real - strict) <= 1e-3 * np.linalg.norm(strict)


@pytest.mark.slow
def test_verify_runs_there_and_the_prediction_is_near(arm_python: str, tmp_path: Path) -> None:
    source, low = ROOT / "models" / "digits_cnn.onnx", tmp_path / "low.onnx"
    ampgraph.convert(source, target="cpu-arm64", output=low, check="off")
    there = ampgraph.verify(source, low, target="cpu-arm64", runtime=arm_python)
    here = ampgraph.verify(source, low)
    assert "real kernels of ONNX Runtime" in there.run and "on Arm64" in there.run and here.strict
    worst = [report.outputs[0].worst for report in (there, here)]
    assert there.ok and 0.75 <= worst[0] / worst[1] <= 1.35


def test_the_table_is_that_of_the_wheel(arm_python: str) -> None:
    words = [sys.executable, str(ROOT / "op_lists" / "kernels" / "_generate.py"), "--arm64", arm_python, "--check"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_has_no_float16_kernel_stays_float32() -> None:
    model = onnx.load(ROOT / "models" / "digits_transformer.onnx")
    made = ampgraph.convert(model, target="cpu-arm64", check="off")
    assert (dtype_of(made, "Softmax"), dtype_of(made, "Gemm")) == ("f32", "f16")


def test_another_cpu_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert runtime_of("cpu-arm64") is None
