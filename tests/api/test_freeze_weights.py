"""Weights that are listed as inputs, as files of IR version 3 have them all: constants where that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ampgraph
from ampgraph.api.check import convert_and_check
from ampgraph.api.steps import Job
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from onnx_text import parse, proto

TEXT = """
    g (float[N,8] x, float[8,8] w, float[8] b, float s, int64[2] shape) => (float[N,8] y) {
      a = MatMul (x, w)
      c = Add (a, b)
      d = Mul (c, s)
      y = Reshape (d, shape)
    }"""
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


def model() -> onnx.ModelProto:
    return parse(TEXT, w=(8, 8), b=(8,), s=np.float32(0.5), shape=np.array([-1, 8]), opset=7, ir=3)


def inputs(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


def notes(model: onnx.ModelProto, **fields: object) -> list[str]:
    done = convert_and_check(Job(model, Recipe.of(**fields), dry_run=True, report=True))  # type: ignore[arg-type]
    assert done.summary is not None
    return [note["text"] for note in done.summary.notes if note["topic"] == "inputs"]


def test_frozen_weights_are_halved() -> None:
    given = model()
    low = proto(ampgraph.convert(given, "O2", freeze_weights=True, check="off"))
    onnx.checker.check_model(low)
    assert given == model() and low.ir_version == 4 and inputs(low) == ["x"]
    stored = {tensor.name: tensor.data_type for tensor in low.graph.initializer}
    assert stored["w"] == stored["b"] == onnx.TensorProto.FLOAT16 and stored["shape"] == onnx.TensorProto.INT64
    found, wanted = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
        for m in (low, given)
    )
    assert np.allclose(found, wanted, atol=2e-3)


def test_what_is_done_is_said() -> None:
    assert notes(model(), freeze_weights=True) == [
        "4 weights listed as inputs: constants now, which nobody can override"
    ]


def test_without_it_the_report_says_what_it_saves() -> None:
    """The three that are float32 are cast when the model runs: two bytes of each number, and a Cast each."""
    low, frozen = (proto(ampgraph.convert(model(), "O3", freeze_weights=f, check="off")) for f in (False, True))
    casts = [sum(node.op_type == "Cast" for node in m.graph.node) for m in (low, frozen)]
    [text] = notes(model(), level="O3")
    assert casts == [5, 2] and f"saves some {2 * (64 + 8 + 1)} bytes and 3 Casts" in text
    assert inputs(low) == inputs(model()) and low.ir_version == 3


def test_what_nobody_can_override_is_nothing_to_tell_of() -> None:
    plain = proto(ampgraph.convert(model(), "O0", freeze_weights=True))
    assert inputs(plain) == ["x"] and all(t.data_type != onnx.TensorProto.FLOAT16 for t in plain.graph.initializer)
    assert notes(plain) == [] == notes(plain, freeze_weights=True) == notes(model(), level="O0")


def test_a_plan_is_followed_on_frozen_weights_alone(tmp_path: Path) -> None:
    plan = ampgraph.plan(model(), "O2", freeze_weights=True)
    low = ampgraph.convert(model(), plan=plan, freeze_weights=True, check="off")
    assert low == ampgraph.convert(model(), "O2", freeze_weights=True, check="off", metadata=True)
    with pytest.raises(AmpError) as raised:
        ampgraph.convert(model(), plan=plan)
    assert raised.value.code == "AMP403"


def test_a_training_step_has_parameters_of_its_own() -> None:
    with pytest.raises(AmpError) as raised:
        ampgraph.build_training_step(model(), optimizer="sgd", freeze_weights=True)
    assert raised.value.code == "AMP301" and "named by freeze" in (raised.value.hint or "")


@pytest.mark.parametrize("word", ["maybe", 1])
def test_a_switch_is_on_or_off(word: object) -> None:
    with pytest.raises(AmpError) as raised:
        Recipe.of(freeze_weights=word)  # type: ignore[arg-type]
    assert raised.value.code == "AMP301"
