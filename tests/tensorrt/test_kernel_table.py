"""op_lists/kernels/tensorrt.toml is what TensorRT says, a share of which is asked again; what a plan makes of it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.oplists.files import own_file
from ampgraph.runtime.tensorrt_rtx import BuildJob, build
from onnx_text import parse
from planner.support import casts, dtype_of
from set_up import ROOT
from share import share

sys.path.append(str(ROOT / "benchmarks" / "tensorrt"))
kernel_table = pytest.importorskip("kernel_table")

SECTIONS = ("float32_inside", "tied", "refused", "broken", "behind_cast", "attention", "fuses", "kernels")
WHOLE = ("attention", "fuses")
"""Of forms that are written for them, whatever operators are chosen."""
DATA = own_file("kernels/tensorrt.toml").data
ALWAYS = ("Celu", "Erf", "GlobalLpPool", "RNN", "RandomUniformLike")
LOW_NET = """g (float[1,1,8,8] x, float[1,8,8,2] grid) => (float[1,4,8,8] y) {
    a = Conv (x, w)  s = GridSample (a, grid)  y = Conv (s, v) }"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_share_of_the_table_is_what_tensorrt_says(trt_python: str) -> None:
    """The whole: benchmarks/tensorrt/kernel_table.py --check."""
    forms = kernel_table.all_forms()
    chosen = sorted({*ALWAYS, *share(sorted(forms), 100)})
    assert set(ALWAYS) <= set(forms) and len(chosen) < len(forms)
    made = kernel_table.table({name: forms[name] for name in chosen}, trt_python, "")
    for section in SECTIONS:
        rows = DATA[section].items()
        assert made[section] == {name: row for name, row in rows if name in chosen or section in WHOLE}


def test_the_file_is_written_by_the_script() -> None:
    version = "TensorRT for RTX 1.7.1.116"
    made = {section: DATA[section] for section in SECTIONS}
    assert kernel_table.render(made, version) == kernel_table.FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_coordinates_stay_float32_and_draw_the_data_along(level: str, dtype: str) -> None:
    """GridSample takes one type, and float16 is coarser than a pixel of a large picture."""
    weights = {"w": np.ones((4, 1, 1, 1), np.float32), "v": np.ones((4, 4, 1, 1), np.float32)}
    made: ModelProto = ampgraph.convert(
        parse(LOW_NET, weights, opset=22), level, dtype=dtype, target="tensorrt", check="off"
    )
    assert dtype_of(made, "GridSample") == "f32" and dtype_of(made, "Conv") != "f32" and casts(made) > 0


@pytest.mark.parametrize(
    ("operator", "low"),
    [("Mish", ["float16"]), ("HardSwish", ["float16"]), ("Softplus", ["float16", "bfloat16"])],
)
def test_what_is_refused_stays_float32_and_the_plan_has_its_words(operator: str, low: list[str]) -> None:
    net = f"g (float[2,8] x) => (float[2,8] y) {{ y = {operator} (x) }}"
    for dtype in ("float16", "bfloat16"):
        plan = ampgraph.plan(parse(net, opset=22), "O3", dtype=dtype, target="tensorrt", io="low")
        (decision,) = [one for one in plan.decisions if one.kind == operator and one.slot.startswith("T")]
        assert (decision.dtype != "float32") == (dtype in low)
        if dtype not in low:
            assert decision.why.text.endswith(DATA["refused"][operator][dtype])


SCATTERS = """g (float[2,1,4,8] c, float[2,1,1,8] u, int64[2] i, float[2,1,4,8] q)
    => (float[2,1,4,8] p, float[2,1,4,4] y) {
    p = TensorScatter (c, u, i)  k = Transpose <perm = [0, 1, 3, 2]> (p)  y = MatMul (q, k) }"""


@pytest.mark.parametrize("io", ["keep", "low"])
def test_a_cache_is_the_models_own_input_and_output(io: str, trt_python: str) -> None:
    """TensorRT knows a cache by no operator between it and the input and the output of the network."""
    made: ModelProto = ampgraph.convert(parse(SCATTERS, opset=24), "O3", target="tensorrt", io=io, check="off")
    assert dtype_of(made, "TensorScatter") == ("f32" if io == "keep" else "f16") and dtype_of(made, "MatMul") == "f16"
    assert build(BuildJob(made, values={"i": [1, 2]}), python=trt_python).ok


def test_the_page_counts_what_the_table_has() -> None:
    assert f"\n{len(DATA['kernels'])} operators, in both types" in (ROOT / "docs" / "tensorrt.md").read_text("utf-8")
