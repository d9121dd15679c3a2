"""Who is blamed: the node whose rounding makes the error, not the one where it shows; and what the repairs do."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from onnx import ModelProto

import ampgraph
from ampgraph.api.verify import verify
from ampgraph.core.repairs import Repair, RepairOutcome
from ampgraph.numerics.metrics.metric import own_metric
from ampgraph.numerics.metrics.verdict import Compared
from ampgraph.numerics.pairs import MindirPair
from ampgraph.numerics.search import attribute
from ampgraph.numerics.strict.session import StrictSession, SwitchedSession
from ampgraph.numerics.trace.fault_search import FaultSearch
from ampgraph.numerics.trace.suspects import Inquest, Suspect
from ampgraph.numerics.trace.values import Tracer, observe
from ampgraph.report.verification import Verification
from fuzz.models import random_model
from hard_models import HARD_MODELS
from onnx_text import parse
from present import present
from share import FULL

from . import planted

Data = list[dict[str, np.ndarray]]


def low(model: ModelProto, **more: Any) -> ModelProto:
    return ampgraph.convert(model, "O3", **more)


def patterns(found: Verification) -> list[str]:
    """What is suggested."""
    return [pattern for suspect in found.growth for pattern in suspect.patterns]


def mended(model: ModelProto, found: Verification, data: Data, **more: Any) -> Verification:
    return verify(model, low(model, fp32=patterns(found), **more), data=data, nodes=0)


# -- by hand ----------------------------------------------------------------------------------------------------------

SPECTRUM = """g (float[1, 64] x) => (float[1, 33] y) <float two = {2}, float tiny = {0.0000001}, float scale = {0.1}> {
    [before] h = Mul (x, scale)
    [real] r = MatMul (h, cosines)
    [imaginary] i = MatMul (h, sines)
    [square1] p = Pow (r, two)
    [square2] q = Pow (i, two)
    [power] s = Add (p, q)
    [floor] t = Add (s, tiny)
    [logarithm] y = Log (t)
}"""


def spectrum() -> tuple[ModelProto, Data]:
    """A tone with little noise: most of its powers are far below the rounding of the products that make them."""
    time, frequency = np.arange(64), np.arange(33)
    angle = 2 * np.pi * np.outer(time, frequency) / 64
    weights = {"cosines": np.cos(angle).astype(np.float32), "sines": np.sin(angle).astype(np.float32)}
    noise = np.random.default_rng(0).standard_normal((4, 1, 64)) * 1e-3
    data = [{"x": (10 * np.sin(2 * np.pi * 5 * time / 64) + n).astype(np.float32)} for n in noise]
    return parse(SPECTRUM, weights, opset=21), data


def test_who_is_blamed() -> None:
    model, data = spectrum()
    held = ["square1", "square2", "power", "floor", "logarithm"]  # as a guard does that does not see the products
    found = verify(model, low(model, fp32=held), data=data)
    assert not found.ok and {suspect.node for suspect in found.growth} <= {"before", "real", "imaginary"}
    assert {"real", "imaginary"} <= {suspect.node for suspect in found.growth}
    assert any("times larger by Log logarithm" in suspect.why for suspect in found.growth)
    again = verify(model, low(model, fp32=[*held, *patterns(found)]), data=data)
    assert again.ok and again.outputs[0].worst < 0.1 * found.outputs[0].worst
    assert present(found.left) < 1e-2
    # nodes without names are held by values that convert knows
    model, data = spectrum()
    for node in model.graph.node:
        node.name = ""
    found = verify(model, low(model), data=data)
    assert found.growth and all(pattern.startswith("value:") for pattern in patterns(found))
    assert mended(model, found, data).outputs[0].worst < found.outputs[0].worst


LOOPED = """g (float[2, 16] x) => (float[2, 16] y) <int64 n = {4}, bool go = {1}, float big = {500}> {
    [start] a = Tanh (x)
    [round] b = Loop (n, go, a) <
        body = l (int64 i, bool c, float[2, 16] v) => (bool d, float[2, 16] w) {
            [again] d = Identity (c)
            [shift] u = Add (v, big)
            [back] w = Sub (u, big)
        }
    >
    [last] y = Neg (b)
}"""


def test_nodes_in_bodies_are_named() -> None:
    model = parse(LOOPED, opset=21)
    data = [{"x": np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)}]
    found = verify(model, low(model), data=data)
    assert not found.ok and {"shift", "back"} <= {suspect.node for suspect in found.growth}
    assert all(suspect.inside == "round" for suspect in found.growth if suspect.node in ("shift", "back"))
    assert all(suspect.operator not in ("Loop", "If", "Scan") for suspect in found.growth)
    assert "round" not in patterns(found) and mended(model, found, data).ok
    # the node in a branch is named
    model = parse("""g (float[2, 16] x, bool c) => (float[2, 16] y) <float big = {500}> {
        [start] a = Tanh (x)
        [choose] b = If (c) <
            then_branch = t () => (float[2, 16] w) { [shift] u = Add (a, big)  [back] w = Sub (u, big) },
            else_branch = e () => (float[2, 16] z) { [plain] z = Neg (a) }
        >
        [last] y = Neg (b)
    }""")
    data = [{"x": np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32), "c": np.array(True)}]
    found = verify(model, low(model), data=data)
    assert {"shift", "back"} <= {s.node for s in found.growth} and mended(model, found, data).ok
    assert all(suspect.node != "choose" for suspect in found.growth)


def test_denormals_and_integers_are_not_blamed() -> None:
    """``tiny`` loses half of its digits and moves nothing; ``place`` reads integers alone."""
    model = parse(
        """g (float[2, 16] x) => (float[2, 16] y) <float small = {0.0000002}, float big = {500}, int64[1] at = {1}> {
            [tiny] t = Mul (x, small)
            [with] a = Add (x, t)
            [best] k = ArgMax <axis = 1, keepdims = 1> (x)
            [place] f = Cast <to = 1> (k)
            [shift] u = Add (a, big)
            [back] w = Sub (u, big)
            [zero] z = Mul (f, t)
            [last] y = Add (w, z)
        }""",
        opset=21,
    )
    data = [{"x": np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)}]
    found = verify(model, low(model), data=data)
    assert {suspect.node for suspect in found.growth} == {"shift", "back"} and mended(model, found, data).ok


@pytest.mark.parametrize("name", ["lstm", "detector"])
def test_all_switches_on_are_the_model_and_all_off_the_reference(name: str) -> None:
    hard = HARD_MODELS[name]
    model, feeds = hard.build(), hard.feeds(1)[0]
    converted = low(model)
    session = SwitchedSession(model, converted)
    everything, nothing = session.run(feeds, range(len(session.units))), session.run(feeds, ())
    ours, theirs = StrictSession(model).run(feeds), StrictSession(converted).run(feeds)
    for output, want in theirs.items():
        np.testing.assert_array_equal(np.asarray(everything[output], np.float32), np.asarray(want, np.float32))
        assert np.abs(nothing[output] - ours[output]).max() <= 1e-5 * np.abs(ours[output]).max()


@pytest.mark.parametrize("opset", [8, 13])
def test_switches_before_where_was_known(opset: int) -> None:
    """A stored tensor, what an operator makes and an output of the model, each chosen by an If."""
    text = (
        "g (float[2, 16] x) => (float[2, 16] y, float[2, 16] b) { a = MatMul (x, w)  b = Tanh (a)  y = MatMul (b, w) }"
    )
    weights = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    model = parse(text, opset=opset, w=weights)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)}
    converted = low(model)
    session = SwitchedSession(model, converted)
    everything, nothing = session.run(feeds, range(len(session.units))), session.run(feeds, ())
    ours, theirs = StrictSession(model).run(feeds), StrictSession(converted).run(feeds)
    for output in ("y", "b"):
        np.testing.assert_array_equal(everything[output], theirs[output])
        np.testing.assert_allclose(nothing[output], ours[output], rtol=1e-6)
        assert (everything[output] != nothing[output]).any()


@pytest.mark.parametrize("behind", ["Identity (a)", "Mul (a, factor)"])
def test_what_became_a_bias_is_as_it_was_where_the_product_is_not_low(behind: str) -> None:
    """The addition's constant is a bias under another name in the result, and its rounding makes the error; rounding
    the factor gives a part of it to the bias."""
    weights = {
        "w": np.ones((4, 3, 1, 1), np.float32),
        "c": np.array([500.2, -500.2, 31.26, 7.3], np.float32).reshape(4, 1, 1),
    }
    model = parse(
        f"""g (float[1, 3, 5, 5] x) => (float[1, 4, 5, 5] y) <float factor = {{0.12506}}> {{
            p = Conv (x, w)  a = Add (p, c)  y = {behind}
        }}""",
        weights,
    )
    converted = low(model)
    assert [node.op_type for node in converted.graph.node if node.op_type in ("Conv", "Add")] == ["Conv"]
    data = [{"x": np.random.default_rng(0).standard_normal((1, 3, 5, 5)).astype(np.float32)}]
    nothing, given = SwitchedSession(model, converted).run(data[0], ()), StrictSession(model).run(data[0])
    assert np.abs(nothing["y"] - given["y"]).max() <= 1e-4
    found = verify(model, converted, data=data, tolerance=1e-4)
    assert not found.ok and present(found.repair).error <= 1e-4


# -- the search -------------------------------------------------------------------------------------------------------


def test_the_search_finds_the_largest_of_many() -> None:
    squares = np.full(300, 1e-9)
    squares[[17, 120, 121, 280]] = [4e-4, 1e-4, 2e-4, 3e-4]
    asked: list[int] = []

    def error(units: Any) -> float:
        asked.append(len(list(units)))
        return float(np.sqrt(squares[list(units)].sum()))

    found = attribute(error, 300, 4, 1e-3)
    assert [cause.units for cause in found.causes] == [(17,), (280,), (121,), (120,)] and len(asked) <= 64
    assert found.without == pytest.approx(np.sqrt(296e-9)) and found.none == 0
    assert attribute(error, 300, 4, 1.0).causes == ()
    asked.clear()
    assert attribute(error, 300, 4, 1e-3, late=lambda: len(asked) >= 8).causes == () and len(asked) <= 9


def test_a_search_that_runs_out_of_time_says_so_and_names_where_errors_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = spectrum()
    monkeypatch.setattr("ampgraph.api.verify.SECONDS", -60.0)
    found = verify(model, low(model), data=data[:1])
    assert found.growth and found.left is None and any("ended after" in note for note in found.notes)
    assert found.repair is None and present(found.mended).none.endswith("the time is up")


# -- random graphs ----------------------------------------------------------------------------------------------------

UNARY = ("Tanh", "Sigmoid", "Relu", "Exp", "Abs", "Neg")
BINARY = ("Add", "Mul", "Sub")


@st.composite
def graphs(draw: st.DrawFn) -> ModelProto:
    """Some operators in a row, each on values that are there; half of the nodes without a name."""
    values, lines = ["x"], []
    for i in range(draw(st.integers(3, 9))):
        kind = draw(st.sampled_from((*UNARY, *BINARY, "MatMul", "Shift")))
        name = f"[n{i}] " if draw(st.booleans()) else ""
        one = draw(st.sampled_from(values[-3:]))
        other = draw(st.sampled_from(values))
        if kind == "MatMul":
            lines.append(f"{name}v{i} = MatMul ({one}, w)")
        elif kind == "Shift":
            lines.append(f"{name}u{i} = Add ({one}, big)  v{i} = Sub (u{i}, big)")
        elif kind == "Exp":
            lines.append(f"t{i} = Tanh ({one})  {name}v{i} = Exp (t{i})")
        else:
            lines.append(f"{name}v{i} = {kind} ({one}{f', {other}' if kind in BINARY else ''})")
        values.append(f"v{i}")
    weight = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0].astype(np.float32)
    body = "  ".join([*lines, f"last = Tanh ({values[-1]})  y = Neg (last)"])
    return parse(
        f"g (float[4, 8] x) => (float[4, 8] y) <float big = {{300}}> {{ {body} }}",
        {"w": weight},
        opset=21,
    )


# A repair that is printed mends: `convert` takes its options, and what comes of it is right on the same inputs.

RepairData = list[dict[str, Any]]


def options(found: Verification) -> list[str]:
    """The patterns of a repair, as a shell reads them."""
    words = [shlex.split(text) for text in present(found.repair).options]
    assert {word for word, _ in words} == {"--fp32"}
    return [pattern for _, pattern in words]


def half_as_wrong(model: ModelProto, level: str, data: RepairData) -> Verification | None:
    """The report against half of a model's own error, whose repair was tried once more; None where it is right."""
    low = ampgraph.convert(model, level, check="off")
    judged = [output.scores.decisive for output in verify(model, low, data=data, nodes=0).outputs if output.counts]
    tolerance = min(1e-2, 0.5 * max(judged))
    if not tolerance > 1e-6:
        return None
    found = verify(model, low, data=data, tolerance=tolerance)
    assert found.mended is None or (found.mended.repair is None) == bool(found.mended.none)
    if found.repair is not None:
        repaired = ampgraph.convert(model, level, fp32=options(found), check="off")
        assert verify(model, repaired, data=data, tolerance=tolerance, nodes=0).ok
    return found


@pytest.mark.slow
@settings(max_examples=200 if FULL else 3, deadline=None, derandomize=True)
@given(model=graphs(), level=st.sampled_from(("O2", "O3", "auto")))
def test_of_graphs_that_cancel(model: ModelProto, level: str) -> None:
    found = half_as_wrong(model, level, [{"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}])
    assert found is None or found.repair is not None


@pytest.mark.slow
def test_repairs_of_models() -> None:
    cases = [case for seed in range(200 if FULL else 8) if (case := random_model(seed)) is not None]
    found = [half_as_wrong(case.model, ("O2", "O3", "auto")[case.seed % 3], case.feeds) for case in cases]
    missed = [one for one in found if one is not None]
    assert sum(one.repair is not None for one in missed) > 0.6 * len(missed) > 2


# -- what is printed --------------------------------------------------------------------------------------------------

SHIFTED = """g (float[2, 16] x) => (float[2, 16] y) <float big = {500}> {
    [start] a = Tanh (x)
    [shift] u = Add (a, big)
    [back] w = Sub (u, big)
    [last] y = Neg (w)
}"""
DATA = [{"x": np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)}]


def text_of(found: Verification) -> str:
    return str(found)


def test_what_is_suggested() -> None:
    model = parse(SHIFTED, opset=21)
    found = verify(model, ampgraph.convert(model, "O3"), data=DATA)
    text, repair = text_of(found), present(found.repair)
    assert "repair      --fp32 shift --fp32 back" in text and f"error {repair.error:.2e} on the same inputs" in text
    assert "try:" not in text and found.to_dict()["repair"] == repair.to_dict() and repair.recipe.startswith("O3")
    # A file that does not tell how it was made, as of another tool.
    model = parse(SHIFTED, opset=21)
    low = ampgraph.convert(model, "O3", low=["op:Sub", "op:Add", "op:Neg"], fp32=["start"], metadata=False)
    found = verify(model, low, data=DATA)
    assert found.repair is None and "repair      not looked for, as the file does not tell" in text_of(found)
    assert "try: --fp32 " in text_of(found)
    # nothing is suggested where every node in float32 misses
    model = parse(SHIFTED.replace("Tanh (x)", "Sub (x, big)"), opset=21)
    data = [{"x": 500 + feeds["x"]} for feeds in DATA]
    found = verify(model, ampgraph.convert(model, "O3", io=["x=low"]), data=data)
    text = text_of(found)
    assert not found.ok and "chaotic in itself" in text and "try:" not in text
    assert "repair      none found: with every node in float32 that a run can switch the error is" in text


TWO_FAULTS = """g (float[2, 16] x) => (float[2, 16] y, float[2, 16] z) <float big = {500}, float s = {300}> {
    [start] a = Tanh (x)
    [shift] u = Add (a, big)
    [back] y = Sub (u, big)
    [first] b = Mul (a, s)
    [square] c = Mul (b, b)
    [root] z = Sqrt (c)
}"""


@pytest.mark.slow
def test_what_is_left_behind_a_repair_is_repaired_too() -> None:
    """What overflows is mended first, and the conversion looked at again: then what cancels is."""
    model = parse(TWO_FAULTS, opset=21)
    found = verify(model, low(model), data=DATA)
    repair, tried = present(found.repair), present(found.mended).tried
    assert present(found.first_nonfinite).node == "square" and tried > 1
    assert repair.patterns[0] == "square" and {"shift", "back"} <= set(repair.patterns) and repair.error < 1e-2
    assert verify(model, low(model, fp32=repair.patterns), data=DATA).ok


# Values seen piece by piece beside the reference's: the same whatever the pieces, in functions and in branches.


def trace_low(model: ModelProto) -> ModelProto:
    return ampgraph.convert(model, "O3")


def test_values_by_hand() -> None:
    seen = observe(np.array([1.0, np.inf, 0.0, -np.inf]), np.array([2.0, 5.0, 1e-9, -np.inf]))
    assert (seen.mismatches, seen.vanished) == (1, 1)
    assert seen.error == pytest.approx(0.5)
    assert (seen.range.smallest, seen.range.largest, seen.range.infinite) == (0.0, 1.0, 2)
    assert present(seen.reference).absmax == 5.0
    assert observe(np.ones(2), np.ones(3)).reference is None
    assert observe(np.ones(2), np.zeros(2)).error is None
    assert observe(np.full(2, -3e38), np.full(2, -3e38)).error == 0.0
    # added casts stand for what they cast
    model = planted.chain()
    feeds = planted.feed(scale=0.1)
    tracer = Tracer(model, trace_low(model))
    trace = tracer.run(feeds, feeds)
    assert trace.values["a"].error and trace.values["x"].error == 0
    casts = [site for site in tracer.sites if site.kind == "Cast"]
    assert casts and all(tracer.twins[site.outputs[0]] == tracer.twins[site.inputs[0]] for site in casts)
    assert all(trace.values[site.outputs[0]].error is not None for site in casts)
    assert tracer.dtypes["a"] == "float16"
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
    growth = [suspect.node for suspect in Inquest(first).growth(8)]
    assert growth == [suspect.node for suspect in Inquest(pieces).growth(8)] and growth


def test_odd_models_are_traced() -> None:
    model = planted.chain()
    nodes = list(model.graph.node)
    converted = trace_low(model)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    found = verify(model, converted, data=[planted.feed()])
    assert found.first_nonfinite is not None and present(found.first_nonfinite).node == "second"
    # a weight that is listed as input need not be fed
    text = "g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { p = MatMul(x, w) e = Exp(p) y = MatMul(e, w) }"
    model = parse(text, w=np.full((8, 8), 2.0, np.float32), opset=8, ir=3)
    feeds = [{"x": np.full((4, 8), 1.0, np.float32)}]
    found = verify(model, ampgraph.convert(model, "O3"), data=feeds)
    assert present(found.first_nonfinite).operator == "Exp"
    # nodes without names are named by their values
    model = planted.chain()
    for node in model.graph.node:
        node.name = ""
    born = present(verify(model, trace_low(model), data=[planted.feed()]).first_nonfinite)
    assert (born.node, born.suggestion[0]) == ("b", "--fp32 value:b")
    # layers are those of the exporter
    model = planted.chain()
    model.graph.node[1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layers.0', 'mul']")
    born = present(verify(model, trace_low(model), data=[planted.feed()]).first_nonfinite)
    assert born.layer == "layers.0"
    # a branch in a branch
    model = planted.parse(NESTED)
    found = verify(model, trace_low(model), data=[planted.feed(c=np.array(True))])
    born = present(found.first_nonfinite)
    assert (born.node, born.inside) == ("deep", "one/two")


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


def test_a_loop_is_named_itself_and_its_pattern_covers_its_body() -> None:
    model = planted.parse("""g (float[2, 4] x) => (float[2, 4] y) <int64 n = {4}, bool go = {1}> {
        [start] a = Neg (x)
        [round] b = Loop (n, go, a) <
            body = l (int64 i, bool c, float[2, 4] v) => (bool d, float[2, 4] w) { d = Identity (c)  w = Mul (v, v) }
        >
        [last] y = Sqrt (b)
    }""")
    data = [planted.feed(scale=4.0)]
    found = verify(model, trace_low(model), data=data)
    born = present(found.first_nonfinite)
    assert born.node == "round" and born.operator == "Loop"
    assert born.suggestion[0] == "--fp32 round"
    fp32 = [text.split()[1] for text in born.suggestion]
    assert verify(model, ampgraph.convert(model, "O3", fp32=fp32), data=data).ok


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


def test_a_trace_leaves_sequences_out() -> None:
    """What a sequence holds is compared where it comes out as a tensor again; a name that nobody has has no type."""
    text = """g (float[4,4] x) => (float[4,4] y) {
        a = MatMul (x, w)  s = SequenceConstruct (a, x)  c = ConcatFromSequence <axis = 0> (s)  y = MatMul (v, c) }"""
    model = parse(text, w=np.eye(4, dtype=np.float32) / 3, v=np.full((4, 8), 0.1, np.float32), opset=17)
    tracer = Tracer(model, ampgraph.convert(model, "O2", check="off"))
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)}
    assert {"x", "a", "y"} <= tracer.dtypes.keys() and "s" not in tracer.dtypes
    assert [tracer._dtype_of(side, "s") for side in (0, 1)] == ["", ""] and tracer._dtype_of(0, "nobody") == ""
    assert tracer._dtype_of(0, "a") == "float32"
    assert tracer.run(feeds, feeds)


def test_a_weight_that_is_infinite_in_the_low_type_alone_is_named() -> None:
    weight = np.full((3, 3), 1e5, np.float32)
    model = parse("g (float[2, 3] x) => (float[2, 3] y) {[product] y = MatMul (x, w) }", w=weight)
    text = """g (float[2, 3] x) => (float[2, 3] y) {
        a = Cast <to = 10> (x)  [product] b = MatMul (a, w)  y = Cast <to = 1> (b) }"""
    with np.errstate(over="ignore"):
        spoiled = parse(text, w=weight.astype(np.float16))
    feeds = {"x": np.full((2, 3), 1e-3, np.float32)}
    inquest = Inquest(Tracer(model, spoiled).run(feeds, feeds))
    assert [site.kind for site in inquest.tracer.sites] == ["Cast", "MatMul", "Cast"]
    assert inquest._spoiled_weight(inquest.tracer.sites[1]) == "w"
    assert not inquest._spoiled_weight(inquest.tracer.sites[0])  # it reads none


def test_a_branch_is_traced_where_both_sides_take_it() -> None:
    """The reference's If and the model's are known by their output; a node that is no If has no branch."""
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] o) { o = Neg (x) },
            else_branch = e () => (float[2] o) { o = Abs (x) } > }"""
    model = parse(text, opset=17)
    tracer = Tracer(model, model)
    (site,) = (site for site in tracer.sites if site.kind == "If")
    feeds = {"x": np.array([1.0, -2.0], np.float32), "c": np.array(True)}
    found = tracer.branch(site, feeds, feeds)
    assert found is not None
    body, ours, theirs = found
    assert [one.kind for one in body.sites] == ["Neg"] and ours.keys() == theirs.keys() == {"x"}
    assert tracer.branch(site, feeds, {**feeds, "c": np.array(False)}) is None
    assert tracer.branch(body.sites[0], feeds, feeds) is None


def test_patterns_are_withdrawn_where_a_chaotic_model_is_not_mended() -> None:
    suspect = Suspect("n", "Exp", "", "", "float16", (), (), "why", ("n",))
    notes = ["chaotic"]
    for tried, told, left in (
        (None, notes, ("n",)),
        (RepairOutcome(Repair(("n",), 0.1)), [], ("n",)),
        (RepairOutcome(None, "none"), notes, ()),
    ):
        search = FaultSearch(MindirPair.__new__(MindirPair), Compared(own_metric(False)), 1e-2, 1, asked=False)
        search.first_nonfinite, search.also_nonfinite, search.growth = suspect, (suspect,), (suspect,)
        assert search.notes_if_chaotic(notes, tried) == told
        assert present(search.first_nonfinite).patterns == search.growth[0].patterns == left
        assert len(search.also_nonfinite) == (1 if left else 0)
