"""What `inspect` and `diff` say of nodes, layers, Casts and plans."""

from __future__ import annotations

from collections import Counter

import pytest

from ampgraph.core.errors import AmpError
from ampgraph.core.graph import Stored
from ampgraph.core.plan import Decision, Plan, Why
from ampgraph.core.rewrites import Rewrite
from ampgraph.formats import adapters
from ampgraph.oplists.operators import load_op_lists
from ampgraph.report.casts import CastReport, cast_reports
from ampgraph.report.diff import _one_sided, compare_plans
from ampgraph.report.inspect import (
    CASTS_SHOWN,
    Changes,
    Inspection,
    Layer,
    _cast_lines,
    _grouped_alike,
    named_precisions,
)
from onnx_text import parse


def test_layers_that_are_alike_share_a_row() -> None:
    layers = [Layer(name, Counter(float16=count)) for name, count in (("0", 2), ("1", 2), ("2", 3), ("4", 3), ("5", 3))]
    assert [name for name, _ in _grouped_alike([*layers, Layer("x"), Layer("y")])] == ["0-1", "2", "4-5", "x", "y"]


def test_nodes_of_one_name_go_by_their_outputs() -> None:
    flow = adapters.load(parse("g (float[4] x) => (float[4] y) { [n] a = Relu (x)  [n] b = Relu (a)  y = Neg (b) }"))[0]
    assert named_precisions(flow.dataflow()) == {
        ("Relu", "a"): ("n", "float32"), ("Relu", "b"): ("n", "float32"), ("Neg", "y"): ("y", "float32"),
    }  # fmt: skip


def test_nodes_of_two_bodies_are_told_apart() -> None:
    flow = adapters.load(
        parse("""g (float[4] x, bool c) => (float[4] y) { [choice] y = If (c) <
        then_branch = t () => (p) { p = Relu (x) }, else_branch = e () => (p) { p = Relu (x) }> }""")
    )[0].dataflow()
    bodies = [scope.path for scope in flow.scopes if scope.path]
    assert len(bodies) == 2 and named_precisions(flow) == {
        ("If", "choice"): ("choice", "float32"),
        ("Relu", "p"): ("p", "float32"), ("Relu", f"{bodies[1]}/p"): ("p", "float32"),
    }  # fmt: skip


def test_nodes_without_names_go_by_their_indices() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Relu (x)  c = Cast <to: int = 10> (a)  d = Cast <to: int = 1> (c)"
    text += "  k = Constant <value_floats = [1.0]> ()  y = Relu (d) }"
    flow = adapters.load(parse(text))[0].dataflow()
    for op in flow.ops:
        op.name = ""
        op.outputs.clear()
    assert list(named_precisions(flow)) == [("Relu", "#0"), ("Relu", "#4")]


def test_the_sorts_of_casts() -> None:
    model = parse("""g (float[4] x, int64[4] i) => (float[4] y, float[4] z) {
        a = Cast <to: int = 10> (x)  b = Relu (a)  c = Cast <to: int = 1> (b)  d = Exp (c)
        e = Cast <to: int = 10> (d)  f = Cast <to: int = 1> (e)  z = Neg (f)
        j = Cast <to: int = 10> (i)  k = Mul (j, b)  y = Cast <to: int = 1> (k) }""")
    flow, lists = adapters.load(model)[0].dataflow(), load_op_lists()
    found = {cast.value: (cast.sort, cast.reason) for cast in cast_reports(flow, lists)}
    assert {value: sort for value, (sort, _) in found.items()} == {
        "a": "input", "c": "between", "e": "between", "f": "rounding", "j": "conversion", "y": "output",
    }  # fmt: skip
    assert found["c"][1] == "after Relu 'b', for Exp 'd' (deny float32)"
    assert found["j"][1].startswith("a conversion of the model: graph input 'i'")
    again = cast_reports(flow, lists, flow)
    assert {cast.sort for cast in again} == {"existing"}


class Joined(Rewrite):
    """Writes several nodes as one."""

    @property
    def writes(self) -> str:
        return "Joined"


def test_plans_are_compared_by_places_in_the_file() -> None:
    """A rewrite takes nodes away: what stands behind it has other indices in the plan."""
    rewrite = Joined("joined", "", (1, 2, 3))
    assert rewrite.removed_nodes == (1, 2)
    first = Plan("d", "O2", "float16", "ampgraph", "cuda", rewrites=[rewrite])
    second = Plan("d", "O2", "float16", "ampgraph", "cuda")
    first.decisions = [Decision("", 2, "Exp", "T", "float16", Why("cut", "cheaper"))]
    second.decisions = [Decision("", 4, "Exp", "T", "float32", Why("list", "deny"))]
    found = compare_plans(first, second, ("one", "other"))
    assert [(one.name, one.first, one.second_why) for one in found.decisions] == [
        ("Exp #4 T", "float16", "list: deny")
    ]  # fmt: skip
    with pytest.raises(AmpError, match="AMP403"):
        compare_plans(first, Plan("e", "O2", "float16", "ampgraph", "cuda"), ("one", "other"))


def test_what_only_one_side_has_counts_as_often_as_it_comes_more() -> None:
    found = _one_sided("aab", "ab" + "c")
    assert (found.first, found.second, len(found)) == (("a",), ("c",), 2)
    assert found.lines() == ["1 in the first alone: a", "1 in the second alone: c"]


def test_what_inspect_prints() -> None:
    """Each number under its heading, in the order of precisions; stored tensors of other types come last."""
    casts = (CastReport("c", "x", "", "float32", "float16", "input", "for MatMul 'm'"),)
    layers = Layer("", Counter(float16=1200, float32=3), {"head": Layer("head", Counter(float32=3))})
    weights = {"float16": Stored(12, 3400), "int64": Stored(2, 16)}
    shown = Inspection("m.onnx", "opset 18", 18, 1206, {"float32": 3, "float16": 1200, "other": 2}, {"float16": 50},
                       weights, casts, layers, unknown=("my::One", "my::Two"))  # fmt: skip
    assert shown.lines() == [
        "m.onnx: 1,206 nodes, opset 18, 3,416 bytes of weights",
        "",
        "                nodes products  weights            bytes",
        "float32             3        0        0                0",
        "float16         1,200       50       12            3,400",
        "other               2        0        0                0",
        "int64               0        0        2               16",
        "no schema known for: my::One, my::Two",
        "",
        "casts: 1",
        "  float32 -> float16  for MatMul 'm'",
        "",
        "layers",
        "  (all)  3 float32, 1,200 float16",
        "  head   3 float32",
    ]


def test_what_changed_since_the_original_is_printed() -> None:
    changed = {("MatMul", "float32", "float16"): ["m", "n"]}
    assert Changes("m.onnx", 3, 1200, -4096, changed, {"Identity": 1, "Pad": 2}, {"Cast": 6}).lines() == [
        "against m.onnx: +3 nodes, +1,200 casts, -4,096 bytes of weights",
        "       2 MatMul: float32 -> float16",
        "  only in the original: 1 Identity, 2 Pad",
        "  only here: 6 Cast",
    ]
    assert Changes("m.onnx", 0, 0, 0, {}, {}, {}).lines()[1:] == ["  no node changed its precision"]


def test_more_casts_than_are_shown_come_in_groups() -> None:
    casts = [CastReport("c", f"v{i}", "", "float32", "float16", "input", f"for v{i}") for i in range(CASTS_SHOWN + 1)]
    shown = [f"  float32 -> float16  for v{i}" for i in range(CASTS_SHOWN)]
    assert _cast_lines(casts[:CASTS_SHOWN]) == [f"casts: {CASTS_SHOWN}", *shown]
    assert _cast_lines(casts) == [
        f"casts: {CASTS_SHOWN + 1}, in groups (--json lists each)",
        f"  float32 -> float16  input: {CASTS_SHOWN + 1}",
        "    for v0", "    for v1", "    for v2",
    ]  # fmt: skip
