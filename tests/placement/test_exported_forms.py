"""What other exporters write: no more nodes in float16 than in float32 and the Casts of its border."""

from __future__ import annotations

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
