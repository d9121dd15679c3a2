"""What pages promise: each sentence here stands in its page to the letter, and holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.api import check
from ampgraph.core.errors import AmpError
from ampgraph.formats import adapters
from ampgraph.numerics.metrics import verdict
from ampgraph.numerics.search import BUDGET
from ampgraph.oplists.levels import load_levels
from ampgraph.planner import decisions
from hard_models.measure import casts
from onnx_text import parse, proto

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "digits_cnn.onnx"
TRANSFORMER = ROOT / "models" / "digits_transformer.onnx"
MASKED = """g (float[2, 4] x, bool[2, 4] m) => (float[2, 4] y) <float floor = {-inf}> {
    h = MatMul (x, w)  s = Where (m, h, floor)  y = Softmax (s)
}"""


CLAIMS: list[tuple[str, str, Callable[[], None]]] = []


def claim(page: str, sentence: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """What holds a sentence of a page."""

    def kept(holds: Callable[[], None]) -> Callable[[], None]:
        CLAIMS.append((page, sentence, holds))
        return holds

    return kept


def converted(model: object, **fields: Any) -> onnx.ModelProto:
    return proto(ampgraph.convert(model, check="off", **fields))  # type: ignore[call-overload]


def opset(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if not entry.domain)


def input_type(model: onnx.ModelProto) -> int:
    return model.graph.input[0].type.tensor_type.elem_type


def low_nodes(model: object, **fields: Any) -> set[str]:
    plan = ampgraph.plan(model, **fields)  # type: ignore[arg-type]
    return {decision.kind for decision in plan.decisions if decision.dtype == "float16"}


@claim("limits", "A Loop that carries no value has no gradient.")
def loops_have_gradients() -> None:
    for carried, refused in (("h", False), ("", True)):
        out = "(bool more, float[N, 2] next)" if carried else "(bool more, float[N, 2] row)"
        body = f"body (int64 i, bool c{', float[N, 2] s' if carried else ''}) => {out}"
        body += "{ more = Identity (c) " + ("next = Relu (s) }" if carried else "row = Relu (h) }")
        text = (
            f"g (float[N, 4] x) => (float[{'' if carried else '3, '}N, 2] y) <int64 three = {{3}}, bool yes = {{1}}> {{"
        )
        model = parse(text + f" h = MatMul (x, w)  y = Loop (three, yes, {carried or ''}) <body = {body}> }}", w=(4, 2))
        if refused:
            with pytest.raises(AmpError, match="Loop has a gradient here where it carries a value"):
                ampgraph.build_training_step(model, loss="mse", optimizer="sgd")
        else:
            assert ampgraph.build_training_step(model, loss="mse", optimizer="sgd").layout.states


@claim("limits", "`--rewrite none` leaves it all")
def rewrites_can_be_switched_off() -> None:
    assert (
        ampgraph.plan(TRANSFORMER, rewrite="all").rewrites and not ampgraph.plan(TRANSFORMER, rewrite="none").rewrites
    )


@claim("limits", "without the option the opset changes for bfloat16 on `--target tensorrt` and `openvino` alone")
def the_opset_stays() -> None:
    before = parse("g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=(4, 3, 3, 3), opset=18)
    found = {
        (target, dtype): opset(converted(before, target=target, dtype=dtype))
        for target in ("cuda", "cpu", "cann", "tensorrt", "openvino")
        for dtype in ("float16", "bfloat16")
    }
    assert found.pop(("tensorrt", "bfloat16")) > 18 and found.pop(("openvino", "bfloat16")) > 18
    assert set(found.values()) == {18}


@claim("faq", "`tune` makes three to six strict runs as a rule and twenty at most")
def tune_has_a_budget() -> None:
    assert BUDGET == 20


@claim("faq", "`--no-metadata` omits that")
def files_say_what_was_done() -> None:
    nodes = converted(onnx.load(TRANSFORMER)).graph.node
    assert any(entry.key == "ampgraph.reason" for node in nodes for entry in node.metadata_props)
    assert b"ampgraph.reason" not in converted(onnx.load(TRANSFORMER), metadata=False).SerializeToString()


@claim("faq", "That is the default. `--io low` or `--io NAME=low` changes them; `keep_io_types` is")
def the_border_stays() -> None:
    assert input_type(converted(onnx.load(MODEL))) == onnx.TensorProto.FLOAT
    assert input_type(converted(onnx.load(MODEL), keep_io_types=False)) == onnx.TensorProto.FLOAT16


@claim("faq", "An operator in no list stays float32.")
def unknown_operators_stay() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { h = MatMul (x, w)  y = mine.Own (h) }"
    assert low_nodes(parse(text, w=(4, 4), domains=["mine"])) == {"MatMul"}


@claim("faq", "the same model, options and version give the same file")
def two_runs_are_the_same() -> None:
    first, second = (converted(onnx.load(MODEL)).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


@claim("faq", "a float64 model (only float32 is lowered)")
def double_stays() -> None:
    text = "g (double[2, 4] x) => (double[2, 4] y) { y = MatMul (x, w) }"
    assert not low_nodes(parse(text, w=np.ones((4, 4))))


@claim("design", "O0 changes nothing")
def nothing_at_o0() -> None:
    before = onnx.load(MODEL).SerializeToString(deterministic=True)
    assert converted(onnx.load(MODEL), level="O0").SerializeToString(deterministic=True) == before


@claim("design", "-inf is never changed.")
def minus_infinity_stays() -> None:
    found = converted(parse(MASKED, w=(4, 4)), level="O3")
    stored = [onnx.numpy_helper.to_array(tensor).astype(np.float32) for tensor in found.graph.initializer]
    assert any(np.isneginf(array).all() for array in stored)


@claim("design", "a plan applied to another model is refused")
def a_plan_of_another_model_is_refused() -> None:
    with pytest.raises(AmpError, match="AMP403"):
        ampgraph.apply(onnx.load(TRANSFORMER), ampgraph.plan(MODEL))


@claim("faq", "norms are in class *fp32*")
def norms_stay() -> None:
    assert all("LayerNormalization" not in low_nodes(TRANSFORMER, level=level, target="cpu") for level in ("O1", "O2"))


def level_rows(page: str, start: str) -> dict[str, list[str]]:
    """The rows of a table of levels, what each does with the classes."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(start)[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] != "|--"]
    return {cells[0].split()[0]: cells[1:6] for cells in rows if len(cells) > 5}


@claim("design", "| auto | low | by the cut | by the cut | by the cut | as O2 |")
def the_levels_are_these() -> None:
    words = {"low": "low", "float32": "float32", "by the cut": "cut", "float32*": "float32"}
    said = {}
    for page, start in (("README.md", "## Levels\n\n"), ("docs/levels.md", "## Levels\n\n")):
        said[page] = {
            name: [words[cell] for cell in cells] for name, cells in level_rows(page, start).items() if name != "level"
        }
    kept = ("allow", "infer", "neutral", "deny", "fp32")
    held = {name: [level.of_class(cls) for cls in kept] for name, level in load_levels().items()}
    assert said["README.md"] == said["docs/levels.md"] == held
    design = level_rows("docs/design.md", "## The levels\n\n")
    assert [cells[:4] for name, cells in design.items() if name in ("O1", "auto")] == [
        ["low", "float32", "by the cut", "float32"],
        ["low", "by the cut", "by the cut", "by the cut"],
    ]


@claim("design", "rule of validity > the user's pattern > measured range > guard > list > cut")
def what_wins_is_ordered() -> None:
    wins = decisions.VALIDITY, decisions.USER, decisions.RANGE, decisions.ACCURACY, decisions.LIST, decisions.CUT
    assert list(wins) == sorted(wins, reverse=True)


@claim("design", "a given float32 -> low -> float32 is a rounding and stays")
def a_given_rounding_stays() -> None:
    """A pair of Casts to float16 and back is arithmetic of the file, at every level."""
    rounds = """g (float[2, 4] x) => (float[2, 4] y) {
        h = MatMul (x, w)  a = Cast <to = 10> (h)  b = Cast <to = 1> (a)  y = Relu (b) }"""
    for level in ("O1", "O2", "O3", "auto"):
        held = converted(parse(rounds, w=(4, 4)), level=level, fp32=["op:MatMul", "op:Relu"])
        assert [node.op_type for node in held.graph.node] == ["MatMul", "Cast", "Cast", "Relu"]


LOWEST = np.float32(-3.4e38)


@claim("design", "becomes half the low minimum only if every path from it ends in Softmax")
def masks_below_the_range_become_half_of_it() -> None:
    for end, dtype in (("y = Softmax (s)", "float16"), ("y = Relu (s)", "float32")):
        nodes = f"h = MatMul (x, w)  s = Where (m, h, f)  {end}"
        model = parse(f"g (float[2, 4] x, bool[2, 4] m) => (float[2, 4] y) {{ {nodes} }}", w=(4, 4), f=LOWEST)
        found = converted(model, level="O3")
        stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in found.graph.initializer}
        least = min(float(array.min()) for array in stored.values())
        assert least == (-65504 / 2 if dtype == "float16" else LOWEST), (end, least)


@claim("design", "Unknown dimensions: batch-like 1, sequence-like 128; `--dim` overrides.")
def sizes_are_guessed_so() -> None:
    text = "g (float[batch, length, 4] x) => (float[batch, length, 4] y) { y = MatMul (x, w) }"
    flow = adapters.load(parse(text, w=(4, 4)))[0].dataflow()
    (value,) = [one.id for one in flow.values if one.name == "x"]
    assert flow.dims(value) == [1, 128, 4] and flow.dims(value, {"length": 9}) == [1, 9, 4]


@claim("design", "else there are more, up to 24, as errors have long tails.")
def a_check_runs_so_many() -> None:
    assert (check.GENERATED, check.MORE) == (6, 24)
    assert (verdict.EIGHT, verdict.CLOSE, verdict.UNSURE, verdict.CLEAR) == (8, 0.6, 0.25, 0.75)


@claim("faq", "`--level auto` never has more than O2")
def auto_has_no_more_casts() -> None:
    for target in ("cuda", "tensorrt", "cpu"):
        for model in (MODEL, TRANSFORMER):
            auto, most = (casts(converted(onnx.load(model), level=level, target=target)) for level in ("auto", "O2"))
            assert auto <= most


@claim("limits", "Sequences and optionals at the border of a model stay float32")
def sequences_stay() -> None:
    text = (
        "g (float[2, 4] x, seq(float[2, 4]) s) => (seq(float[2, 4]) t) { h = MatMul (x, w)  t = SequenceInsert (s, h) }"
    )
    found = converted(parse(text, w=(4, 4)), io=["x=low"])
    kinds = [
        one.type.sequence_type.elem_type.tensor_type.elem_type for one in (found.graph.input[1], found.graph.output[0])
    ]
    assert kinds == [onnx.TensorProto.FLOAT] * 2 and input_type(found) == onnx.TensorProto.FLOAT16


@claim("limits", "where a file lists some of them alone they stay inputs")
def weights_as_inputs_are_constants() -> None:
    text = "g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) { a = MatMul (x, w)  y = MatMul (a, v) }"
    kept: dict[tuple[int, bool | None], list[str]] = {}
    for ir in (3, 8):
        listed = text if ir == 8 else text.replace(" w)", " w, float[4, 4] v)", 1)
        for freeze in (None, False, True):
            found = converted(parse(listed, w=(4, 4), v=(4, 4), opset=8, ir=ir), freeze_weights=freeze)
            kept[ir, freeze] = [one.name for one in found.graph.input]
    frozen = {case for case, names in kept.items() if names == ["x"]}
    assert frozen == {(3, None), (3, True), (8, True)}


@claim("faq", "computed in floating point stay float32, whatever a list says: the guard *index*")
def floats_that_count_stay() -> None:
    text = """g (float[2, 64] x, float[1] n) => (float[2, K] y) { h = MatMul (x, w)  m = Mul (n, half)  f = Floor (m)
        i = Cast <to = 7> (f)  y = Slice (h, zero, i, one) }"""
    stored: dict[str, Any] = {"w": (64, 64), "half": np.float32(0.5), "zero": np.array([0]), "one": np.array([1])}
    plan = ampgraph.plan(parse(text, **stored), "O3", low=["op:Mul", "op:Floor"])
    assert {one.dtype for one in plan.decisions if one.kind in ("Mul", "Floor")} == {"float32"}
    assert low_nodes(parse(text, **stored), level="O3") >= {"MatMul"}


@claim("faq", "a weight that low and float32 nodes read is stored in both types or cast once.")
def a_shared_weight_is_both() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { [a] h = MatMul (x, w)  [b] y = MatMul (h, w) }"
    found = converted(parse(text, w=(4, 4)), fp32=["a"])
    types = sorted(tensor.data_type for tensor in found.graph.initializer)
    assert types == [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16]


@claim("faq", "What is written is sorted, what is added has names that nothing else has")
def what_is_written_is_sorted() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { [n] y = Relu (h)  [n] h = MatMul (x, w) }"
    found = converted(parse(text, w=(4, 4)))
    onnx.checker.check_model(found, full_check=True)
    added = [node.name for node in found.graph.node if node.op_type == "Cast"]
    assert len(set(added)) == len(added) == 2 and "n" not in added


@claim("faq", "a function that is called with different types is copied once for each")
def a_function_is_copied_for_each_type() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
        h = MatMul (x, w)  [a] b = loc.f (h)  [c] d = loc.f (b)  y = MatMul (d, w) }"""
    function = '<domain: "loc", opset_import: ["" : 17]> f (a) => (c) { c = Relu (a) }'
    model = parse(text, w=(4, 4), functions=function, domains=["loc"])
    assert len(converted(model).functions) == 1 and len(converted(model, fp32=["c"]).functions) == 2


@claim("faq", "The report says so: a level O0, a float64 model (only float32 is lowered)")
def why_nothing_changes() -> None:
    said: dict[str, tuple[str, dict[str, Any]]] = {
        "nothing to lower": ("float[2, 4] x) => (float[2, 4] y) { y = MatMul (x, w)", {"level": "O0"}),
        "as only float32 is": ("double[2, 4] x) => (double[2, 4] y) { y = Relu (x)", {}),
        "no schema is known for mine::Own": ("float[2, 4] x) => (float[2, 4] y) { y = mine.Own (x, w)", {}),
        "admit bfloat16 for T; opset": ("float[2, 4] x) => (float[2, 4] y) { y = MatMul (x, w)", {"dtype": "bfloat16"}),
    }
    for words, (text, fields) in said.items():
        model = parse(f"g ({text} }}", w=(4, 4), domains=["mine"], opset=12 if "dtype" in fields else 17)
        _, report = ampgraph.convert(model, report=True, check="off", **fields)
        assert words in str(report) and not report.changed, str(report)


@claim("how-to", "of most such files nothing becomes low, and the summary says so.")
def a_scikit_learn_classifier_stays() -> None:
    text = """g (float[n, 4] x) => (float[n, 3] y) { s = ai.onnx.ml.Scaler <offset = [0.0], scale = [0.5]> (x)
        l, y = ai.onnx.ml.LinearClassifier <coefficients = [%s], classlabels_ints = [0, 1, 2]> (s) }"""
    model = parse(text % ", ".join(["0.5"] * 12), domains=["ai.onnx.ml"])
    _, report = ampgraph.convert(model, report=True, check="off")
    assert not report.changed and "does not admit float16" in str(report) and "in no list" not in str(report)
    text = "g (float[n, 4] x) => (float[n, 3] y) { h = MatMul (x, w)  a = Add (h, b)  y = Softmax (a) }"
    assert low_nodes(parse(text, w=(4, 3), b=(3,))) >= {"MatMul", "Add"}


@pytest.mark.parametrize(("page", "sentence", "holds"), CLAIMS, ids=lambda part: getattr(part, "__name__", None))
def test_a_claim_holds(page: str, sentence: str, holds: Callable[[], None]) -> None:
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    assert sentence in text, "the page says something else now: so must this test"
    holds()
