"""The user's patterns: what they name, what is stronger and weaker than they are, what they say when they go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

import ampgraph
from ampgraph.core import selection
from ampgraph.core.dataflow import Dataflow
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Why
from ampgraph.core.selection import unmatched_hint
from ampgraph.formats import adapters
from ampgraph.planner.decisions import (
    ACCURACY,
    CUT,
    FREE,
    HIGH,
    LIST,
    LOW,
    REGION,
    USER,
    VALIDITY,
    Decisions,
    Hold,
    Ledger,
)  # fmt: skip
from ampgraph.planner.order import RULES
from ampgraph.planner.policies.registry import policy
from ampgraph.report.listing import rule_lines, rule_table
from effort import assert_linear
from onnx_text import parse
from planner.guard_cases import CASES
from planner.support import converted, decisions, dtype_of, kinds
from planner.test_guards import model_of_case

W = np.eye(8, dtype=np.float32)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("op:matmul", "did you mean 'MatMul'?"),
        ("op:Gelu", "did you mean 'com.microsoft::Gelu'?"),  # of another domain
        ("op:Zzz", "see `ampgraph inspect` for the operators"),
        ("scope:layer.0", "did you mean 'layers.0.fc'?"),
        ("scope:zzz", "see `ampgraph inspect` for the layers"),
        ("value:hiden", "did you mean 'hidden'?"),
        ("value:zzz", "values are named as in the file"),
        ("/layers.0/fc/MatMull", "did you mean '/layers.0/fc/MatMul'?"),
        ("zzz", "nodes are named as in the file; op:, scope: and value: are other ways"),
    ],
)
def test_what_a_pattern_that_names_nothing_may_mean(pattern: str, hint: str) -> None:
    text = """g (float[4,8] x) => (float[4,8] y) {
        hidden = MatMul (x, w)  h = com.microsoft.Gelu (hidden)  y = Identity (h) }"""
    model = parse(text, w=W, domains=["com.microsoft"])
    model.graph.node[0].name = "/layers.0/fc/MatMul"
    assert unmatched_hint(adapters.load(model)[0].dataflow(), pattern) == hint


def test_a_hint_looks_at_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = adapters.load(layers())[0].dataflow()
    for count, found in (2, False), (3, True):
        monkeypatch.setattr(selection, "NAMES", count)
        assert ("'/layers.1/fc/MatMul'" in unmatched_hint(flow, "/layers.1/fc/MatMull")) == found


NAMES = ["/layers.0/fc/MatMul", "/layers.0/act/Relu", "/layers.1/fc/MatMul", "/layers.1/act/Relu", "/head/MatMul"]
ALL_LOW = dict.fromkeys(NAMES, "f16")


def layers() -> ModelProto:
    """Two layers and a head, named as an exporter names them."""
    model = parse(
        """g (float[4,8] x) => (float[4,8] y) {
            a = MatMul (x, w)  b = Sigmoid (a)  c = MatMul (b, w)  d = Sigmoid (c)  y = MatMul (d, w)
        }""",
        w=W,
    )
    for node, name in zip(model.graph.node, NAMES, strict=True):
        node.name = name
    return model


def chosen(model: ModelProto, level: str = "O2", **options: object) -> dict[str, str]:
    """Type by node name, casts left out."""
    result = converted(model, level, **options)
    words = [word for word in decisions(result).split() if not word.startswith("Cast")]
    names = [node.name for node in result.graph.node if node.op_type != "Cast"]
    return dict(zip(names, (word.split(":")[1] for word in words), strict=True))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("/layers.0/fc/MatMul", ["/layers.0/fc/MatMul"]),
        ("/layers.*/act/*", ["/layers.0/act/Relu", "/layers.1/act/Relu"]),
        ("*MatMul", ["/layers.0/fc/MatMul", "/layers.1/fc/MatMul", "/head/MatMul"]),
        ("/layers.[1-9]/fc/MatMul", ["/layers.1/fc/MatMul"]),
        ("op:Sigmoid", ["/layers.0/act/Relu", "/layers.1/act/Relu"]),
        ("op:ai.onnx::Sigmoid", ["/layers.0/act/Relu", "/layers.1/act/Relu"]),
        ("op:Sig*", ["/layers.0/act/Relu", "/layers.1/act/Relu"]),
        ("scope:layers.1", ["/layers.1/fc/MatMul", "/layers.1/act/Relu"]),
        ("scope:layers.1.act", ["/layers.1/act/Relu"]),
        ("scope:layers.1/act", ["/layers.1/act/Relu"]),
        ("scope:layers.*", NAMES[:4]),
        ("scope:layers.*.fc", ["/layers.0/fc/MatMul", "/layers.1/fc/MatMul"]),
        ("value:c", ["/layers.1/fc/MatMul"]),
        ("value:[ac]", ["/layers.0/fc/MatMul", "/layers.1/fc/MatMul"]),
    ],
)
def test_a_pattern_names_nodes(pattern: str, names: list[str]) -> None:
    assert chosen(layers(), fp32=[pattern]) == {**ALL_LOW, **dict.fromkeys(names, "f32")}


def test_exporter_scopes_are_found_in_the_metadata() -> None:
    model = layers()
    for node, layer in zip(model.graph.node, ("a.0", "a.0.act", "a.1", "a.1.act", "head"), strict=True):
        entry = node.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.name_scopes", f"['', '{layer}', 'aten']"
    got = chosen(model, fp32=["scope:a.1"])
    assert [name for name, dtype in got.items() if dtype == "f32"] == ["/layers.1/fc/MatMul", "/layers.1/act/Relu"]


def test_a_pattern_is_stronger_than_lists_guards_and_the_cut() -> None:
    assert chosen(layers(), "O1", low=["op:Sigmoid"]) == ALL_LOW
    norm = parse(
        "g (float[4,8] x) => (float[4,8] y) { a = MatMul (x, w)  b = LayerNormalization (a, g)  y = MatMul (b, w) }",
        w=W,
        g=W[0],
    )
    assert (
        decisions(converted(norm, "O2", target="cann"))
        == "Cast>f16 MatMul:f16 Cast>f32 LayerNormalization:f32 Cast>f16 MatMul:f16 Cast>f32"
    )
    assert decisions(converted(norm, "O2", target="cann", low=["op:Layer*"])) == (
        "Cast>f16 MatMul:f16 LayerNormalization:f16 MatMul:f16 Cast>f32"
    )
    # a pattern is stronger than an accuracy guard and than its taint
    model = parse(
        """g (float[4,8] x) => (float[4,8] y) {
            a = MatMul (x, w)  [square] b = Pow (a, two)  [after] c = Mul (b, a)  y = MatMul (c, w)
        }""",
        w=W,
        two=np.float32(2),
    )
    guarded = decisions(converted(model, "O2"))
    assert "Pow:f32 Mul:f32" in guarded
    assert "Pow:f16" in decisions(converted(model, "O2", low=["square"]))
    assert "Pow:f32 Cast>f16 Mul:f16" in decisions(converted(model, "O2", low=["after"]))
    # a pattern is stronger than the cut
    model = parse(
        """g (float[4,8] x) => (float[8,4] y) {
            a = MatMul (x, w)  [middle] b = Transpose <perm = [1, 0]> (a)  y = MatMul (w, b)
        }""",
        w=W,
    )
    assert "Transpose:f16" in decisions(converted(model, "auto"))
    assert "Transpose:f32" in decisions(converted(model, "auto", fp32=["middle"]))


def test_a_validity_guard_is_stronger_than_a_pattern() -> None:
    index = parse(
        """g (int64[2] n) => (int64[2] y) {
            f = Cast <to = 1> (n)  h = Div (f, two)  d = Floor (h)  y = Cast <to = 7> (d)
        }""",
        two=np.float32(2),
    )
    assert decisions(converted(index, "O3", low=["op:Div", "op:Floor"])) == decisions(index)
    large = parse("g (float[1,8] x) => (float[1,8] y) { y = Mul (x, w) }", w=np.full(8, 1e5, np.float32))
    assert decisions(converted(large, "O3", low=["op:Mul"])) == "Mul:f32"
    boxes = parse(
        """g (float[1,6,4] x, float[1,1,6] s) => (int64[?,3] y) { b = Identity (x)  y = NonMaxSuppression (b, s) }"""
    )
    assert "NonMaxSuppression:f16" not in decisions(converted(boxes, "O3", low=["op:NonMaxSuppression"]))


def region() -> ModelProto:
    return parse(
        """g (float[4,8] f) => (float[4,8] o) {
            [first] x = MatMul (f, w)  [bias] t = Add (x, b)
            [mean] m = ReduceMean <axes = [-1]> (t)  [centre] d = Sub (t, m)  [square] q = Mul (d, d)
            [variance] v = ReduceMean <axes = [-1]> (q)  [eps] a = Add (v, e)  [root] r = Sqrt (a)
            [norm] y = Div (d, r)  [last] o = MatMul (y, w)
        }""",
        w=W,
        b=W[0] * 3,
        e=np.float32(1e-5),
    )


NORM = ["mean", "centre", "square", "variance", "eps", "root", "norm"]


def test_a_region_is_taken_whole() -> None:
    got = chosen(region(), "O2", low=["square"])
    assert {got[name] for name in NORM} == {"f16"}
    notes = [n for n in ampgraph.plan(region(), "O2", low=["square"]).notes if n.topic == "pattern"]
    assert [note.where for note in notes] == ["square"]
    assert "LayerNormalization" in notes[0].text and "mean" in notes[0].text
    assert {chosen(region(), "O3", fp32=["root"])[name] for name in NORM} == {"f32"}
    bias = chosen(region(), "O3", fp32=["first"])
    assert bias["first"] == bias["bias"] == "f32" and bias["norm"] == "f16"
    # a pattern that takes a whole region has nothing to tell
    notes = ampgraph.plan(region(), "O2", low=NORM).notes
    told = [note for note in notes if note.topic == "pattern"]
    whole = ampgraph.plan(region(), "O2", low=["[mcsvern][eqaoep]*"])
    assert len(told) == len(NORM), "each pattern hits a part"
    assert not [note for note in whole.notes if note.topic == "pattern"]


def test_a_pattern_on_a_norm_keeps_it_from_being_rewritten() -> None:
    model = parse(
        """g (float[4,8] f) => (float[4,8] y) {
            x = MatMul (f, w)  m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  q = Mul (d, d)
            v = ReduceMean <axes = [-1]> (q)  a = Add (v, e)  [root] r = Sqrt (a)  n = Div (d, r)  y = Mul (n, w0)
        }""",
        w=W,
        w0=W[0],
        e=np.float32(1e-5),
    )
    assert "LayerNormalization" in kinds(converted(model, "O3"))
    assert "LayerNormalization" not in kinds(converted(model, "O3", fp32=["root"]))


@pytest.mark.parametrize(
    ("fp32", "low"),
    [("/head/MatMul", "/head/MatMul"), ("op:MatMul", "/head/*"), ("scope:layers.0", "value:b"), ("*", "*")],
)
def test_both_precisions_are_a_mistake(fp32: str, low: str) -> None:
    with pytest.raises(AmpError) as caught:
        ampgraph.plan(layers(), fp32=[fp32], low=[low])
    assert caught.value.code == "AMP306" and caught.value.where and caught.value.hint


def test_mistakes_of_patterns() -> None:
    with pytest.raises(AmpError) as caught:
        ampgraph.plan(region(), fp32=["mean"], low=["root"])
    assert caught.value.code == "AMP306"
    # a mistake in a pattern is told at o0 too
    path = Path(ampgraph.__file__).parent / "models" / "digits_cnn.onnx"
    with pytest.raises(AmpError) as raised:
        ampgraph.plan(path, level="O0", fp32=["op:Sofmax"])
    assert raised.value.code == "AMP305"


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("/layers.0/fc/MatMull", "'/layers.0/fc/MatMul'"),
        ("op:Sigmod", "'Sigmoid'"),
        ("op:matmul", "'MatMul'"),
        ("scope:layer.1.act", "'layers.1.act'"),
        ("value:cc", "'c'"),
        ("value:logits", "as in the file"),
        ("op:Conv", "inspect"),
    ],
)
@pytest.mark.parametrize("option", ["fp32", "low"])
def test_a_pattern_that_matches_nothing_is_a_mistake(pattern: str, hint: str, option: str) -> None:
    with pytest.raises(AmpError) as caught:
        ampgraph.plan(layers(), fp32=[pattern] if option == "fp32" else [], low=[pattern] if option == "low" else [])
    assert caught.value.code == "AMP305"
    assert f"--{option} {pattern}" in caught.value.message and hint in caught.value.hint


def many_regions(count: int) -> ModelProto:
    nodes, previous = [], "x"
    for number in range(count):
        nodes.append(helper.make_node("MatMul", [previous, "w"], [f"m{number}"], name=f"m{number}"))
        nodes.append(helper.make_node("Add", [f"m{number}", "b"], [f"a{number}"], name=f"a{number}"))
        previous = f"a{number}"
    model = parse("g (float[4,8] x) => (float[4,8] z) { z = Relu (x) }", w=W, b=W[0])
    model.graph.node[0].input[0] = previous
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    return model


def test_the_work_of_a_pattern_grows_with_the_regions_not_with_their_square() -> None:
    plan = ampgraph.plan(many_regions(100), fp32=["op:Add"])
    assert sum(note.topic == "pattern" for note in plan.notes) == 100
    assert_linear(lambda count: partial(ampgraph.plan, many_regions(count), fp32=["op:Add"]), 50)


# The rules as a table: what is printed of them, and that each can be switched off by its name.

LEVELS = Path(__file__).resolve().parents[2] / "docs" / "levels.md"
OTHERS = {"list", "unlisted", "region", "cut", "user"}
"""By what else a unit is decided."""
MODEL = parse("g (float[2,8] x, float[8,8] w) => (float[2,8] y) { m = MatMul (x, w)  y = Sigmoid (m) }")


def test_the_rules_as_a_table() -> None:
    assert rule_table() in LEVELS.read_text(encoding="utf-8"), "make it again: ampgraph.report.listing.rule_table()"
    # a line a rule
    assert [line.split()[0] for line in rule_lines()[1:]] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)
    # a rule is switched off
    assert dtype_of(converted(MODEL), "Sigmoid") == "f32"
    assert ampgraph.explain(MODEL, "y").slots[0].rule == "epilogue"
    assert dtype_of(converted(MODEL, rule="no-epilogue"), "Sigmoid") == "f16"
    # by its name of 0.2 too, in words and in plans
    with pytest.warns(FutureWarning, match="rule: 'no-tail' is now 'no-epilogue'; the old names go with 0.4"):
        assert ampgraph.Recipe.of(rule=["no-eps", "no-tail"]).rule == ("no-eps", "no-epilogue")
    now = ampgraph.plan(MODEL)
    old = (
        now.to_json()
        .replace('["epilogue",', '["tail",')
        .replace('"graph"', '"border"')
        .replace('_plan": 2', '_plan": 1')
    )
    assert '"tail"' in old and '"border"' in old
    assert ampgraph.Plan.from_json(old).decisions == now.decisions
    # frameworks have no rules of ours
    assert not policy("apex").ours
    with pytest.raises(AmpError, match="--rule is not one of"):
        ampgraph.convert(MODEL, policy="apex", rule="no-epilogue")


def test_every_decision_names_a_rule() -> None:
    known = OTHERS | {rule.name for rule in RULES}
    for case in CASES:
        model = model_of_case(case)
        for level in case.levels:
            assert {one.why.rule for one in ampgraph.plan(model, level).decisions} <= known


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("no-epilog", "unknown rule 'epilog'", "epilogue"),
        ("no-kernel", "rule 'kernel' cannot be switched off", "validity"),
        ("epilogue", "rule 'epilogue' is switched on already", "--rule no-epilogue"),
    ],
)
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_words_that_switch_nothing_off(word: str, message: str, hint: str, level: str) -> None:
    with pytest.raises(AmpError, match=message) as caught:
        ampgraph.convert(MODEL, level, rule=word)
    assert caught.value.code == "AMP301" and hint in (caught.value.hint or "")


# The ledger's precedence, and the order of the steps, which their types say.

ROOT = Path(__file__).resolve().parents[2]
WHY = Why("test", "because")


@pytest.fixture
def flow() -> Dataflow:
    graph, _ = adapters.load(parse("g (float[4] x) => (float[4] y) { a = Relu (x)  b = Neg (a)  y = Exp (b) }"))
    return graph.dataflow("float16", frozenset())


def after(flow: Dataflow, *words: tuple[int, int]) -> Decisions:
    """One unit after these (side, rank)."""
    ledger = Ledger(flow)
    for side, rank in words:
        ledger.decide(0, side, rank, WHY)
    return ledger.take()


@pytest.mark.parametrize(
    ("words", "side"),
    [
        ([(LOW, LIST)], LOW),
        ([(LOW, LIST), (HIGH, ACCURACY)], HIGH),
        ([(HIGH, ACCURACY), (LOW, LIST)], HIGH),
        ([(HIGH, LIST), (LOW, USER)], LOW),
        ([(LOW, USER), (HIGH, VALIDITY)], HIGH),
        ([(LOW, LIST), (HIGH, LIST)], HIGH),
        ([(HIGH, LIST), (LOW, LIST)], HIGH),
    ],
)
def test_precedence(flow: Dataflow, words: Sequence[tuple[int, int]], side: int) -> None:
    assert after(flow, *words).side(0) == side


def test_what_is_tied_or_released(flow: Dataflow) -> None:
    ledger = Ledger(flow)
    ledger.decide(0, LOW, LIST, WHY)
    ledger.decide(1, HIGH, ACCURACY, WHY)
    ledger.tie([0, 1])
    found = ledger.take()
    assert found.find(0) == found.find(1) == 0 and found.is_high(0) and found.is_high(1)
    assert flow.find(1) == 1  # the dataflow is as it was
    # a unit asked for in both precisions
    with pytest.raises(AmpError) as caught:
        after(flow, (LOW, USER), (HIGH, USER))
    assert caught.value.code == "AMP306"


def test_only_a_list_or_a_region_is_released(flow: Dataflow) -> None:
    for rank, side in ((LIST, FREE), (REGION, FREE), (ACCURACY, HIGH)):
        ledger = Ledger(flow)
        ledger.decide(0, HIGH, rank, WHY)
        ledger.release(0, WHY)
        assert ledger.take().side(0) == side
    # a hold that is not needed keeps the reason
    ledger = Ledger(flow)
    ledger.decide(0, HIGH, LIST, WHY)
    assert not ledger.hold(Hold((0,), ACCURACY, Why("other", ""), unless_high=True))
    assert ledger.take().why(0) == WHY
    assert ledger.hold(Hold((0, 1), ACCURACY, Why("other", ""), unless_high=True))
    assert ledger.take().why(0) == Why("other", "")
    # decisions that were taken stay
    ledger = Ledger(flow)
    before = ledger.take()
    ledger.decide(0, HIGH, CUT, WHY)
    assert before.side(0) == FREE and ledger.take().side(0) == HIGH
