"""What verify compares: both sides, devices, samples; and its answers to what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph import AmpError
from ampgraph.api.verify import verify
from ampgraph.runtime import devices
from numerics import planted
from numerics.planted import low


def test_low_interfaces_and_given_low_references() -> None:
    model = planted.chain()
    data = [planted.feed(scale=0.1)]
    for dtype in ("float16", "bfloat16"):
        converted = low(model, io="low", dtype=dtype)
        assert verify(model, converted, data=data, tolerance=2e-2).ok
        own = verify(converted, converted, data=data)
        assert own.ok and own.outputs[0].worst == 0


def test_paths_and_generated_samples(tmp_path: Path) -> None:
    model = planted.cancelling()
    onnx.save(model, tmp_path / "a.onnx")
    ampgraph.convert(tmp_path / "a.onnx", "O1", output=tmp_path / "b.onnx")
    found = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", samples=3, seed=5)
    assert found.samples == 3 and len(found.outputs[0].errors) == 3
    assert any("generated" in note for note in found.notes)
    again = verify(tmp_path / "a.onnx", tmp_path / "b.onnx", samples=3, seed=5)
    assert again.to_dict() == found.to_dict()


def test_a_device_runs_its_own_kernels_and_names_what_fell_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.PROVIDERS, "cuda", ("CPUExecutionProvider",))
    model = planted.chain()
    found = verify(model, low(model), data=[planted.feed(scale=0.1)], device="cuda", nodes=2)
    assert not found.strict and found.device == "cuda" and "its own kernels" in found.run
    assert {op for _, op in found.fallback} >= {"Mul"}
    assert found.traced == 0


def test_bfloat16_on_a_device_is_traced_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
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
