"""Operators without a schema, as plugins of TensorRT: a list says which of their inputs and outputs go low."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse

PLUG = "my.plugins::Plug"
LISTED = f'[allow]\n"{PLUG}" = "its kernel is for half"\n'
MIXED = LISTED + f'[float32]\n"{PLUG}" = {{ in1 = "coordinates", out1 = "scores" }}\n'


def net(opset: int = 20, told: bool = True) -> onnx.ModelProto:
    """A plugin of data, coordinates and indices between products; its results: data, scores and a count."""
    weight = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "before"),
        helper.make_node("Plug", ["a", "s", "", "i"], ["b", "scores", "n"], "plug", domain="my.plugins"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "after"),
        helper.make_node("Relu", ["scores"], ["z"], "relu"),
    ]
    f, i = TensorProto.FLOAT, TensorProto.INT32
    ins = [("x", f, [4, 64]), ("s", f, [4, 64]), ("i", i, [4])]
    outs = [("y", f, [4, 64]), ("z", f, [4]), ("n", i, [4])]
    info = [("b", f, [4, 64]), ("scores", f, [4])] if told else [("scores", f, [4])]
    inputs, outputs, infos = ([helper.make_tensor_value_info(*one) for one in some] for some in (ins, outs, info))
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight], value_info=infos)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my.plugins", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def types(model: onnx.ModelProto) -> str:
    """What each input and output of the plugin is: f, h (low) or i, and - for none."""
    made = {node.output[0]: node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"}
    known = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.value_info)} | made
    known |= {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    low = {"a"} - made.keys()
    words = {0: "?", 1: "f", 10: "h", 16: "h", 6: "i"}
    (plug,) = (node for node in model.graph.node if node.op_type == "Plug")
    told = ["-" if not name else "h" if name in low else words[known.get(name, 0)] for name in plug.input]
    return "".join(told) + " " + "".join(words[known.get(name, 0)] for name in plug.output)


def converted(tmp_path: Path, text: str, model: onnx.ModelProto | None = None, **options: Any) -> onnx.ModelProto:
    listed = tmp_path / "mine.toml"
    listed.write_text(text)
    options = {"target": "tensorrt", "check": "off", "lists": [listed], **options}
    made = ampgraph.convert(model or net(), **options)
    assert "low" in options or made == ampgraph.convert(made, **options)
    return made


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_each_input_and_output_has_the_type_that_a_list_says(level: str, dtype: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"level": level, "dtype": dtype}
    assert types(converted(tmp_path, "", **options)) == "ff-i ffi"
    assert types(converted(tmp_path, LISTED, **options)) == "hh-i hhi"
    assert types(converted(tmp_path, MIXED, **options)) == "hf-i hfi"


def test_the_whole_operator_by_its_kind(tmp_path: Path) -> None:
    for pattern in (f"op:{PLUG}", "plug"):
        assert types(converted(tmp_path, "", low=[pattern])) == "hh-i hhi"
    with pytest.raises(AmpError, match="did you mean 'my.plugins::Plug'"):
        converted(tmp_path, "", low=["op:Plug"])
    # a pattern that only happens to match does not say what a plugin takes
    assert types(converted(tmp_path, "", low=["*"])) == "ff-i ffi"
    assert types(converted(tmp_path, LISTED, fp32=["plug"])) == "ff-i ffi"
    assert converted(tmp_path, LISTED, level="O0") == net()


def test_what_the_file_does_not_say(tmp_path: Path) -> None:
    """The type of a result that no annotation tells is that of its reader."""
    made = converted(tmp_path, MIXED, net(told=False))
    assert [node.op_type for node in made.graph.node].count("Cast") == 2  # of x and y, and none beside the plugin
    # before opset 13 nothing is cast to bfloat16
    old = converted(tmp_path, LISTED, net(11), dtype="bfloat16", opset=11)
    assert "Cast" not in {node.op_type for node in old.graph.node}


def test_other_classes_and_reports(tmp_path: Path) -> None:
    cut = LISTED.replace("[allow]", "[infer]")
    assert types(converted(tmp_path, cut, level="O1")) == "ff-i ffi"
    assert types(converted(tmp_path, cut, level="O2")) == "hh-i hhi"
    listed = tmp_path / "mine.toml"
    listed.write_text(MIXED)
    found = {s.slot: s.reason for s in ampgraph.explain(net(), "plug", lists=[listed], target="tensorrt").slots}
    assert "mine.toml:2" in found["in0, out0"] and "coordinates" in found["in1"] and "scores" in found["out1"]
    listed.write_text(f'[float32]\n"{PLUG}" = {{ T = "no slot of such an operator" }}\n')
    with pytest.raises(AmpError, match="has no type variable"):
        ampgraph.convert(net(), lists=[listed], check="off")


@pytest.mark.parametrize(("named", "rules"), [("one", ["user", "unknown"]), ("two", ["unknown", "user"])])
def test_of_two_the_one_that_is_named_goes_low(named: str, rules: list[str]) -> None:
    """Two operators of one kind without a schema, whichever stands first in the file."""
    text = "m = MatMul (x, w)  p = my.Own (m)  n = MatMul (p, w)  q = my.Own (n)  y = MatMul (q, w)"
    given = parse(f"g (float[4,8] x) => (float[4,8] y) {{ {text} }}", w=(8, 8), domains=["my"])
    for node, name in zip((node for node in given.graph.node if node.op_type == "Own"), ("one", "two"), strict=True):
        node.name = name
    found = [d for d in ampgraph.plan(given, "O2", low=named).decisions if d.kind == "my::Own" and d.slot == "out0"]
    assert [decision.why.rule for decision in found] == rules
    assert [decision.dtype for decision in found] == ["float16" if rule == "user" else "float32" for rule in rules]
