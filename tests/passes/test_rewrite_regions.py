"""A decomposed norm becomes its standard operator, in the main graph and in bodies; what cannot, stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ampgraph
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.numerics.metrics.compare import Tolerance
from ampgraph.passes.rewrite_regions import RewriteRegions
from formats.onnx.helpers import convert_everywhere, kinds, nodes, x
from onnx_text import parse

NORM = """mean = ReduceMean <axes = [-1]> (h)  d = Sub (h, mean)  sq = Mul (d, d)  var = ReduceMean <axes = [-1]> (sq)
    e = Constant <value = float {0.001}> ()  v1 = Add (var, e)  r = Sqrt (v1)  n = Div (d, r)"""
SCALE = np.linspace(0.5, 1.5, 8, dtype=np.float32)
NEAR = Tolerance(1e-5, 1e-2, 4e-2)


def test_in_the_main_graph() -> None:
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


def test_in_a_branch() -> None:
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


def test_a_second_run_finds_nothing() -> None:
    given = parse(
        f"g (float[2,8] x) => (float[2,8] y) {{ h = MatMul (x, w)  {NORM}  y = Mul (n, scale) }}", w=(8, 8), scale=SCALE
    )
    plan = ampgraph.plan(given, "O3", target="cuda")
    graph = OnnxGraph(ir.from_proto(given))
    assert RewriteRegions(tuple(plan.rewrites))(graph).count == 1
    assert not ampgraph.plan(ir.to_proto(graph.model), "O3", target="cuda").rewrites


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
