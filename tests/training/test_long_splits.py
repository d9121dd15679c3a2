"""Splits of long vectors become Slices where a step is opened on CUDA, and compute the same."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ampgraph.training.run.long_splits import WORTH, with_slices
from onnx_text import parse

LONG = 3 * WORTH


def outputs(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def split(first: int, second: int, axis: int = 0) -> onnx.ModelProto:
    return parse(
        f"""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[N,2] x) => (float[A,B] y, float[A,B] z) <int64[2] sizes = {{{first}, {second}}}> {{
            t = Transpose<perm = [{axis}, {1 - axis}]>(x)
            y, z = Split<axis = {axis}>(t, sizes)
        }}
        """
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_that_differ_are_cut_out_one_by_one(axis):
    model = split(1, LONG - 1, axis)
    found = with_slices(model)
    assert [node.op_type for node in found.graph.node] == ["Transpose", "Slice", "Slice"]
    onnx.checker.check_model(found)
    x = np.arange(2 * LONG, dtype=np.float32).reshape(LONG, 2)
    for one, other in zip(outputs(model, x), outputs(found, x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sizes", [(LONG, LONG), (1, 100)], ids=["equal", "short"])
def test_a_split_without_a_long_table_stays(sizes):
    model = split(*sizes)
    assert [node.op_type for node in with_slices(model).graph.node] == ["Transpose", "Split"]
