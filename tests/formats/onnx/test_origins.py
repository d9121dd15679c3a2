"""What exporters say of a node: its layer, and the framework's operator that it was exported from."""

from __future__ import annotations

import onnx_ir as ir

from ampgraph.core.dataflow import Origin
from ampgraph.formats.onnx.origins import CLASSES, NODE, SCOPES, layer_of_node, origin_of_node

CALL = "%{0} : [num_users=1] = call_function[target=torch.ops.aten.{0}.default](args = (%x, %p_fc_weight, %b_fc_scale))"


def node(name: str = "", **metadata: str) -> ir.Node:
    return ir.Node("", "Gemm", [], num_outputs=1, name=name, metadata_props=metadata)


def test_the_exporter_names_operator_modules_and_parameters() -> None:
    said = {
        NODE: CALL.format("linear"),
        CLASSES: "['Net', 'torch.nn.modules.linear.Linear', 'aten.linear.default']",
        SCOPES: "['', 'fc', 'linear']",
    }
    found = ir.Node("", "Gemm", [], num_outputs=1, metadata_props=said)
    names = ("torch::Net", "torch::torch.nn.modules.linear.Linear", "aten::linear")
    assert origin_of_node(found) == Origin("%linear", names, ("", "fc", "linear"), frozenset({"fc_weight", "fc_scale"}))
    assert layer_of_node(found) == "fc"
    uneven = ir.Node("", "Gemm", [], num_outputs=1, metadata_props=said | {SCOPES: "['linear']"})
    origin = origin_of_node(uneven)  # scopes and classes do not fit: neither is believed
    assert origin is not None and (origin.names, origin.scopes) == (("aten::linear",), ("%linear",))
    assert layer_of_node(uneven) == "linear"


def test_without_an_exporter_the_name_has_the_layer() -> None:
    assert layer_of_node(node("/block/fc/Gemm")) == "block.fc" and layer_of_node(node("Gemm_3")) == ""
    assert origin_of_node(node("/block/fc/Gemm")) is None
    assert origin_of_node(node(**{NODE: "%x : [num_users=1] = placeholder[target=x]"})) is None
