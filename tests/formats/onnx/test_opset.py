"""Moving to another opset keeps what a model computes."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ModelProto

from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.opset import at_opset
from formats.onnx.helpers import run_plain
from onnx_text import parse

X = {"x": np.arange(7, dtype=np.float32).reshape(1, 1, 1, 7)}


def resize(operator: str, opset: int, scale: float, mode: str) -> ModelProto:
    scales = f"{{1, 1, 1, {scale}}}"
    if opset == 7:
        body = f'y = {operator} <mode = "{mode}", scales = [1.0, 1.0, 1.0, {scale}]> (x)'
        constant = ""
    else:
        body, constant = f'y = {operator} <mode = "{mode}"> (x, s)', f"<float[4] s = {scales}>"
    text = f"g (float[1,1,1,7] x) => (float[1,1,1,W] y) {constant} {{ {body} }}"
    return parse(text, opset=opset, ir=5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("operator", "opset", "scale"),
    [("Upsample", 7, 2.0), ("Upsample", 9, 2.5), *(("Resize", 10, scale) for scale in (2.0, 3.0, 1.4, 0.6, 0.5))],
)
def test_resize_of_old_opsets(operator, opset, scale, mode):
    model = resize(operator, opset, scale, mode)
    moved = at_opset(OnnxGraph(ir.from_proto(model)), 18)
    [before], [after] = run_plain(model, X).values(), run_plain(ir.to_proto(moved.model), X).values()
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_an_old_resize_that_rounds_in_two_directions_is_refused():
    text = (
        "g (float[1,1,4,7] x) => (float[1,1,H,W] y) <float[4] s = {1, 1, 1.5, 0.6}> "
        '{ y = Resize <mode = "nearest"> (x, s) }'
    )
    model = parse(text, opset=10, ir=5)
    with pytest.raises(AmpError, match="AMP307.*Resize, which writes 'y'"):
        at_opset(OnnxGraph(ir.from_proto(model)), 18)


def test_inputs_and_outputs_are_declared_as_before():
    text = "g (float[A,8] x) => (float[A,B] y) <float[8,4] w = {" + ", ".join(["1"] * 32) + "}> { y = MatMul (x, w) }"
    model = parse(text, opset=9, ir=4)
    moved = ir.to_proto(at_opset(OnnxGraph(ir.from_proto(model)), 22).model)
    assert [*moved.graph.input, *moved.graph.output] == [*model.graph.input, *model.graph.output]


def test_a_model_has_the_ir_of_its_opset():
    """In IR 3 every stored tensor is an input, which those of bodies cannot be."""
    model = parse("g (float[4] x) => (float[4] y) { y = Relu (x) }", opset=7, ir=3)
    moved = at_opset(OnnxGraph(ir.from_proto(model)), 22)
    assert moved.model.ir_version == 10
