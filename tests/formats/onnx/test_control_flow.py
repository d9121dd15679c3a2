"""If, Loop and Scan: one type across every border of a body, casts where the reader can see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import ampgraph
from formats.onnx.helpers import LEVELS, casts, convert_everywhere, convert_twice, graphs, low_kinds, nodes, stored, x
from onnx_text import parse

pytestmark = pytest.mark.slow  # a grid: many small cases

BRANCHES = [{"x": x(2, 4), "c": np.array(c)} for c in (True, False)]
STATE = "<int64 n = {3}, bool t = {1}>"

IFS = {
    "branches of their own": """
        h = Relu (x)
        y = If (c) <
            then_branch = t () => (float[2,4] p) { p = MatMul (h, w) },
            else_branch = e () => (float[2,4] q) { r = MatMul (h, w)  q = Tanh (r) } >""",
    "a value captured by both branches and read outside": """
        h = MatMul (x, w)
        s = Softmax (h)
        b = If (c) <
            then_branch = t () => (float[2,4] p) { p = MatMul (h, w) },
            else_branch = e () => (float[2,4] q) { r = MatMul (s, w)  q = Add (r, h) } >
        k = Add (b, s)  y = Exp (k)""",
    "three levels deep": """
        h = MatMul (x, w)
        s = Softmax (h)
        b = If (c) <
            then_branch = t1 () => (float[2,4] p1) { p1 = If (c) <
                then_branch = t2 () => (float[2,4] p2) { p2 = If (c) <
                    then_branch = t3 () => (float[2,4] p3) { a = MatMul (h, w)  p3 = Add (a, s) },
                    else_branch = e3 () => (float[2,4] q3) { q3 = Identity (h) } > },
                else_branch = e2 () => (float[2,4] q2) { q2 = Exp (h) } > },
            else_branch = e1 () => (float[2,4] q1) { r = MatMul (h, w)  q1 = Tanh (r) } >
        y = Add (b, s)""",
    "a branch that passes an outer value on": """
        h = MatMul (x, w)
        b = If (c) <
            then_branch = t () => (float[2,4] p) { p = Identity (h) },
            else_branch = e () => (float[2,4] q) { q = Relu (h) } >
        y = MatMul (b, w)""",
    "a branch that widens an outer float16 value": """
        h = MatMul (x, w)
        l = Cast <to = 10> (h)
        b = If (c) <
            then_branch = t () => (float[2,4] p) { p = Cast <to = 1> (l) },
            else_branch = e () => (float[2,4] q) { q = Relu (h) } >
        y = MatMul (b, w)""",
    "branches that narrow": """
        h = MatMul (x, w)
        b = If (c) <
            then_branch = t () => (float16[2,4] p) { p = Cast <to = 10> (h) },
            else_branch = e () => (float16[2,4] q) { r = Relu (h)  q = Cast <to = 10> (r) } >
        y = Cast <to = 1> (b)""",
    "a given cast that comes after the readers in a branch": """
        h = Softmax (x)
        y = If (c) <
            then_branch = t () => (float[2,4] p) { p = MatMul (h, w) },
            else_branch = e () => (float[2,4] q) { r = MatMul (h, w)  q = Tanh (r) } >
        d = Cast <to = 10> (h)  z = Relu (d)  zz = Cast <to = 1> (z)""",
    "names that a new cast would like to have": """
        h = MatMul (x, w)
        b = If (c) <
            then_branch = t () => (float[2,4] p) { a = MatMul (h, w)  h_float16 = Exp (a)  p = Add (h_float16, h) },
            else_branch = e () => (float[2,4] q) { a = Softmax (h)  h_float32 = MatMul (a, w)  q = Exp (h_float32) } >
        y = Softmax (b)""",
    "branches of two sizes of state": """
        h = MatMul (x, w)
        b, d = If (c) <
            then_branch = t () => (float[2,4] p, double[2,4] pd) { p = Exp (h)  pd = Cast <to = 11> (h) },
            else_branch = e () => (float[2,4] q, double[2,4] qd) { q = MatMul (h, w)  qd = Cast <to = 11> (q) } >
        f = Cast <to = 1> (d)  y = Add (b, f)""",
}


@pytest.mark.parametrize("body", IFS.values(), ids=IFS.keys())
def test_if(body: str) -> None:
    convert_everywhere(
        parse(f"g (float[2,4] x, bool c) => (float[2,4] y) {{ {body} }}", w=(4, 4)), BRANCHES, low=["MatMul"]
    )


LOOPS = {
    "a state, a captured value, a stacked output": """{STATE} {
        h = Relu (x)
        y, s = Loop (n, t, x) <body = b (int64 i, bool go, float[2,4] a) => (bool on, float[2,4] next, float[2,4] out) {
            on = Identity (go)
            m = MatMul (a, w)  e = Add (m, h)  next = Tanh (e)
            out = MatMul (next, w) } >
        z = ReduceMax <axes = [0], keepdims = 0> (s) }""",
    "a state that starts as a weight, which is read elsewhere too": """{STATE} {
        y = Loop (n, t, k) <body = b (int64 i, bool go, float[2,4] a) => (bool on, float[2,4] next) {
            on = Identity (go)  m = MatMul (a, w)  next = Add (m, x) } >
        z = Softmax (k) }""",
    "three levels deep, each capturing from outside": """{STATE} {
        y = Loop (n, t, x) <body = b1 (int64 i1, bool g1, float[2,4] a1) => (bool o1, float[2,4] r1) {
            o1 = Identity (g1)
            r1 = Loop (n, t, a1) <body = b2 (int64 i2, bool g2, float[2,4] a2) => (bool o2, float[2,4] r2) {
                o2 = Identity (g2)
                m2 = MatMul (a2, w)
                r2 = Loop (n, t, m2) <body = b3 (int64 i3, bool g3, float[2,4] a3) => (bool o3, float[2,4] r3) {
                    o3 = Identity (g3)
                    m3 = MatMul (a3, w)  s3 = Add (m3, m2)  d3 = Sub (s3, a1)  r3 = Tanh (d3) } > } > } >
        z = Exp (y) }""",
    "states that change places, outputs that are inputs of the body": """{STATE} {
        a = MatMul (x, w)
        f = Softmax (x)
        y, z, s = Loop (n, t, a, f) <
            body = b (int64 i, bool go, float[2,4] p, float[2,4] q)
                => (bool go, float[2,4] q, float[2,4] p, float[2,4] r) { r = MatMul (p, w) } > }""",
    "an If inside a Loop": """{STATE} {
        y = Loop (n, t, x) <body = b (int64 i, bool go, float[2,4] a) => (bool on, float[2,4] next) {
            on = Identity (go)
            one = Constant <value = int64 {1}> ()
            c = Less (i, one)
            m = MatMul (a, w)
            next = If (c) <
                then_branch = t1 () => (float[2,4] p) { e = Exp (m)  p = MatMul (e, w) },
                else_branch = e1 () => (float[2,4] q) { q = Softmax (m) } > } >
        z = Exp (y) }""",
    "nested ones that pass their conditions on, as states too": """{STATE} {
        u, y = Loop (n, t, t, x) <body = b1 (int64 i1, bool g1, bool s1, float[2,4] a1)
                => (bool o1, bool o1, float[2,4] r1) {
            o1, r1 = Loop (n, g1, s1, a1) <body = b2 (int64 i2, bool g2, bool s2, float[2,4] a2)
                    => (bool s2, bool g2, float[2,4] r2) { m2 = MatMul (a2, w)  r2 = Tanh (m2) } > } >
        z = Exp (y) }""",
    "weights and constants of the body's own": """{STATE} {
        y = Loop (n, t, x) <body = b (int64 i, bool go, float[2,4] a) => (bool on, float[2,4] next)
            <float[4,4] own = {1,2,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
            on = Identity (go)
            f4 = Constant <value = float[4] {0.5, 0.25, 1.0, 2.0}> ()
            m = MatMul (a, own)  c = Mul (m, f4)  f = Softmax (c)  e = Exp (own)  next = MatMul (f, e) } >
        z = Exp (y) }""",
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS.keys())
def test_loop(body: str) -> None:
    given = parse(
        "g (float[2,4] x) => (float[2,4] y, float[2,4] z) " + body.replace("{STATE}", STATE), w=(4, 4), k=(2, 4)
    )
    convert_everywhere(given, {"x": x(2, 4) * 0.5}, low=["MatMul"])


@pytest.mark.slow
def test_a_weight_of_bodies_is_stored_and_cast_once() -> None:
    given = parse(
        f"""g (float[600,600] x) => (float[600,600] y, float[600,600] z) {STATE} {{
        y = Loop (n, t, k) <body = b (int64 i, bool go, float[600,600] a) => (bool on, float[600,600] next) {{
            on = Identity (go)  m = MatMul (a, x)  next = Tanh (m) }} >
        z = Softmax (k) }}""",
        k=(600, 600),
    )
    result = convert_everywhere(given, None, run=False, low=["MatMul"])
    for level in LEVELS:
        assert [name for name in stored(result[level]) if name not in ("n", "t")] == ["k"]
    # a weight is cast once for bodies at every depth
    given = parse(
        """g (float[2,600] x, bool c) => (float[2,600] y) {
        a = CumSum (w, axis)
        b = If (c) <
            then_branch = t () => (float[2,600] p) { p = MatMul (x, w) },
            else_branch = e () => (float[2,600] q) { r = MatMul (x, w)  q = MatMul (r, a) } >
        y = Softmax (b) }""",
        w=(600, 600),
        axis=np.array(0),
    )
    result = convert_everywhere(given, None, run=False, low=["MatMul"])
    of_w = [n for n in nodes(result["O2"]) if n.op_type == "Cast" and n.input[0] == "w"]
    assert len(of_w) == 1 and of_w[0] in list(result["O2"].graph.node)
    assert helper.get_attribute_value(of_w[0].attribute[0]) == onnx.TensorProto.FLOAT16


def test_scans() -> None:
    given = parse(
        """g (float[5,4] x, float[4] s) => (float[4] y, float[5,4] z) {
        h = MatMul (x, w)
        y, z = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] e) => (float[4] next, float[4] out) {
            m = MatMul (a, w)  k = Add (m, e)  next = Tanh (k)  out = Exp (next) }> (s, h)
    }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(5, 4), "s": x(4)}, low=["MatMul"])
    # ONNX Runtime has no Scan-8: the checker says whether it is right.
    given = parse(
        """g (float[2,4] s, float[2,5,4] x, float[4,4] w) => (float[2,4] y, float[2,5,4] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] e) => (float[4] next, float[4] out) {
            m = MatMul (a, w)  k = Add (m, e)  next = Tanh (k)  out = Exp (next) }> (, s, x)
    }""",
        opset=8,
        ir=3,
        w=(4, 4),
    )
    result = convert_everywhere(given, None, run=False, bfloat16=False, low=["MatMul"])
    assert casts(result["O2"])


def test_outer_values() -> None:
    given = parse(
        f"""g (float[2,4] x) => (float[2,4] y) {STATE} {{
        h = MatMul (x, w)
        l = Loop (n, t, h) <body = b (int64 i, bool go, float[2,4] st) => (bool on, float[2,4] next) {{
            on = Identity (go)  a = MatMul (st, w)  next = Exp (a) }} >
        a = Softmax (l)
        y = MatMul (a, w)
    }}""",
        w=(4, 4),
    )
    body = given.graph.node[1].attribute[0].g
    body.input[2].name = body.node[1].input[0] = "x"  # the body's x is its state, not the graph's
    convert_everywhere(given, {"x": x(2, 4) * 0.2}, low=["MatMul"], checked=False)
    # Neither the checker nor the runtime takes such a branch: it is converted all the same, and gets no worse.
    for level in LEVELS:
        converted = convert_twice(_returns_outer((4, 4)), level, target="cpu")
        assert "MatMul" in low_kinds(converted)
        outputs = [g.output[0].name for g in graphs(converted.graph)][1:]
        assert len(set(outputs)) == 2
    # Tools that append nodes leave a value behind the If that reads it from inside, which onnx refuses.
    text = """g (float[2,4] x, bool c) => (float[2,4] y) { a = MatMul (x, w)
        y = If (c) <then_branch = t () => (float[2,4] u) { u = MatMul (a, w) },
                    else_branch = e () => (float[2,4] v) { v = Relu (a) }> }"""
    model = parse(text, w=np.eye(4, dtype=np.float32))
    nodes_given = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes_given)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    onnx.checker.check_model(ampgraph.convert(model, "O2"))


def _returns_outer(w: Sequence[int]) -> ModelProto:
    return parse(
        """g (float[2,4] x, bool c) => (float[2,4] y) {
        h = MatMul (x, w)
        b = If (c) <
            then_branch = t () => (float[2,4] h) { },
            else_branch = e () => (float[2,4] q) { q = Exp (h) } >
        y = MatMul (b, w)
    }""",
        w=w,
    )


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_no_body_of_ours_returns_what_it_did_not_make(level: str) -> None:
    for body in IFS.values():
        given = parse(f"g (float[2,4] x, bool c) => (float[2,4] y) {{ {body} }}", w=(4, 4))
        for target in ("cpu", "cuda"):
            for node in nodes(convert_twice(given, level, target=target)):
                for attribute in node.attribute:
                    if attribute.type == onnx.AttributeProto.GRAPH:
                        made = {o for inner in attribute.g.node for o in inner.output}
                        assert {o.name for o in attribute.g.output} <= made
