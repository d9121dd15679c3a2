"""What the Python API promises beyond what the files beside this one test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph import AmpError, Plan

FUNCTION = """
<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) {
    [first] h = my.F (x, w)
    [second] k = my.F (h, w)
    y = Relu (k)
}
<domain: "my", opset_import: ["" : 20]>
F (a, b) => (c) { d = MatMul (a, b) c = Relu (d) }
"""
GIVEN = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w> {
    c = Cast <to = 10> (w)
    z = Cast <to = 10> (x)
    m = MatMul (z, c)
    n = Cast <to = 1> (m)
    y = MatMul (n, w)
}
"""


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def products(plan: Plan) -> dict[str, str]:
    return {f"{d.scope}/{d.index}": d.dtype for d in plan.decisions if d.kind == "MatMul"}


def test_naming_a_call_names_what_it_runs() -> None:
    assert set(products(ampgraph.plan(parsed(FUNCTION))).values()) == {"float16"}
    named = products(ampgraph.plan(parsed(FUNCTION), fp32=["first"]))
    assert sorted(named.values()) == ["float16", "float32"]


def test_casts_of_the_file_fold_into_the_weight_they_read() -> None:
    weights = np.ones((8, 8), np.float32)
    low = ampgraph.convert(parsed(GIVEN, w=weights))
    assert [(i.name, i.data_type) for i in low.graph.initializer] == [("w", onnx.TensorProto.FLOAT16)]
    assert [n.op_type for n in low.graph.node] == ["Cast", "MatMul", "MatMul", "Cast"]


def test_a_conversion_to_double_is_no_reason_to_round_at_o3() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[8] x, float[8] v) => (double[8] y, float[8] z) { y = Cast <to = 11> (x) z = Relu (v) }"""
    low = ampgraph.convert(parsed(text), level="O3")
    assert [(n.op_type, list(n.input)) for n in low.graph.node if "y" in n.output] == [("Cast", ["x"])]


def test_another_opset_is_refused_where_it_would_lose_functions() -> None:
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(parsed(FUNCTION), opset=21)
    assert raised.value.code == "AMP307"


def test_another_opset_keeps_the_layers() -> None:
    path = Path(ampgraph.__file__).parent / "models" / "digits_transformer.onnx"
    moved = ampgraph.convert(path, level="O0", opset=21)
    assert moved.opset_import[0].version == 21
    assert any(p.key == "pkg.torch.onnx.name_scopes" for n in moved.graph.node for p in n.metadata_props)


def test_a_plan_that_contradicts_itself_is_the_users() -> None:
    path = Path(ampgraph.__file__).parent / "models" / "digits_cnn.onnx"
    plan = ampgraph.plan(path)
    plan.casts.clear()
    with pytest.raises(AmpError) as raised:
        ampgraph.apply(path, plan)
    assert raised.value.code == "AMP402"


def test_the_result_is_never_written_over_the_input(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parsed(FUNCTION), path)
    before = path.read_bytes()
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(path, output=path)
    assert raised.value.code == "AMP106" and path.read_bytes() == before


def test_the_readme_example(tmp_path: Path) -> None:
    source = Path(ampgraph.__file__).parent / "models" / "digits_transformer.onnx"
    plan = ampgraph.plan(source, level="O2")
    ampgraph.convert(source, level="O2", output=tmp_path / "one.onnx")
    ampgraph.apply(source, Plan.from_json(plan.to_json()), output=tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert ampgraph.inspect(tmp_path / "one.onnx").to_dict()["nodes"]["float16"] > 50
