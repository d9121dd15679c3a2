"""The estimate of speed: what a file computes and moves, and what devices make of that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.oplists.kernels import TARGETS
from ampgraph.planner.costs import einsum_multiplications
from ampgraph.planner.resolve import resolve
from ampgraph.report.estimate import (
    Device,
    DeviceSpeed,
    GraphWork,
    KernelWork,
    Speed,
    device_speed,
    devices,
    estimate_speed,
    fused_values,
)
from onnx_text import parse

LAYER = """g (float[64, 512] x) => (float[64, 256] y) {
    l = Cast <to: int = 10> (x)  p = MatMul (l, w)  r = Relu (p)  y = Cast <to: int = 1> (r) }"""
HALF = {"w": np.ones((512, 256), np.float16)}
FORMS = {  # a product, what is stored, and how many multiplications it has
    "Gemm": ("8, 4] x) => (float[4, 3] y) { y = Gemm <transA: int = 1> (x, w) }", (8, 3), 4 * 3 * 8),
    "Conv": ("1, 6, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv <group: int = 2> (x, w) }", (4, 3, 3, 3), 144 * 27),
    "ConvTranspose": ("1, 6, 8, 8] x) => (float[1, 4, 10, 10] y) { y = ConvTranspose (x, w) }", (6, 4, 3, 3), 384 * 36),
    "Einsum": (
        '2, 5, 7] x) => (float[2, 5, 3] y) { y = Einsum <equation: string = "bij,jk->bik"> (x, w) }',
        *((7, 3), 2 * 5 * 3 * 7),
    ),
    "LSTM": (
        "9, 2, 7] x) => (float[9, 1, 2, 4] y) { y = LSTM <hidden_size: int = 4> (x, w, r) }",
        *((1, 16, 7), 9 * 2 * 16 * (7 + 4)),
    ),
}


def read(model: Any, target: str = "cuda", **more: Any) -> GraphWork:
    graph, _ = adapters.load(model)
    graph.prepare()
    flow, options = graph.dataflow(), resolve(Recipe(target=target, **more), "ONNX")
    return GraphWork(flow, options, fused_values(flow, options))


def speed(model: Any, **more: Any) -> Speed | None:
    found = read(model, **more)
    return estimate_speed(found.flow, found.options)


def test_what_a_low_layer_computes_and_moves() -> None:
    found = read(parse(LAYER, HALF))
    x, w, p = 64 * 512, 512 * 256, 64 * 256
    cast, product, relu, back = found.kernels()
    assert cast == KernelWork(0.0, 6 * x, "float32", 1, 1, True) and back == KernelWork(
        0.0, 6 * p, "float32", 1, 1, True
    )
    assert product == KernelWork(2.0 * p * 512, 2 * (x + w + p), "float16", 1, 1)
    assert relu == KernelWork(0.0, 4 * p, "float16", 1, 1)
    assert found.kernels(in_float32=True) == [
        KernelWork(2.0 * p * 512, 4 * (x + w + p), "float32", 1, 1), KernelWork(0.0, 8 * p, "float32", 1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", FORMS)
def test_how_many_multiplications_a_product_has(kind: str) -> None:
    text, shape, count = FORMS[kind]
    model = parse(f"g (float[{text}", {"w": shape, "r": (1, 16, 4)} if kind == "LSTM" else {"w": shape})
    (found,) = read(model).kernels()
    assert found.operations == 2 * count


def test_attention_meets_each_key_twice() -> None:
    text = """g (float[1, 2, 5, 8] q, float[1, 2, 7, 8] k, float[1, 2, 7, 8] v) => (float[1, 2, 5, 8] y)
        { y = Attention (q, k, v) }"""
    (found,) = read(parse(text, opset=23)).kernels()
    assert found.operations == 2 * 2 * (2 * 5 * 7 * 8)


def test_what_is_stored_is_computed_beforehand_and_lookups_move_what_they_take() -> None:
    text = "g (int64[3] i, float[8] x) => (float[3, 8] y) { t = Transpose (e)  z = Gather (t, i)  y = Add (z, x) }"
    gather, add = read(parse(text, {"e": (8, 1000)})).kernels()
    assert gather.moved == 4 * 2 * 24 and add.moved == 4 * (24 + 24 + 8)


def test_multiplications_of_an_equation() -> None:
    assert einsum_multiplications("i,j->ij", [(3,), (4,)]) == 12 and einsum_multiplications(",->", [(), ()]) == 1
    assert einsum_multiplications("...ij,jk->...ik", [(2, 5, 7), (7, 3)]) is None


def test_an_equation_that_does_not_fit_its_operands_has_no_estimate() -> None:
    assert einsum_multiplications("ij,jk->ik", [(5, 7)]) is None
    assert einsum_multiplications("ij->ji", [(5, 7, 2)]) is None


@pytest.mark.parametrize(
    ("ranges", "idle", "words"),
    [
        ([(0.7, 0.9)], True, "SLOWER than float32 (0.7 to 0.9 times its speed)"),
        ([(0.7, 0.9), (0.9, 1.1)], True, "may be slower than float32 (0.7 to 1.1 times its speed)"),
        ([(1.0, 1.0)], True, "hardly faster than float32 (1.0 times its speed)"),
        ([(1.0, 1.0), (1.2, 1.4)], False, ""),
        ([], True, "no faster than float32"),
    ],
)
def test_a_gain_that_is_hardly_one_in_words(ranges: list[tuple[float, float]], idle: bool, words: str) -> None:
    found = Speed(tuple(DeviceSpeed(f"d{number}", *ends) for number, ends in enumerate(ranges)))
    assert found.idle == idle and (not idle or found.gain == words)
    assert not Speed(reason="nobody knows", unknown=True).idle


PACKED = """g (float[2, 16, 64] x, int32[2] lengths, int32[1] total) => (float[2, 16, 64] y) {
    qkv = MatMul (x, w)
    y, k, v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 4> (qkv, , , , , lengths, total) }"""
SCALARS = 'g (float x, float[] w) => (float y) { y = Einsum <equation = ",->"> (x, w) }'
SEQUENCE = """g (seq(float[a, 8]) s, int64 i) => (seq(float[a, 8]) z) {
    t = SequenceAt (s, i)  y = MatMul (t, w)  z = SequenceInsert (s, y) }"""


@pytest.mark.parametrize(("text", "stored"), [(PACKED, {"w": (64, 192)}), (SCALARS, {}), (SEQUENCE, {"w": (8, 8)})])
@pytest.mark.parametrize("target", ["cuda", "openvino"])
def test_an_estimate_costs_no_conversion(amp: Any, tmp_path: Path, text: str, stored: Any, target: str) -> None:
    onnx.save(parse(text, stored, domains=["com.microsoft"]), tmp_path / "m.onnx")
    status, _, _ = amp(
        "convert", tmp_path / "m.onnx", "--target", target, "--check", "off", "-o", tmp_path / "low.onnx"
    )
    assert not status and (tmp_path / "low.onnx").exists()


def test_fusions_of_the_target_start_one_kernel() -> None:
    text = """g (float[4, 64] x) => (float[4, 64] y) {
        d = Div (x, root)  e = Erf (d)  a = Add (e, one)  m = Mul (x, a)  h = Mul (m, half)
        p = MatMul (h, w)  s = Tanh (p)  y = Sub (s, p) }"""
    stored = {"root": np.float32(1.41421356), "one": np.float32(1), "half": np.float32(0.5), "w": (64, 64)}
    starts = {
        target: [k.starts for k in read(parse(text, stored), target).kernels()] for target in ("cuda", "openvino")
    }
    assert starts["cuda"] == [0, 0, 0, 0, 0, 1, 1, 1]  # and scales an operand inside of the product
    assert starts["openvino"] == [0, 0, 0, 0, 1, 1, 0, 1]  # it takes what is done by element into one kernel


def test_the_roofline() -> None:
    fixed = {
        "share": (1.0, 1.0),
        "launch": (0.0, 0.0),
        "casts": {"cuda": (1.0, 1.0), "tensorrt": (0.0, 0.0)},
        "source": "",
    }
    device = Device("a", {"float32": 1.0, "float16": 2.0}, 100.0, (0.5, 0.5), **fixed)  # type: ignore[arg-type]
    # computing takes longer
    assert device.seconds({KernelWork(2e12, 1e9, "float16", 1, 1): 1}, 1.0, 0.0, 1.0, 0.5) == 2.0
    assert device.seconds({KernelWork(1.0, 100e9, "float16", 3, 2): 2}, 1.0, 1e6, 1.0, 0.5) == 2 * 2 * (2.0 + 3.0)
    assert device.seconds({KernelWork(0.0, 100e9, "float32", 1, 1, True): 1}, 1.0, 0.0, 0.5, 0.5) == 1.0
    gpu, work = replace(device, kernel=1e6), {KernelWork(0.0, 100e9, "float32", 1, 1): 4}  # two seconds each, and one
    assert gpu.seconds(work, 1.0, 2e6, 1.0, 0.5) == 4 * (2.0 + 1.0)  # the host starts the next ones in the meantime
    assert gpu.seconds(work, 1.0, 5e6, 1.0, 0.5) == 4 * 5.0  # and takes longer than the device does
    high, low = [KernelWork(1e12, 0.0, "float32", 1, 1)], [KernelWork(1e12, 0.0, "float16", 1, 1)]
    found = device_speed(high, low, device, "cuda")
    assert (found.low, found.high) == (2.0, 2.0)
    spread = device_speed(high, low, replace(device, share=(0.1, 1.0)), "cuda")
    assert 1 < spread.high / spread.low <= 2
    low.append(KernelWork(0.0, 25e9, "float16", 1, 1, True))
    assert [device_speed(high, low, device, target).high for target in ("cuda", "tensorrt")] == [1.3, 2.0]


def test_open_dimensions_are_said() -> None:
    text = LAYER.replace("float[64, 512] x", "float[N, 512] x").replace("float[64, 256] y", "float[N, 256] y")
    found = speed(parse(text, HALF))
    assert (
        found
        and found.sizes == {"N": 1}
        and "assumed N=1;" in str(found)
        and str(found).endswith("on H100 and H200 only)")
    )
    named = speed(parse(text, HALF), dims={"N": 4096})
    assert named and named.sizes == {"N": 4096} and named.devices[0].high > found.devices[0].high


@pytest.mark.parametrize(
    ("high", "sizes", "tried"),
    [
        (
            0.9,
            {"image": 224, "batch": 1},
            "0.5 to 0.9 on B (assumed image=224, batch=1; --dim NAME=SIZE changes that; estimates checked on no GPU)",
        ),
        (0.7, {"x[0]": 1}, "float32: 0.5 to 0.7 on A, B (assumed x[0]=1; estimates checked on no GPU)"),
        (0.9, {}, "0.5 to 0.7 on A; 0.5 to 0.9 on B (estimates checked on no GPU)"),
    ],
)
def test_devices_of_one_range_stand_together_and_sizes_can_be_changed(
    high: float, sizes: dict[str, int], tried: str
) -> None:
    devices = DeviceSpeed("A", 0.5, 0.7), DeviceSpeed("B", 0.5, high)
    assert str(Speed(devices, sizes)).endswith(tried)


def test_dimensions_without_a_name_are_said_by_their_places() -> None:
    model = parse(LAYER, HALF)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].Clear()
    found = speed(model)
    assert found and found.sizes == {"x[0]": 1} and found.devices


def test_sizes_by_the_names_of_inputs_hold_inside() -> None:
    """As torch's exporter writes a Flatten of an open batch, which onnx's inference does not follow."""
    text = """g (float[N, 3, 8] x) => (float[N, 5] y) <float16[N, 24] f, float16[N, 5] p> {
        n = Shape <start: int = 0, end: int = 1> (x)  s = Squeeze (n)  r = Reshape (s, one)
        all = Concat <axis: int = 0> (r, rest)
        h = Cast <to: int = 10> (x)  f = Reshape (h, all)  p = MatMul (f, w)  y = Cast <to: int = 1> (p) }"""
    stored = {"one": np.array([1]), "rest": np.array([24]), "w": np.ones((24, 5), np.float16)}
    found = read(parse(text, stored), dims={"N": 7})
    assert max(kernel.operations for kernel in found.kernels()) == 2 * 7 * 24 * 5 and not found.products_unknown


SHAPED = """g (float[N, 3, S, S] x) => (float[N, 8, A, B] y) {
    h = Cast <to: int = 10> (x)  n = Shape (h)  b = Slice (n, zero, one, zero)  all = Concat <axis: int = 0> (b, rest)
    f = Reshape (h, all)  s = Unsqueeze (f, last)  c = Conv (s, w)  y = Cast <to: int = 1> (c) }"""


def test_sizes_that_the_graph_computes_are_followed() -> None:
    whole = {name: np.array(value, np.int64) for name, value in
             {"zero": [0], "one": [1], "rest": [3, -1], "last": [3]}.items()}  # fmt: skip
    found = read(parse(SHAPED, {**whole, "w": np.ones((8, 3, 3, 1), np.float16)}), dims={"S": 10})
    product = next(kernel for kernel in found.kernels() if kernel.operations)
    assert product.operations == 2 * 8 * 98 * 9 and not found.products_unknown


def test_without_sizes_there_is_no_estimate() -> None:
    text = """g (float[4] x, int64[2] shape) => (float[A, 3] y) {
        r = Reshape (x, shape)  h = Cast <to: int = 10> (r)  p = MatMul (h, w)  y = Cast <to: int = 1> (p) }"""
    found = speed(parse(text, {"w": np.ones((2, 3), np.float16)}))
    assert found and not found.devices and str(found).startswith("no estimate: how much some products compute")


@pytest.mark.parametrize(
    ("target", "dtype", "said"),
    [("cpu", "float16", "none to gain on an x86 CPU"), ("openvino", "float16", "none to gain on today's CPUs"),
     ("webgpu", "float16", "no estimate: no data on devices of target webgpu"),
     ("cuda", "float16", " on A100")],
)  # fmt: skip
def test_what_each_target_says(target: str, dtype: str, said: str) -> None:
    found = speed(parse(LAYER, HALF), target=target, dtype=dtype)
    assert said in str(found) and found is not None and found.idle != said.startswith("no estimate")


def test_a_float32_model_has_none() -> None:
    assert speed(parse("g (float[2, 3] x) => (float[2, 4] y) { y = MatMul (x, w) }", {"w": (3, 4)})) is None


def test_each_device_says_where_its_figures_stand() -> None:
    for device in devices():
        assert device.source and device.casts.keys() <= TARGETS["ONNX"].keys() and device.products["float32"] > 0
        assert device.memory > 0 and 0 < device.reached[0] <= device.reached[1] <= 1
        assert device.share[0] < device.share[1] and device.launch[0] < device.launch[1]


def test_the_reports_have_it(amp: Any, tmp_path: Path) -> None:
    onnx.save(
        parse("g (float[64, 512] x) => (float[64, 256] y) { y = MatMul (x, w) }", {"w": (512, 256)}),
        tmp_path / "m.onnx",
    )
    words = ("convert", tmp_path / "m.onnx", "--check", "off")
    (line,) = [line for line in amp(*words)[1].splitlines() if line.startswith("speed ")]
    assert "estimate" in line and "H100" in line
    found = json.loads(amp(*words, "-o", tmp_path / "again.onnx", "--json")[1])["speed"]["devices"]
    assert [row["device"] for row in found] == ["A100", "H100", "H200", "L4", "RTX 4090"]
    assert all(row["low"] <= row["high"] <= 2 * row["low"] for row in found)
    _, out, _ = amp("inspect", tmp_path / "m.O2.onnx")
    assert "\nspeed: estimate, times as fast as float32: " in out
    against = json.loads(amp("inspect", tmp_path / "m.O2.onnx", "--against", tmp_path / "m.onnx", "--json")[1])
    assert against["speed"]["devices"] == found
