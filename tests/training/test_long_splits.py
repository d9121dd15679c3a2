"""A long vector is split by rows where a step is opened on CUDA, and its parts are the same."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ampgraph.training.run.long_splits import WORTH, with_rows
from onnx_text import parse

LONG = 3 * WORTH


def outputs(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def split(first: int, second: int, shape: str = "N") -> onnx.ModelProto:
    return parse(
        f"""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[{shape}] x) => (float[{shape}] y, float[{shape}] z) <int64[2] sizes = {{{first}, {second}}}> {{
            t = Neg(x)
            y, z = Split<axis = 0>(t, sizes)
        }}
        """
    )


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_long_vector_is_split_by_rows():
    model = split(6, LONG)
    found = with_rows(model)
    assert kinds(found) == ["Neg", "Reshape", "Split", "Reshape", "Reshape"]
    onnx.checker.check_model(found)
    [counts] = [tensor for tensor in found.graph.initializer if tensor.name.endswith("counts")]
    assert onnx.numpy_helper.to_array(counts).tolist() == [1, LONG // 6]
    x = np.arange(LONG + 6, dtype=np.float32)
    for one, other in zip(outputs(model, x), outputs(found, x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "case",
    [(LONG, LONG), (1, 100), (1, LONG), (6, LONG, "N, 2")],
    ids=["equal parts", "short", "no common divisor", "a matrix"],
)
def test_a_split_that_has_no_shorter_table_stays(case):
    assert kinds(with_rows(split(*case))) == ["Neg", "Split"]
