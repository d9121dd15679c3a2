"""What verify says: planted faults are found, named and repaired."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph import AmpError
from ampgraph.api.verify import verify
from ampgraph.formats import adapters
from ampgraph.numerics.metrics.agreement import Agreement, OutputDifference, compare_outputs
from ampgraph.numerics.pairs import _first_names, check_same_interface, in_types_of
from ampgraph.numerics.quantized import QuantizedParts, quantized_parts
from ampgraph.runtime import devices
from ampgraph.runtime.ports import Interface, Port
from numerics import planted
from numerics.planted import low
from onnx_text import parse
from present import present

TRUE = np.array(True)


def patterns(suggestion: tuple[str, ...]) -> list[str]:
    """The arguments of --fp32, as a shell would read them."""
    words = [shlex.split(text) for text in suggestion]
    assert all(option == "--fp32" for option, _ in words)
    return [pattern for _, pattern in words]


def test_good_models_and_plain_data() -> None:
    model = planted.chain()
    found = verify(model, low(model), data=[planted.feed(scale=0.1)], tolerance=2e-3)
    assert found.ok and found.strict and found.device == "cpu"
    assert found.first_nonfinite is None and found.growth == () and found.traced is None
    assert "accumulators inside kernels are not modelled" in found.run and "float16" in found.run
    assert 0 < found.outputs[0].p90 < 2e-3
    # what is told is plain data
    found = verify(model, low(model), data=[planted.feed()])
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["ok"] is False and data["outputs"][0]["relative_l2"]["p90"] is None
    born = data["first_nonfinite"]
    assert born["node"] == "second" and born["suggestion"][0] == "--fp32 second"
    assert born["makes"][0]["range"]["infinite"] == 8
    # low interfaces and given low references
    model = planted.chain()
    data = [planted.feed(scale=0.1)]
    for dtype in ("float16", "bfloat16"):
        converted = low(model, io="low", dtype=dtype)
        assert verify(model, converted, data=data, tolerance=2e-2).ok
        own = verify(converted, converted, data=data)
        assert own.ok and own.outputs[0].worst == 0


def test_what_is_not_finite_is_told() -> None:
    model = planted.parse("g (float[2, 4] x) => (float[2, 4] y) { a = Log (x)  y = Mul (a, x) }")
    data = [{"x": np.full((2, 4), -1, np.float32)}]
    found = verify(model, low(model), data=data)
    told = "\n".join(found.lines())
    written = json.loads(json.dumps(found.to_dict()))["outputs"][0]
    assert not found.ok and written["silent_samples"] == [0]
    assert "the reference itself is not finite" in told and "verdict     missed: y" in told
    assert written["relative_l2"]["worst"] is None
    # samples whose reference is not finite are told and left out
    model = planted.parse("g (float[2, 4] x) => (float[2, 4] y) { a = Log (x)  y = Mul (a, x) }")
    data = [{"x": np.full((2, 4), value, np.float32)} for value in (-1.0, 3.0, 5.0)]
    found = verify(model, low(model), data=data)
    told = "\n".join(found.lines())
    assert found.ok and 0 < found.outputs[0].p90 < 1e-2
    assert "1 of 3 samples left out: the reference itself is not finite there" in told
    # outputs without elements compare nothing
    model = planted.parse("g (float[n, 4] x) => (int64[2, m] y) { y = NonZero (x) }")
    found = verify(model, model, data=[{"x": np.zeros((2, 4), np.float32)}])
    told = "\n".join(found.lines())
    assert not found.ok and found.to_dict()["ok"] is False
    assert "verdict     missed: nothing was compared, as every output is empty" in told and "no elements" in told
    assert verify(model, model, data=[{"x": np.ones((2, 4), np.float32)}]).ok


def test_what_is_swapped_is_noticed() -> None:
    model = planted.chain()
    data = [planted.feed(scale=0.1)]
    converted = {dtype: low(model, dtype=dtype) for dtype in ("float16", "bfloat16")}
    for dtype, made in converted.items():
        note = f"the reference is {dtype}, the model is not: are the arguments swapped?"
        assert note in verify(made, model, data=data, tolerance=1e-9, nodes=0).notes
        for pair in ((model, made), (made, made), (model, model)):
            assert not any("swapped" in note for note in verify(*pair, data=data, nodes=0).notes)
    # low weights alone are noticed
    reference = planted.parse("""g (float[2] x) => (float[2] y) <float16[2] w = {1, 2}> {
        v = Cast <to = 1> (w)  y = Mul (x, v) }""")
    model = planted.parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }")
    data = [{"x": np.ones(2, np.float32)}]
    assert any("float16" in note and "swapped" in note for note in verify(reference, model, data=data).notes)
    assert not any("swapped" in note for note in verify(model, reference, data=data).notes)


@pytest.mark.slow
def test_overflows_are_named() -> None:
    model = planted.chain()
    data = [planted.feed(scale=0.1), planted.feed(scale=1.0)]
    found = verify(model, low(model), data=data)
    born = present(found.first_nonfinite)
    assert not found.ok and found.outputs[0].nonfinite_mismatches and found.traced == 1
    assert (born.node, born.operator, born.dtype) == ("second", "Mul", "float16")
    assert born.makes[0].range.infinite and present(born.makes[0].reference).absmax > 65504
    assert born.reads[0].range.infinite == 0 and "float16 ends at 65,504" in born.why
    assert patterns(born.suggestion)[0] == "second" and "--dtype bfloat16" in born.hints
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=data).ok
    assert verify(model, low(model, dtype="bfloat16"), data=data, tolerance=3e-2).ok
    # overflows in bodies are named
    model = planted.in_function()
    found = verify(model, low(model), data=[planted.feed()])
    born = present(found.first_nonfinite)
    assert (born.node, born.inside) == ("inner_again", "call_two")
    assert patterns(born.suggestion)[0] == "inner_again"
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=[planted.feed()]).first_nonfinite is None
    # an overflow in a branch is named with its if
    model = planted.in_branch()
    feeds = planted.feed(c=TRUE)
    found = verify(model, low(model), data=[feeds])
    born = present(found.first_nonfinite)
    assert (born.node, born.inside) == ("big", "choose")
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=[feeds]).first_nonfinite is None
    assert verify(model, low(model), data=[planted.feed(c=np.array(False))]).ok
    # inputs and weights that overflow
    model = planted.chain()
    found = verify(model, low(model, io="low"), data=[planted.feed(scale=1e5)])
    born = present(found.first_nonfinite)
    assert (born.node, born.operator) == ("x", "input") and "--io" in born.hints[0]
    # a weight that a converter let overflow
    reference = planted.parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 100000}> { [m] y = Mul (x, w) }")
    spoiled = ModelProto.FromString(reference.SerializeToString())
    spoiled.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, np.inf]))
    born = present(verify(reference, spoiled, data=[{"x": np.ones(2, np.float32)}]).first_nonfinite)
    assert born.node == "m" and "its weight 'w' holds infinities" in born.why
    # growth at a cancellation
    model = planted.cancelling()
    data = [{"x": np.random.default_rng(s).standard_normal((2, 64)).astype(np.float32)} for s in range(3)]
    found = verify(model, low(model), data=data)
    assert not found.ok and found.first_nonfinite is None
    assert {suspect.node for suspect in found.growth} >= {"shift", "centre"}
    assert any("times larger by Sub centre" in suspect.why for suspect in found.growth)
    repaired = low(model, fp32=[pattern for suspect in found.growth for pattern in patterns(suspect.suggestion)])
    assert verify(model, repaired, data=data).ok and present(found.left) < 1e-2


def test_the_first_infinity_is_blamed() -> None:
    model = planted.difference()
    found = verify(model, low(model), data=[planted.feed()])
    assert found.outputs[0].nan == 8 and present(found.first_nonfinite).node == "b"
    repaired = low(model, fp32=patterns(present(found.first_nonfinite).suggestion))
    assert verify(model, repaired, data=[planted.feed()]).first_nonfinite is None
    # zero by zero blames what vanished
    model = planted.vanishing()
    data = [planted.feed(scale=1e-5)]
    found = verify(model, low(model), data=data)
    born = present(found.first_nonfinite)
    assert born.node == "ratio" and "has become zero in 8 places" in born.why and "eps" in born.hints[0]
    assert {"ratio", "square"} <= set(patterns(born.suggestion))
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=data).ok
    # infinities of the reference are no fault
    model = planted.parse("""g (float[2, 4] x) => (float[2, 4] y) {
        zero = Constant <value_float = 0.0> ()
        [log] a = Log (zero)  [hide] b = Add (x, a)  [soft] s = Exp (b)  [more] y = Add (s, x)
    }""")
    found = verify(model, low(model), data=[planted.feed()], nodes=3)
    assert found.ok and found.first_nonfinite is None


# What verify compares: both sides, devices, samples; and its answers to what does not fit.


def test_a_model_with_a_state_is_blamed_and_repaired() -> None:
    rng = np.random.default_rng(0)
    text = """g (float[b, 8] x, float[b, 8] state_in) => (float[b, 8] y, float[b, 8] state_out) {
        a = Add (x, state_in)  m = MatMul (a, w)  state_out = Tanh (m)
        t = MatMul (state_out, v)  y = MatMul (t, u) }"""
    scales = {"w": 1.0, "v": 3e4, "u": 1e-5}
    stored = {name: (rng.standard_normal((8, 8)) * scale).astype(np.float32) for name, scale in scales.items()}
    model = planted.parse(text, stored)
    found = verify(model, ampgraph.convert(model, check="off"))
    assert not found.ok and found.repair is not None


def test_paths_and_generated_samples(tmp_path: Path) -> None:
    model = planted.cancelling()
    onnx.save(model, tmp_path / "a.onnx")
    ampgraph.convert(tmp_path / "a.onnx", "O1", output=tmp_path / "b.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", samples=3, seed=5)
    assert found.samples == 3 and len(found.outputs[0].errors) == 3
    assert any("generated" in note for note in found.notes)
    again = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", samples=3, seed=5)
    assert again.to_dict() == found.to_dict()


def test_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.PROVIDERS, "cuda", ("CPUExecutionProvider",))
    model = planted.chain()
    found = verify(model, low(model), data=[planted.feed(scale=0.1)], device="cuda", nodes=2)
    assert not found.strict and found.device == "cuda" and "its own kernels" in found.run
    assert {op for _, op in found.fallback} >= {"Mul"}
    assert found.traced == 0
    # bfloat16 on a device is traced strictly
    monkeypatch.setitem(devices.PROVIDERS, "cuda", ("CPUExecutionProvider",))
    model = planted.parse("""g (float[2, 4] x) => (float[2, 4] y) { b = Cast <to=16> (x)  y = Cast <to=1> (b) }""")
    reference = planted.parse("g (float[2, 4] x) => (float[2, 4] y) { b = Identity (x)  y = Identity (b) }")
    found = verify(reference, model, data=[planted.feed()], device="cuda", nodes=1)
    assert any("numpy has no bfloat16" in note for note in found.notes)


SMALL = "g (float[2, 4] x) => (float[2, 4] y) { y = Tanh (x) }"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("g (float[2, 4] z) => (float[2, 4] y) { y = Tanh (z) }", "the model has no input 'x'"),
        ("g (float[2, 4] x) => (float[2, 4] z) { z = Tanh (x) }", "no output in common"),
        ("g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { y = Tanh (x) z = Neg (x) }", "no output 'z'"),
        ("g (float[3, 4] x) => (float[3, 4] y) { y = Tanh (x) }", "float32 [3, 4] in the model"),
        ("g (int32[2, 4] x) => (float[2, 4] y) { y = Cast <to=1> (x) }", "int32 [2, 4] in the model"),
    ],
)
def test_models_that_do_not_belong_together(other: str, words: str) -> None:
    with pytest.raises(AmpError, match="AMP209") as told:
        verify(planted.parse(SMALL), planted.parse(other))
    assert words in told.value.message and told.value.hint


def test_a_refusal_names_the_first_few() -> None:
    def names(count: int) -> str:
        return _first_names({f"x{i}": Port(f"x{i}", "float32", ()) for i in range(count)})

    assert (names(0), names(2)) == ("none", "'x0', 'x1'")
    assert names(6).endswith("'x5'") and names(7) == names(6) + ", ..."


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"tolerance": -1.0}, "AMP312"),
        ({"tolerance": float("nan")}, "AMP312"),
        ({"nodes": -1}, "AMP312"),
        ({"nodes": 2.5}, "AMP312"),
        ({"tolerance": "1e-3"}, "AMP312"),
        ({"tolerance": None}, "AMP312"),
        ({"tolerance": True}, "AMP312"),
        ({"samples": 2.5}, "AMP503"),
        ({"samples": "2"}, "AMP503"),
        ({"seed": "2"}, "AMP503"),
        ({"dims": {"foo": 3}}, "AMP310"),
        ({"dims": {"foo": 3}, "data": [{"x": np.zeros((2, 4), np.float32)}]}, "AMP310"),
        ({"data": ""}, "AMP101"),
        ({"data": [{0: np.zeros((2, 4), np.float32)}]}, "AMP503"),
        ({"samples": 0}, "AMP503"),
        ({"device": "gpx"}, "AMP321"),
        ({"device": "ascend"}, "AMP321"),
        ({"device": "cann"}, "AMP505"),
        ({"data": [{"x": np.full((2, 4), np.nan, np.float32)}]}, "AMP503"),
        ({"data": [{"x": np.zeros((2, 5), np.float32)}]}, "AMP503"),
        ({"data": [{}]}, "AMP503"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], code: str) -> None:
    model = planted.parse(SMALL)
    with pytest.raises(AmpError, match=code) as told:
        verify(model, model, **arguments)
    assert told.value.hint


def test_out_of_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from ampgraph.numerics.strict.session import StrictSession

    class Full:
        def run(self, *_: Any) -> None:
            raise RuntimeError(
                "[ONNXRuntimeError] : 6 : bad allocation: Failed to allocate memory for requested buffer"
            )

    model = planted.parse(SMALL)
    opened = StrictSession.__init__

    def broken(self: StrictSession, *given: Any, **more: Any) -> None:
        opened(self, *given, **more)
        self._session = Full()

    monkeypatch.setattr(StrictSession, "__init__", broken)
    with pytest.raises(AmpError, match="out of memory") as told:
        verify(model, model, samples=1)
    assert "fewer rows" in told.value.hint


# The figures of verify, by hand.


def test_figures_by_hand() -> None:
    found = compare_outputs(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[3.0, 4.5], [0.0, 0.1]]))
    assert found.error == pytest.approx(np.sqrt(0.26) / 5)
    assert found.max_abs == pytest.approx(0.5)
    assert found.cosine == pytest.approx((9 + 18) / (5 * np.linalg.norm([3, 4.5, 0.1])))
    assert found.same_argmax == (1, 2) and not found.nonfinite_mismatches
    # what is not finite is counted
    nan, inf = np.nan, np.inf
    found = compare_outputs(np.array([1.0, inf, nan, -inf, 2.0, 3.0]), np.array([1.0, inf, nan, inf, nan, inf]))
    assert (found.nonfinite_mismatches, found.infinite, found.nan) == (3, 3, 2)
    assert found.error == inf
    same = compare_outputs(np.array([1.0, -inf]), np.array([1.0, -inf]))
    assert same.error == 0 and not same.nonfinite_mismatches
    # zeros integers and sequences
    assert compare_outputs(np.zeros(3), np.full(3, 0.1)).error == pytest.approx(
        0.1 / 1e-3
    )  # the floor: float16's step at one
    assert compare_outputs(np.full(3, 1e-6), np.full(3, 2e-6)).error == pytest.approx(1e-3)  # a probability near zero
    assert compare_outputs(np.arange(4), np.array([0, 1, 5, 3])).error == 0.25
    assert compare_outputs(np.array(["a"], object), np.array(["a"], object)).error == 0
    assert compare_outputs([np.ones(2)], [np.ones(2), np.ones(2)]).reason == "sequences of different lengths"
    assert compare_outputs([np.ones(2), np.ones(1)], [np.ones(2), np.zeros(1)]).error == 1
    assert compare_outputs(np.ones((1, 2)), np.ones((2, 1))).reason == "shape [2, 1] instead of [1, 2]"
    assert compare_outputs(np.full(2, 1e300), np.full(2, 1e300)).error == 0  # whose squares overflow
    # sequences count what they hold
    assert compare_outputs([np.ones(2), np.full(3, np.nan)], [np.ones(2), np.full(3, np.nan)]).compared == 2
    found = compare_outputs([np.full(3, np.nan)], [np.full(3, np.nan)])
    assert found.silent and found.error == np.inf and not found.nonfinite_mismatches
    # rows without an argmax are counted out
    nan, inf = np.nan, np.inf
    want = np.array([[1.0, 2.0], [nan, 2.0], [1.0, inf], [-inf, 3.0], [-inf, -inf], [4.0, 1.0]])
    assert compare_outputs(want, want).same_argmax == (3, 3)  # -inf beside a number is a mask: the row has a largest
    assert compare_outputs(want, np.where(np.isfinite(want), want[:, ::-1], want)).same_argmax == (0, 3)
    assert compare_outputs(want, np.full_like(want, nan)).same_argmax == (0, 3)
    assert compare_outputs(np.full((2, 2), nan), np.full((2, 2), nan)).same_argmax is None
    # over all samples, those without such rows left out
    output = Agreement("y", [OutputDifference(0.0, 0.0, same_argmax=same) for same in ((1, 2), None, (3, 3))])
    assert output.same_argmax == (4, 5) and Agreement("y", [OutputDifference(0.0, 0.0)]).same_argmax is None
    # quantiles and the tolerance
    output = Agreement("y", [OutputDifference(i / 100, 0.0) for i in range(1, 11)])
    assert (output.median, output.p90, output.worst) == (0.05, 0.09, 0.1)
    assert output.within(0.09) and not output.within(0.08)
    output.add(OutputDifference(0.0, 0.0, nonfinite_mismatches=1))
    assert not output.within(1.0)


@pytest.mark.parametrize("held", [np.nan, np.inf])
def test_a_reference_that_holds_nothing_finite_agrees_with_nothing(held: float) -> None:
    output = Agreement("y")
    output.add(compare_outputs(np.full((2, 3), held), np.full((2, 3), held)))
    assert output.silent == {0} and not output.compared and not output.within(1e9)
    output.add(compare_outputs(np.ones((2, 3)), np.ones((2, 3)) * 1.5))
    assert output.errors == [np.inf, 0.5] and output.p90 == output.worst == 0.5  # of what could be compared
    assert output.within(0.5) and not output.within(0.4)
    empty = Agreement("y")
    empty.add(compare_outputs(np.zeros((0, 3)), np.zeros((0, 3))))
    assert not empty.silent and not empty.compared and empty.within(0)


def test_a_sample_in_the_types_of_another_model() -> None:
    """Floats alone are cast; an input with a default stays as it is; what the other does not take is left out."""
    feeds = {"x": np.full(2, 1e5, np.float32), "i": np.arange(2), "d": np.ones(1, np.float32), "gone": np.ones(1)}
    found = in_types_of(feeds, {"x": "float16", "i": "int32"}, frozenset({"d"}))
    x = np.asarray(found["x"])
    assert list(found) == ["x", "i", "d"] and x.dtype == np.float16 and bool(np.isinf(x).all())
    assert found["i"] is feeds["i"] and found["d"] is feeds["d"]


def test_interfaces_differ_by_float_types_alone() -> None:
    def interface(dtype: str, shape: tuple[int | str | None, ...], name: str = "x") -> Interface:
        return Interface({name: Port(name, dtype, shape)}, {"y": Port("y", "float32", (1,))})

    for other in (interface("float16", (1, "n")), interface("float32", (1, 3)), interface("float32", ())):
        check_same_interface(interface("float32", (1, "n")), other)
    for other in (interface("int32", (1, "n")), interface("float32", (2, "n")), interface("float32", (1, "n"), "z")):
        with pytest.raises(AmpError) as caught:
            check_same_interface(interface("float32", (1, "n")), other)
        assert caught.value.code == "AMP209"
    alone = Interface({}, {"z": Port("z", "float32", (1,))})
    with pytest.raises(AmpError, match="no output in common"):
        check_same_interface(Interface({}, {"y": Port("y", "float32", (1,))}), alone)


BETWEEN = """g (uint8[4] q) => (uint8[4] out) <float s = {0.1}, uint8 z = {0}> {
    d = DequantizeLinear (q, s, z)  r = Relu (d)  out = QuantizeLinear (r, s, z) }"""
CASTS = BETWEEN.replace("Relu", "Cast <to: int = 1>")
INTEGERS = "g (uint8[2,2] q) => (int32[2,2] out) { m = MatMulInteger (q, q)  out = Abs (m) }"
CHANGED = {
    "kind": (BETWEEN, "Relu (d)", "Neg (d)", "Relu r"),
    "source": (BETWEEN, "r = Relu (d)", "e = Identity (d)  r = Relu (e)", "Relu r"),
    "type of an operand": (CASTS, "float s = {0.1}", "float16 s = {11878}", "Cast r"),
    "type of the result": (CASTS, "to: int = 1", "to: int = 10", "Cast r"),
    "reader": (INTEGERS, "Abs", "Neg", "MatMulInteger m"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_quantized_parts_that_stay_and_that_change(what: str) -> None:
    """Those between dequantized and quantized, and products of integers, by what they write: changed where one thing
    of `Signature` is another."""
    text, old, new, told = CHANGED[what]
    assert old in text
    first, second = (adapters.load(parse(each, opset=19))[0].dataflow() for each in (text, text.replace(old, new)))
    same, other = quantized_parts(first, first), quantized_parts(first, second)
    kind = told.split()[0]
    assert same.unchanged == ((kind, 1),) and not same.changed and str(same) == f"left as they are: 1 {kind}"
    assert not other.unchanged and str(other) == f"changed: {told}; left as they are: none"


def test_five_changed_quantized_parts_are_named() -> None:
    def told(count: int) -> str:
        return str(QuantizedParts((), tuple(f"Relu r{i}" for i in range(count))))

    five = "changed: Relu r0, Relu r1, Relu r2, Relu r3, Relu r4"
    assert told(5) == f"{five}; left as they are: none" and told(6) == f"{five}, ...; left as they are: none"
    assert not QuantizedParts((), ()) and QuantizedParts((), ("Relu r",)) and QuantizedParts((("Relu", 1),), ())
