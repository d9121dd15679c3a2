"""A converted file says what was done to it, and a later conversion heeds what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.annotations import NODES, PRECISION, REASON
from cli_helpers import MODELS
from onnx_text import parse, proto

TEXT = """g (float[4, 8] x) => (float[4, 8] y) {
    [one] h = MatMul (x, w)
    [two] s = Mul (h, h)
    [three] p = MatMul (s, w)
    y = Softmax (p)
}"""


def model(ir: int = 10) -> onnx.ModelProto:
    return parse(TEXT, w=(8, 8), ir=ir, opset=18)


def said(made: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in made.metadata_props}


def of_nodes(made: onnx.ModelProto) -> dict[str, dict[str, str]]:
    return {node.name: {e.key: e.value for e in node.metadata_props} for node in made.graph.node}


def converted(given: onnx.ModelProto, level: str = "O2", **options: Any) -> onnx.ModelProto:
    return proto(ampgraph.convert(given, level, **options))


def test_nodes_that_changed_say_type_and_reason() -> None:
    made = converted(model(), "O1")
    nodes = of_nodes(made)
    assert nodes["one"] == {PRECISION: "float16", REASON: nodes["three"][REASON]}
    assert nodes["one"][REASON].startswith("list: ampgraph.toml:") and "white at O1 is low" in nodes["one"][REASON]
    assert nodes["two"] == {}  # as it was
    casts = [node.name for node in made.graph.node if node.op_type == "Cast"]
    assert casts and all(set(nodes[name]) == {PRECISION, REASON} for name in casts)
    words = {"version": ampgraph.__version__, "level": "O1", "dtype": "float16", "policy": "ampgraph", "target": "cuda"}
    assert said(made) == {f"ampgraph.{key}": word for key, word in words.items()}
    onnx.checker.check_model(made, full_check=True)


def test_before_nodes_had_metadata_the_model_says_it() -> None:
    made = converted(model(ir=9), "O1")
    assert not any(of_nodes(made).values())
    table = json.loads(said(made)[NODES])
    (names,) = (names for reason, names in table["float16"].items() if reason.startswith("list: "))
    assert names == ["one", "three"] and sum(map(len, table["float16"].values())) > 2


def test_what_stands_there_stays() -> None:
    given = model()
    given.graph.node[0].metadata_props.add(key=REASON, value="mine")
    given.graph.node[2].metadata_props.add(key="mine", value="too")
    given.metadata_props.add(key="ampgraph.level", value="mine")
    made = converted(given)
    assert of_nodes(made)["one"] == {REASON: "mine"} and of_nodes(made)["three"]["mine"] == "too"
    assert said(made)["ampgraph.level"] == "mine" and said(made)["ampgraph.version"] == ampgraph.__version__
    again = converted(converted(model(), "O1"), "O3")
    assert said(again)["ampgraph.level"] == "O1" and said(again)["ampgraph.2.level"] == "O3"
    assert of_nodes(again)["two"][PRECISION] == "float16" and "O1" in of_nodes(again)["one"][REASON]


def test_nothing_is_said_where_nothing_is_done_or_wanted(tmp_path: Path, amp: Any) -> None:
    given = model()
    assert converted(given, "O0").SerializeToString() == given.SerializeToString()
    for made in (converted(given, metadata=False), _without(given, tmp_path, amp)):
        assert not said(made) and not any(of_nodes(made).values())
    # the graph itself is the same
    full = converted(given)
    full.ClearField("metadata_props")
    for node in full.graph.node:
        node.ClearField("metadata_props")
    assert full.SerializeToString(deterministic=True) == converted(given, metadata=False).SerializeToString(
        deterministic=True
    )


def _without(given: onnx.ModelProto, folder: Path, amp: Any) -> onnx.ModelProto:
    onnx.save(given, folder / "m.onnx")
    assert amp("convert", folder / "m.onnx", "--no-metadata", "--check", "off")[0] == 0
    return onnx.load(folder / "m.O2.onnx")


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("options", [{"fp32": ["one", "op:Mul"]}, {"fp32": ["value:p"]}, {"data": True}], ids=str)
def test_what_was_pinned_stays_so_when_converted_again(level: str, options: dict[str, Any]) -> None:
    if "data" in options:
        options = {"data": {"x": np.full((4, 8), 1000, np.float32)}}
    made = converted(model(), level, **options)
    pinned = json.loads(said(made)["ampgraph.fp32"])
    assert pinned == options.get("fp32", pinned) and pinned
    again = converted(made, level)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    found = ampgraph.explain(made, "one" if "one" in pinned else "three", level)
    assert "as the file says" in found.slots[0].reason or found.precision != "float32"


def test_the_users_word_of_today_counts_more() -> None:
    made = converted(model(), fp32=["three"])
    assert ampgraph.explain(made, "three").precision == "float32"
    assert ampgraph.explain(made, "three", low=["three"]).precision == "float16"
    again = converted(made, low=["three"])
    assert of_nodes(again)["three"][REASON] == "user: --low three"


@pytest.mark.parametrize("text", ["no list", "3", '{"a": 1}', '["gone", 7, "scope:none"]', "[" * 100_000])
def test_what_makes_no_sense_says_nothing(text: str) -> None:
    given = model()
    given.metadata_props.add(key="ampgraph.fp32", value=text)
    made = converted(given, metadata=False)
    given.ClearField("metadata_props")
    made.ClearField("metadata_props")
    assert made.SerializeToString() == converted(given, metadata=False).SerializeToString()


def test_a_plan_says_what_it_pins(tmp_path: Path) -> None:
    plan = ampgraph.plan(model(), fp32=["three"])
    assert plan.pinned == ["three"] and ampgraph.Plan.from_json(plan.to_json()).pinned == ["three"]
    made = ampgraph.apply(model(), ampgraph.Plan.from_json(plan.to_json()))
    assert made.SerializeToString() == converted(model(), fp32=["three"]).SerializeToString()
    assert '"pinned"' not in ampgraph.plan(model()).to_json()


@pytest.mark.slow
def test_a_repaired_file_and_a_tuned_one_say_it(tmp_path: Path) -> None:
    data = [{"image": np.load(MODELS / "digits_heldout.npz")["image"][:16]}]
    tuned = ampgraph.tune(MODELS / "digits_cnn.onnx", data=data, tolerance=2e-4, output=tmp_path / "tuned.onnx")
    made = onnx.load(tmp_path / "tuned.onnx")
    assert tuned.patterns and set(tuned.patterns) <= set(json.loads(said(made)["ampgraph.fp32"]))
    ampgraph.convert(tmp_path / "tuned.onnx", output=tmp_path / "again.onnx", check="off")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "tuned.onnx").read_bytes()
