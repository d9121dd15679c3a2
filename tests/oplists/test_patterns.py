"""Patterns of regions: read from text, searched, and explained where they are not there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.dataflow import Dataflow
from ampgraph.core.errors import AmpError
from ampgraph.core.matching import PatternSet
from ampgraph.formats import adapters
from ampgraph.oplists import pattern_files
from ampgraph.oplists.files import read_file
from ampgraph.oplists.patterns import Region, find_biases, find_regions, region_patterns
from onnx_text import parse
from planner.test_regions import LAYER_NORMS, RMS_NORMS, TORCH, WEIGHTS, between

PYTHON = """
region = "LayerNormalization"
anchors = ["Sqrt"]
ends = ["normal", "scaled"]

[numbers]
eps = "> 0"

[stored]
scale = "vector"

[variants]
"E[x^2] - E[x]^2" = '''
    square = Square (x)
    squares = ReduceMean <axes: ints = @axes> (square)
    mean = ReduceMean <axes: ints = @axes> (x)
    taken = Square (mean)
    variance = Sub (squares, taken)
    shifted = Add (variance, eps)
    centred = Sub (x, mean)
    normal = OverRoot (centred, shifted)
    scaled = Mul (normal, scale)
'''
"""
MOMENTS = """q = Mul (x, x)  s = ReduceMean <axes = [-1]> (q)  m = ReduceMean <axes = [-1]> (x)  t = Mul (m, m)
    v = Sub (s, t)  a = Add (v, eps)  r = Sqrt (a)  d = Sub (x, m)  n = Div (d, r)  y = Mul (n, g)"""


def flow_of(body: str, opset: int = 17) -> Dataflow:
    graph, _ = adapters.load(between(body, opset))
    return graph.dataflow("float16")


def load_patterns(path: Path) -> PatternSet:
    return PatternSet(list(pattern_files.patterns_of(read_file(path))), pattern_files.conventions())


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_variants_and_axes(tmp_path: Path) -> None:
    flow = flow_of(MOMENTS)
    assert not list(
        find_regions(flow, load_patterns(written(tmp_path, PYTHON.replace("Sub (squares", "Add (squares"))))
    )
    (region,) = find_regions(flow, load_patterns(written(tmp_path, PYTHON)))
    names = {flow.values[op.outputs[0]].name for op in region.ops}
    assert (region.kind, names) == ("LayerNormalization", set("qsmtvardn") | {"y"})
    parts = [flow.values[v].name for v in (region.source, region.scale)]
    assert parts == ["x", "g"]
    assert region.epsilon == pytest.approx(1e-5)
    assert region.axes == (-1,)
    # Swapped operands, Pow, Reciprocal, a cast on the way, a mean computed twice: none is in the text.
    body = MOMENTS.replace("Mul (x, x)", "Pow (x, two)").replace("Add (v, eps)", "Add (eps, v)")
    body = body.replace("n = Div (d, r)", "i = Div (one, r)  n = Mul (i, d)").replace(
        "y = Mul (n, g)", "y = Mul (g, n)"
    )
    body = body.replace("d = Sub (x, m)", "c = Cast <to = 1> (x)  o1 = ReduceMean <axes = [-1]> (x)  d = Sub (c, o1)")
    flow = flow_of(body)
    (region,) = find_regions(flow, load_patterns(written(tmp_path, PYTHON)))
    assert len(region.ops) == len(flow.ops) - 2, "all but the two products"


def test_other_axes_are_no_match(tmp_path: Path) -> None:
    flow = flow_of(MOMENTS.replace("m = ReduceMean <axes = [-1]>", "m = ReduceMean <axes = [0]>"))
    patterns = load_patterns(written(tmp_path, PYTHON))
    assert not list(find_regions(flow, patterns))


def test_axes_and_numbers() -> None:
    other = TORCH.replace("<axes = [-1]> (x)", "<axes = [1]> (x)")
    assert [region.kind for region in find_regions(flow_of(other))] == ["LayerNormalization"]
    # another number, and a value that others read
    assert not list(find_regions(flow_of("c = Mul (x, three)  s = Sigmoid (c)  y = Mul (s, x)")))
    body = LAYER_NORMS["Reciprocal"].replace("z = Mul", "u = Relu (i)  h = Add (n, u)  z = Mul")
    assert "LayerNormalization" not in [r.kind for r in find_regions(flow_of(body.replace("(n, g)", "(h, g)")))]
    # rms norms have no bias
    flow = flow_of(RMS_NORMS["Pow and Div"].replace("y = Mul (n, g)", "o1 = Mul (n, g)  y = Add (o1, b)"))
    (region,) = find_regions(flow)
    assert flow.values[region.result.outputs[0]].name == "o1"


FILE = """
region = "{region}"
anchors = ["{anchor}"]
ends = ["y"]

[numbers]
eps = "> 0"
near = "~ 1.702"

[variants]
"so" = '''{text}'''
"""
OTHERS = {  # the text of a region, and a model that has it
    "L2 normalisation": (
        ("LpNormalization", "ReduceL2", "l = ReduceL2 <axes: ints = @axes> (x)  m = Max (l, eps)  y = Div (x, m)"),
        "k = ReduceL2 <axes = [-1]> (x)  c = Max (eps, k)  y = Div (x, c)",
    ),
    "cosine similarity": (
        (
            "CosineSimilarity",
            "ReduceSum",
            """p = Mul (x, z)  dot = ReduceSum (p)  s = Square (x)  a = ReduceSum (s)  t = Square (z)  b = ReduceSum (t)
            n = Mul (a, b)  y = OverRoot (dot, n)""",
        ),
        """f0 = Relu (f)  h = Mul (f0, x)  d = ReduceSum (h, last)  q = Mul (x, x)  u = ReduceSum (q, last)
        v = Pow (f0, two)  s = ReduceSum (v, last)  e = Mul (s, u)  r = Sqrt (e)  i = Reciprocal (r)  y = Mul (i, d)""",
    ),
    "log-softmax": (
        (
            "LogSoftmax",
            "Log",
            "t = ReduceMax (x)  d = Sub (x, t)  e = Exp (d)  s = ReduceSum (e)  l = Log (s)  y = Sub (d, l)",
        ),
        """m = ReduceMax <axes = [-1]> (x)  c = Sub (x, m)  q = Exp (c)  n = ReduceSum (q, last)  k = Log (n)
        y = Sub (c, k)""",
    ),
    "GELU by a sigmoid": (
        ("QuickGelu", "Sigmoid", "s = Mul (x, near)  g = Sigmoid (s)  y = Mul (x, g)"),
        "c = Mul (quick, x)  s = Sigmoid (c)  y = Mul (s, x)",
    ),
}


@pytest.mark.parametrize(("file", "body"), OTHERS.values(), ids=OTHERS.keys())
def test_other_regions_are_a_text_too(file: tuple[str, str, str], body: str, tmp_path: Path) -> None:
    region, anchors, text = file
    path = written(tmp_path, FILE.format(region=region, anchor=anchors, text=text))
    graph, _ = adapters.load(between(body, 17, quick=np.array(1.7, np.float32)))
    flow = graph.dataflow("float16")
    kinds = {
        (found.kind, flow.values[found.result.outputs[0]].name) for found in find_regions(flow, load_patterns(path))
    }
    assert kinds == {(region, "y")}


REASONS = {
    "another numerator": TORCH.replace("Div (d, r)", "Div (f, r)"),
    "no mean of squares": TORCH.replace("v = ReduceMean", "v = ReduceMax"),
    "eps taken off": TORCH.replace("a = Add (v, eps)", "a = Sub (v, eps)"),
}


@pytest.mark.parametrize("body", REASONS.values(), ids=REASONS.keys())
def test_what_is_no_norm(body: str) -> None:
    assert "LayerNormalization" not in [region.kind for region in find_regions(flow_of(body))]


def test_the_file_of_a_region_says_which_patterns_are_tried_first() -> None:
    """A LayerNorm is an RMSNorm of what its mean was taken off."""
    flow = flow_of(TORCH)
    norms = [p for p in region_patterns().patterns if p.kind == "RMSNormalization"]
    rest = type(region_patterns())(norms, region_patterns().conventions)
    (match,) = rest.find(flow)
    assert flow.values[match.parts["x"]].name == "d"
    assert [region.kind for region in find_regions(flow)] == ["LayerNormalization"]


BIASES = {
    "a vector": ("h = MatMul (x, w)  y = Add (h, b)", ["b"]),
    "a vector first": ("h = MatMul (x, w)  y = Add (b, h)", ["b"]),
    "no vector": ("h = MatMul (x, w)  y = Add (h, x)", []),
    "a product that others read": ("h = MatMul (x, w)  k = Add (h, b)  y = Mul (h, k)", []),
    "a matrix": ("h = MatMul (x, w)  y = Add (h, rows)", []),
}


@pytest.mark.parametrize(("body", "biases"), BIASES.values(), ids=BIASES.keys())
def test_a_product_with_its_bias(body: str, biases: list[str]) -> None:
    text = f"g (float[4,8] x) => (float[4,8] y) {{ {body} }}"
    model = parse(text, known={**WEIGHTS, "rows": np.ones((4, 8), np.float32)})
    graph, _ = adapters.load(model)
    flow = graph.dataflow("float16")
    regions: list[Region] = list(find_biases(flow, {"MatMul"}))
    assert [flow.values[region.bias].name for region in regions] == biases
    assert all(region.ops[0].role == "MatMul" for region in regions), "the first is the one that the lists speak of"
    assert not list(find_biases(flow, {"Conv"}))


MISTAKES = {
    "no text": (PYTHON.replace("variance = Sub (squares, taken)", "variance = Sub ("), "is not a graph"),
    "an idle node": (
        PYTHON.replace("normal = OverRoot", "idle = Sub (x, eps)\n normal = OverRoot"),
        "'idle' leads to no end",
    ),
    "no anchor": (PYTHON.replace('["Sqrt"]', '["Exp"]'), "is one of Exp"),
    "a sort of tensor": (PYTHON.replace('"vector"', '"matrix"'), "'scale' is one of vector, row, any"),
    "a number": (PYTHON.replace('"> 0"', '"small"'), "'eps' is a number"),
    "no ends": (PYTHON.replace("ends =", "tails ="), "needs 'ends'"),
    "a line": (PYTHON.replace("region =", "region"), "not valid TOML"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_reported_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    assert text != PYTHON
    with pytest.raises(AmpError, match=re.escape(message)) as caught:
        load_patterns(written(tmp_path, text))
    assert caught.value.code == "AMP301"
    assert str(caught.value).startswith("error[AMP301]: mine.toml:")


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    circle = PYTHON + '[functions]\nOverRoot = ["(x, v) => (y) { a = Neg (v)  y = OverRoot (x, a) }"]\n'
    with pytest.raises(AmpError, match="calls itself"):
        load_patterns(written(tmp_path, circle))
