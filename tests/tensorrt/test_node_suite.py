"""A share of ONNX's node suite: what TensorRT takes in float32 it takes after a conversion, and what can be low is."""

from __future__ import annotations

import sys

import pytest

from set_up import ROOT

sys.path.append(str(ROOT / "benchmarks" / "tensorrt"))
node_suite = pytest.importorskip("node_suite")

FORMS = (
    "test_convtranspose",
    "test_gru_defaults",
    "test_gridsample",
    "test_lppool_2d_strides",
    "test_mish",
    "test_conv",
)
"""What was refused once, or is low at any level: parts of names."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing_is_refused(trt_python: str) -> None:
    """The whole: benchmarks/tensorrt/node_suite.py."""
    found = node_suite.suite()
    names = [*list(found)[::100], *(next(name for name in found if name.startswith(form)) for form in FORMS)]
    ways = {
        f"{level} {dtype}": node_suite.ours(level, dtype) for level, dtype in [("O2", "bfloat16"), ("O3", "float16")]
    }
    for row in node_suite.rows({name: found[name] for name in names}, ways, trt_python):
        assert row.refused == {} and row.failed == {} and row.taken >= 10 and row.low >= 2, row
