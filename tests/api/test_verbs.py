"""Every verb takes a recipe, its text, or its fields, and does the same with each; so does the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph import AmpError, Recipe
from ampgraph.api.steps import Job, run
from ampgraph.core.graph import Graph
from ampgraph.core.pass_ import Change

MODELS = Path(ampgraph.__file__).parent / "models"
CNN = MODELS / "digits_cnn.onnx"
TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 4] x) => (float[n, 4] y) <float[4, 4] w> {
    [product] m = MatMul (x, w)
    [activation] y = Relu (m)
}
"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    return made


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(AmpError) as raised:
        call()
    return raised.value.code


def test_recipe_text_fields_and_position_give_the_same_bytes() -> None:
    recipe = Recipe.of(level="O1", dtype="bfloat16", fp32=["product"], io="low")
    made = [
        ampgraph.convert(model(), recipe=recipe),
        ampgraph.convert(model(), recipe=str(recipe)),
        ampgraph.convert(model(), "O1", dtype="bfloat16", fp32="product", io=["low"]),
        ampgraph.convert(model(), "O1", recipe=Recipe.of(recipe, level="O2")),
    ]
    first, *others = (one.SerializeToString(deterministic=True) for one in made)
    assert [one == first for one in others] == [True] * 3


def test_a_keyword_replaces_the_field_of_the_recipe() -> None:
    recipe = Recipe.of(level="O3", fp32=["product"])
    held = {d.kind: d.dtype for d in ampgraph.plan(model(), recipe=recipe).decisions}
    freed = {d.kind: d.dtype for d in ampgraph.plan(model(), recipe=recipe, fp32=()).decisions}
    assert held["MatMul"] == "float32" and freed["MatMul"] == "float16"


def test_the_command_line_writes_what_python_writes(amp: Any, tmp_path: Path) -> None:
    recipe = Recipe.of(level="auto", fp32=["op:Gemm"], store_weights="keep", target="cpu")
    words = ["--level", "auto", "--fp32", "op:Gemm", "--store-weights", "keep", "--target", "cpu"]
    assert amp("convert", CNN, "-o", tmp_path / "cli.onnx", *words)[0] == 0
    ampgraph.convert(CNN, recipe=recipe, output=tmp_path / "api.onnx")
    assert (tmp_path / "cli.onnx").read_bytes() == (tmp_path / "api.onnx").read_bytes()


def test_explain_says_what_the_command_says(amp: Any) -> None:
    found = ampgraph.explain(CNN, "node_conv2d", "O1", fp32=["node_conv2d"])
    assert found.slots[0].reason == "--fp32 node_conv2d" and found.level == "O1"
    words = ("explain", CNN, "node_conv2d", "--level", "O1", "--fp32", "node_conv2d", "--json")
    assert json.loads(amp(*words)[1]) == json.loads(json.dumps(found.to_dict()))


def test_explain_takes_patterns(amp: Any) -> None:
    assert ampgraph.explain(model(), "op:Relu").node == "activation"
    found = ampgraph.explain_all(CNN, "op:Conv", "O1")
    assert len(found) > 1 and {one.kind for one in found} == {"Conv"}
    code, out, _ = amp("explain", CNN, "op:Conv", "--level", "O1")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()] == [["Conv", f"'{one.node}'"] for one in found]
    assert all("float16  by " in line for line in out.splitlines())
    assert json.loads(amp("explain", CNN, "op:Conv", "--level", "O1", "--json")[1])[1]["node"] == found[1].node
    for node, word in (("op:Conv", "explain_all has all"), ("op:Covn", "did you mean 'Conv'"), ("value:no", "no")):
        with pytest.raises(AmpError) as raised:
            ampgraph.explain(CNN, node)
        assert raised.value.code == "AMP308" and word in str(raised.value)


def test_lists_says_what_the_command_says(amp: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[white]\nSoftmax = "mine"\n')
    (row,) = ampgraph.lists("Softmax", level="auto", lists=mine)
    assert (row.cls, row.at_level, row.source) == ("white", "low", "mine.toml:2")
    printed = json.loads(amp("lists", "Softmax", "--level", "auto", "--lists", mine, "--json")[1])
    assert printed == json.loads(json.dumps([row.to_dict()]))
    assert ampgraph.lists(recipe="O1") == ampgraph.lists(level="O1") != ampgraph.lists(level="O3")


def test_inspect_counts_what_the_recipes_lists_call_heavy(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[white]\nRelu = "mine"\n')
    assert ampgraph.inspect(model()).heavy == {"float32": 1}
    assert ampgraph.inspect(model(), lists=[mine]).heavy == {"float32": 2}


def test_tune_starts_from_the_recipe() -> None:
    data = [{"x": np.ones((2, 4), np.float32)}]
    found = ampgraph.tune(model(), recipe="O1,bfloat16,opset=21", data=data)
    assert (found.level, found.dtype, found.met) == ("O1", "bfloat16", True)
    assert found.plan is not None and found.plan.digest == ampgraph.plan(model(), opset=21).digest


def test_a_training_step_takes_what_has_a_meaning_for_it(tmp_path: Path) -> None:
    forward = MODELS / "digits_cnn_forward.onnx"
    for name, value in (("io", "low"), ("ranges", "r.json"), ("range_margin", 2)):
        fields: dict[str, Any] = {name: value}
        recipe = Recipe.of(**fields)
        call = lambda recipe=recipe: ampgraph.build_training_step(forward, optimizer="sgd", recipe=recipe)  # noqa: E731
        assert code_of(call) == "AMP301"
    built = [
        ampgraph.build_training_step(forward, loss="cross_entropy", optimizer="sgd", **steering)
        for steering in ({"recipe": "O1,fp32=op:Gemm"}, {"level": "O1", "fp32": ["op:Gemm"]})
    ]
    for step, name in zip(built, "ab", strict=True):
        step.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_plan_that_is_given_is_not_changed_beside() -> None:
    plan = ampgraph.plan(model())
    assert code_of(lambda: ampgraph.convert(model(), plan=plan, fp32=["product"])) == "AMP404"
    assert code_of(lambda: ampgraph.convert(model(), plan=plan, recipe="io=low")) == "AMP404"
    beside = {"level": "O1", "dtype": "bfloat16", "target": "cpu", "store_weights": "keep", "dims": {"n": 2}}
    for name, value in {**beside, "recipe": "O2", "range_margin": 3, "lists": "mine.toml"}.items():
        word: dict[str, Any] = {name: value}
        with pytest.raises(
            AmpError, match=f"AMP404.*{'level' if name == 'recipe' else name}= cannot change the given plan"
        ):
            ampgraph.convert(model(), plan=plan, **word)
    bare = ampgraph.convert(model(), plan=plan, level=None, fp32=[], target=None)
    assert bare.SerializeToString() == ampgraph.convert(model(), plan=plan).SerializeToString()
    moved = ampgraph.plan(model(), opset=21)
    assert ampgraph.convert(model(), plan=moved, opset=21).opset_import[0].version == 21


def test_dimensions_that_the_model_does_not_have() -> None:
    ampgraph.plan(model(), dims={"n": 8})
    assert code_of(lambda: ampgraph.plan(model(), dims={"m": 8})) == "AMP310"
    assert code_of(lambda: ampgraph.convert(model(), dims={"m": 8})) == "AMP310"


def test_a_job_has_a_summary_where_one_is_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    job = Job(CNN, Recipe(), output=tmp_path / "o.onnx", report=True)
    done = run(job, lambda what, count, total: said.append(what))
    assert list(dict.fromkeys(said))[:4] == ["reading", "planning", "converting", "writing"]
    assert done.changed and done.summary is not None and done.summary.output == str(tmp_path / "o.onnx")
    assert run(Job(CNN, Recipe())).summary is None


def test_a_pass_of_ones_own_runs_behind_the_casts() -> None:
    seen: list[int] = []

    def count(graph: Graph) -> Change:
        seen.append(graph.census().casts)
        return Change(0)

    ampgraph.convert(CNN, passes=[count], check_passes=True)
    assert seen == [2]  # of the input and the output


def test_explain_says_how_far_it_is() -> None:
    said: list[str] = []
    ampgraph.explain(CNN, "node_conv2d", opset=21, progress=lambda what, *rest: said.append(what))
    assert said == ["reading", "moving to opset 21", "planning"]
