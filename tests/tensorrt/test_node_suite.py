"""A share of ONNX's node suite: what TensorRT takes in float32 it takes after a conversion, and what can be low is."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from set_up import ROOT

sys.path.append(str(ROOT / "benchmarks" / "tensorrt"))
node_suite = pytest.importorskip("node_suite")

FORMS = ("convtranspose", "gru_defaults", "gridsample", "lppool_2d_strides", "mish", "conv", "attention_3d_scaled")
"""What was refused once, or is low at any level: how names go on."""

LOW = {
    ("O2", "bfloat16"): ("conv", "attention_3d_scaled"),
    ("O3", "float16"): ("conv", "attention_3d_scaled", "convtranspose", "gru_defaults"),
}
"""Of those, what has to have a kernel of the low type: everything in float32 would be taken too."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing_is_refused(trt_python: str) -> None:
    """The whole: benchmarks/tensorrt/node_suite.py."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # what onnx generates hangs on what ran before it
        found = fresh.submit(node_suite.suite).result()
    forms = {form: next(name for name in found if name.startswith(f"test_{form}")) for form in FORMS}
    names = dict.fromkeys([*list(found)[::100], *forms.values()])
    ways = {" ".join(way): node_suite.ours(*way) for way in LOW}
    answers = node_suite.rows({name: found[name] for name in names}, ways, trt_python)
    for row, low in zip(answers, LOW.values(), strict=True):
        assert row.refused == {} and row.failed == {} and row.taken >= 10, row
        assert {forms[form] for form in low} <= set(row.low), row
