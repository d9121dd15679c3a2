"""Which initializers are parameters, where the file does not say it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ampgraph.training.forward.parameters import parameter_names
from ampgraph.training.forward.read import SIGNATURE, read_forward, signature
from onnx_text import parse


def names(body, inputs="float[N,4] x", **stored):
    model = parse(f"g ({inputs}) => (float[N,4] y) {{ {body} }}", opset=20)
    arrays = {name: np.asarray(array, np.float32) for name, array in stored.items()}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return parameter_names(ir.from_proto(model))


EYE = np.eye(4)
MODELS = Path(__file__).resolve().parents[2] / "models"


def test_the_rule_finds_what_torch_calls_a_parameter():
    model = read_forward(MODELS / "digits_cnn_forward.onnx")
    told = parameter_names(model)
    assert signature(model) and len(told) >= 16
    for props in (model.graph.metadata_props, model.metadata_props):
        props.pop(SIGNATURE, None)
    assert not signature(model) and sorted(parameter_names(model)) == sorted(told)


def test_the_normalization_of_the_data_and_a_mask_are_not_trained():
    body = "c = Sub (x, mean)  d = Div (c, std)  a = MatMul (d, w)  b = Add (a, mask)  y = Add (b, bias)"
    given = {"w": EYE, "mean": [1, 2, 3, 4], "std": [1, 1, 1, 2], "mask": [[0, 0, -1e9, 0]], "bias": [0, 0, 1, 0]}
    assert names(body, **given) == ["w", "bias"]


@pytest.mark.parametrize("number", [-1e4, -65504, float("-inf"), float("nan")])
def test_a_mask_by_its_numbers(number):
    assert names("y = Add (x, mask)", mask=[0, 0, number, 0]) == []


def test_what_is_subtracted_from_a_result_is_trained():
    assert names("a = MatMul (x, w)  b = Sub (a, c)  y = Div (b, d)", w=EYE, c=[1] * 4, d=[2] * 4) == ["w", "c", "d"]
    assert names("a = Sub (x, c)  y = Mul (a, c)", c=[1, 2, 3, 4]) == ["c"]  # read elsewhere too


@pytest.mark.parametrize("view", ["Cast <to = 1> (x)", "Identity (x)", "Unsqueeze (x, zero)"])
def test_the_data_may_be_viewed_first(view):
    assert names(f"zero = Constant <value_ints = [0]> ()  v = {view}  y = Sub (v, mean)", mean=[1, 2, 3, 4]) == []


@pytest.mark.parametrize(
    "body, shape",
    [
        ("y = Gemm (x, w, b)", (1,)),
        ("a = MatMul (x, w)  y = Add (a, b)", (1,)),
        ("a = MatMul (x, w)  y = Add (b, a)", (1,)),
        ("s = Constant <value_ints = [1, 1]> ()  a = MatMul (x, w)  v = Reshape (b, s)  y = Add (a, v)", (1,)),
        ("a = MatMul (x, w)  y = PRelu (a, b)", (1,)),
        ("a = MatMul (x, w)  y = MatMul (a, b)", (1, 1)),
        ("a = MatMul (x, w)  y = LayerNormalization (a, b)", (1,)),
    ],
)
def test_a_weight_of_one_number_is_trained(body, shape):
    assert names(body, w=np.ones((4, 1)), b=np.ones(shape)) == ["w", "b"]


@pytest.mark.parametrize("body", ["y = Add (a, b)", "y = Mul (a, b)", "y = Pow (a, b)", "y = Max (a, b)"])
def test_another_constant_of_one_number_is_not(body):
    assert names(f"m = MatMul (x, w)  a = Abs (m)  {body}", w=EYE, b=[0.5]) == ["w"]


@pytest.mark.parametrize(
    "body, size",
    [
        ("e = Constant <value_floats = [0.0]> ()  y = Resize (x, e, c)", 2),
        ("b = Less (x, c)  y = Cast <to = 1> (b)", 4),
    ],
)
def test_what_gets_no_gradient_is_not_trained(body, size):
    assert names(body, c=np.ones(size)) == []


def test_tokens_positions_and_tables_are_trained():
    body = "e = Gather (table, ids)  p = Add (e, places)  c = Concat <axis = 0> (token, p)  y = Where (b, other, c)"
    given = {"table": EYE, "places": EYE, "token": [[1, 2, 3, 4]], "other": [1, 2, 3, 4]}
    assert names(body, "int64[N] ids, bool[N,4] b", **given) == list(given)


def test_running_statistics_are_not_trained():
    body = "y = BatchNormalization (x, w, c, m, v)"
    assert names(body, **{name: np.ones(4) for name in "wcmv"}) == ["w", "c"]


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_the_type_of_a_group_normalization_is_that_of_its_data(opset):
    """onnx's inference tells nothing of it, and so nothing of what comes behind."""
    width = 4 if opset >= 21 else 2
    model = parse(
        """g (float[N,4,3] x) => (float[N,4,3] y) {
          n = GroupNormalization <num_groups = 2> (x, s, s)  h = Cast <to = 10> (n)  y = Cast <to = 1> (h)
        }""",
        opset=opset,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(width, np.float32), "s"))
    norm, down, _ = read_forward(model).graph
    assert [(v.dtype, list(v.shape)) for node in (norm, down) for v in node.outputs] == [
        (ir.DataType.FLOAT, ["N", 4, 3]),
        (ir.DataType.FLOAT16, ["N", 4, 3]),
    ]
