"""Opsets 27 and 28, IR version 14, types of two and six bits: what is new is decided, what is not float32 is kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ampgraph

FEW_BITS = {
    "INT2": b"\x1b\x02",
    "UINT2": b"\x1b\x02",
    "FLOAT6E2M3": b"\x01\x22\x1f\x05",
    "FLOAT6E3M2": b"\x01\x22\x1f\x05",
}
COUNT = {"INT2": 5, "UINT2": 5, "FLOAT6E2M3": 5, "FLOAT6E3M2": 5}


def model(nodes: str, inputs: str, outputs: str, opset: int = 28) -> onnx.ModelProto:
    text = f'<ir_version: 14, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    return onnx.parser.parse_model(text)


def kinds(made: onnx.ModelProto) -> dict[str, int]:
    """The element type of what each node makes, by its kind."""
    found = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*found.value_info, *found.output)}
    return {node.op_type: types[node.output[0]] for node in found.node if node.op_type != "Cast"}


@pytest.mark.parametrize("level", ["O1", "O2", "auto", "O3"])
@pytest.mark.parametrize("name", FEW_BITS)
def test_tensors_of_few_bits_and_the_ir_version_are_kept(level: str, name: str) -> None:
    given = model("h = MatMul (x, w) y = Relu (h)", "float[8,64] x, float[64,64] w", "float[8,64] y")
    kind = TensorProto.DataType.Value(name)
    given.graph.initializer.append(helper.make_tensor("few", kind, [COUNT[name]], FEW_BITS[name], raw=True))
    given.graph.node.append(helper.make_node("Identity", ["few"], ["same"]))
    given.graph.output.append(helper.make_tensor_value_info("same", kind, [COUNT[name]]))
    made = ampgraph.convert(given, level, target="cpu", check="off")
    assert isinstance(made, onnx.ModelProto) and made.ir_version == 14 and made.opset_import[0].version == 28
    (kept,) = [tensor for tensor in made.graph.initializer if tensor.name == "few"]
    assert (kept.data_type, list(kept.dims), kept.raw_data) == (kind, [COUNT[name]], FEW_BITS[name])
    assert made.graph.output[1] == given.graph.output[1]
    assert any(node.op_type == "Cast" for node in made.graph.node), "the product is low"


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "kind"),
    [
        ("h = MatMul (x, w) y = SwiGLU (h, h)", "float[8,64] x, float[64,64] w", "float[8,64] y", "SwiGLU"),
        (
            "q = MatMul (x, w) y, s = LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = \"linear\"> "
            "(q, q, q)",
            "float[1,8,64] x, float[64,64] w", "float[1,8,64] y, float[1,2,32,32] s", "LinearAttention",
        ),
        ("h = Relu (x) y, s = CausalConvWithState (h, w)", "float[1,8,64] x, float[8,1,4] w",
         "float[1,8,64] y, float[1,8,3] s", "CausalConvWithState"),
    ],
)  # fmt: skip
def test_new_operators_are_low_at_o3_and_as_they_are_listed(nodes: str, inputs: str, outputs: str, kind: str) -> None:
    given = model(nodes, inputs, outputs)
    made = ampgraph.convert(given, "O3", target="tensorrt", check="off")
    assert isinstance(made, onnx.ModelProto)
    onnx.checker.check_model(made, full_check=True)
    assert kinds(made)[kind] == TensorProto.FLOAT16
    assert list(made.graph.output) == list(given.graph.output)


def test_bits_stay_those_of_float32() -> None:
    given = model("h = Relu (x) y = BitCast <to = 6> (h)", "float[8] x", "int32[8] y")
    made = ampgraph.convert(given, "O3", check="off")
    onnx.checker.check_model(made, full_check=True)
    x = np.arange(8, dtype=np.float32)
    assert isinstance(made, onnx.ModelProto) and kinds(made)["BitCast"] == TensorProto.INT32
    (found,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_array_equal(found, x.view(np.int32))


def test_products_in_a_row_overflow_as_sums_do_not() -> None:
    given = model("y = CumProd (x, a)", "float[8] x, int64 a", "float[8] y")
    made = ampgraph.convert(given, "O2", check="off")
    assert isinstance(made, onnx.ModelProto) and kinds(made)["CumProd"] == TensorProto.FLOAT
