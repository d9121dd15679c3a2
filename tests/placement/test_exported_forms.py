"""What other exporters write: no more nodes in float16 than in float32 and the Casts of its border."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import ampgraph
from ampgraph.runtime.optimizing import optimized
from onnx_text import parse
from planner.form_models import attention
from planner.test_masks import FLOOR_FORMS, LOWEST, floor_model
from planner.test_numbers import GIVEN_BACK, SCALED, SCALED_STORED, places, two_sided
from planner.test_target_fusions import ENDS, POWER, PRODUCTS, SQUARES, biased, by_tanh
from planner.test_target_fusions import FORMS as GELUS


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


@pytest.mark.parametrize("form", GELUS)
def test_a_bias_in_front_of_a_gelu_is_one_kernel_with_it_at_o1(gpu_python, form):
    before, after = (optimized(one, python=gpu_python) for one in (biased(form), ampgraph.convert(biased(form), "O1")))
    assert after.fused() == before.fused() and len(after.nodes) == len(before.nodes) + 4


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_number_on_both_sides_of_a_product_is_part_of_it(gpu_python, level):
    given = two_sided(GIVEN_BACK["two sides by one number"])
    before, found = (optimized(one, python=gpu_python) for one in (given, ampgraph.convert(given, level)))
    assert found.fused() == before.fused() and "Mul" not in {node.kind for node in found.nodes}
