"""CANN's mixed precision list: what goes where, and how the file is written."""

import json
import os

import pytest

from ampgraph.api import mixlist as module
from ampgraph.api.mixlist import ascend_names, build_mixlist
from ampgraph.core.errors import AmpError
from ampgraph.core.spellings import LEVELS
from ampgraph.oplists.files import data_folder
from ampgraph.oplists.levels import load_level
from ampgraph.oplists.mindspore_schemas import operators
from ampgraph.oplists.operators import load_op_lists
from cli_helpers import contents, process, refused

EXPORTS = [("ampgraph", level) for level in LEVELS] + [("mindspore", level) for level in ("O0", "O1", "auto")]


def test_the_names_are_sorted_and_many():
    text = (data_folder() / "schemas" / "ascend_names.toml").read_text(encoding="utf-8")
    keys = [line.split(" = ")[0] for line in text.splitlines() if " = [" in line]
    assert keys == sorted(ascend_names()) and len(keys) >= 150
    assert ascend_names()["MatMul"] == ("MatMul", "MatMulV2")
    assert ascend_names()["Softmax"] == ("SoftmaxV2",)
    assert not any(operators()[name].structural for name in keys)


@pytest.mark.parametrize(("policy", "level"), EXPORTS)
def test_no_operator_type_is_in_both_lists(policy, level):
    mixlist = build_mixlist(policy, level)
    known = {one for types in ascend_names().values() for one in types}
    assert not set(mixlist.white) & set(mixlist.black)
    assert set(mixlist.white) | set(mixlist.black) <= known
    assert all(list(group) == sorted(set(group)) for group in (mixlist.white, mixlist.black, mixlist.unnamed))
    assert not set(mixlist.unnamed) & set(ascend_names())


@pytest.mark.parametrize("level", LEVELS)
def test_each_operator_goes_where_its_level_puts_its_class(level):
    """Recomputed here: the most careful of the operators that share a type wins."""
    lists, chosen = load_op_lists(), load_level(level)
    wanted: dict[str, set[str]] = {}
    for name, types in ascend_names().items():
        listing = lists.entry(operators()[name].kind)
        for one in types:
            at = chosen.of_class(listing.cls) if listing else "float32"
            wanted.setdefault(one, set()).add("float32" if at == "cut" and listing and listing.cls == "deny" else at)
    mixlist = build_mixlist("ampgraph", level)
    assert set(mixlist.black) == {one for one, rules in wanted.items() if "float32" in rules}
    assert set(mixlist.white) == {one for one, rules in wanted.items() if rules == {"low"}}


def test_what_a_list_says():
    o0, o1, o2, o3, auto = (build_mixlist("ampgraph", level) for level in LEVELS)
    assert not o0.white and {"Add", "Relu", "LayerNorm"} <= set(o0.black)
    assert {"MatMulV2", "Conv2D", "BatchMatMul"} <= set(o1.white) & set(o2.white) & set(o3.white) & set(auto.white)
    assert {"Add", "Gelu", "SoftmaxV2", "LayerNorm"} <= set(o1.black)
    assert {"Add", "Gelu", "SoftmaxV2"} <= set(o2.white) and {"LayerNorm", "BatchNorm", "BNInfer"} <= set(o2.black)
    assert "LayerNorm" in o3.white and "LayerNorm" in auto.black and "SoftmaxV2" in auto.black
    for follows in ("Relu", "Transpose"):
        assert all(follows not in {*found.white, *found.black} for found in (o1, o2, auto)) and follows in o3.white
    assert "Add" not in {*auto.white, *auto.black}
    # policy mindspore says what operators can say
    auto, o1 = build_mixlist("mindspore", "auto"), build_mixlist("mindspore", "O1")
    assert {"MatMulV2", "Conv2D", "PRelu"} <= set(auto.white) and {"SoftmaxV2", "LayerNorm", "Pow"} <= set(auto.black)
    assert not {"Add", "BiasAdd", "AddN", "ConcatD"} & {*auto.white, *auto.black}  # promoted, or in no list
    assert {"MatMul", "Relu", "Ger"} <= set(o1.white) and {"Add", "SoftmaxV2", "Gelu"} <= set(o1.black)
    assert not {"BiasAdd", "Tanh", "Transpose"} & {*o1.white, *o1.black}  # made by white cells too; moves
    assert "Einsum" in auto.unnamed
    # a framework says its lists and leaves the rest
    mixlist = build_mixlist("pytorch")
    assert mixlist.level == "auto" and {"MatMulV2", "Conv2D"} <= set(mixlist.white)
    assert {"SoftmaxV2", "Exp"} <= set(mixlist.black) and not {"Relu", "Add"} & {*mixlist.white, *mixlist.black}


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_cells_cannot_be_said(level):
    with pytest.raises(AmpError) as told:
        build_mixlist("mindspore", level)
    assert told.value.code == "AMP303" and "cells" in told.value.message and f"--level {level}" in told.value.hint


def test_float32_wins_where_two_operators_share_a_type(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('[fp32]\nConvTranspose = "mine"\n')
    assert ascend_names()["Conv2DTranspose"] == ascend_names()["Conv2DBackpropInput"]
    mixlist = build_mixlist("ampgraph", "O2", [mine])
    assert "Conv2DBackpropInput" in mixlist.black and "Conv2D" in mixlist.white
    mine.write_text(
        '[allow]\nLayerNormalization = "mine"\n\n[deny]\n"mindspore::Square" = "mine"\n[levels.O2]\ninfer = "cut"\n'
    )
    mixlist = build_mixlist("ampgraph", "O2", [mine])
    assert "LayerNorm" in mixlist.white and "Add" not in {*mixlist.white, *mixlist.black}
    with pytest.raises(AmpError, match="AMP305"):
        build_mixlist("mindspore", "auto", [mine])


@pytest.mark.slow
def test_the_file_and_the_report(tmp_path, amp):
    out = tmp_path / "mixlist.json"
    for _ in range(2):
        done = process("export-mixlist", "--level", "auto", "-o", out)
        assert done.returncode == 0 and "white list" in done.stdout and not done.stderr
        mixlist = build_mixlist("ampgraph", "auto")
        assert out.read_text() == mixlist.to_json()
    data = json.loads(out.read_text())
    assert data == {"black-list": {"to-add": list(mixlist.black)}, "white-list": {"to-add": list(mixlist.white)}}
    assert list(contents(tmp_path)) == ["mixlist.json"]
    # the report as data
    code, out, _ = amp("export-mixlist", "--policy", "mindspore", "--level", "O1", "-o", tmp_path / "a.json", "--json")
    data = json.loads(out)
    assert code == 0 and data["policy"] == "mindspore" and "MatMul" in data["white"] and data["unnamed"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--level", "O9", "-o", "a.json"], "AMP302", "O9"),
        (["--policy", "mindspor", "-o", "a.json"], "AMP303", "did you mean 'mindspore'"),
        (["--policy", "mindspore", "--level", "O2", "-o", "a.json"], "AMP303", "cells"),
        (["--policy", "mindspore", "--level", "auto", "--lists", "mine.toml", "-o", "a.json"], "AMP305", "--lists"),
        (["--lists", "none.toml", "-o", "a.json"], "AMP301", "none.toml"),
        (["--lists", "mine.toml", "-o", "mine.toml"], "AMP106", "over the input"),
        (["-o", "folder"], "AMP105", "is a directory"),
        (["-o", "none/a.json"], "AMP105", "does not exist"),
        (["-o", os.devnull], "AMP105", "is not a file"),
        (["-o", "a" * 250], "AMP105", "too long"),
    ],
)
def test_mistakes_leave_nothing_behind(amp, tmp_path, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine.toml").write_text('[infer]\nSoftmax = "mine"\n')
    before = contents(tmp_path)
    refused(amp("export-mixlist", *words), code, said)
    assert contents(tmp_path) == before and os.path.exists(os.devnull)


@pytest.mark.parametrize(
    ("text", "said"), [('Nothing = ["Add"]', "no operator 'Nothing'"), ('Add = ["B", "A"]', "of 'Add'")]
)
def test_a_mistake_in_the_names_is_ours_and_said(tmp_path, monkeypatch, text, said):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / module.NAMES_FILE).write_text(text)
    monkeypatch.setattr(module, "data_folder", lambda: tmp_path)
    with pytest.raises(AmpError, match=f"AMP901.*{said}"):
        module.ascend_names.__wrapped__()
