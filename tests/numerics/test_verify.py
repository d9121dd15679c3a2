"""What verify says: planted faults are found, named and repaired."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.api.pairs import MindirPair
from ampgraph.api.verify import verify
from ampgraph.report.verification import Verification, verification_lines
from hard_models import HARD_MODELS
from numerics import planted
from numerics.planted import low
from present import present

TRUE = np.array(True)
HERE = Path(__file__).resolve().parent


def patterns(suggestion: tuple[str, ...]) -> list[str]:
    """The arguments of --fp32, as a shell would read them."""
    words = [shlex.split(text) for text in suggestion]
    assert all(option == "--fp32" for option, _ in words)
    return [pattern for _, pattern in words]


def test_a_good_model_passes_and_no_node_is_named() -> None:
    model = planted.chain()
    found = verify(model, low(model), data=[planted.feed(scale=0.1)], tolerance=2e-3)
    assert found.ok and found.strict and found.device == "cpu"
    assert found.first_nonfinite is None and found.growth == () and found.traced is None
    assert "accumulators inside kernels are not modelled" in found.run and "float16" in found.run
    assert 0 < found.outputs[0].p90 < 2e-3


def test_a_reference_that_is_not_finite_is_missed_and_said() -> None:
    model = planted.parse("g (float[2, 4] x) => (float[2, 4] y) { a = Log (x)  y = Mul (a, x) }")
    data = [{"x": np.full((2, 4), -1, np.float32)}]
    found = verify(model, low(model), data=data)
    told = "\n".join(verification_lines(found))
    written = json.loads(json.dumps(found.to_dict()))["outputs"][0]
    assert not found.ok and written["silent_samples"] == [0]
    assert "the reference itself is not finite" in told and "verdict     missed: y" in told
    assert written["relative_l2"]["worst"] is None


def test_samples_whose_reference_is_not_finite_are_told_and_left_out() -> None:
    model = planted.parse("g (float[2, 4] x) => (float[2, 4] y) { a = Log (x)  y = Mul (a, x) }")
    data = [{"x": np.full((2, 4), value, np.float32)} for value in (-1.0, 3.0, 5.0)]
    found = verify(model, low(model), data=data)
    told = "\n".join(verification_lines(found))
    assert found.ok and 0 < found.outputs[0].p90 < 1e-2
    assert "1 of 3 samples left out: the reference itself is not finite there" in told


def test_outputs_without_elements_compare_nothing() -> None:
    model = planted.parse("g (float[n, 4] x) => (int64[2, m] y) { y = NonZero (x) }")
    found = verify(model, model, data=[{"x": np.zeros((2, 4), np.float32)}])
    told = "\n".join(verification_lines(found))
    assert not found.ok and found.to_dict()["ok"] is False
    assert "verdict     missed: nothing was compared, as every output is empty" in told and "no elements" in told
    assert verify(model, model, data=[{"x": np.ones((2, 4), np.float32)}]).ok


def test_swapped_arguments_are_noticed() -> None:
    model = planted.chain()
    data = [planted.feed(scale=0.1)]
    converted = {dtype: low(model, dtype=dtype) for dtype in ("float16", "bfloat16")}
    for dtype, made in converted.items():
        note = f"the reference is {dtype}, the model is not: are the arguments swapped?"
        assert note in verify(made, model, data=data, tolerance=1e-9, nodes=0).notes
        for pair in ((model, made), (made, made), (model, model)):
            assert not any("swapped" in note for note in verify(*pair, data=data, nodes=0).notes)


def test_low_weights_alone_are_noticed() -> None:
    reference = planted.parse("""g (float[2] x) => (float[2] y) <float16[2] w = {1, 2}> {
        v = Cast <to = 1> (w)  y = Mul (x, v) }""")
    model = planted.parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }")
    data = [{"x": np.ones(2, np.float32)}]
    assert any("float16" in note and "swapped" in note for note in verify(reference, model, data=data).notes)
    assert not any("swapped" in note for note in verify(model, reference, data=data).notes)


def test_swapped_mindir_is_noticed(tmp_path: Path) -> None:
    source = HERE.parents[1] / "models" / "digits_cnn.mindir"
    ampgraph.convert(source, output=tmp_path / "low.mindir")
    assert any("swapped" in note for note in MindirPair(tmp_path / "low.mindir", source, "auto").notes)
    assert not any("swapped" in note for note in MindirPair(source, tmp_path / "low.mindir", "auto").notes)


def test_an_overflow_in_a_chain_is_named_and_repaired() -> None:
    model = planted.chain()
    data = [planted.feed(scale=0.1), planted.feed(scale=1.0)]
    found = verify(model, low(model), data=data)
    born = present(found.first_nonfinite)
    assert not found.ok and found.outputs[0].astray and found.traced == 1
    assert (born.node, born.operator, born.dtype) == ("second", "Mul", "float16")
    assert born.makes[0].range.infinite and present(born.makes[0].reference).absmax > 65504
    assert born.reads[0].range.infinite == 0 and "float16 ends at 65,504" in born.why
    assert patterns(born.suggestion)[0] == "second" and "--dtype bfloat16" in born.hints
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=data).ok
    assert verify(model, low(model, dtype="bfloat16"), data=data, tolerance=3e-2).ok


def test_a_difference_of_infinities_blames_the_first_of_them() -> None:
    model = planted.difference()
    found = verify(model, low(model), data=[planted.feed()])
    assert found.outputs[0].nan == 8 and present(found.first_nonfinite).node == "b"
    repaired = low(model, fp32=patterns(present(found.first_nonfinite).suggestion))
    assert verify(model, repaired, data=[planted.feed()]).first_nonfinite is None


def test_zero_by_zero_blames_what_vanished() -> None:
    model = planted.vanishing()
    data = [planted.feed(scale=1e-5)]
    found = verify(model, low(model), data=data)
    born = present(found.first_nonfinite)
    assert born.node == "ratio" and "has become zero in 8 places" in born.why and "eps" in born.hints[0]
    assert {"ratio", "square"} <= set(patterns(born.suggestion))
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=data).ok


def test_an_overflow_in_a_function_is_named_with_its_calls() -> None:
    model = planted.in_function()
    found = verify(model, low(model), data=[planted.feed()])
    born = present(found.first_nonfinite)
    assert (born.node, born.inside) == ("inner_again", "call_two")
    assert patterns(born.suggestion)[0] == "inner_again"
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=[planted.feed()]).first_nonfinite is None


def test_an_overflow_in_a_branch_is_named_with_its_if() -> None:
    model = planted.in_branch()
    feeds = planted.feed(c=TRUE)
    found = verify(model, low(model), data=[feeds])
    born = present(found.first_nonfinite)
    assert (born.node, born.inside) == ("big", "choose")
    assert verify(model, low(model, fp32=patterns(born.suggestion)), data=[feeds]).first_nonfinite is None
    assert verify(model, low(model), data=[planted.feed(c=np.array(False))]).ok


@pytest.mark.slow
def test_growth_at_a_cancellation() -> None:
    model = planted.cancelling()
    data = [{"x": np.random.default_rng(s).standard_normal((2, 64)).astype(np.float32)} for s in range(3)]
    found = verify(model, low(model), data=data)
    assert not found.ok and found.first_nonfinite is None
    assert {suspect.node for suspect in found.growth} >= {"shift", "centre"}
    assert any("times larger by Sub centre" in suspect.why for suspect in found.growth)
    repaired = low(model, fp32=[pattern for suspect in found.growth for pattern in patterns(suspect.suggestion)])
    assert verify(model, repaired, data=data).ok and present(found.left) < 1e-2


def test_an_input_that_is_low_and_overflows() -> None:
    model = planted.chain()
    found = verify(model, low(model, io="low"), data=[planted.feed(scale=1e5)])
    born = present(found.first_nonfinite)
    assert (born.node, born.operator) == ("x", "input") and "--io" in born.hints[0]


def test_a_weight_that_a_converter_let_overflow() -> None:
    reference = planted.parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 100000}> { [m] y = Mul (x, w) }")
    spoiled = ModelProto.FromString(reference.SerializeToString())
    spoiled.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, np.inf]))
    born = present(verify(reference, spoiled, data=[{"x": np.ones(2, np.float32)}]).first_nonfinite)
    assert born.node == "m" and "its weight 'w' holds infinities" in born.why


def test_infinities_of_the_reference_are_no_fault() -> None:
    model = planted.parse("""g (float[2, 4] x) => (float[2, 4] y) {
        zero = Constant <value_float = 0.0> ()
        [log] a = Log (zero)  [hide] b = Add (x, a)  [soft] s = Exp (b)  [more] y = Add (s, x)
    }""")
    found = verify(model, low(model), data=[planted.feed()], nodes=3)
    assert found.ok and found.first_nonfinite is None


@pytest.mark.slow
def test_the_t5_that_overflows() -> None:
    hard = HARD_MODELS["t5"]
    model = hard.build()
    found = verify(model, ampgraph.convert(model, "O2"), data=hard.feeds(8))
    born = present(found.first_nonfinite)
    assert born.node == "block.2.wo" and patterns(born.suggestion)[0] == "block.2.wo"
    assert all(not pattern.startswith("softmax") for pattern in patterns(born.suggestion))  # masks are another matter
    repaired = ampgraph.convert(model, "O2", fp32=patterns(born.suggestion))
    assert verify(model, repaired, data=hard.feeds(8)).first_nonfinite is None


def test_what_is_told_is_plain_data() -> None:
    import json

    model = planted.chain()
    found: Verification = verify(model, low(model), data=[planted.feed()])
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["ok"] is False and data["outputs"][0]["relative_l2"]["p90"] is None
    born = data["first_nonfinite"]
    assert born["node"] == "second" and born["suggestion"][0] == "--fp32 second"
    assert born["makes"][0]["range"]["infinite"] == 8
