"""op_lists/kernels/openvino.toml is what OpenVINO does, a share of which is run again; what a plan makes of it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import ampgraph
from ampgraph.oplists.files import own_file
from ampgraph.runtime.executed import Runtime
from onnx_text import parse
from planner.support import dtype_of
from set_up import ROOT
from share import share

sys.path.append(str(ROOT / "benchmarks" / "openvino"))
precision_table = pytest.importorskip("precision_table")

DATA = own_file("kernels/openvino.toml").data
ALWAYS = ("Celu", "Conv", "Cos", "MatMul", "MaxPool", "ReduceMean")
POOLS = """g (float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y, int64[1, 4, 4, 4] i) {
    c = Conv (x, w)
    y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
}"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_share_of_the_table_is_what_openvino_does(ov_python: str) -> None:
    """The whole: benchmarks/openvino/precision_table.py --check."""
    runtime = Runtime("openvino", ov_python)
    if "bfloat16" not in runtime.low:
        pytest.skip(f"{runtime.name} computes bfloat16 in float32 here: the CPU has no avx512_bf16")
    forms = precision_table.all_forms()
    chosen = sorted({*ALWAYS, *share(sorted(forms), 25)})
    made = precision_table.table({name: forms[name] for name in chosen}, ov_python)
    for section in precision_table.SECTIONS:
        assert made[section] == {name: row for name, row in DATA[section].items() if name in chosen}


def test_the_file_is_written_by_the_script() -> None:
    made = {section: DATA[section] for section in precision_table.SECTIONS}
    table = precision_table
    text = table.render(made, "OpenVINO 2026.4.1", table.HEAD, table.COMMENT, table.BY)
    assert text == table.FILE.read_text(encoding="utf-8")


def test_a_pool_that_gives_indices_stays_float32_and_another_one_does_not() -> None:
    weights = {"w": np.ones((4, 3, 1, 1), np.float32)}
    both = ampgraph.convert(parse(POOLS, weights, opset=22), "O3", target="openvino", check="off")
    text = POOLS.replace(", int64[1, 4, 4, 4] i)", ")").replace("y, i =", "y =")
    alone = ampgraph.convert(parse(text, weights, opset=22), "O3", target="openvino", check="off")
    assert (dtype_of(both, "MaxPool"), dtype_of(alone, "MaxPool")) == ("f32", "bf16")
