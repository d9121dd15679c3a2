"""Measuring: ranges equal those of onnx's reference, value by value, however the model is cut, called or stored."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ampgraph
from ampgraph.api.calibrate import calibrate
from ampgraph.core.errors import AmpError
from ampgraph.core.ranges import PART, Range, Ranges, measure
from ampgraph.formats import adapters
from ampgraph.numerics.inputs.samples import load_samples
from ampgraph.numerics.ranges.calibrate import measured_ranges, range_of_rows
from onnx_text import parse
from planner.graphs import random_models
from share import examples

MODELS = Path(__file__).resolve().parents[2] / "models"
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 3


def by_reference(made: ModelProto, samples: list[dict[str, np.ndarray]]) -> dict[str, Range]:
    """The ranges of the float32 values of the main graph, inputs included, as onnx's reference computes them."""
    names = [name for node in made.graph.node for name in node.output if name]
    every = ModelProto()
    every.CopyFrom(made)
    del every.graph.output[:]
    every.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names)
    session = ReferenceEvaluator(every)
    found: dict[str, Any] = {}
    for feeds in samples:
        values = {**feeds, **dict(zip(names, session.run(None, feeds), strict=True))}
        for name, array in values.items():
            if isinstance(array, np.ndarray) and array.dtype == np.float32:
                found.setdefault(name, Range()).add(measure(array))
    return found


def scales(made: ModelProto, ranges: dict[str, Range]) -> dict[str, float]:
    """By value the largest magnitude on the way to it: what its last bits may be off by."""
    found = {name: ranges[name].absmax for name in ranges}
    for node in made.graph.node:
        before = max((found.get(name, 1.0) for name in node.input), default=0.0)
        for name in node.output:
            found[name] = max(before, found.get(name, 0.0))
    return found


def check(made: ModelProto, samples: list[dict[str, np.ndarray]], **more: Any) -> Ranges:
    """Measured as the reference says, by name, for every float32 value that has a unit."""
    found, wanted = calibrate(made, samples, **more), by_reference(made, samples)
    given_low = any(node.op_type == "Cast" for node in made.graph.node)  # the reference sums float16 in float16
    rtol, scale = 1e-2 if given_low else 1e-5, scales(made, wanted)
    assert found.samples == len(samples)
    assert set(found.values) <= set(wanted)
    for name, held in found.values.items():
        known = wanted[name]
        off = max(abs(held.low - known.low), abs(held.high - known.high))
        assert off <= rtol * scale[name], (name, held, known)
        assert (held.elements, held.nonfinite) == (known.elements, known.nonfinite), (name, held, known)
    return found


# -- against the reference --------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(random_models(widths=(4,)))
@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_ranges_of_random_graphs_are_those_of_the_reference(made: ModelProto) -> None:
    samples = list(load_samples(made, count=2))
    whole = check(made, samples)
    floats = {n for n, held in by_reference(made, samples).items() if held.elements}
    stored = {name for node in made.graph.node if node.op_type == "Constant" for name in node.output}
    assert floats - stored - set(whole.values) <= {v.name for v in made.graph.input}, "a float32 value was not measured"
    assert calibrate(made, samples, limit=1).values == whole.values


def test_models_and_progress() -> None:
    samples = [{"image": np.load(MODELS / "digits_heldout.npz")["image"][:4]}]
    for name in ("digits_transformer", "digits_cnn"):
        assert len(check(onnx.load(MODELS / f"{name}.onnx"), samples).values) > 10
    # the model is not changed and progress is told
    made, steps = onnx.load(MODELS / "digits_cnn.onnx"), []
    before = made.SerializeToString(deterministic=True)
    calibrate(made, count=3, limit=1, progress=lambda what, done, of: steps.append((what, done, of)))
    assert made.SerializeToString(deterministic=True) == before
    assert steps[0][0] == "measuring ranges" and steps[-1][1] == steps[-1][2]
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    # what ranges are of
    one, two = (ampgraph.calibrate(MODELS / "digits_cnn.onnx", count=2, seed=3) for _ in range(2))
    assert one.to_json() == two.to_json()
    assert one.notes[0] == "inputs were generated: 2 samples, seed 3"
    assert isinstance(one, ampgraph.Ranges) and one != ampgraph.calibrate(MODELS / "digits_cnn.onnx", count=2)
    # integers booleans and doubles are no ranges
    made = parse("""g (float[3, 4] x) => (float[3, 4] y, int64[2] s, double[3, 4] d, bool[3, 4] b) {
        s = Shape(x)  d = Cast <to = 11> (x)  b = Greater(x, x)  y = Relu(x) }""")
    assert set(check(made, [{"x": X}]).values) == {"x", "y"}
    # infinities and nan of the model itself are said
    made = parse("g (float[3, 4] x) => (float[3, 4] y) { l = Log(x)  y = Relu(l) }")
    found = calibrate(made, [{"x": X}])
    assert found.values["l"].nonfinite == 4
    assert found.notes[-1].startswith("2 values hold infinities or NaN in float32 already, the first is 'l'")


# -- what is measured -------------------------------------------------------------------------------------------------


def test_odd_models_are_measured() -> None:
    made = parse(
        """g (float[n, 4] x) => (float[m, 4] y) {
        p, q = Split <axis = 1> (x)  u = Relu(p)  none = Slice(x, zero, zero)  y = Relu(none) }""",
        zero=np.array([0]),
    )
    found = check(made, [{"x": X}])
    assert found.values["y"] == Range() and found.values["q"].elements == 6
    # an unsorted model and a default input
    made = parse("g (float[3, 4] x, float[4] w) => (float[3, 4] y) { a = Relu(x)  y = Mul(a, w) }", w=X[2])
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    found = calibrate(made, [{"x": X}])
    assert found.values["y"].high == 64 and "w" not in found.values
    assert calibrate(made, [{"x": X, "w": X[2] * 2}]).values["y"].high == 128
    # sequences are crossed within one piece
    made = parse(
        """g (float[3, 4] x) => (float[6, 4] y) {
        a = Relu(x)  s = SequenceConstruct(a, x)  t = SequenceInsert(s, a)  e = SequenceErase(t)
        y = ConcatFromSequence <axis = 0> (e)  z = Neg(y) }"""
    )
    found = calibrate(made, [{"x": X}], limit=1)
    assert found.values["y"].high == 8 and found.values["z"].low == -8
    assert {"s", "t", "e"}.isdisjoint(found.values)
    # low values of the file are really rounded
    made = parse("""g (float[3, 4] x, float16[4] h) => (float[3, 4] y) {
        low = Cast <to = 10> (x)  sum = Add(low, h)  y = Cast <to = 1> (sum) }""")
    found = calibrate(made, [{"x": X + np.float32(2048.5), "h": np.zeros(4, np.float16)}])
    assert set(found.values) == {"x", "y"}
    assert found.values["y"].high == 2056.0 and found.values["x"].high == 2056.5
    # bfloat16 values cross from piece to piece
    made = parse("g (float[3, 4] x) => (float[3, 4] y) { l = Cast <to = 16> (x)  m = Neg(l)  y = Cast <to = 1> (m) }")
    assert calibrate(made, [{"x": X * np.float32(100.3)}], limit=1).values["y"].low == -804.0


def test_weights_in_a_data_file(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    made = parse("g (float[3, 4] x) => (float[3, 300] y) { p = MatMul(x, w)  y = Relu(p) }", w=weight)
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    found = calibrate(tmp_path / "m.onnx", [{"x": X}], limit=1)
    assert found.values["p"].high == pytest.approx(float((X @ weight).max()), rel=1e-5)
    assert found.digest == calibrate(onnx.load(tmp_path / "m.onnx"), [{"x": X}]).digest


# -- functions and bodies ---------------------------------------------------------------------------------------------

TWICE = '<domain: "own", opset_import: ["" : 17]> twice (a) => (c) { b = Add(a, a)  c = Relu(b) }'
DEEP = """<domain: "own", opset_import: ["" : 17, "own" : 1]> deep (a) => (d) { b = own.twice(a)  c = Neg(b)
    d = own.twice(c) }"""


def test_functions_are_told_apart_by_call() -> None:
    made = parse(
        "g (float[3, 4] x) => (float[3, 4] z) { y = own.twice(x)  n = Neg(y)  z = own.twice(n) }",
        domains=["own"],
        functions=TWICE,
    )
    found = calibrate(made, [{"x": X}]).values
    highs = {key: (found[key].low, found[key].high) for key in found}
    assert highs["y > b"] == (-6, 16) and highs["y > c"] == (0, 16) == highs["y"]
    assert highs["z > b"] == (-32, 0) and highs["z"] == (0, 0)
    # functions in functions
    made = parse(
        "g (float[3, 4] x) => (float[3, 4] y) { y = own.deep(x) }", domains=["own"], functions=f"{TWICE}\n{DEEP}"
    )
    found = calibrate(made, [{"x": X}]).values
    assert (found["y > b > b"].low, found["y > b > b"].high) == (-6, 16)
    assert (found["y > d > b"].low, found["y > d > b"].high) == (-32, 0)
    assert found["y > c"].low == -16


BRANCHES = """g (float[3, 4] x, bool c) => (float[3, 4] z) {
    a = Mul(x, ten)
    y = If (c) <then_branch = t () => (float[3, 4] u) { q = Mul(a, ten)  u = Neg(q) },
                else_branch = e () => (float[3, 4] v) { v = Relu(a) }>
    z = Neg(y) }"""


def extremes(found: Ranges, *keys: str) -> list[tuple[float, float, int]]:
    return [(found.values[key].low, found.values[key].high, found.values[key].elements) for key in keys]


def test_bodies_are_measured() -> None:
    made = parse(BRANCHES, ten=np.float32(10))
    true, false = ({"x": X, "c": np.array(flag)} for flag in (True, False))
    both = calibrate(made, [true, false], limit=1)
    assert extremes(both, "y", "y.then_branch > q", "y.then_branch > u", "y.else_branch > v") == [
        (-800, 300, 24),
        (-300, 800, 12),
        (-800, 300, 12),
        (0, 80, 12),
    ]
    one = calibrate(made, [false])
    assert extremes(one, "y.then_branch > q", "y.else_branch > v") == [(0, 0, 0), (0, 80, 12)]
    assert one.notes == ("1 sample from the iterable",)
    # scans infinities and nan in bodies
    made = parse("""g (float[3, 4] x, float[4] a) => (float[4] y, float[3, 4] z) {
        y, z = Scan <num_scan_inputs = 1, scan_output_axes = [0], body = b (float[4] s, float[4] r) =>
            (float[4] t, float[4] o) { t = Add(s, r)  l = Log(r)  o = Identity(l) }> (a, x) }""")
    found = calibrate(made, [{"x": X, "a": np.ones(4, np.float32)}])
    assert extremes(found, "y.body > s", "y.body > r") == [(-2, 5, 12), (-3, 8, 12)]
    logs = found.values["y.body > l"]
    assert (logs.low, logs.nonfinite, logs.elements) == (0, 4, 12) and logs.high == pytest.approx(np.log(8))
    assert "3 values hold infinities or NaN" in found.notes[-1]
    # bodies within functions are said not to be measured
    inner = BRANCHES.split("{", 1)[1].replace("ten", "w")
    made = parse(
        "g (float[3, 4] x, bool c) => (float[3, 4] o) { o = own.f(x, c, ten) }",
        ten=np.float32(10),
        domains=["own"],
        functions=f'<domain: "own", opset_import: ["" : 17]> f (x, c, w) => (z) {{ {inner}',
    )
    found = calibrate(made, [{"x": X, "c": np.array(True)}])
    assert (found.values["o > y"].low, found.values["o > z"].high) == (-800, 800)
    assert found.notes[-1].startswith("3 float32 values were not measured: in bodies within functions")


LOOP = """g (float[3, 4] x, int64 n, bool c) => (float[3, 4] y, float[k, 3, 4] all) {
    y, all = Loop (n, yes, x) <body = b (int64 i, bool go, float[3, 4] s) => (bool go2, float[3, 4] t, float[3, 4] o) {
        go2 = Identity(go)
        d = If (c) <then_branch = p () => (float[3, 4] u) { u = Mul(s, ten) },
                    else_branch = q () => (float[3, 4] v) { v = Neg(s) }>
        t = Add(d, s)  cut = Slice(t, zero, up)  o = Identity(t)
        up0 = Unsqueeze(i, zero)  up = Add(up0, zero) }> }"""


@pytest.mark.parametrize("turns", [3, 0])
def test_every_turn_of_a_loop_is_measured_whatever_its_shapes(turns: int) -> None:
    text = LOOP.replace("t = Add(d, s)  cut", "up0 = Unsqueeze(i, zero)  up = Add(up0, zero)  t = Add(d, s)  cut")
    text = text.replace("        up0 = Unsqueeze(i, zero)  up = Add(up0, zero) }>", " }>")
    made = parse(text, ten=np.float32(10), zero=np.array([0]), yes=np.array(True))
    feeds = {"x": X, "n": np.array(turns), "c": np.array(True)}
    found = calibrate(made, [feeds])
    keys = ("y.body > s", "y.body > d.then_branch > u", "y.body > t", "y.body > cut", "y.body > d.else_branch > v")
    if turns:
        assert extremes(found, *keys) == [
            (-363, 968, 36),
            (-3630, 9680, 36),
            (-3993, 10648, 36),
            (-3993, 1331 * 4, 12),
            (0, 0, 0),
        ]
    else:
        assert extremes(found, *keys) == [(0, 0, 0)] * 5
    assert (found.values["y"].high, len(found.notes)) == (10648 if turns else 8, 1)


# -- memory -----------------------------------------------------------------------------------------------------------

MEMORY = """
import json, sys
import numpy as np
from onnx import TensorProto, helper
import ampgraph, onnxruntime
from ampgraph.api.calibrate import calibrate

def private():
    held = {}
    for line in open("/proc/self/smaps_rollup"):
        name, _, rest = line.partition(":")
        held[name] = rest
    return sum(int(held[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) << 10

count, side = 2000, 116
nodes = [helper.make_node(("Relu", "Neg")[k % 2], [f"v{k - 1}" if k else "x"], [f"v{k}"]) for k in range(count)]
ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [side, side]) for name in ("x", f"v{count - 1}")]
made = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]), ir_version=9,
                         opset_imports=[helper.make_opsetid("", 17)])
peak = before = private()
def told(*_):
    global peak
    peak = max(peak, private())
found = calibrate(made, [{"x": np.ones((side, side), np.float32)}] * 2, progress=told)
print(json.dumps({"values": len(found.values), "bytes": 4 * side * side * count, "before": before, "peak": peak}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="private memory is read from /proc")
def test_activations_are_streamed() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["values"] == 2001 and found["bytes"] > 100 << 20
    assert found["peak"] < 1 << 30, found


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_measured(tmp_path: Path) -> None:
    for made, data, code in (
        (MODELS / "digits_cnn.mindir", None, "AMP304"),
        (MODELS / "digits_cnn.onnx", tmp_path, "AMP108"),
        (MODELS / "none.onnx", None, "AMP101"),
        (MODELS / "digits_cnn.onnx", [{"image": np.zeros((1, 1, 3, 3), np.float32)}], "AMP503"),
    ):
        with pytest.raises(AmpError) as caught:
            calibrate(made, data)
        assert caught.value.code == code and caught.value.hint


# Ranges as data: what is counted of an array, shares by low type, JSON both ways, and whose ranges they are.

LOW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
tensors = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6), elements=floats
)


@given(tensors)
@settings(max_examples=150, deadline=None)
def test_a_range_is_what_numpy_says(array: np.ndarray) -> None:
    found, finite = measure(array), array[np.isfinite(array)]
    assert (found.elements, found.nonfinite) == (array.size, array.size - finite.size)
    assert found.zeros == int((finite == 0).sum())
    assert found.low == (finite.min() if finite.size else 0) and found.high == (finite.max() if finite.size else 0)
    assert found.absmax == (np.abs(finite).max() if finite.size else 0)
    assert sum(found.exponents.values()) == finite.size - found.zeros
    normal = np.abs(finite[np.abs(finite) >= 2.0**-126]).astype(np.float64)
    wanted: dict[int, int] = {}
    for magnitude in normal:
        exponent = math.frexp(magnitude)[1] - 1
        wanted[exponent] = wanted.get(exponent, 0) + 1
    assert {e: n for e, n in found.exponents.items() if e > -127} == wanted


@given(tensors, st.sampled_from(sorted(LOW)))
@settings(max_examples=150, deadline=None)
def test_what_vanishes_and_what_overflows_is_what_a_cast_does(array: np.ndarray, dtype: str) -> None:
    finite = array[np.isfinite(array) & (array != 0)]
    with np.errstate(over="ignore"):
        low = finite.astype(LOW[dtype]).astype(np.float32)
    found = measure(array)
    # Exactly half the smallest subnormal is a tie that rounds to zero: it is counted as kept.
    tie = 2.0 ** (-25 if dtype == "float16" else -134)
    vanished = int(((low == 0) & (np.abs(finite) != tie)).sum())
    if dtype == "float16" or not (np.abs(finite) < 2.0**-126).any():
        assert found.vanishing_share(dtype) == (vanished / finite.size if finite.size else 0)
    if np.isinf(low).any():  # a cast rounds what is just above the largest number down to it
        assert found.overflows(dtype, 1)
    assert found.overflows(dtype, 1) == bool(
        (np.abs(finite.astype(np.float64)) > float(ml_dtypes.finfo(LOW[dtype]).max)).any()
    )


def test_margins_shares_and_pieces() -> None:
    found = measure(np.array([-32752.0, 1.0], np.float32))
    assert not found.overflows("float16") and not found.overflows("float16", 1)
    assert found.overflows("float16", 2.01) and measure(np.array([32768.0], np.float32)).overflows("float16")
    assert not found.overflows("bfloat16", 1e30)
    # shares are of the elements that are not zero
    found = measure(np.array([0, 0, 1e6, 1.0, 1e-9, -1e9], np.float32))
    assert found.vanishing_share("float16") == 0.25 and found.vanishing_share("bfloat16") == 0
    assert Range().vanishing_share("float16") == 0
    # pieces add up to the whole
    array = np.random.default_rng(0).normal(size=PART + 1000).astype(np.float32)
    array[3], array[-1] = np.inf, -7e4
    whole, parts = measure(array), Range()
    for piece in np.array_split(array, 5):
        parts.add(measure(piece))
    assert parts == whole and whole.low == np.float32(-7e4) and whole.nonfinite == 1
    strided = measure(array[:2000].reshape(100, 20).T[::2])
    assert strided == measure(np.ascontiguousarray(array[:2000].reshape(100, 20)[:, ::2]))


@pytest.mark.parametrize("exponent", [-130, -3, 0, 3, 120, 300])
def test_a_scaled_range_is_that_of_the_scaled_numbers(exponent: int) -> None:
    """No element is lost where several exponents fall together below float32's smallest normal number."""
    array = np.array([0, 3.0, -(2.0**-120), 1.5 * 2.0**-121, 2.0**-125, 2.0**-126], np.float32)
    scaled, exact = measure(array).scaled(exponent), array.astype(np.float64) * 2.0**-exponent
    wanted: dict[int, int] = {}
    for magnitude in np.abs(exact[exact != 0]):
        place = max(math.frexp(magnitude)[1] - 1, -127)
        wanted[place] = wanted.get(place, 0) + 1
    assert (scaled.low, scaled.high, scaled.exponents) == (exact.min(), exact.max(), wanted)
    assert (scaled.elements, scaled.zeros) == (6, 1)
    assert scaled.vanishing_share("float16") == (np.abs(exact[1:]) < 2.0**-25).mean()


# -- JSON -------------------------------------------------------------------------------------------------------------


def some() -> Ranges:
    found = Ranges("d1", 2, notes=("2 samples from x", 'a "note" of ä'))
    found.add("a", np.array([0, 1e-30, -3.3, np.inf, 65504], np.float32))
    found.add("loop > b/é", np.array([1e-45], np.float32))
    found.add("empty", np.zeros(0, np.float32))
    return found


@pytest.mark.slow
@given(st.dictionaries(st.text(), tensors, max_size=4), st.text(), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_ranges_survive_json(held: dict[str, np.ndarray], digest: str, samples: int) -> None:
    found = Ranges(digest, samples)
    for name, array in held.items():
        found.add(name, array)
    text = found.to_json()
    again = Ranges.from_json(text)
    assert again == found and again.to_json() == text and list(again.values) == list(found.values)


def test_files_of_ranges(tmp_path: Path) -> None:
    some().write(tmp_path / "r.json")
    assert Ranges.read(tmp_path / "r.json") == some()
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["samples"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(AmpError, match="AMP105"):
        some().write(tmp_path / "none" / "r.json")
    with pytest.raises(AmpError, match="AMP105"):
        some().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    # files that cannot be read and other formats
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "bytes"):
        with pytest.raises(AmpError, match="AMP401"):
            Ranges.read(path)
    with pytest.raises(AmpError, match="format 1 is not 2"):  # whose keys were ambiguous
        Ranges.from_json(altered(ampgraph_ranges=1))


def altered(**more: Any) -> str:
    return json.dumps({**json.loads(some().to_json()), **more})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "nonsense", '{"ampgraph_ranges": 2}', altered(samples="x"), altered(values=[])),
        *(altered(notes=None), altered(values={"a": [1]}), altered(values={"a": [0, 0, -1, 0, 0, 0, []]})),
        *(altered(values={"a": [0, 0, 1, 0, 0, 0, ["x"]]}), altered(values={"a": [0, float("nan"), 1, 0, 0, 0, []]})),
        *(altered(values={"a": [0, 0, 1.5, 0, 0, 0, []]}), altered(values={"a": None}), "[" * 100_000),
    ],
)
def test_what_are_no_ranges(text: str, tmp_path: Path) -> None:
    with pytest.raises(AmpError, match=r"r\.json: are not ranges of ampgraph") as caught:
        (tmp_path / "r.json").write_text(text)
        Ranges.read(tmp_path / "r.json")
    assert caught.value.code == "AMP401" and "--ranges-out" in caught.value.hint


def low_products(model: Any, data: Any, rename: dict[str, str]) -> int:
    """How many of the products go low, after values were given other names; ranges go through JSON."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [rename.get(name, name) for name in names]
    ranges = Ranges.from_json(ampgraph.calibrate(model, data).to_json())
    decisions = ampgraph.plan(model, ranges=ranges).decisions
    return sum(d.dtype == "float16" for d in decisions)


CHAIN = "g (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w) b = MatMul(a, big) y = MatMul(b, small) }"
EYE = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize("name", ["enc > out", "a > > b", "out\\", "a->b", "a \\> b", " > ", "x > ", " > x"])
def test_any_name_steers(name: str) -> None:
    weights = {"w": EYE, "big": EYE * 40000, "small": EYE / 40000}
    data = [{"x": np.ones((2, 4), np.float32) * 2}]
    plain = low_products(parse(CHAIN, weights), data, {})
    assert low_products(parse(CHAIN, weights), data, {"b": name}) == plain


BRANCH = """g (float[2, 4] x, bool c) => (float[2, 4] y) {
    a = MatMul(x, w)
    r = If (c) <then_branch = t () => (float[2, 4] u) { v = MatMul(a, big)  u = MatMul(v, small) },
                else_branch = e () => (float[2, 4] k) { k = Neg(a) }>
    q = Mul(x, x)
    y = Add(r, q) }"""


def test_whose_ranges_they_are() -> None:
    made = parse(BRANCH, w=EYE, big=EYE * 40000, small=EYE / 40000)
    for node in made.graph.node:  # the product of the main graph is named as the path of the branch's
        for names in (node.input, node.output):
            names[:] = ["r.then_branch > v" if name == "q" else name for name in names]
    found = ampgraph.calibrate(made, [{"x": np.full((2, 4), 2, np.float32), "c": np.array(True)}])
    assert found.values["r.then_branch > v"].high == 80000
    assert found.values["r.then_branch \\> v"].high == 4
    # ranges of another model are refused
    some().check("d1")
    with pytest.raises(AmpError, match="another model") as caught:
        some().check("d2")
    assert caught.value.code == "AMP403"
    # a model that stops says why
    made = parse("g (float[3, 4] x, int64[1] i) => (float[1, 4] y) { y = Gather(x, i) }")
    with pytest.raises(AmpError, match="ONNX Runtime stopped") as caught:
        calibrate(made, [{"x": X, "i": np.array([9])}])
    assert caught.value.code == "AMP504"


def test_rows_of_a_body_as_a_range() -> None:
    """A run with nothing finite, or without elements, adds its counts and no extremes but zero."""
    found = range_of_rows(np.array([[-2.0, 3.0, 5, 1], [1e9, -1e9, 2, 2], [1e9, -1e9, 0, 0]]))
    assert (found.elements, found.nonfinite) == (7, 3) and found.absmax == 3.0


def test_measuring_ends_where_enough_is_known() -> None:
    graph = adapters.load_onnx(parse("g (float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }"))
    graph.prepare()
    found = measured_ranges(graph, load_samples(graph, count=5), enough=lambda so_far: so_far.samples == 2)
    assert found.samples == 2 and "y" in found.values
