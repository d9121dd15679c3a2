"""What the Python API promises beyond what the files beside this one test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph import AmpError, Plan
from ampgraph.api.checked import convert_and_check
from ampgraph.api.prepare import at_given_opset, low_interface, move_opset
from ampgraph.api.steps import Job
from ampgraph.core.annotations import NODES, PRECISION, REASON
from ampgraph.core.progress import silent
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.oplists.kernels import Kernels
from ampgraph.planner.resolve import resolve
from cli_helpers import MODELS
from onnx_text import parse, proto
from planner.support import casts, dtype_of

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


def test_names_are_patterns() -> None:
    assert set(products(ampgraph.plan(parse(FUNCTION))).values()) == {"float16"}
    named = products(ampgraph.plan(parse(FUNCTION), fp32=["first"]))
    assert sorted(named.values()) == ["float16", "float32"]
    # a name with brackets means itself
    model = parse("g (float[4, 8] x, float[8, 8] v) => (float[4, 8] y) { y = MatMul (x, v) }")
    model.graph.node[0].name = "/layers[0]/MatMul"
    plan = ampgraph.plan(model, fp32=["/layers[0]/MatMul"])
    assert products(plan) == {"/0": "float32"}
    # an input with a default keeps its type
    text = "g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { y = MatMul (x, w) }"
    low = ampgraph.convert(parse(text, w=np.ones((8, 8), np.float32)), io="low", freeze_weights=False)
    onnx.checker.check_model(low, full_check=True)
    assert [i.type.tensor_type.elem_type for i in low.graph.input] == [10, 1]


def test_casts_of_the_file() -> None:
    weights = np.ones((8, 8), np.float32)
    low = ampgraph.convert(parse(GIVEN, w=weights))
    assert [(i.name, i.data_type) for i in low.graph.initializer] == [("w", onnx.TensorProto.FLOAT16)]
    assert [n.op_type for n in low.graph.node] == ["Cast", "MatMul", "MatMul", "Cast"]
    # a conversion to double is no reason to round at o3
    text = "g (float[8] x, float[8] v) => (double[8] y, float[8] z) { y = Cast <to = 11> (x) z = Relu (v) }"
    low = ampgraph.convert(parse(text, opset=20), level="O3")
    assert [(n.op_type, list(n.input)) for n in low.graph.node if "y" in n.output] == [("Cast", ["x"])]


def test_what_another_opset_keeps() -> None:
    with pytest.raises(AmpError, match="AMP307"):
        ampgraph.convert(parse(FUNCTION), opset=21)
    # another opset keeps the layers
    moved = proto(ampgraph.convert(MODELS / "digits_transformer.onnx", level="O0", opset=21))
    assert moved.opset_import[0].version == 21
    assert any(p.key == "pkg.torch.onnx.name_scopes" for n in moved.graph.node for p in n.metadata_props)
    # an old opset gets a cast of its own form
    text = "g (float[4, 8] x, float[8, 8] v) => (float[4, 8] y) { y = MatMul (x, v) }"
    low = ampgraph.convert(parse(text, opset=5, ir=3))
    onnx.checker.check_model(low, full_check=True)
    assert sum(n.op_type == "Cast" for n in low.graph.node) == 3
    again = ampgraph.convert(low)
    assert again.SerializeToString(deterministic=True) == low.SerializeToString(deterministic=True)


def test_plans_that_do_not_fit() -> None:
    path = MODELS / "digits_cnn.onnx"
    plan = ampgraph.plan(path)
    plan.casts.clear()
    with pytest.raises(AmpError, match="AMP402"):
        ampgraph.apply(path, plan)
    # a plan for other weights is refused
    text = "g (float[4, 64] x) => (float[4, 64] y) { y = MatMul (x, w) }"
    plan = ampgraph.plan(parse(text, w=np.ones((64, 64), np.float32)))
    with pytest.raises(AmpError, match="AMP403"):
        ampgraph.apply(parse(text, w=np.full((64, 64), 1e6, np.float32)), plan)


def test_a_copy_of_an_older_result_keeps_its_data(tmp_path: Path) -> None:
    """The new result takes the old one's name, and its source still reads the old one's data file."""
    text = "g (float[4, 64] x) => (float[4, 64] y) { h = MatMul (x, w) y = Softmax (h) }"
    source, out, keep = (tmp_path / f"{n}.onnx" for n in ("m", "out", "keep"))
    weights = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    onnx.save(parse(text, w=weights), source, save_as_external_data=True, location="m.data", size_threshold=0)
    ampgraph.convert(source, level="O1", fp32=["op:MatMul"], output=out)
    ampgraph.convert(source, level="O1", output=out)
    keep.write_bytes(out.read_bytes())
    ampgraph.convert(keep, level="O3", output=out)
    assert onnx.load(keep).graph.initializer[0].raw_data == weights.astype(np.float16).tobytes()


@pytest.mark.parametrize("output", ["x" * 250 + ".onnx", "missing/x.onnx"])
def test_a_name_that_cannot_be_written(tmp_path: Path, output: str) -> None:
    with pytest.raises(AmpError, match="AMP105"):
        ampgraph.convert(parse(FUNCTION), output=tmp_path / output)
    assert list(tmp_path.iterdir()) == []


# Weights that are listed as inputs, as files of IR version 3 have them all: constants where that is asked for.

TEXT = """
    g (float[N,8] x, float[8,8] w, float[8] b, float s, int64[2] shape) => (float[N,8] y) {
      a = MatMul (x, w)
      c = Add (a, b)
      d = Mul (c, s)
      y = Reshape (d, shape)
    }"""
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


def model() -> onnx.ModelProto:
    return parse(TEXT, w=(8, 8), b=(8,), s=np.float32(0.5), shape=np.array([-1, 8]), opset=7, ir=3)


def inputs(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


def notes(model: onnx.ModelProto, **fields: object) -> list[str]:
    done = convert_and_check(Job(model, Recipe.of(**fields), dry_run=True, report=True))  # type: ignore[arg-type]
    assert done.summary is not None
    return [note["text"] for note in done.summary.notes if note["topic"] == "inputs"]


def test_frozen_weights() -> None:
    given = model()
    low = proto(ampgraph.convert(given, "O2", freeze_weights=True, check="off"))
    onnx.checker.check_model(low)
    assert given == model() and low.ir_version == 4 and inputs(low) == ["x"]
    stored = {tensor.name: tensor.data_type for tensor in low.graph.initializer}
    assert stored["w"] == stored["b"] == onnx.TensorProto.FLOAT16 and stored["shape"] == onnx.TensorProto.INT64
    found, wanted = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
        for m in (low, given)
    )
    assert np.allclose(found, wanted, atol=2e-3)
    # exporters listed all for some time after IR 3
    later = model()
    later.ir_version = 6
    assert inputs(proto(ampgraph.convert(later, "O2", check="off"))) == ["x"]
    del later.graph.input[2]  # all but the bias
    assert inputs(proto(ampgraph.convert(later, "O2", check="off"))) == ["x", "w", "s", "shape"]
    numbers = parse(
        TEXT.replace("float[8,8] w, ", ""), b=(8,), s=np.float32(0.5), shape=np.array([-1, 8]), opset=7, ir=6
    )
    numbers.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 8]))
    assert len(inputs(proto(ampgraph.convert(numbers, "O2", check="off")))) == 5, "defaults that are no weights"
    # what is done is said
    assert notes(model(), freeze_weights=True) == [
        "4 weights listed as inputs: constants now, which nobody can override"
    ]
    # The three that are float32 are cast when the model runs: two bytes of each number, and a Cast each.
    low, frozen = (proto(ampgraph.convert(model(), "O3", freeze_weights=f, check="off")) for f in (False, True))
    assert frozen == proto(ampgraph.convert(model(), "O3", check="off")), "IR 3 had to list them"
    casts = [sum(node.op_type == "Cast" for node in m.graph.node) for m in (low, frozen)]
    [text] = notes(model(), level="O3", freeze_weights=False)
    assert "--no-freeze-weights keeps them inputs" in notes(model(), level="O3")[0]
    assert casts == [5, 2] and f"saves some {2 * (64 + 8 + 1)} bytes and 3 Casts" in text
    assert inputs(low) == inputs(model()) and low.ir_version == 3
    # what nobody can override is nothing to tell of
    assert proto(ampgraph.convert(model(), "O0")) == model(), "nothing is lowered: the file stays as it is"
    plain = proto(ampgraph.convert(model(), "O0", freeze_weights=True))
    assert inputs(plain) == ["x"] and all(t.data_type != onnx.TensorProto.FLOAT16 for t in plain.graph.initializer)
    assert notes(plain) == [] == notes(plain, freeze_weights=True) == notes(model(), level="O0")
    # a training step has parameters of its own
    with pytest.raises(AmpError) as raised:
        ampgraph.build_training_step(model(), optimizer="sgd", freeze_weights=True)
    assert raised.value.code == "AMP301" and "named by freeze" in (raised.value.hint or "")
    with pytest.raises(AmpError, match="AMP301"):
        Recipe.of(freeze_weights="maybe")  # type: ignore[arg-type]


def test_a_plan_is_followed_on_frozen_weights_alone(tmp_path: Path) -> None:
    plan = ampgraph.plan(model(), "O2", freeze_weights=True)
    low = ampgraph.convert(model(), plan=plan, freeze_weights=True, check="off")
    assert low == ampgraph.convert(model(), "O2", freeze_weights=True, check="off", metadata=True)
    with pytest.raises(AmpError, match="AMP403"):
        ampgraph.convert(model(), plan=plan, freeze_weights=False)


# A converted file says what was done to it, and a later conversion heeds what it says.

SAID_TEXT = """g (float[4, 8] x) => (float[4, 8] y) {
    [one] h = MatMul (x, w)
    [two] s = Mul (h, h)
    [three] p = MatMul (s, w)
    y = Softmax (p)
}"""


def said_model(ir: int = 10) -> onnx.ModelProto:
    return parse(SAID_TEXT, w=(8, 8), ir=ir, opset=18)


def said(made: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in made.metadata_props}


def of_nodes(made: onnx.ModelProto) -> dict[str, dict[str, str]]:
    return {node.name: {e.key: e.value for e in node.metadata_props} for node in made.graph.node}


def converted(given: onnx.ModelProto, level: str = "O2", **options: Any) -> onnx.ModelProto:
    return proto(ampgraph.convert(given, level, **options))


def test_files_say_what_was_done() -> None:
    made = converted(said_model(), "O1")
    nodes = of_nodes(made)
    assert nodes["one"] == {PRECISION: "float16", REASON: nodes["three"][REASON]}
    assert nodes["one"][REASON].startswith("list: ampgraph.toml:") and "allow at O1 is low" in nodes["one"][REASON]
    assert nodes["two"] == {}  # as it was
    casts = [node.name for node in made.graph.node if node.op_type == "Cast"]
    assert casts and all(set(nodes[name]) == {PRECISION, REASON} for name in casts)
    words = {"version": ampgraph.__version__, "level": "O1", "dtype": "float16", "policy": "ampgraph", "target": "cuda"}
    assert said(made) == {f"ampgraph.{key}": word for key, word in words.items()}
    onnx.checker.check_model(made, full_check=True)
    # before nodes had metadata the model says it
    made = converted(said_model(ir=9), "O1")
    assert not any(of_nodes(made).values())
    table = json.loads(said(made)[NODES])
    (names,) = (names for reason, names in table["float16"].items() if reason.startswith("list: "))
    assert names == ["one", "three"] and sum(map(len, table["float16"].values())) > 2
    # what stands there stays
    given = said_model()
    given.graph.node[0].metadata_props.add(key=REASON, value="mine")
    given.graph.node[2].metadata_props.add(key="mine", value="too")
    given.metadata_props.add(key="ampgraph.level", value="mine")
    made = converted(given)
    assert of_nodes(made)["one"] == {REASON: "mine"} and of_nodes(made)["three"]["mine"] == "too"
    assert said(made)["ampgraph.level"] == "mine" and said(made)["ampgraph.version"] == ampgraph.__version__
    again = converted(converted(said_model(), "O1"), "O3")
    assert said(again)["ampgraph.level"] == "O1" and said(again)["ampgraph.2.level"] == "O3"
    assert of_nodes(again)["two"][PRECISION] == "float16" and "O1" in of_nodes(again)["one"][REASON]
    # the users word of today counts more
    made = converted(said_model(), fp32=["three"])
    assert ampgraph.explain(made, "three").precision == "float32"
    assert ampgraph.explain(made, "three", low=["three"]).precision == "float16"
    again = converted(made, low=["three"])
    assert of_nodes(again)["three"][REASON] == "user: --low three"


def test_nothing_is_said_where_nothing_is_done_or_wanted(tmp_path: Path, amp: Any) -> None:
    given = said_model()
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
    made = converted(said_model(), level, **options)
    pinned = json.loads(said(made)["ampgraph.fp32"])
    assert pinned == options.get("fp32", pinned) and pinned
    again = converted(made, level)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    found = ampgraph.explain(made, "one" if "one" in pinned else "three", level)
    assert "as the file says" in found.slots[0].reason or found.precision != "float32"


@pytest.mark.parametrize("text", ["no list", "3", '{"a": 1}', '["gone", 7, "scope:none"]', "[" * 100_000])
def test_what_makes_no_sense_says_nothing(text: str) -> None:
    given = said_model()
    given.metadata_props.add(key="ampgraph.fp32", value=text)
    made = converted(given, metadata=False)
    given.ClearField("metadata_props")
    made.ClearField("metadata_props")
    assert made.SerializeToString() == converted(given, metadata=False).SerializeToString()


def test_a_plan_says_what_it_pins(tmp_path: Path) -> None:
    plan = ampgraph.plan(said_model(), fp32=["three"])
    assert plan.pinned == ["three"] and ampgraph.Plan.from_json(plan.to_json()).pinned == ["three"]
    made = ampgraph.apply(said_model(), ampgraph.Plan.from_json(plan.to_json()))
    assert made.SerializeToString() == converted(said_model(), fp32=["three"]).SerializeToString()
    assert '"pinned"' not in ampgraph.plan(said_model()).to_json()


@pytest.mark.slow
def test_a_repaired_file_and_a_tuned_one_say_it(tmp_path: Path) -> None:
    data = [{"image": np.load(MODELS / "digits_heldout.npz")["image"][:16]}]
    tuned = ampgraph.tune(MODELS / "digits_cnn.onnx", data=data, tolerance=2e-4, output=tmp_path / "tuned.onnx")
    made = onnx.load(tmp_path / "tuned.onnx")
    assert tuned.patterns and set(tuned.patterns) <= set(json.loads(said(made)["ampgraph.fp32"]))
    ampgraph.convert(tmp_path / "tuned.onnx", output=tmp_path / "again.onnx", check="off")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "tuned.onnx").read_bytes()


# ``opset="auto"``: the least opset that frees operators or saves Casts, and moves nothing off the target.

W = {"w": np.ones((8, 8, 1, 1), np.float32) / 8, "m": np.eye(8, dtype=np.float32)}
CLIPS = """g (float[1,8,9,9] x) => (float[1,8,9,9] y) {
    a = Conv (x, w)  b = Clip <min = 0.0, max = 6.0> (a)  c = Conv (b, w)  d = Clip <min = 0.0, max = 6.0> (c)
    y = Conv (d, w) }"""
PRODUCT = "g (float[8,8] x) => (float[8,8] y) { a = MatMul (x, m)  y = Relu (a) }"


def given(text: str, opset: int) -> ModelProto:
    return parse(text, {name: array for name, array in W.items() if f", {name})" in text}, opset=opset)


def opset_of(model: ModelProto) -> int:
    return next(item.version for item in model.opset_import if item.domain == "")


def test_opset_auto() -> None:
    model = given(CLIPS, 7)
    assert casts(ampgraph.convert(model, "O2")) == 6
    result = ampgraph.convert(model, "O2", opset="auto")
    assert opset_of(result) == 12 and casts(result) == 2
    # nothing moves where nothing is gained
    for model in (given(CLIPS, 13), given(PRODUCT, 9)):
        result = ampgraph.convert(model, "O2", opset="auto")
        assert opset_of(result) == opset_of(model)
        assert result.SerializeToString() == ampgraph.convert(model, "O2").SerializeToString()
    # bfloat16 needs a cast
    model = given(PRODUCT, 9)
    assert dtype_of(ampgraph.convert(model, "O2", dtype="bfloat16"), "MatMul") == "f32"
    result = ampgraph.convert(model, "O2", dtype="bfloat16", opset="auto")
    assert opset_of(result) == 13 and dtype_of(result, "MatMul") == "bf16"
    # the plan says what another opset would free
    texts = {d.why.text for d in ampgraph.plan(given(CLIPS, 7), "O2").decisions if d.why.rule == "opset"}
    assert texts == {"CUDAExecutionProvider has no float16 kernel for Clip-6 (T); opset 12 has one"}


def test_opsets_that_bfloat16_needs() -> None:
    """Its parser takes a bfloat16 Conv of any opset; older schemas do not."""
    model = given(CLIPS, 13)
    words: dict[str, Any] = {"target": "tensorrt", "dtype": "bfloat16"}
    result = ampgraph.convert(model, "O2", **words)
    assert opset_of(result) == 22 and dtype_of(result, "Conv") == "bf16"
    assert ampgraph.convert(result, "O2", **words).SerializeToString() == result.SerializeToString()
    plan = ampgraph.plan(model, "O2", **words)
    recipe = Recipe.of(level="O2", **words)
    (note,) = move_opset(adapters.load(model)[0], recipe, resolve(recipe, "ONNX"), frozenset(), silent).notes
    assert note.text.startswith("moved from opset 13 to 22: -3 products in float32") and plan.opset == 22
    assert ampgraph.apply(model, Plan.from_json(plan.to_json())).SerializeToString() == result.SerializeToString()
    # `--io` is refused only where no later opset is taken.
    model = given(PRODUCT, 12)
    low: dict[str, Any] = {"level": "O2", "dtype": "bfloat16", "io": "low"}
    for words in ({**low, "target": "tensorrt"}, {**low, "opset": "auto"}):
        plan, made = ampgraph.plan(model, **words), ampgraph.convert(model, **words)
        assert plan.opset == opset_of(made) >= 13 and not casts(made)
        assert ampgraph.apply(model, Plan.from_json(plan.to_json())) == made
    with pytest.raises(AmpError, match="AMP305"):
        ampgraph.plan(model, **low)


@pytest.mark.parametrize("words", [{"level": "O0"}, {"dtype": "float16"}, {"target": "cuda"}, {"opset": 13}])
def test_the_opset_stays_elsewhere(words: dict[str, Any]) -> None:
    model = given(CLIPS, 13)
    result = ampgraph.convert(model, **{"level": "O2", "target": "tensorrt", "dtype": "bfloat16", **words})
    assert opset_of(result) == 13


def test_nothing_moves_off_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were there no kernel for Relu at opset 13, the model would stay where it is."""
    runs = Kernels.runs
    missing = ("Relu", 13)
    monkeypatch.setattr(Kernels, "runs", lambda self, *asked: asked != missing and runs(self, *asked))
    assert opset_of(ampgraph.convert(given(PRODUCT, 9), "O2", dtype="bfloat16", opset="auto")) == 9
    recipe = Recipe.of(level="O2", dtype="bfloat16", opset="auto")
    graph, _ = adapters.load(given(PRODUCT, 9))
    notes = move_opset(graph, recipe, resolve(recipe, "ONNX"), frozenset(), silent).notes
    assert [note.text for note in notes] == ["opset 13 is not taken: cuda has no kernel there for Relu"]


def test_opsets_that_are_given() -> None:
    """CUDA has no MaxPool of opset 22."""
    pool = parse("g (float[1,8,9,9] x) => (float[1,8,8,8] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }", opset=17)
    graph, _ = adapters.load(pool)
    for opset, texts in ((22, ["opset 22 moves MaxPool off cuda, which has no kernel there"]), (21, [])):
        recipe = Recipe.of(level="O2", opset=opset)
        notes = move_opset(graph, recipe, resolve(recipe, "ONNX"), frozenset(), silent).notes
        assert [note.text for note in notes] == texts
    # words that make no sense
    with pytest.raises(AmpError, match="AMP307.*whole number"):
        ampgraph.convert(given(CLIPS, 9), opset="newest")  # type: ignore[call-overload]
    plan = ampgraph.plan(given(CLIPS, 9))
    with pytest.raises(AmpError, match="AMP307.*no meaning here"):
        ampgraph.convert(given(CLIPS, 9), plan=plan, opset="auto")
    assert opset_of(ampgraph.convert(given(CLIPS, 9), opset="13")) == 13  # type: ignore[call-overload]
    assert str(ampgraph.Recipe.from_text("O2,opset=auto")) == "O2,float16,opset=auto"
    assert ampgraph.Recipe.from_text("O2,opset=13").opset == 13


def test_what_io_words_mean() -> None:
    """The last word on a name holds; a pattern may match what cannot be low, if it matches what can as well."""
    text = "g (float[4] x, int64[4] i) => (float[4] y, int64[4] j) { y = Relu (x) j = Neg (i) }"
    graph = adapters.load(parse(text))[0]
    for words, chosen in (
        ([], set()),
        (["low"], {"x", "i", "y", "j"}),
        (["low", "i=keep", "j=keep"], {"x", "y"}),
        (["?=low", "y=keep"], {"x", "i", "j"}),
        (["x=keep", "x=low"], {"x"}),
    ):
        assert low_interface(graph, words) == chosen, words
    for word, said in (("z=low", "matches no input"), ("x=high", "does not say"), ("[ij]=low", "cannot be low")):
        with pytest.raises(ampgraph.AmpError, match=f"AMP305.*{said}"):
            low_interface(graph, [word])


def test_an_opset_that_is_not_a_number_is_refused_where_one_is_needed() -> None:
    graph = adapters.load(parse("g (float[4] x) => (float[4] y) { y = Relu (x) }"))[0]
    assert at_given_opset(graph, Recipe.of()) is graph
    with pytest.raises(ampgraph.AmpError, match="AMP307.*no meaning here"):
        at_given_opset(graph, Recipe.of(opset="auto"))
