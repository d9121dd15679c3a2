"""Model-local functions: each call is decided by itself; calls that agree share one copy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import ampgraph
from effort import lines_run
from formats.onnx.helpers import LEVELS, casts, code, convert_everywhere, low_kinds, nodes, x
from needs import needs_runtime
from onnx_text import parse

LOCAL = ["loc"]
MLP = """<domain: "loc", opset_import: ["" : 17]> f (a, w) => (b) { h = MatMul (a, w)  e = Relu (h)  b = Add (e, a) }"""
MOVE = """<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { h = Relu (a)  b = Neg (h) }"""
HEAD = """<domain: "loc", opset_import: ["" : 17]> f (a, w) => (b) { h = MatMul (a, w)  b = Softmax (h) }"""
OUTER = (
    """<domain: "loc", opset_import: ["" : 17, "loc" : 1]> o (a, w) => (b) { h = MatMul (a, w)  b = loc.f (h, w) }"""
)
DOUBLE = x(2, 4).astype(np.float64)


def local(text: str, functions: str, **more) -> ModelProto:
    more.setdefault("w", (4, 4))
    return parse(text, functions=functions, domains=LOCAL, **more)


def calls(proto: ModelProto) -> list[str]:
    """What the nodes of the domain call, in order."""
    return [node.op_type for node in nodes(proto) if node.domain == "loc"]


def function_names(proto: ModelProto) -> list[str]:
    names = [(f.domain, f.name, f.overload) for f in proto.functions]
    assert len(set(names)) == len(names)
    return [name for _, name, _ in names]


SLASHES = MLP.replace("h = MatMul", '"/mm/out" = MatMul').replace("Relu (h)", 'Relu ("/mm/out")')
ROUNDED = """<domain: "loc", opset_import: ["" : 17]> f (a, w) => (c, h)
    { h = MatMul (a, w)  l = Cast <to = 10> (h)  c = Cast <to = 1> (l) }"""
EXP = """<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { b = Exp (a) }"""
ATTRIBUTES = """<domain: "loc", opset_import: ["" : 17]> f <ALPHA, TO> (a, w) => (b) {
    h = MatMul (a, w)
    e = LeakyRelu <alpha: float = @alpha> (h)
    c = Cast <to: int = @to> (e)
    k = Constant <value_float: float = @alpha> ()
    m = Cast <to: int = @to> (k)
    b = Mul (c, m) }"""
BRANCHING = """<domain: "loc", opset_import: ["" : 17]> f (a, w, c) => (b) {
    h = MatMul (a, w)
    b = If (c) <
        then_branch = t () => (p) { k = Constant <value = float[1] {2.0}> ()  q = Mul (h, k)  p = MatMul (q, w) },
        else_branch = e () => (r) { s = Softmax (h)  r = Add (s, a) } > }"""
OWN_WEIGHTS = """<domain: "loc", opset_import: ["" : 17]> f (a) => (b) {
    w = Constant <value = float[4,4] {1,0,0,2, 0,1,0,0, 0,0,1,0, 0.1,0,0,1}> ()
    h = MatMul (a, w)  s = Softmax (h)  l = Exp (w)  b = MatMul (s, l) }
    <domain: "loc", opset_import: ["" : 17]> k (a) => (b) { b = Neg (a) }"""
AT = """<domain: "loc", opset_import: ["" : 17]> f (s, i, w) => (b) { h = SequenceAt (s, i)  b = MatMul (h, w) }"""
OF_BOTH = "(float[2,4] x, double[2,4] d) => (float[2,4] y, double[2,4] z)"
IN_BRANCHES = """(float[2,4] x, bool c) => (float[2,4] y) { h = Softmax (x)
    y = If (c) <then_branch = t () => (float[2,4] p) { p = loc.f (h, w) },
                else_branch = e () => (float[2,4] r) { q = Exp (h)  r = loc.f (q, w) } > }"""
CASES = {  # graph, functions, which there are at each level, what must be low
    "called once": ("(float[2,4] x) => (float[2,4] y) { y = loc.f (x, w) }", MLP, "f", "MatMul Add"),
    "names with slashes in old files, which cannot be read again": (
        "(float[2,4] x) => (float[2,4] y) { y = loc.f (x, w) }", SLASHES, "f", "MatMul Add"),
    "a cast between two results, of which ONNX Runtime takes no value twice": (
        """(float[2,4] x) => (float[2,4] y, float[2,4] z) { h, k = loc.f (x, w)  y = MatMul (h, w)
        z = MatMul (k, w) }""", ROUNDED, "f", "MatMul"),
    "calls that agree share one copy": (
        "(float[2,4] x) => (float[2,4] y) { h = loc.f (x, w)  y = loc.f (h, u) }", MLP, "f", "MatMul"),
    "a call with float and one with double": (
        f"{OF_BOTH} {{ y = loc.f (x, w)  z = loc.f (d, v) }}", MLP, "f f_1", "MatMul"),
    "a call with double and one with float": (
        f"{OF_BOTH} {{ z = loc.f (d, v)  y = loc.f (x, w) }}", MLP, "f f_1", "MatMul"),
    "attribute references": (
        """(float[2,4] x) => (float[2,4] y, double[2,4] z, float16[2,4] q) {
        h = loc.f <alpha = 0.5, to = 1> (x, w)  y = loc.f <alpha = 0.25, to = 1> (h, u)
        z = loc.f <alpha = 0.25, to = 11> (h, u)  q = loc.f <alpha = 0.25, to = 10> (h, u) }""",
        ATTRIBUTES.replace("ALPHA", "alpha").replace("TO", "to"), None, "MatMul LeakyRelu"),
    "branches": ("(float[2,4] x, bool c) => (float[2,4] y) { h = loc.f (x, w, c)  s = Exp (h)  y = loc.f (s, w, c) }",
        BRANCHING, None, "MatMul"),
    "a call inside a branch, and a function that nobody calls": (
        IN_BRANCHES, MLP + MLP.replace("f (", "unused ("), "f unused", "MatMul"),
    "a sequence": (
        """(float[2,4] x) => (float[2,4] y) <int64 i = {0}> {
        e = Exp (x)  s = SequenceConstruct (e, x)  a = loc.f (s, i, w)  y = Exp (a) }""", AT, "f", "MatMul"),
    "constants of a function, rounded in each copy alone": (
        "(double[2,4] d, float[2,4] x) => (double[2,4] z, float[2,4] y) { y = loc.f (x)  z = loc.k (d) }",
        OWN_WEIGHTS, "f k", "MatMul"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    graph, functions, names, low = CASES[name]
    used = {"w": (4, 4), "u": (4, 4), "v": x(4, 4).astype(np.float64)}
    given = local(f"g {graph}", functions, **{n: v for n, v in used.items() if f" {n})" in graph or f" {n}," in graph})
    feeds = {"x": x(2, 4), **({"d": DOUBLE} if "double[2,4] d" in graph else {})}
    conditions = [{"c": np.array(c)} for c in (True, False)] if "bool c" in graph else [{}]
    result = convert_everywhere(given, [feeds | more for more in conditions], low=low.split())
    for level in LEVELS:
        assert names is None or sorted(function_names(result[level])) == names.split(), level


@pytest.mark.slow
def test_copies_of_functions() -> None:
    """Between two products the function is low, between two denied operators it is not."""
    given = local(
        """g (float[2,4] x) => (float[2,4] y) {
        h = MatMul (x, w)  i = loc.f (h)  j = MatMul (i, w)
        n = Exp (j)  k = loc.f (n)  l = Exp (k)  y = Softmax (l) }""",
        MOVE,
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    assert function_names(result["O1"]) == ["f", "f_1"] and calls(result["O1"]) == ["f", "f_1"]
    assert function_names(result["O3"]) == ["f"]
    # The denied neighbours are kept by the user, so the function between them stays in float32.
    given = local(
        """g (float[2,4] x) => (float[2,4] y) {
        h = MatMul (x, w)  i = loc.f (h)  j = MatMul (i, w)  n = Exp (j)  k = loc.f (n)  y = Exp (k) }""",
        MOVE,
    )
    for node, name in zip(
        given.graph.node, ("enc/mm", "enc/f", "enc/mm2", "dec/exp", "dec/f", "dec/exp2"), strict=True
    ):
        node.name = name
    result = convert_everywhere(given, {"x": x(2, 4)}, fp32=["scope:dec"], levels=("O1", "O2", "auto"), low=["MatMul"])
    assert calls(result["O2"]) == ["f", "f_1"]
    assert low_kinds(result["O2"])["Relu"] == 1
    # a function in which nothing is low is not copied
    given = local(f"g {OF_BOTH} {{ e = loc.f (x)  m = MatMul (e, w)  y = Softmax (m)  z = loc.f (d) }}", EXP)
    result = convert_everywhere(given, {"x": x(2, 4), "d": DOUBLE}, low=["MatMul"])
    assert function_names(result["O1"]) == ["f"]


def test_functions_that_call_functions() -> None:
    given = local(
        """g (float[2,4] x) => (float[2,4] y) {
        n = loc.f (x, w)  h = Exp (n)  i = loc.o (h, w)  j = loc.o (i, w)  l = loc.f (j, w)  y = Exp (l) }""",
        OUTER + HEAD,
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for level in LEVELS:
        function_names(result[level])
        assert low_kinds(result[level])["MatMul"] == 6
    # f in double first: o in float calls f_1, its copy in double must call f again.
    given = local(
        """g (float[2,4] x, double[2,4] d) => (float[2,4] y, double[2,4] z) {
        e = loc.f (d, v)  y = loc.o (x, w)  z = loc.o (e, v) }""",
        OUTER + HEAD,
        v=x(4, 4).astype(np.float64),
    )
    result = convert_everywhere(given, {"x": x(2, 4), "d": DOUBLE}, low=["MatMul"])
    for level in LEVELS:
        assert calls(result[level])[:3] == ["f", "o", "o_1"]
        called = {f.name: [n.op_type for n in f.node if n.domain == "loc"] for f in result[level].functions}
        assert called["o"] == ["f_1"] and called["o_1"] == ["f"]


def test_attribute_references_with_defaults() -> None:
    """onnx's inliner, on which a strict run rests, forgets defaults: the plain result has to do."""
    given = local(
        """g (float[2,4] x) => (float[2,4] y, double[2,4] z) {
        h = loc.f <alpha = 0.25> (x, w)  y = loc.f (h, v)  z = loc.f <to = 11> (h, v) }""",
        ATTRIBUTES.replace("ALPHA", "alpha: float = 0.5").replace("TO", "to: int = 1"),
        v=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4)}, accurate=False)


def test_a_fill_that_the_caller_gives_stays_with_the_caller() -> None:
    given = local(
        """g (float[2,4] x) => (float[2,4] y) {
        h = loc.f <val = float[1] {0.5}> (x, w)  y = loc.f <val = float[1] {2.0}> (h, w) }""",
        """<domain: "loc", opset_import: ["" : 17]> f <val> (a, w) => (b) {
        s = Shape (a)  c = ConstantOfShape <value: tensor = @val> (s)  d = Add (c, a)  b = MatMul (d, w) }""",
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for level in LEVELS:
        fills = [n for n in nodes(result[level]) if n.op_type == "ConstantOfShape"]
        assert fills and all(n.attribute[0].ref_attr_name == "val" for n in fills)


def test_opsets_and_types_of_functions() -> None:
    given = local(
        "g (float[2,4] x) => (float[2,4] y) { y = loc.o (x, w) }",
        """<domain: "loc", opset_import: ["loc" : 1]> o (a, w) => (b) { h = loc.f (a, w)  b = loc.f (h, w) }""" + HEAD,
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    with_casts = [f for f in result["O1"].functions if any(n.op_type == "Cast" for n in f.node)]
    assert with_casts and all("" in {i.domain for i in f.opset_import} for f in with_casts)
    # Softmax-11 flattens, Softmax-13 does not: moving the function would change what it computes.
    given = local(
        "g (float[2,3,4] x) => (float[2,3,4] y) { m = MatMul (x, w)  y = loc.f (m) }",
        """<domain: "loc", opset_import: ["" : 11]> f (a) => (b) { b = Softmax (a) }""",
        opset=17,
    )
    result = convert_everywhere(given, {"x": x(2, 3, 4)}, checked=False, accurate=False, low=["MatMul"])
    assert [o.version for o in result["O2"].functions[0].opset_import if o.domain == ""] == [11]
    # They come from the call; a reader drops them, so they would be gone after a second conversion.
    given = local("g (float[2,4] x) => (float[2,4] y) { y = loc.f (x, w) }", HEAD, ir=10)
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for function in result["O2"].functions:
        assert not {v.name for v in function.value_info} & set(function.input)
    assert isinstance(result["O2"], onnx.ModelProto)
    # onnx infers no types for these: structure and names have to do.
    given = local(
        "g (float[2,4] x) => (float[2,4] y) { a, b = loc.f (x, w, x)  y = loc.f (b, w) }",
        """<domain: "loc", opset_import: ["" : 17]> f (a, w, z) => (b, c) {
        h = MatMul (a, w)  b = Softmax (h)  c = Exp (h) }""",
    )
    result = convert_everywhere(given, None, run=False, checked=False)
    assert calls(result["O1"])


@needs_runtime("older ones call the last overload of a function, whichever a node names")
def test_overloads_and_a_function_of_another_opset() -> None:
    """A Cast is another one in opset 21 than in 17: onnx refuses both in one model, unless the function moves."""
    one = HEAD.replace("17]", '17], overload: "one"')
    given = local(
        """g (float[2,4] x) => (float[2,4] y) {
        a = loc.f:one (x, w)  b = loc.f:two (a, w)  c = Exp (b)  y = loc.f:one (c, w) }""",
        one + one.replace('"one"', '"two"').replace("Softmax", "Exp"),
        ir=10,
        opset=21,
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    assert [f.overload for f in result["O1"].functions] == ["one", "two"] and casts(result["O1"]) > 2


@pytest.mark.parametrize("through", ["f", "g"])
def test_recursion_is_refused_at_once(through: str) -> None:
    twice = """<domain: "loc", opset_import: ["" : 17, "loc" : 1]> NAME (a, w) => (b) {
        h = MatMul (a, w)  i = loc.CALLED (h, w)  b = loc.CALLED (i, w) }"""
    f, g = twice.replace("NAME", "f").replace("CALLED", through), twice.replace("NAME", "g").replace("CALLED", "f")
    given = local("g (float[2,4] x) => (float[2,4] y) { y = loc.f (x, w) }", f + g)

    def refused() -> None:
        assert code(lambda: ampgraph.convert(given)) == "AMP203"

    refused()  # the first call reads the lists of operators
    lines_run(refused, most=200_000)  # six times what it takes; walking every path has no end


CASTS_INSIDE = """
    <domain: "loc", opset_import: ["" : 17]> f (a, w) => (b) {
        c = Cast <to = 10> (a)  d = Cast <to = 1> (c)  b = MatMul (d, w) }
    <domain: "loc", opset_import: ["" : 17]> narrow (a) => (b) { b = Cast <to = 10> (a) }
    <domain: "loc", opset_import: ["" : 17]> wide (a) => (b) { b = Cast <to = 1> (a) }"""


def test_given_casts_inside_functions() -> None:
    given = local(
        """g (float[2,4] x) => (float[2,4] y, float[2,4] z) {
        e = Exp (x)  a = loc.f (e, w)  l = loc.narrow (a)  u = loc.wide (l)  y = Exp (u)  z = MatMul (u, w) }""",
        CASTS_INSIDE,
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for level in LEVELS:
        for function in result[level].functions:
            made = {o for node in function.node for o in node.output}
            assert set(function.output) <= made, "a function's result must be made in it"
    inner = next(f for f in result["O2"].functions if f.name == "f")
    assert [n.op_type for n in inner.node] == ["MatMul"], "casts of what is low already, and widenings nobody reads"
