"""A strict run adds up, and computes functions and norms, as WebGPU's kernels do: bit for bit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from ampgraph.core.arrays import Array
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.runtime.executed import Runtime
from ampgraph.runtime.session_one import KINDS
from ampgraph.runtime.targets import executed_session
from onnx_text import parse

H = "float16"
PRODUCTS = {
    "MatMul": (f"({H}[64,768] x) => ({H}[64,40] y) {{ y = MatMul (x, w) }}", (768, 40)),
    "MatMul of a batch": (f"({H}[2,3,17,48] x) => ({H}[2,3,17,20] y) {{ y = MatMul (x, w) }}", (2, 3, 48, 20)),
    "MatMul of subnormals": (f"({H}[16,64] x) => ({H}[16,16] y) {{ s = Mul (x, k) y = MatMul (s, w) }}", (64, 16)),
    "Gemm": (f"({H}[24,66] x) => ({H}[24,40] y) {{ y = Gemm <alpha = 0.7, beta = 0.3> (x, w, b) }}", (66, 40)),
    "Gemm by fours": (f"({H}[24,64] x) => ({H}[24,40] y) {{ y = Gemm <transB = 1, alpha = 0.7> (x, w, b) }}", (40, 64)),
    "Gemm across": (f"({H}[33,24] x) => ({H}[24,40] y) {{ y = Gemm <transA = 1, transB = 1> (x, w, b) }}", (40, 33)),
    "Conv": (f"({H}[2,32,8,8] x) => ({H}[2,40,8,8] y) {{ y = Conv <pads = [1,1,1,1]> (x, w, b) }}", (40, 32, 3, 3)),
    "Conv of points": (f"({H}[2,64,8,8] x) => ({H}[2,40,8,8] y) {{ y = Conv (x, w, b) }}", (40, 64, 1, 1)),
    "Conv of groups": (f"({H}[2,16,9,9] x) => ({H}[2,32,7,7] y) {{ y = Conv <group = 4> (x, w) }}", (32, 4, 3, 3)),
    "Conv, by channel": (f"({H}[2,40,9,9] x) => ({H}[2,40,5,5] y) {{ y = Conv <group = 40> (x, w) }}", (40, 1, 5, 5)),
    "Conv in space": (f"({H}[1,7,6,8,8] x) => ({H}[1,40,5,6,6] y) {{ y = Conv (x, w, b) }}", (40, 7, 2, 3, 3)),
    "ConvTranspose": (
        f"({H}[2,16,8,8] x) => ({H}[2,40,18,18] y) {{ y = ConvTranspose <strides = [2,2]> (x, w, b) }}",
        (16, 40, 4, 4),
    ),
    "ConvTranspose into one": (
        f"({H}[1,7,8,8] x) => ({H}[1,1,16,16] y) {{ y = ConvTranspose <strides = [2,2]> (x, w) }}", (7, 1, 2, 2)
    ),
    "Einsum over two letters": (
        f"({H}[1,32,8,16] x) => ({H}[1,32,40] y) " '{ y = Einsum <equation = "abcd,cde->abe"> (x, w) }', (8, 16, 40)
    ),
    "Einsum, letters moved": (
        f"({H}[2,8,20,16] x) => ({H}[8,20,2,40] y) " '{ y = Einsum <equation = "zbcd,zbed->bcze"> (x, w) }',
        (2, 8, 40, 16),
    ),
    "MatMul of a large weight": (f"({H}[3,8,600] x) => ({H}[3,8,1000] y) {{ y = MatMul (x, w) }}", (600, 1000)),
    "Conv of a line": (f"({H}[2,16,20] x) => ({H}[2,40,20] y) {{ y = Conv <pads = [1,1]> (x, w, b) }}", (40, 16, 3)),
}  # fmt: skip
STEPS = {
    "ReduceMean": f"({H}[2,33,196] x) => ({H}[2,33] y) {{ y = ReduceMean <axes = [2], keepdims = 0> (x) }}",
    "ReduceMean of few": f"({H}[2,33,19,4] x) => ({H}[2,19,4] y) {{ y = ReduceMean <axes = [1], keepdims = 0> (x) }}",
    "ReduceMean of all": f"({H}[2,3,196] x) => ({H} y) {{ y = ReduceMean <keepdims = 0> (x) }}",
    "ReduceSum": f"({H}[5,700] x) => ({H}[5,1] y) {{ a = Constant <value_ints = [1]> () y = ReduceSum (x, a) }}",
    "ReduceL1": f"({H}[5,70] x) => ({H}[5,1] y) {{ y = ReduceL1 <axes = [-1]> (x) }}",
    "ReduceL2": f"({H}[2,33,196] x) => ({H}[2,33] y) {{ y = ReduceL2 <axes = [2], keepdims = 0> (x) }}",
    "ReduceSumSquare": f"({H}[5,70] x) => ({H}[5,1] y) {{ y = ReduceSumSquare <axes = [1]> (x) }}",
    "GlobalAveragePool": f"({H}[2,32,14,14] x) => ({H}[2,32,1,1] y) {{ y = GlobalAveragePool (x) }}",
    "GlobalAveragePool of few": f"({H}[2,32,7,7] x) => ({H}[2,32,1,1] y) {{ y = GlobalAveragePool (x) }}",
    "AveragePool": f"({H}[2,32,14,14] x) => ({H}[2,32,10,10] y) {{ y = AveragePool <kernel_shape = [5,5]> (x) }}",
    "AveragePool beside": f"({H}[2,8,14,14] x) => ({H}[2,8,7,7] y) "
    "{ y = AveragePool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x) }",
    "AveragePool of all beside": f"({H}[2,8,14,14] x) => ({H}[2,8,14,14] y) "
    '{ y = AveragePool <kernel_shape = [3,3], auto_pad = "SAME_UPPER", count_include_pad = 1> (x) }',
    "Softmax": f"({H}[2,33,197] x) => ({H}[2,33,197] y) {{ y = Softmax (x) }}",
    "Softmax by fours": f"({H}[3,1000] x) => ({H}[3,1000] y) {{ y = Softmax (x) }}",
    "Softmax of one row": f"({H}[1,602] x) => ({H}[1,602] y) {{ y = Softmax (x) }}",
    "Softmax across": f"({H}[3,40,5] x) => ({H}[3,40,5] y) {{ y = Softmax <axis = 1> (x) }}",
    "LayerNormalization": f"({H}[2,33,40] x) => ({H}[2,33,40] y) {{ y = LayerNormalization (x, w, b) }}",
    "InstanceNormalization": f"({H}[2,40,9,9] x) => ({H}[2,40,9,9] y) {{ y = InstanceNormalization (x, w, b) }}",
    "BatchNormalization": f"({H}[2,40,9,9] x) => ({H}[2,40,9,9] y) {{ y = BatchNormalization (x, w, b, b, v) }}",
    **{
        kind: f"({H}[40,500] x) => ({H}[40,500] y) {{ y = {kind} (x) }}"
        for kind in ("Erf", "Exp", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh")
    },
    "HardSigmoid of others": f"({H}[40,99] x) => ({H}[40,99] y) {{ y = HardSigmoid <alpha = 0.3, beta = 0.3> (x) }}",
}


@pytest.fixture(scope="module")
def runtime(webgpu_python: str) -> Runtime:
    return Runtime("webgpu", webgpu_python)


def drawn(*shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng([*shape]).standard_normal(shape) * scale).astype(np.float16)


def both(runtime: Runtime, model: ModelProto, x: Array) -> tuple[Array, Array]:
    """A model's result there, and in a strict run for it."""
    session = executed_session(runtime, model)
    real = session.run({"x": x})["y"]
    assert [layer.on for layer in session.layers() if layer.kind in ("MatMul", "Gemm", "Conv")] in ([], ["webgpu"])
    session.close()
    strict = StrictSession(model, target="webgpu").run({"x": x})["y"]
    assert isinstance(real, np.ndarray) and isinstance(strict, np.ndarray) and real.dtype == strict.dtype == np.float16
    return real, strict


def shape_of(text: str) -> list[int]:
    return [int(n) for n in text.split("[", 1)[1].split("]", 1)[0].split(",")]


@pytest.mark.parametrize(
    ("name", "opset"), [*((name, 17) for name in PRODUCTS), ("Gemm by fours", 9), ("Conv", 10), ("MatMul", 9)]
)
def test_products_are_the_same_to_the_bit(runtime: Runtime, name: str, opset: int) -> None:
    text, shape = PRODUCTS[name]
    weights = {"w": drawn(*shape), "b": drawn(40), "k": np.float16(1e-4)}
    used = {key: value for key, value in weights.items() if f"{key})" in text or f"{key}," in text}
    real, strict = both(runtime, parse(f"g {text}", used, opset=opset), drawn(*shape_of(text)))
    np.testing.assert_array_equal(real, strict)


@pytest.mark.parametrize("opset", [9, 17])
def test_a_product_with_rows_of_no_known_rank_is_the_same_to_the_bit(runtime: Runtime, opset: int) -> None:
    """Behind a Reshape to a computed shape, as TorchScript writes attention."""
    unsqueeze = "Unsqueeze <axes = [0]> (n)" if opset < 13 else "Unsqueeze (n, zero)"
    text = f"""g ({H}[N,M,96] x) => ({H}[A,B,C] y) {{
        s = Shape (x) n = Gather (s, index) a = {unsqueeze} t = Concat <axis = 0> (a, minus, wide)
        r = Reshape (x, t) y = MatMul (r, w) }}"""
    stored = {"index": np.array(1), "minus": np.array([-1]), "wide": np.array([96]), "w": drawn(96, 40)}
    stored |= {"zero": np.array([0])} if opset >= 13 else {}
    real, strict = both(runtime, parse(text, stored, opset=opset), drawn(2, 9, 96))
    np.testing.assert_array_equal(real, strict)


@pytest.mark.parametrize("name", STEPS)
def test_sums_norms_and_functions_are_the_same_to_the_bit(runtime: Runtime, name: str) -> None:
    weights = {"w": drawn(40), "b": drawn(40), "v": np.abs(drawn(40)) + np.float16(0.1)}
    text = STEPS[name]
    used = {key: value for key, value in weights.items() if f" {key}," in text or f" {key})" in text}
    real, strict = both(runtime, parse(f"g {text}", used, opset=17), drawn(*shape_of(text), scale=3.0))
    np.testing.assert_array_equal(real, strict)


@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_norm_that_is_taken_into_a_conv_is_the_same_to_the_bit(runtime: Runtime, bias: str) -> None:
    """Its numbers scale those of the Conv in float16, which rounds these once more."""
    text = f"""g ({H}[2,8,9,9] x) => ({H}[2,40,7,7] y) {{
        c = Conv (x, k{bias})
        y = BatchNormalization (c, w, b, b, v)
    }}"""
    weights = {"k": drawn(40, 8, 3, 3), "w": drawn(40), "b": drawn(2, 40)[1], "v": np.abs(drawn(40)) + np.float16(0.1)}
    np.testing.assert_array_equal(*both(runtime, parse(text, weights, opset=17), drawn(2, 8, 9, 9)))


@pytest.mark.parametrize("name", ["GlobalAveragePool", "Softmax"])
def test_rows_of_open_length_are_the_same_to_the_bit(runtime: Runtime, name: str) -> None:
    for size in (7, 14):
        text = f"g ({H}[N,4,A,B] x) => ({H}[N,4,C,D] y) {{ y = {name} (x) }}"
        np.testing.assert_array_equal(*both(runtime, parse(text, opset=17), drawn(2, 4, size, size)))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_the_same_to_the_bit(runtime: Runtime, approximate: str) -> None:
    text = f'g ({H}[40,500] x) => ({H}[40,500] y) {{ y = Gelu <approximate = "{approximate}"> (x) }}'
    np.testing.assert_array_equal(*both(runtime, parse(text, opset=20), drawn(40, 500, scale=3.0)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"({H}[1,4096] x) => ({H}[1,40] y) {{ y = MatMul (x, w) }}", 40.0),
        (STEPS["ReduceMean"], 400.0),
        (STEPS["GlobalAveragePool"], 400.0),
        (STEPS["ReduceL2"], 40.0),
        (STEPS["ReduceL2"].replace("ReduceL2", "ReduceLogSum"), 400.0),
    ],
)
def test_a_sum_inside_that_overflows_does_so_in_both(runtime: Runtime, text: str, value: float) -> None:
    """The first sums rise to 81,920 and fall again to 0; the others are averages that float16 holds."""
    weights = {"w": np.repeat(np.array([[1], [-1]], np.float16), 2048, 0).repeat(40, 1)} if "MatMul" in text else {}
    real, strict = both(runtime, parse(f"g {text}", weights, opset=17), np.full(shape_of(text), value, np.float16))
    assert not np.isfinite(real).any() and not np.isfinite(strict).any()


def test_bench_says_that_times_of_a_software_driver_say_nothing(webgpu_python: str) -> None:
    """And what is installed is found by the name of its module."""
    import ampgraph

    runtime = Runtime("webgpu", webgpu_python)
    module = KINDS["webgpu"].module
    subprocess.run([webgpu_python, "-I", "-c", f"import {module}"], check=True)
    found = ampgraph.bench(
        [Path(__file__).parents[2] / "models" / "digits_cnn.onnx"], target="webgpu", runtime=[webgpu_python], rounds=1
    )
    assert {row.runtime for row in found.rows} == {runtime.name}
    assert any("say nothing about a GPU" in note for note in found.notes) == bool(runtime.note)


def test_verify_says_by_what_a_file_is_right(webgpu_python: str, tmp_path: Path) -> None:
    import ampgraph

    source, low = Path(__file__).parents[2] / "models" / "digits_cnn.onnx", tmp_path / "low.onnx"
    ampgraph.convert(source, target="webgpu", output=low, check="off")
    there = ampgraph.verify(source, low, target="webgpu", runtime=webgpu_python)
    here = ampgraph.verify(source, low)
    assert "real kernels of WebGPU" in there.run and "products add up in float16" in here.run
    worst = [report.outputs[0].worst for report in (there, here)]
    assert there.ok and 0.75 <= worst[0] / worst[1] <= 1.35
