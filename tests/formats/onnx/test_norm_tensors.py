"""Parameters of BatchNormalization are rounded together: what they compute stays what float32 parameters compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, numpy_helper

from ampgraph.formats.onnx.norm_tensors import NormParameters
from ampgraph.formats.rounding import LOW_TYPES
from ampgraph.planner import assemble
from onnx_text import parse
from planner.support import casts, converted, decisions, dtype_of, float32_and_low

pytest.importorskip("onnxruntime")
EPSILON = 1e-5
Array = np.ndarray


def computed(parameters: list[Array]) -> tuple[Array, Array]:
    """Factor and shift of a norm."""
    scale, bias, mean, var = (part.astype(np.float64) for part in parameters)
    factor = scale / np.sqrt(var + EPSILON)
    return factor, bias - factor * mean


def errors(parameters: list[Array], low: list[Array]) -> tuple[float, float]:
    """How far factor and shift are from those of float32 parameters, by the largest of each."""
    (factor, shift), (low_factor, low_shift) = computed(parameters), computed(low)
    return tuple(  # type: ignore[return-value]
        float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-9))
        for found, wanted in ((low_factor, factor), (low_shift, shift))
    )


def drawn(seed: int, channels: int = 16) -> list[Array]:
    random = np.random.default_rng(seed)
    var = np.exp(random.uniform(-9, 6, channels))
    mean = np.sqrt(var) * random.normal(0, 8, channels)
    parts = [random.normal(1, 0.5, channels), random.normal(0, 1, channels), mean, var]
    return [part.astype(np.float32) for part in parts]


@given(st.integers(0, 10_000), st.sampled_from(["float16", "bfloat16"]))
def test_nothing_is_worse_than_rounding_one_by_one(seed: int, dtype: str) -> None:
    parameters = drawn(seed)
    low = LOW_TYPES[dtype]
    together = NormParameters([ir.tensor(part) for part in parameters], EPSILON, dtype).rounded
    assert [part.dtype for part in together] == [low] * 4
    assert all(np.isfinite(part.astype(np.float32)).all() for part in together)
    assert (together[3].astype(np.float32) >= 0).all()
    apart = [part.astype(low) for part in parameters]
    for better, worse in zip(errors(parameters, together), errors(parameters, apart), strict=True):
        assert better <= worse / 2


def test_what_the_low_type_holds_stays_as_it_is() -> None:
    parameters = [np.array(row, np.float32) for row in ([1, 2, 0], [0.5, 0, -1], [0, 3, 8], [1, 4, 0.25])]
    sources = [ir.tensor(part) for part in parameters]
    for exact, low in zip(parameters, NormParameters(sources, 0.0, "float16").rounded, strict=True):
        np.testing.assert_array_equal(exact, low)


def test_beyond_the_range_they_are_rounded_one_by_one() -> None:
    parameters = [np.array([x], np.float32) for x in (1, 0, 0, 1e6)]
    assert np.isinf(NormParameters([ir.tensor(part) for part in parameters], EPSILON, "float16").rounded[3])


LAYERS = 6


def network(opset: int = 13) -> ModelProto:
    """Convolutions, each with a norm whose means are far from zero, as trained ones are."""
    random = np.random.default_rng(5)
    weights: dict[str, Any] = {}
    text, value = "", "x"
    for n in range(LAYERS):
        weights[f"w{n}"] = random.normal(0, 0.3, (8, 8, 1, 1)).astype(np.float32)
        weights[f"s{n}"], weights[f"b{n}"] = (random.normal(m, 0.2, 8).astype(np.float32) for m in (1, 0))
        weights[f"v{n}"] = random.uniform(0.01, 0.1, 8).astype(np.float32)
        weights[f"m{n}"] = random.normal(0, 1, 8).astype(np.float32)
        text += f"c{n} = Conv ({value}, w{n})  n{n} = BatchNormalization (c{n}, s{n}, b{n}, m{n}, v{n})  "
        value = f"r{n}"
        text += f"{value} = Relu (n{n})  " if n < LAYERS - 1 else ""
    return parse(f"g (float[1,8,9,9] x) => (float[1,8,9,9] n{LAYERS - 1}) {{ {text} }}", weights, opset=opset)


@pytest.mark.parametrize("opset", [8, 13, 17])
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_norm_of_stored_statistics_is_low_beside_low(level: str, opset: int) -> None:
    model = network(opset)
    result = converted(model, level)
    assert dtype_of(result, "BatchNormalization") == "f16", decisions(result)
    assert casts(result) == 2


def test_the_shift_of_far_means_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are numbers of the low type: what is wrong comes of the parameters, and of one rounding at the end."""
    random = np.random.default_rng(7)
    weights = {
        "w": np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1),
        "s": random.normal(1, 0.2, 8).astype(np.float32),
        "b": random.normal(0, 0.2, 8).astype(np.float32),
        "m": random.uniform(3, 4, 8).astype(np.float32),
        "v": random.uniform(0.01, 0.02, 8).astype(np.float32),
    }
    text = "g (float[1,8,9,9] x) => (float[1,8,9,9] y) { c = Conv (x, w)  y = BatchNormalization (c, s, b, m, v) }"
    noise = random.normal(0, 0.1, (1, 8, 9, 9)) + weights["m"].reshape(1, 8, 1, 1)
    feeds = {"x": noise.astype(np.float16).astype(np.float32)}

    def error() -> float:
        reference, result = float32_and_low(parse(text, weights, opset=13), feeds, "O2")
        return float(np.linalg.norm(result["y"] - reference["y"]) / np.linalg.norm(reference["y"]))

    together = error()
    assert together < 3e-4
    monkeypatch.setattr(assemble, "rounded_together", lambda *given: [])
    assert error() > 5 * together


def test_parameters_that_others_read_are_rounded_one_by_one() -> None:
    model = network()
    model.graph.node[1].input[2] = model.graph.node[4].input[2]  # two norms share a bias
    stored = {i.name: numpy_helper.to_array(i) for i in converted(model, "O2").graph.initializer}
    given = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for name in ("m0", "m1"):
        np.testing.assert_array_equal(stored[name], given[name].astype(np.float16))
    assert (stored["m2"] != given["m2"].astype(np.float16)).any()


def test_a_norm_that_trains_stays_float32() -> None:
    text = """g (float[4,8,9,9] x, float[8] s, float[8] b, float[8] m, float[8] v, float[8,8,1,1] w)
        => (float[4,8,9,9] y, float[8] r, float[8] t)
        { c = Conv (x, w)  n, r, t = BatchNormalization <training_mode = 1> (c, s, b, m, v)  y = Relu (n) }"""
    assert dtype_of(converted(parse(text, opset=14), "O2"), "BatchNormalization") == "f32"
