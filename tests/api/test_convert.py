"""What the Python API promises beyond what the files beside this one test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph import AmpError, Plan
from ampgraph.numerics.strict.session import run_strict
from onnx_text import parse, proto

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


def products(plan: Plan) -> dict[str, str]:
    return {f"{d.scope}/{d.index}": d.dtype for d in plan.decisions if d.kind == "MatMul"}


def test_naming_a_call_names_what_it_runs() -> None:
    assert set(products(ampgraph.plan(parse(FUNCTION))).values()) == {"float16"}
    named = products(ampgraph.plan(parse(FUNCTION), fp32=["first"]))
    assert sorted(named.values()) == ["float16", "float32"]


def test_casts_of_the_file_fold_into_the_weight_they_read() -> None:
    weights = np.ones((8, 8), np.float32)
    low = ampgraph.convert(parse(GIVEN, w=weights))
    assert [(i.name, i.data_type) for i in low.graph.initializer] == [("w", onnx.TensorProto.FLOAT16)]
    assert [n.op_type for n in low.graph.node] == ["Cast", "MatMul", "MatMul", "Cast"]


def test_a_conversion_to_double_is_no_reason_to_round_at_o3() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[8] x, float[8] v) => (double[8] y, float[8] z) { y = Cast <to = 11> (x) z = Relu (v) }"""
    low = ampgraph.convert(parse(text), level="O3")
    assert [(n.op_type, list(n.input)) for n in low.graph.node if "y" in n.output] == [("Cast", ["x"])]


def test_another_opset_is_refused_where_it_would_lose_functions() -> None:
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(parse(FUNCTION), opset=21)
    assert raised.value.code == "AMP307"


def test_another_opset_keeps_the_layers() -> None:
    path = Path(ampgraph.__file__).parent / "models" / "digits_transformer.onnx"
    moved = proto(ampgraph.convert(path, level="O0", opset=21))
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
    onnx.save(parse(FUNCTION), path)
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
    assert ampgraph.inspect(tmp_path / "one.onnx").nodes["float16"] > 50


CAST_LIKE = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[N, 4] x, float like, int64 whole) => (float[M, 4] y)
<float two = {2}, int64[1] zero = {0}, int64[1] one = {1}> {
    n = Shape <start = 0, end = 1> (x)
    f = CastLike (n, like)
    h = Div (f, two)
    d = Floor (h)
    end = CastLike (d, whole)
    s = Slice (x, zero, end, zero, one)
    y = Exp (s)
}
"""


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_index_arithmetic_by_castlike_stays_exact(level: str) -> None:
    low = ampgraph.convert(parse(CAST_LIKE), level=level)
    feeds = {"x": np.zeros((8191, 4), np.float32), "like": np.float32(0), "whole": np.int64(0)}
    assert run_strict(low, {k: np.asarray(v) for k, v in feeds.items()})["y"].shape == (4095, 4)


def test_an_old_opset_gets_a_cast_of_its_own_form() -> None:
    text = """<ir_version: 3, opset_import: ["" : 5]>
    g (float[4, 8] x, float[8, 8] v) => (float[4, 8] y) { y = MatMul (x, v) }"""
    low = ampgraph.convert(parse(text))
    onnx.checker.check_model(low, full_check=True)
    assert sum(n.op_type == "Cast" for n in low.graph.node) == 3
    again = ampgraph.convert(low)
    assert again.SerializeToString(deterministic=True) == low.SerializeToString(deterministic=True)


def test_an_input_with_a_default_keeps_its_type() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { y = MatMul (x, w) }"""
    low = ampgraph.convert(parse(text, w=np.ones((8, 8), np.float32)), io="low")
    onnx.checker.check_model(low, full_check=True)
    assert [i.type.tensor_type.elem_type for i in low.graph.input] == [10, 1]


def test_a_plan_for_other_weights_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 64] x) => (float[4, 64] y) { y = MatMul (x, w) }"""
    plan = ampgraph.plan(parse(text, w=np.ones((64, 64), np.float32)))
    with pytest.raises(AmpError) as raised:
        ampgraph.apply(parse(text, w=np.full((64, 64), 1e6, np.float32)), plan)
    assert raised.value.code == "AMP403"


def test_a_name_with_brackets_means_itself() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 8] x, float[8, 8] v) => (float[4, 8] y) { y = MatMul (x, v) }"""
    model = parse(text)
    model.graph.node[0].name = "/layers[0]/MatMul"
    plan = ampgraph.plan(model, fp32=["/layers[0]/MatMul"])
    assert products(plan) == {"/0": "float32"}


def test_a_copy_of_an_older_result_keeps_its_data(tmp_path: Path) -> None:
    """The new result takes the old one's name, and its source still reads the old one's data file."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 64] x) => (float[4, 64] y) { h = MatMul (x, w) y = Softmax (h) }"""
    source, out, keep = (tmp_path / f"{n}.onnx" for n in ("m", "out", "keep"))
    weights = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    onnx.save(parse(text, w=weights), source, save_as_external_data=True, location="m.data", size_threshold=0)
    ampgraph.convert(source, level="O1", fp32=["op:MatMul"], output=out)
    ampgraph.convert(source, level="O1", output=out)
    keep.write_bytes(out.read_bytes())
    ampgraph.convert(keep, level="O3", output=out)
    assert onnx.load(keep).graph.initializer[0].raw_data == weights.astype(np.float16).tobytes()


@pytest.mark.parametrize(("output", "code"), [("x" * 250 + ".onnx", "AMP105"), ("missing/x.onnx", "AMP105")])
def test_a_name_that_cannot_be_written(tmp_path: Path, output: str, code: str) -> None:
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(parse(FUNCTION), output=tmp_path / output)
    assert raised.value.code == code and list(tmp_path.iterdir()) == []
