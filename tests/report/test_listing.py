"""The lists as a table: MindSpore's names under policy ampgraph, and MindSpore's own rules."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from ampgraph.core.spellings import LEVELS
from ampgraph.oplists.files import data_folder
from ampgraph.oplists.levels import load_level
from ampgraph.oplists.mindspore_lists import load_mindspore_rules
from ampgraph.oplists.operators import load_op_lists
from ampgraph.oplists.rows import list_rows
from ampgraph.planner.policies.mindspore import mindspore_rows
from ampgraph.report.listing import lists_report
from onnx_text import parse
from present import present


def rows(level, wanted=""):
    return [(row.title, row.cls, row.at_level) for row in mindspore_rows(load_op_lists(), load_level(level), wanted)]


def test_rows_as_plain_data():
    found = ampgraph.lists("*Softmax", level="O1")
    assert found.to_dict() == {"level": "O1", "operators": [row.to_dict() for row in found]} and len(found) > 1
    json.dumps(found.to_dict())


def test_what_a_row_says_of_types_inside():
    (norm,) = list_rows(load_op_lists(), load_level("O2"), "LayerNormalization")
    assert (norm.cls, norm.at_level, set(norm.float32_slots), norm.tied) == ("fp32", "float32", {"U"}, (("T", "V"),))
    assert set(norm.inside) == {"cuda", "tensorrt", "cpu-arm64", "webgpu"} and "float32" in norm.inside["cuda"]
    # nothing where a level asks no kernel, nor of what no list has
    assert list_rows(load_op_lists(), load_level("O1"), "LayerNormalization")[0].inside == {}
    (unlisted,) = list_rows(load_op_lists(), load_level("O2"), "BitwiseAnd")
    assert (unlisted.cls, unlisted.reason, unlisted.inside) == ("", "in no list", {})


def test_names_as_rows(amp):
    code, out, _ = amp("lists", "Conv2D")
    assert code == 0 and "Conv2D of MindSpore, which the lists call Conv" in out and "ampgraph.toml:" in out
    row = json.loads(amp("lists", "conv2dtranspose", "--json")[1])[0]
    assert (row["asked"], row["operator"], row["class"]) == ("Conv2DTranspose", "ConvTranspose", "allow")
    row = list_rows(load_op_lists(), load_level("O2"), "mindspore::MatMulExt")[0]
    assert (row.asked, row.operator) == ("MatMulExt", "MatMul")
    # a standard name is shown as before
    row = json.loads(amp("lists", "Softmax", "--json")[1])[0]
    assert list(row) == ["operator", "class", "at_level", "reason", "source", "float32_slots", "tied", "inside"]
    assert "MindSpore" not in amp("lists", "relu")[1]
    with pytest.raises(AmpError, match="did you mean 'Softmax'"):
        list_rows(load_op_lists(), load_level("O2"), "Sofmax")
    with pytest.raises(AmpError, match="AMP309"):
        list_rows(load_op_lists(), load_level("O2"), "TupleGetItem")  # structural: there is nothing to decide
    # the command shows the policy s rules
    code, out, _ = amp("lists", "--policy", "mindspore", "--level", "O1")
    assert code == 0 and "cell Dense" in out and "at O1" in out and "mindspore.toml:" in out
    row = json.loads(amp("lists", "LayerNorm", "--policy", "mindspore", "--json")[1])[0]
    assert (row["sort"], row["class"], row["at_level"]) == ("cell", "black", "float32")
    code, out, err = amp("lists", "Conv", "--policy", "mindspore")
    assert (code, out) == (2, "") and "hint: MindSpore's names for it: " in err
    assert amp("lists", "--policy", "mindspore", "--level", "O3")[1].startswith("operator    everything\n")


def test_every_rule_of_a_level_is_a_row_with_its_line():
    rules = load_mindspore_rules()
    lines = (data_folder() / "mindspore.toml").read_text(encoding="utf-8").splitlines()
    for level in LEVELS:
        found = mindspore_rows(load_op_lists(), load_level(level))
        assert found[-1].operator.startswith("everything") and found[-1].cls == ""
        for row in found[:-1]:
            name, line = row.source.split(":")
            assert name == "mindspore.toml" and row.operator in lines[int(line) - 1]
            assert row.cls in ("white", "black", "promote")
    o1 = {(row.sort, row.cls, row.operator) for row in mindspore_rows(load_op_lists(), load_level("O1"))}
    assert {("cell", "white", name) for name in rules.white_cells} <= o1
    assert {("operator", "white", name) for name in rules.white_operators} <= o1
    assert {name for name, _, _ in rows("O2")[:-1]} == {f"cell {name}" for name in rules.black_cells}
    auto = {
        (row.cls, row.operator) for row in mindspore_rows(load_op_lists(), load_level("auto")) if row.sort == "operator"
    }
    for cls, names in (("white", rules.auto_white), ("black", rules.auto_black), ("promote", rules.auto_promote)):
        assert {name for found, name in auto if found == cls} == names


def test_policies_by_name():
    assert rows("auto", "MatMul") == [("MatMul", "white", "low")]
    assert rows("auto", "biasadd") == [("BiasAdd", "promote", "widest")]
    assert rows("auto", "GeLU") == [("GeLU", "", "follows")]
    assert rows("O1", "Dense") == [("cell Dense", "white", "low"), ("Dense", "", "float32")]
    assert rows("O2", "BatchNorm2d") == [("cell BatchNorm2d", "black", "float32")]
    assert rows("O3", "BatchNorm2d") == [("cell BatchNorm2d", "", "low")]
    assert ("Softmax", "black", "float32") in rows("auto", "Soft*")
    # an operator without a rule comes with the cells that make it
    found = rows("O1", "Sigmoid")
    assert found == [("cell GRUCell", "white", "low"), ("cell LSTMCell", "white", "low"), ("Sigmoid", "", "float32")]
    assert ("cell BatchNorm1d", "black", "float32") in rows("O2", "BatchNorm")
    # unknown names are told with mindspore s own
    for wanted, hint in (
        ("Conv", "Conv2D"),
        ("Softmx", "did you mean 'Softmax'"),
        ("zzzzzz", "such as Conv2D or Dense"),
    ):
        with pytest.raises(AmpError, match="AMP309") as told:
            mindspore_rows(load_op_lists(), load_level("O1"), wanted)
        assert hint in told.value.hint
    # both policies through one door
    assert lists_report(Recipe(), "Gelu")[0].source.startswith("ampgraph.toml:")
    assert lists_report(Recipe(policy="mindspore"))[0].sort == "cell"
    with pytest.raises(AmpError, match="AMP303"):
        lists_report(Recipe(policy="apxe"))


# What verify says of quantized parts: as they were, or changed.

QDQ = """g (float[2, 8] x) => (float[2, 8] y) <float s = {0.05}, uint8 z = {128}, float t = {0.02}, int8 o = {0}> {
    qx = QuantizeLinear (x, s, z)
    dx = DequantizeLinear (qx, s, z)
    dw = DequantizeLinear (w, t, o)
    [product] p = MatMul (dx, dw)
    qp = QuantizeLinear (p, s, z)
    dp = DequantizeLinear (qp, s, z)
    [outside] h = MatMul (dp, v)
    y = Tanh (h)
}"""


def model() -> ModelProto:
    rng = np.random.default_rng(0)
    weight = rng.integers(-60, 60, (8, 8)).astype(np.int8)
    return parse(QDQ, {"w": weight, "v": rng.standard_normal((8, 8)).astype(np.float32)})


def data() -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}]


def test_quantized_parts() -> None:
    found = ampgraph.verify(model(), ampgraph.convert(model()), data=data())
    assert found.ok and present(found.quantized).unchanged == (("MatMul", 1),) and not present(found.quantized).changed
    assert "quantized   left as they are: 1 MatMul" in found.lines()
    # parts that have changed are named
    other = model()
    place = next(i for i, node in enumerate(other.graph.node) if node.name == "product")
    other.graph.node[place].input[0] = "wide"
    casts = [helper.make_node("Cast", ["dx"], ["low"], to=TensorProto.FLOAT16)]
    casts.append(helper.make_node("Cast", ["low"], ["wide"], to=TensorProto.FLOAT))
    for cast in reversed(casts):
        other.graph.node.insert(place, cast)
    found = ampgraph.verify(model(), other, data=data(), tolerance=0.1)
    assert present(found.quantized).changed == ("MatMul product",)
    assert "quantized   changed: MatMul product; left as they are: none" in found.lines()
    data_of = present(found.quantized).to_dict()
    assert (data_of["unchanged"], data_of["changed"]) == ({}, ["MatMul product"])
    # nothing is said where nothing is quantized
    plain = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    found = ampgraph.verify(plain, plain)
    assert not any(line.startswith("quantized") for line in found.lines()) and found.to_dict()["quantized"] is None


@pytest.mark.parametrize("name", ["MatMulNBits", "matmulnbits", "GatherBlockQuantized"])
def test_an_operator_is_found_without_its_domain(name):
    (found,) = ampgraph.lists(name)
    assert found.operator.lower() == f"com.microsoft::{name}".lower()
