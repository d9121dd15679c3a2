"""What other exporters write: no more nodes in float16 than in float32 and the Casts of its border."""

from __future__ import annotations

from collections import Counter

import pytest

import ampgraph
from ampgraph.runtime.optimizing import optimized
from onnx_text import parse
from planner.form_models import attention
from planner.test_constants import SCALED, SCALED_STORED
from planner.test_floors import FORMS, LOWEST, model


@pytest.mark.parametrize("form", FORMS)
def test_a_computed_mask_takes_no_cast(gpu_python, form):
    before = optimized(model(FORMS[form]), python=gpu_python)
    after = optimized(ampgraph.convert(model(FORMS[form]), "O2"), python=gpu_python)
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
def test_a_norm_over_channels_is_one_kernel_between_transposes(gpu_python, level):
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ h = Conv (x, w)  {CENTRED}  y = Conv (m, w) }}"
    given = parse(text, w=(8, 8, 1, 1), g=(8, 1, 1), b=(8, 1, 1), opset=17)
    found = optimized(ampgraph.convert(given, level), python=gpu_python)
    expected = {"Cast": 2, "Conv": 2, "Transpose": 2, "LayerNormalization": 1}
    assert Counter(node.kind for node in found.nodes) == expected
