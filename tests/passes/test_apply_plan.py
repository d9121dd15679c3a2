"""A plan is data that fits one model; written norms become their operators; the last pass verifies types."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.plan import Plan
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.passes.apply_plan import signatures
from ampgraph.passes.rewrite_regions import RewriteRegions
from ampgraph.passes.verify_types import VerifyTypes
from formats.onnx.helpers import code, convert_everywhere, data, kinds, nodes, x
from near import Tolerance
from onnx_text import parse

TEXT = """g (float[2,4] x, bool c) => (float[2,4] y) {
    a = MatMul (x, w)
    b = If (c) <
        then_branch = t () => (float[2,4] p) { p = MatMul (a, w) },
        else_branch = e () => (float[2,4] q) { q = Exp (a) } >
    d = CumSum (v, axis)  h = ReduceSum (d)  f = MatMul (b, v)  g = Add (f, h)
    y = LeakyRelu <alpha = 0.1> (g) }"""


def given(text: str = TEXT) -> ModelProto:
    return parse(text, w=(4, 4), v=(4, 4), axis=np.array(0))


def test_what_a_plan_remembers() -> None:
    norm = """g (float[2,4] x) => (float[2,4] y) {
        h = MatMul (x, w)
        mean = ReduceMean <axes = [-1]> (h)  d = Sub (h, mean)  s = Mul (d, d)  var = ReduceMean <axes = [-1]> (s)
        e = Constant <value = float {0.001}> ()  v1 = Add (var, e)  r = Sqrt (v1)  n = Div (d, r)
        y = Mul (n, scale) }"""
    proto = parse(norm, w=(4, 4), scale=np.ones(4, np.float32))
    plan = Plan.from_json(ampgraph.plan(proto, "O3", target="cuda", io=["x=low"]).to_json())
    assert plan.rewrites
    assert data(ampgraph.apply(proto, plan)) == data(ampgraph.convert(proto, "O3", target="cuda", io=["x=low"]))
    # other values in a small weight are another model
    plan = ampgraph.plan(given(), "O2", target="cpu")
    other = given()
    other.graph.initializer[0].raw_data = np.full((4, 4), 1e5, np.float32).tobytes()
    assert code(lambda: ampgraph.apply(other, plan)) == "AMP403"
    # text that is no plan
    text = ampgraph.plan(given(), "O1", target="cpu").to_json()
    for wrong in ("", "[]", "1", "null", '"x"', "{}", text[:200], text[:-5]):
        assert code(partial(Plan.from_json, wrong)) == "AMP401"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha = 0.1", "alpha = 0.2"),
        ("LeakyRelu <alpha = 0.1>", "Relu"),
        ("MatMul (b, v)", "MatMul (b, w)"),
        ("float[2,4] x", "double[2,4] x"),
        ("p = MatMul (a, w)", "p = MatMul (a, v)"),
    ],
)
def test_a_plan_for_another_model_is_refused(old: str, new: str) -> None:
    plan = ampgraph.plan(given(), "O2", target="cpu")
    assert old in TEXT
    assert code(lambda: ampgraph.apply(given(TEXT.replace(old, new)), plan)) == "AMP403"


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    plan = json.loads(ampgraph.plan(given(), "O1", target="cpu").to_json())
    change(plan)
    return lambda: ampgraph.apply(given(), Plan.from_json(json.dumps(plan)))


def set_use(*place: object) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan["casts"][0]["uses"].__setitem__(0, list(place))


REWRITE = {"name": "norm", "scope": "", "nodes": [0], "operator": "LayerNormalization", "source": "x", "scale": "w",
           "bias": "", "axis": -1, "epsilon": 1e-5}  # fmt: skip
OLD = {"scope": "", "kind": "Gelu", "nodes": [0], "inputs": ["x"], "axis": 0, "epsilon": 0.0, "name": "gelu"}

DAMAGES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "another version": ("AMP401", lambda p: p.update(ampgraph_plan=99)),
    "a version in words": ("AMP401", lambda p: p.update(ampgraph_plan="new")),
    "no version": ("AMP401", lambda p: p.pop("ampgraph_plan")),
    "an unknown type": ("AMP401", lambda p: p.update(dtype="float99")),
    "an unknown type of a decision": ("AMP401", lambda p: p["decisions"][1].__setitem__(4, "float99")),
    "an unknown reason": ("AMP401", lambda p: p["decisions"][1].__setitem__(5, 99)),
    "a reason in words": ("AMP401", lambda p: p["decisions"][1].__setitem__(5, "because")),
    "an unknown type of a cast": ("AMP401", lambda p: p["casts"][0].update(to="float99")),
    "a cast to a number": ("AMP401", lambda p: p["casts"][0].update(to=5)),
    "a use in words": ("AMP401", set_use("", 0, "first")),
    "casts of another shape": ("AMP401", lambda p: p.update(casts={"a": 1})),
    "an unknown way to store": ("AMP401", lambda p: p["weights"][0].update(store="somewhere")),
    "a floor in words": ("AMP401", lambda p: p["weights"][0].update(floor="low")),
    "a rewrite of nothing": ("AMP401", lambda p: p.update(rewrites=[{**REWRITE, "nodes": []}])),
    "an unknown rewrite": ("AMP401", lambda p: p.update(rewrites=[{**REWRITE, "name": "other"}])),
    "a rewrite without a field": ("AMP401", lambda p: p.update(rewrites=[{"name": "norm", "scope": "", "nodes": [0]}])),
    "a rewrite with a number for a name": ("AMP401", lambda p: p.update(rewrites=[{**REWRITE, "source": 1}])),
    "an old row in a new plan": ("AMP401", lambda p: p.update(rewrites=[OLD])),
    "a new row in an old plan": ("AMP401", lambda p: p.update(ampgraph_plan=1, rewrites=[REWRITE])),
    "reasons that are none": ("AMP401", lambda p: p.update(reasons=5)),
    "notes of another shape": ("AMP401", lambda p: p.update(notes=[{"x": 1}])),
    "no decisions": ("AMP402", lambda p: p["decisions"].clear()),
    "a node that is not there": ("AMP402", lambda p: p["decisions"][1].__setitem__(1, 99)),
    "a value that is not there": ("AMP402", lambda p: p["casts"][0].update(value="nothing")),
    "a scope that is not there": ("AMP402", lambda p: p["casts"][0].update(scope="/9:If.x")),
    "a use in a scope that is not there": ("AMP402", set_use("/9", 0, 0)),
    "a use by a node that is not there": ("AMP402", set_use("", 77, 0)),
    "a use at a place that is not there": ("AMP402", set_use("", 0, 7)),
    "a use at an output that is not there": ("AMP402", set_use("", -1, 7)),
    "a use of another value": ("AMP402", set_use("", 2, 0)),
    "a weight that is none": ("AMP402", lambda p: p["weights"][0].update(value="x")),
    "a rewrite of nodes that are not there": ("AMP402", lambda p: p.update(rewrites=[{**REWRITE, "nodes": [99]}])),
    "a rewrite of other values": ("AMP402", lambda p: p.update(rewrites=[{**REWRITE, "scale": "nothing"}])),
    "another digest": ("AMP403", lambda p: p.update(digest="0" * 32)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_plan_is_refused(name: str) -> None:
    expected, change = DAMAGES[name]
    assert code(edited(change)) == expected


def test_calls_and_types() -> None:
    """Equal decisions, equal signature; a call in which nothing is low is like one of a type that is never low."""
    proto = parse(
        """g (float[2,4] x, double[2,4] d) => (float[2,4] y, float[2,4] z, double[2,4] u) {
        a = MatMul (x, w)  b = loc.f (a)  c = loc.f (b)  y = MatMul (c, w)
        e = Exp (x)  k = loc.f (e)  z = Exp (k)  u = loc.f (d) }""",
        functions='<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { b = Neg (a) }',
        domains=["loc"],
        w=(4, 4),
    )
    plan = ampgraph.plan(proto, "O1", target="cpu")
    flow = OnnxGraph(ir.from_proto(proto)).dataflow()
    found = signatures(plan, flow)
    first, second, third, fourth = (found[path] for path in sorted(found))
    assert first == second != third == fourth == ()
    # types that fit
    graph = mixed(WRONG["two types in one slot"])
    known = frozenset(graph.dataflow().conflicts)
    assert known and VerifyTypes(known)(graph).count == 0
    # passes what is right
    graph = mixed("g (float[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }")
    assert VerifyTypes()(graph).count == 0


# A decomposed norm becomes its standard operator, in the main graph and in bodies; what cannot, stays.

NORM = """mean = ReduceMean <axes = [-1]> (h)  d = Sub (h, mean)  sq = Mul (d, d)  var = ReduceMean <axes = [-1]> (sq)
    e = Constant <value = float {0.001}> ()  v1 = Add (var, e)  r = Sqrt (v1)  n = Div (d, r)"""
SCALE = np.linspace(0.5, 1.5, 8, dtype=np.float32)
NEAR = Tolerance(1e-5, 1e-2, 4e-2)


def test_norms_become_operators() -> None:
    given = parse(
        f"""g (float[2,8] x) => (float[2,8] y) {{
        h = MatMul (x, w)  {NORM}  k = Mul (n, scale)  m = Add (k, b)  y = MatMul (m, w) }}""",
        w=(8, 8),
        b=(8,),
        scale=SCALE,
    )
    result = convert_everywhere(given, {"x": x(2, 8)}, target="cuda", low=["MatMul"], tolerance=NEAR)
    assert kinds(result["O3"]) == ["Cast", "MatMul", "LayerNormalization", "MatMul", "Cast"]
    norm = next(n for n in nodes(result["O3"]) if n.op_type == "LayerNormalization")
    found = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
    assert found["axis"] == -1 and found["stash_type"] == 1 and found["epsilon"] == pytest.approx(0.001)
    assert kinds(result["O2"]) == kinds(result["O3"]), "the kernel keeps float32 inside"
    assert "LayerNormalization" not in kinds(result["O1"]), "kept in float32: nothing is won there"
    # in a branch
    given = parse(
        f"""g (float[2,8] x, bool c) => (float[2,8] y) {{
        h = MatMul (x, w)
        b = If (c) <
            then_branch = t () => (float[2,8] p) {{ {NORM}  p = Mul (n, scale) }},
            else_branch = f () => (float[2,8] q) {{ q = MatMul (h, w) }} >
        y = MatMul (b, w) }}""",
        w=(8, 8),
        scale=SCALE,
    )
    feeds = [{"x": x(2, 8), "c": np.array(c)} for c in (True, False)]
    result = convert_everywhere(given, feeds, target="cuda", low=["MatMul"], tolerance=NEAR)
    assert "LayerNormalization" in {n.op_type for n in nodes(result["O3"])}
    # a second run finds nothing
    given = parse(
        f"g (float[2,8] x) => (float[2,8] y) {{ h = MatMul (x, w)  {NORM}  y = Mul (n, scale) }}", w=(8, 8), scale=SCALE
    )
    plan = ampgraph.plan(given, "O3", target="cuda")
    graph = OnnxGraph(ir.from_proto(given))
    assert RewriteRegions(tuple(plan.rewrites))(graph).count == 1
    assert not ampgraph.plan(ir.to_proto(graph.model), "O3", target="cuda").rewrites


@pytest.mark.parametrize("inside", ["body", "branch"])
def test_in_a_function_that_is_called_twice_it_stays(inside: str) -> None:
    """Each call is seen by itself, but they share their nodes."""
    body = f"{NORM}  b = Mul (n, s)"
    if inside == "branch":
        body = f"""b = If (c) <
            then_branch = t () => (p) {{ {NORM}  p = Mul (n, s) }},
            else_branch = f () => (q) {{ q = MatMul (h, w) }} >"""
    given = parse(
        "g (float[2,8] x, bool c) => (float[2,8] y) { a = loc.f (x, w, scale, c)  y = loc.f (a, w, scale, c) }",
        functions=f'<domain: "loc", opset_import: ["" : 17]> f (a, w, s, c) => (b) {{ h = MatMul (a, w)  {body} }}',
        domains=["loc"],
        w=(8, 8),
        scale=SCALE,
    )
    feeds = [{"x": x(2, 8), "c": np.array(c)} for c in (True, False)]
    convert_everywhere(given, feeds, target="cuda", low=["MatMul"], tolerance=NEAR)


CHANNELS = NORM.replace("[-1]", "[1]")


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1)])
def test_over_channels_it_stands_between_transposes(shape: tuple[int, ...]) -> None:
    given = parse(
        f"""g (float[2,3,4,4] x) => (float[2,3,4,4] y) {{
        h = Conv (x, w)  {CHANNELS}  i = Identity (scale)  k = Mul (i, n)  m = Add (k, b)  y = Conv (m, w) }}""",
        w=(3, 3, 1, 1),
        b=np.linspace(-1, 1, 3, dtype=np.float32).reshape(shape),
        scale=np.linspace(0.5, 1.5, 3, dtype=np.float32).reshape(shape),
    )
    result = convert_everywhere(given, {"x": x(2, 3, 4, 4)}, target="cuda", low=["Conv"], tolerance=NEAR)
    for level in ("O2", "O3", "auto"):
        found = [kind for kind in kinds(result[level]) if kind not in ("Cast", "Identity", "Squeeze")]
        assert found == ["Conv", "Transpose", "LayerNormalization", "Transpose", "Conv"]
        assert ampgraph.convert(result[level], level) == result[level]
    orders = [list(n.attribute[0].ints) for n in nodes(result["O2"]) if n.op_type == "Transpose"]
    assert orders == [[0, 2, 3, 1], [0, 3, 1, 2]]
    assert "LayerNormalization" not in kinds(ampgraph.convert(given, "O2", rewrite="no-channels"))


@pytest.mark.parametrize("bias", ["b", "scale"])
def test_a_scale_of_more_dimensions_is_squeezed(bias: str) -> None:
    """As Keras stores it; one tensor may be both."""
    stored = {"w": np.eye(8, dtype=np.float32), "scale": SCALE.reshape(1, 8)}
    stored |= {"b": SCALE[::-1].reshape(1, 8)} if bias == "b" else {}
    text = f"g (float[2,8] x) => (float[2,8] y) {{ h = MatMul (x, w)  {NORM}  k = Mul (n, scale)  m = Add (k, {bias})"
    given = parse(f"{text}  y = MatMul (m, w) }}", stored)
    result = convert_everywhere(given, {"x": x(2, 8)}, target="cuda", low=["MatMul"], tolerance=NEAR)
    found = [kind for kind in kinds(result["O2"]) if kind not in ("Cast", "Squeeze")]
    assert found == ["MatMul", "LayerNormalization", "MatMul"]


OTHERS = {
    "of another size": ("[1]", (1, 1, 4, 1)),
    "of every place": ("[1]", (3, 4, 4)),
    "of several axes": ("[1, 2]", (3, 1, 1)),
    "of more dimensions": ("[-1]", (1, 1, 1, 1, 4)),
}


@pytest.mark.parametrize(("axes", "shape"), OTHERS.values(), ids=OTHERS)
def test_a_scale_that_is_not_along_the_axis_stays(axes: str, shape: tuple[int, ...]) -> None:
    given = parse(
        f"""g (float[2,3,4,4] x) => (float[2,3,4,4] y) {{
        h = Conv (x, w)  {NORM.replace("[-1]", axes)}  k = Mul (n, scale)  y = Conv (k, w) }}""",
        w=(3, 3, 1, 1),
        scale=np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape),
    )
    assert "LayerNormalization" not in kinds(ampgraph.convert(given, "O3", check="off"))


# The last pass finds a slot with two types, whatever made it so.


def mixed(text: str) -> OnnxGraph:
    return OnnxGraph(ir.from_proto(parse(text, w=(4, 4))))


WRONG = {
    "two types in one slot": "g (float16[2,4] x) => (float[2,4] y) { y = MatMul (x, w) }",
    "a type that is not admitted": "g (bfloat16[4,4] x) => (bfloat16 y) { y = Det (x) }",
    "inside a branch": """g (float16[2,4] x, bool c) => (float[2,4] y) {
        y = If (c) < then_branch = t () => (float[2,4] p) { p = MatMul (x, w) },
                     else_branch = e () => (float[2,4] q) { q = Cast <to = 1> (x) } > }""",
    "inside a function": """g (float16[2,4] x) => (float[2,4] y) { y = loc.f (x, w) }
        <domain: "loc", opset_import: ["" : 17]> f (a, w) => (b) { b = MatMul (a, w) }""",
}


@pytest.mark.parametrize("name", WRONG)
def test_finds(name: str) -> None:
    graph = mixed(WRONG[name])
    with pytest.raises(ampgraph.AmpError) as caught:
        VerifyTypes()(graph)
    assert caught.value.code == "AMP901"
