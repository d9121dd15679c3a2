"""Values seen piece by piece beside the reference's: the same whatever the pieces, in functions and in branches."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.api.verify import verify
from ampgraph.numerics.trace.suspects import Inquest
from ampgraph.numerics.trace.values import Tracer, compared
from hard_models import HARD_MODELS
from onnx_text import parse
from present import present

from . import planted


def low(model: ModelProto) -> ModelProto:
    return ampgraph.convert(model, "O3")


def test_two_values_by_hand() -> None:
    seen = compared(np.array([1.0, np.inf, 0.0, -np.inf]), np.array([2.0, 5.0, 1e-9, -np.inf]))
    assert (seen.astray, seen.vanished) == (1, 1)
    assert seen.error == pytest.approx(0.5)
    assert (seen.range.smallest, seen.range.largest, seen.range.infinite) == (0.0, 1.0, 2)
    assert present(seen.reference).absmax == 5.0
    assert compared(np.ones(2), np.ones(3)).reference is None
    assert compared(np.ones(2), np.zeros(2)).error is None
    assert compared(np.full(2, -3e38), np.full(2, -3e38)).error == 0.0


def test_added_casts_stand_for_what_they_cast() -> None:
    model = planted.chain()
    feeds = planted.feed(scale=0.1)
    trace = Tracer(model, low(model)).run(feeds, feeds)
    assert trace.values["a"].error and trace.values["x"].error == 0
    casts = [site for site in trace.sites if site.kind == "Cast"]
    assert casts and all(trace.twins[site.outputs[0]] == trace.twins[site.inputs[0]] for site in casts)
    assert all(trace.values[site.outputs[0]].error is not None for site in casts)
    assert trace.dtypes["a"] == "float16"
    assert trace.values["a"].range.absmax == pytest.approx(feeds["x"].max() * 300, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limit"), [("lstm", 20_000), ("detector", 100_000)])
def test_pieces_change_nothing(name: str, limit: int) -> None:
    hard = HARD_MODELS[name]
    model = hard.build()
    converted = ampgraph.convert(model, "O2")
    feeds = hard.feeds(1)[0]
    whole = Tracer(model, converted)
    first = whole.run(feeds, feeds)
    again = whole.run(feeds, feeds)
    cut = Tracer(model, converted, limit=limit)
    pieces = cut.run(feeds, feeds)
    assert len(cut._runs[1]) > 2 and len(whole._runs[1]) == 1
    assert first.values == again.values == pieces.values
    growth = [suspect.node for suspect in Inquest(first, whole.weights).growth(8)]
    assert growth == [suspect.node for suspect in Inquest(pieces, cut.weights).growth(8)] and growth


def test_an_unsorted_model_is_seen_whole() -> None:
    model = planted.chain()
    nodes = list(model.graph.node)
    converted = low(model)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    found = verify(model, converted, data=[planted.feed()])
    assert found.first_nonfinite is not None and present(found.first_nonfinite).node == "second"


NESTED = """g (float[2, 4] x, bool c) => (float[2, 4] y) <float s = {300}> {
    [outer] a = Mul (x, s)
    [one] b = If (c) <
        then_branch = t () => (float[2, 4] p) {
            [two] p = If (c) <
                then_branch = u () => (float[2, 4] q) { [deep] o = Mul (a, s)  [root] q = Sqrt (o) },
                else_branch = v () => (float[2, 4] r) { r = Identity (a) }
            >
        },
        else_branch = e () => (float[2, 4] w) { w = Sqrt (a) }
    >
    [last] y = Neg (b)
}"""


def test_a_weight_that_is_listed_as_input_need_not_be_fed() -> None:
    text = "g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { p = MatMul(x, w) e = Exp(p) y = MatMul(e, w) }"
    model = parse(text, w=np.full((8, 8), 2.0, np.float32), opset=8, ir=3)
    feeds = [{"x": np.full((4, 8), 1.0, np.float32)}]
    found = verify(model, ampgraph.convert(model, "O3"), data=feeds)
    assert present(found.first_nonfinite).operator == "Exp"


def test_a_branch_in_a_branch() -> None:
    model = planted.parse(NESTED)
    found = verify(model, low(model), data=[planted.feed(c=np.array(True))])
    born = present(found.first_nonfinite)
    assert (born.node, born.inside) == ("deep", "one/two")


def test_a_loop_is_named_itself_and_its_pattern_covers_its_body() -> None:
    model = planted.parse("""g (float[2, 4] x) => (float[2, 4] y) <int64 n = {4}, bool go = {1}> {
        [start] a = Neg (x)
        [round] b = Loop (n, go, a) <
            body = l (int64 i, bool c, float[2, 4] v) => (bool d, float[2, 4] w) { d = Identity (c)  w = Mul (v, v) }
        >
        [last] y = Sqrt (b)
    }""")
    data = [planted.feed(scale=4.0)]
    found = verify(model, low(model), data=data)
    born = present(found.first_nonfinite)
    assert born.node == "round" and born.operator == "Loop"
    assert born.suggestion[0] == "--fp32 round"
    fp32 = [text.split()[1] for text in born.suggestion]
    assert verify(model, ampgraph.convert(model, "O3", fp32=fp32), data=data).ok


def test_nodes_without_names_are_named_by_their_values() -> None:
    model = planted.chain()
    for node in model.graph.node:
        node.name = ""
    born = present(verify(model, low(model), data=[planted.feed()]).first_nonfinite)
    assert (born.node, born.suggestion[0]) == ("b", "--fp32 value:b")


def test_layers_are_those_of_the_exporter() -> None:
    model = planted.chain()
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layers.0', 'mul']")
    born = present(verify(model, low(model), data=[planted.feed()]).first_nonfinite)
    assert born.layer == "layers.0"


MEASURE = """
import resource, numpy as np, onnx, sys
from onnx import helper, TensorProto as T
from ampgraph.numerics.trace.values import Tracer
def build(low):
    nodes, last = [], "x"
    if low:
        nodes.append(helper.make_node("Cast", ["x"], ["h"], to=10)); last = "h"
    for i in range(120):
        nodes.append(helper.make_node("Sigmoid" if i % 2 else "Neg", [last], [f"v{i}"])); last = f"v{i}"
    nodes.append(helper.make_node("Cast", [last], ["y"], to=1))
    io = [helper.make_tensor_value_info(n, T.FLOAT, ["n"]) for n in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", io[:1], io[1:]), opset_imports=[helper.make_opsetid("", 17)],
                             ir_version=8)
feeds = {"x": np.linspace(-1, 1, 1 << 20, dtype=np.float32)}
tracer = Tracer(build(False), build(True), limit=16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = tracer.run(feeds, feeds)
assert len(trace.values) > 120
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_memory_stays_bounded() -> None:
    """960 MB of values on the two sides, 4 MB each."""
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 500, result.stdout
