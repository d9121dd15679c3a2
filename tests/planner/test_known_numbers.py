"""Numbers that follow from known sizes, in shapes of which others are open, are stored."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from ampgraph.report.lines import rewrite_line
from onnx_text import parse
from planner.support import converted, kinds
from planner.test_constants import SCALED, SCALED_STORED

ROTATED = """g (float[N,S,8] x) => (float[N,S,8] z) {
    q = MatMul (x, w)  sizes = Shape (q)  size = Gather (sizes, place)  half = Div (size, two)  whole = Mul (half, two)
    row = Unsqueeze (half, zero)  end = Unsqueeze (whole, zero)  a = Slice (q, zero, row, last)
    b = Slice (q, row, end, last)  n = Neg (b)  c = Concat <axis = -1> (n, a)  z = MatMul (c, w) }"""
ROTATED_STORED = {"w": (8, 8), "place": np.int64(2), "two": np.int64(2), "zero": np.array([0]), "last": np.array([-1])}


def test_a_scale_of_a_known_size_is_stored() -> None:
    given = parse(SCALED, SCALED_STORED, opset=17)
    found = converted(given)
    assert not {"Shape", "Slice", "Sqrt", "Div"} & set(kinds(found))
    low = ["Cast", "MatMul", "MatMul", "Transpose", "Mul", "MatMul", "Softmax", "MatMul", "Cast"]
    assert [kind for kind in kinds(found) if kind != "Constant"] == low
    kept = kinds(ampgraph.convert(given, rewrite="no-number"))
    assert {"Shape", "Slice", "Sqrt", "Div"} <= set(kept)


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_it_is_the_same_to_the_bit(level: str) -> None:
    thirds = {**SCALED_STORED, "w": np.ones((8, 3), np.float32)}  # 1 / sqrt(3) is rounded; no weight takes that
    for given in (parse(SCALED, SCALED_STORED), parse(SCALED, thirds), parse(ROTATED, ROTATED_STORED)):
        width = given.graph.input[0].type.tensor_type.shape.dim[1].dim_value or 3
        feed = {"x": np.random.default_rng(0).standard_normal((2, width, 8)).astype(np.float32)}
        made = (ampgraph.convert(given, level, rewrite=rewrite) for rewrite in ("number", "no-number"))
        first, second = (run_strict(model, feed)["z"] for model in made)
        assert np.array_equal(first, second)


def test_a_shape_of_some_places_alone_is_read() -> None:
    """As torch's dynamo exporter writes a size."""
    text = SCALED.replace("sizes = Shape (q)  size = Slice (sizes, last, end)", "size = Shape <start = 2, end = 3> (q)")
    assert "Shape" not in kinds(converted(parse(text, SCALED_STORED, opset=17)))


def test_whole_numbers_are_stored_once_for_all_that_read_them() -> None:
    given = parse(ROTATED, ROTATED_STORED, opset=17)
    found = converted(given)
    low = ["Cast", "MatMul", "Slice", "Slice", "Neg", "Concat", "MatMul", "Cast"]
    assert [kind for kind in kinds(found) if kind != "Constant"] == low


@pytest.mark.parametrize("sizes", ["[2,4,8]", "[N,4,K]"])
def test_what_is_known_whole_or_open_stays(sizes: str) -> None:
    given = parse(SCALED.replace("[N,4,8]", sizes, 1).replace("q = MatMul (x, w)", "q = Relu (x)"), SCALED_STORED)
    assert "Shape" in kinds(ampgraph.convert(given))


def test_what_is_named_or_given_out_stays() -> None:
    given = parse(SCALED, SCALED_STORED)
    assert "Sqrt" in kinds(ampgraph.convert(given, fp32=["op:Sqrt"]))
    given.graph.output.append(onnx.helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, [1]))
    assert "Sqrt" in kinds(ampgraph.convert(given))


def test_it_is_named_by_the_summary_and_by_explain() -> None:
    given = parse(SCALED, SCALED_STORED)
    (rewrite,) = ampgraph.plan(given).rewrites
    assert (
        rewrite_line(rewrite.what, 1)
        == "1 number of known sizes, which no runtime computes beforehand, stored (number)"
    )
    assert ampgraph.explain(given, "root").region == "its region is written as one Constant (number)"
    assert not ampgraph.plan(given, "O0").rewrites
