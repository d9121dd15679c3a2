"""What the CUDA provider of the pinned wheel makes of our files: where nodes run, what is fused, copied and cast."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ampgraph
from ampgraph.runtime.optimized import Optimized
from ampgraph.runtime.optimizing import optimized
from cli_helpers import MODELS, NAMES
from onnx_text import parse
from planner.form_models import FINE, GELUS, INVERSES, attention, gelu, layer_norm, rms
from planner.test_masks import FLOOR_FORMS, LOWEST, floor_model
from planner.test_numbers import BEFORE, BEHIND, DIVIDED, GIVEN_BACK, SCALED, SCALED_STORED, places, scores, two_sided
from planner.test_streams import root_mean_squares
from planner.test_target_fusions import (
    AFFINE,
    BLOCK,
    ENDS,
    POWER,
    PRODUCTS,
    SQUARES,
    biased,
    by_tanh,
    normed,
    on_the_cpu,
)
from planner.test_target_fusions import FORMS as BIASED
from set_up import ROOT
from training.nets import layers

DETERMINANT = parse("g (float[2, 2] x) => (float y) { a = Relu(x) b = Det(a) y = Relu(b) }", opset=22)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_no_node_moves_to_the_cpu_and_no_copy_appears(gpu_python, name, level, dtype):
    original = onnx.load(MODELS / f"{name}.onnx")
    before = optimized(original, python=gpu_python)
    after = optimized(ampgraph.convert(original, level=level, dtype=dtype), python=gpu_python)
    assert before.providers()["CUDA"] > 10, "the provider takes the model"
    assert after.providers()["CPU"] <= before.providers()["CPU"]
    assert after.copied() <= before.copied()


def test_inspect_tells_what_the_target_makes_of_both(gpu_python, amp, tmp_path):
    made = tmp_path / "low.onnx"
    amp("convert", MODELS / "digits_transformer.onnx", "-o", made)
    words = ("inspect", made, "--against", MODELS / "digits_transformer.onnx", "--runtime", gpu_python)
    code, out, _ = amp(*words)
    assert code == 0 and "on CUDA, as ONNX Runtime" in out and "com.microsoft::FusedMatMul: 2 -> 2" in out
    found = json.loads(amp(*words, "--json")[1])["fusions"]
    assert found["provider"] == "CUDAExecutionProvider" and found["note"] == ""
    assert found["before"]["casts"] == {} and sum(found["after"]["casts"].values()) >= 2
    assert found["after"]["providers"]["CUDA"] > 50


def test_kernels_of_the_wheel(gpu_python):
    words = [sys.executable, str(ROOT / "op_lists" / "kernels" / "_generate.py"), "--python", gpu_python, "--check"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # norms and gelus
    found = optimized(ampgraph.convert(gelu(GELUS["half the sum"]), "O2"), python=gpu_python)
    assert found.fused() == {"com.microsoft::Gelu": 1} and sum(found.cast().values()) == 2
    # a node without a kernel is seen on the cpu
    found = optimized(DETERMINANT, python=gpu_python)
    assert [(node.kind, node.provider) for node in found.nodes if node.provider == "CPU"] == [("Det", "CPU")]
    assert found.copied() == {"MemcpyToHost": 1, "MemcpyFromHost": 1}
    # a scale of a known size is part of its product
    given = parse(SCALED.replace("[N,", "[2,"), SCALED_STORED, opset=17)
    for model in (given, *(ampgraph.convert(given, level) for level in ("O2", "auto"))):
        assert optimized(model, python=gpu_python).fused() == {"com.microsoft::FusedMatMul": 1}


def gru(reset: int) -> onnx.ModelProto:
    return parse(
        "g (float[3, 1, 4] x) => (float[3, 1, 1, 4] y) "
        f"{{ a = Relu(x) y = GRU<hidden_size = 4, linear_before_reset = {reset}>(a, w, r) }}",
        w=(1, 12, 4),
        r=(1, 12, 4),
    )


@pytest.mark.parametrize(
    ("node", "left"),
    [
        ("ConvTranspose <strides = [2, 2]> (x, k)", False),
        ('ConvTranspose <auto_pad = "VALID"> (x, k)', False),
        ('ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, k)', True),
        ("ConvTranspose <pads = [1, 0, 1, 0]> (x, k)", False),
        ("ConvTranspose <pads = [0, 0, 1, 1]> (x, k)", True),
        ('LSTM <hidden_size = 4, activations = ["Sigmoid", "Tanh", "Tanh"]> (s, w, r)', False),
        ('LSTM <hidden_size = 4, activations = ["Sigmoid", "Relu", "Tanh"]> (s, w, r)', True),
        ("LSTM <hidden_size = 4, clip = 3.0> (s, w, r)", True),
        ("LSTM <hidden_size = 4, input_forget = 1> (s, w, r)", True),
        ("LSTM <hidden_size = 4> (s, w, r, , , , , p)", True),
        ("RNN <hidden_size = 4> (s, v, u)", False),
        ('RNN <hidden_size = 4, activations = ["Relu"]> (s, v, u)', True),
    ],
)
def test_what_cuda_leaves_to_the_cpu_stays_float32(gpu_python, node, left):
    """Casts around it, and copies of what they make, would be all that a conversion adds."""
    model = parse(f"g (float[1, 2, 8, 8] x, float[5, 2, 4] s) => (float y) {{ y = {node} }}", LEFT_STORED)
    for given in (model, ampgraph.convert(model), ampgraph.convert(model, "auto")):
        made = optimized(given, python=gpu_python)
        assert {n.provider for n in made.nodes} == ({"CPU"} if left else {"CUDA"}) and not made.copied()
    low = [
        n.dtype
        for n in optimized(ampgraph.convert(model, rule="no-inside"), python=gpu_python).nodes
        if n.kind != "Cast"
    ]
    assert low == ["float32" if left else "float16"]


LEFT_STORED = {"k": (2, 2, 3, 3), "w": (1, 16, 4), "r": (1, 16, 4), "p": (1, 12), "v": (1, 4, 4), "u": (1, 4, 4)}


@pytest.mark.parametrize("reset", [0, 1])
def test_a_gru_is_low_where_cuda_runs_it(gpu_python, reset):
    made = optimized(ampgraph.convert(gru(reset), dtype="float16", rule="no-inside"), python=gpu_python)
    assert [(node.provider, node.dtype) for node in made.nodes if node.kind == "GRU"] == [
        ("CUDA", "float16") if reset else ("CPU", "float32")
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("given", "kernel"),
    [(rms(INVERSES["Reciprocal"]), "SimplifiedLayerNormalization"), (layer_norm(), "LayerNormalization")],
    ids=["RMS", "layer norm"],
)
def test_a_norm_that_is_written_out_is_one_low_kernel(gpu_python, given, kernel, dtype):
    """Low in and low out, though its arithmetic stands in the file in float32."""
    found = optimized(ampgraph.convert(given, "O2", dtype=dtype), python=gpu_python)
    assert [(n.kind, n.dtype) for n in found.nodes if not n.casts] == [
        ("MatMul", dtype), (kernel, dtype), ("MatMul", dtype)
    ]  # fmt: skip
    assert found.cast() == {f"float32->{dtype}": 1, f"{dtype}->float32": 1}


@pytest.mark.parametrize("opset", [16, 18])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_norm_that_stays_float32_loads(gpu_python, dtype, opset):
    found = optimized(ampgraph.convert(layer_norm(opset), "O1", dtype=dtype), python=gpu_python)
    assert found.providers()["CPU"] == 0 and found.copied() == {}


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_attention_with_a_mask_loads(gpu_python, level):
    assert optimized(ampgraph.convert(attention(), level), python=gpu_python).providers()["CPU"] == 0


WIDE, OPERATOR = ["Cast", "Cast", "Cast", "Cast", "Gelu"], ["Cast", "Cast", "Gelu"]


@pytest.mark.parametrize(("opset", "nodes"), [(18, WIDE), (20, OPERATOR)])
def test_a_gelu_is_one_kernel_in_bfloat16(gpu_python, opset, nodes):
    """Float32 between Casts, and from opset 20 on its operator."""
    given = gelu(FINE["half last"])
    given.opset_import[0].version = opset
    found = optimized(ampgraph.convert(given, "O2", dtype="bfloat16"), python=gpu_python)
    assert sorted(node.kind.rpartition("::")[2] for node in found.nodes if node.kind != "MatMul") == nodes


@pytest.mark.parametrize("body", [BEFORE, BEHIND, DIVIDED])
@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_a_scale_is_part_of_its_product(gpu_python, level, body):
    given = scores(body, 8.0 if body == DIVIDED else 0.125)
    for model in (given, ampgraph.convert(given, level)):
        assert optimized(model, python=gpu_python).fused() == {"com.microsoft::FusedMatMul": 1}


@pytest.mark.parametrize(("level", "dtype"), [("O1", "float16"), ("O1", "bfloat16"), ("O2", "bfloat16")])
def test_a_gelu_by_tanh_is_one_kernel_between_casts(gpu_python, level, dtype):
    found = optimized(ampgraph.convert(by_tanh(), level, dtype=dtype), python=gpu_python)
    assert found.fused() == {"com.microsoft::FastGelu": 1} and len(found.nodes) == 7


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_mask_in_a_fused_softmax_needs_no_cast(gpu_python, level):
    mask = np.triu(np.full((4, 4), np.finfo(np.float32).min, np.float32), 1)
    text = """g (float[4,8] x, float[8,4] y) => (float[4,4] z) { a = MatMul (x, y)
        b = com.microsoft.BiasSoftmax <axis = 1, is_inner_broadcast = 0> (a, m)  z = MatMul (b, v) }"""
    given = parse(text, m=mask, v=np.eye(4, dtype=np.float32), domains=["com.microsoft"])
    found = optimized(ampgraph.convert(given, level), python=gpu_python)
    assert found.fused() == {"com.microsoft::BiasSoftmax": 1} and sum(found.cast().values()) == 3


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_steps_stay_on_the_device(gpu_python, level):
    options = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "level": level}
    found = optimized(step_model(MODELS / "digits_cnn_forward.onnx", batch=64, **options), python=gpu_python)
    assert found.providers().keys() == {"CUDA"} and not found.copied()
    # On the host is how many numbers Dropout draws: three operators on a size.
    options = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "level": level}
    found = optimized(step_model(MODELS / "digits_cnn_forward.onnx", **options), python=gpu_python)
    assert not found.copied()
    assert sorted(node.kind for node in found.nodes if node.provider == "CPU") == ["Add", "Add", "Div"]


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_an_update_has_as_many_nodes_for_many_parameters(gpu_python, level):
    """But for views, which launch nothing, and one Split of matrices of one width, which saves many of them."""
    few, many = (
        optimized(ir.to_proto(layers(count, level=level, batch=8).model), python=gpu_python) for count in (2, 20)
    )
    counts = [
        Counter(node.kind for node in found.nodes if node.name.startswith("step/") and node.kind != "Reshape")
        for found in (few, many)
    ]
    assert counts[0] <= counts[1] <= counts[0] + Counter(Split=level != "O0") and counts[0].total() > 40
    assert many.providers().keys() == {"CUDA"}


@pytest.mark.parametrize("scale", ["dynamic", None])
def test_a_step_at_o2_has_few_nodes_more_than_at_o0(gpu_python, scale):
    options = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "loss_scale": scale, "batch": 64}
    wide, low = (
        optimized(step_model(MODELS / "digits_cnn_forward.onnx", level=level, **options), python=gpu_python)
        for level in ("O0", "O2")
    )
    assert len(low.nodes) <= 1.05 * len(wide.nodes)


def step_model(source, **options):
    return ir.to_proto(ampgraph.build_training_step(source, **options).model)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_float32_stream_keeps_the_norms_fused(gpu_python, dtype):
    given = root_mean_squares(3)
    plain, wide = (
        optimized(ampgraph.convert(given, dtype=dtype, fp32_stream=asked), python=gpu_python) for asked in (False, True)
    )
    assert wide.fused() == plain.fused() and sum(wide.fused().values()) == 4
    casts = {kind: sum(found.cast().values()) for kind, found in (("plain", plain), ("wide", wide))}
    assert casts["wide"] - casts["plain"] <= 4 * (1 if dtype == "float16" else 2)


# What other exporters write: no more nodes in float16 than in float32 and the Casts of its border.


@pytest.mark.parametrize("form", FLOOR_FORMS)
def test_a_computed_mask_takes_no_cast(gpu_python, form):
    before = optimized(floor_model(FLOOR_FORMS[form]), python=gpu_python)
    after = optimized(ampgraph.convert(floor_model(FLOOR_FORMS[form]), "O2"), python=gpu_python)
    assert len(after.nodes) <= len(before.nodes) + 2 and after.fused() == before.fused()


def test_attention_with_a_mask_of_the_lowest_number_loads(gpu_python):
    assert optimized(ampgraph.convert(attention(LOWEST), "O2"), python=gpu_python).providers()["CPU"] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_scale_of_a_known_size_is_part_of_its_product_at_o1(gpu_python, dtype):
    given = parse(SCALED.replace("[N,", "[2,"), SCALED_STORED, opset=17)
    for made in (given, ampgraph.convert(given, "O1", dtype=dtype)):
        assert optimized(made, python=gpu_python).fused() == {"com.microsoft::FusedMatMul": 1}


CENTRED = """mean = ReduceMean <axes = [1]> (h)  d = Sub (h, mean)  two = Constant <value = float {2.0}> ()
    sq = Pow (d, two)  v = ReduceMean <axes = [1]> (sq)  e = Constant <value = float {0.000001}> ()  a = Add (v, e)
    r = Sqrt (a)  n = Div (d, r)  k = Mul (g, n)  m = Add (k, b)"""


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_norms_and_constants(gpu_python, level):
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ h = Conv (x, w)  {CENTRED}  y = Conv (m, w) }}"
    given = parse(text, w=(8, 8, 1, 1), g=(8, 1, 1), b=(8, 1, 1), opset=17)
    found = optimized(ampgraph.convert(given, level), python=gpu_python)
    expected = {"Cast": 2, "Conv": 2, "Transpose": 2, "LayerNormalization": 1}
    assert Counter(node.kind for node in found.nodes) == expected
    # products of constants are folded
    before, found = (optimized(one, python=gpu_python) for one in (places(), ampgraph.convert(places(), level)))
    assert "Slice" not in {node.kind for node in found.nodes}
    assert len(found.nodes) <= len(before.nodes) + 2


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cube", [POWER, PRODUCTS, f"{SQUARES}  o = Add (t, one)"])
def test_a_gelu_by_tanh_is_one_kernel(gpu_python, cube, end):
    found = optimized(ampgraph.convert(by_tanh(body=f"{cube}  {end}"), "O2"), python=gpu_python)
    assert found.fused() == {"com.microsoft::FastGelu": 1} and len(found.nodes) == 5


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_numbers_of_products(gpu_python, level):
    text = "g (float[4,8] x) => (float[4,4] y) { q = MatMul (x, w)  s = Div (q, c)  y = Tanh (s) }"
    given = parse(text, w=(8, 4), c=np.float32(30), opset=17)
    found = optimized(ampgraph.convert(given, level), python=gpu_python)
    assert found.fused() == {"com.microsoft::FusedMatMul": 1} and len(found.nodes) == 4
    # a scale of a known size in an open shape takes no node
    given = parse(SCALED, SCALED_STORED, opset=17)
    before, found = (optimized(one, python=gpu_python) for one in (given, ampgraph.convert(given, level)))
    assert found.fused() == {"com.microsoft::FusedMatMul": 1} and len(found.nodes) < len(before.nodes)
    assert not {"Shape", "Sqrt"} & {node.kind for node in found.nodes}


@pytest.mark.parametrize("form", BIASED)
def test_a_bias_in_front_of_a_gelu_is_one_kernel_with_it_at_o1(gpu_python, form):
    before, after = (optimized(one, python=gpu_python) for one in (biased(form), ampgraph.convert(biased(form), "O1")))
    assert after.fused() == before.fused() and len(after.nodes) == len(before.nodes) + 4


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_number_on_both_sides_of_a_product_is_part_of_it(gpu_python, level):
    given = two_sided(GIVEN_BACK["two sides by one number"])
    before, found = (optimized(one, python=gpu_python) for one in (given, ampgraph.convert(given, level)))
    assert found.fused() == before.fused() and "Mul" not in {node.kind for node in found.nodes}


# Training steps as CUDA would run them: O2 with its loss scale beside O0 without one, a batch of 64.

MORE = {"digits CNN": 21, "encoder, 2 layers": 17, "encoder, 4 layers": 11}
"""How many nodes O2 has more, at most: benchmarks/cuda_placement/README.md says which. An Unsqueeze a layer among them,
before the product behind a Transpose (rewrite `ranks`): a view, which launches nothing."""


@pytest.fixture(scope="module")
def forward_graphs(tmp_path_factory) -> dict[str, Path]:
    """Those of benchmarks/cuda_placement/steps.py, by name."""
    pytest.importorskip("torch")
    models = runpy.run_path(str(ROOT / "benchmarks" / "cuda_placement" / "steps.py"))["models"]
    return dict(models(tmp_path_factory.mktemp("steps")))


def step(path: Path, level: str, python: str, **options) -> Optimized:
    given = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "batch": 64, **options}
    return optimized(ir.to_proto(ampgraph.build_training_step(path, level=level, **given).model), python=python)


@pytest.mark.parametrize("scale", ["default", "dynamic:rule=keras", "dynamic:interval=9000"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_node_of_a_step_is_on_cuda(gpu_python, scale, dtype):
    found = step(MODELS / "digits_transformer.onnx", "O2", gpu_python, loss_scale=scale, dtype=dtype)
    assert set(found.providers()) == {"CUDA"} and not found.copied()


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_nodes_that_o2_has_more(gpu_python, forward_graphs, name):
    wide, low = (step(forward_graphs[name], level, gpu_python) for level in ("O0", "O2"))
    assert set(low.providers()) == {"CUDA"} and not low.copied()
    assert len(low.nodes) - len(wide.nodes) <= MORE[name]
    assert len(low.nodes) <= 1.05 * len(wide.nodes)


# What CUDA's ONNX Runtime takes into a neighbour's kernel is taken of our files too.


@pytest.mark.parametrize("given", [normed(BLOCK), normed(AFFINE)], ids=["batch norm", "scale and shift"])
def test_what_is_behind_a_convolution_goes_into_its_weights(gpu_python, given):
    found = optimized(ampgraph.convert(given, "O1"), python=gpu_python)
    assert [n.kind for n in found.nodes if not n.casts] == ["Conv", "Relu", "Conv"] and len(found.nodes) == 5


def test_no_cast_runs_on_the_cpu_beside_what_runs_there_alone(gpu_python):
    found = optimized(ampgraph.convert(on_the_cpu(), "O2"), python=gpu_python)
    assert [n.kind for n in found.nodes if n.provider == "CPU"] == ["Atan"]


RMS = """s = Pow (h, two) m = ReduceMean <axes = [-1]> (s) a = Add (m, eps) r = Sqrt (a) i = Reciprocal (r)
    n = Mul (h, i) y = Mul (n, g)"""


@pytest.mark.parametrize(("epsilon", "dtype"), [(1e-6, "float32"), (1e-5, "float16")])
def test_a_norm_that_cuda_makes_one_kernel_of_keeps_its_epsilon(gpu_python, epsilon, dtype):
    """SimplifiedLayerNormFusion takes 1e-5 for an epsilon in float16: an exported Llama at O3 was five times as wrong
    on an H100 as a strict run is."""
    model = parse(
        f"g (float[4, 8] x) => (float[4, 8] z) {{ h = MatMul (x, w) {RMS} z = MatMul (y, w) }}",
        {
            "w": np.ones((8, 8), np.float32),
            "g": np.ones(8, np.float32),
            "two": np.float32(2),
            "eps": np.float32(epsilon),
        },
    )
    found = ampgraph.plan(model, "O3", target="cuda")
    assert next(one.dtype for one in found.decisions if one.kind == "Add") == dtype
    kinds = [node.kind for node in optimized(ampgraph.convert(model, "O3", check="off"), python=gpu_python).nodes]
    assert kinds.count("SimplifiedLayerNormalization") == 1 and not {"Add", "Sqrt", "Pow"} & set(kinds)
