"""Six hard models over 32 seeded inputs, by strict runs: right without data, and finite with it; beside AutoCast.

AutoCast's figures are those that benchmarks/hard_models.py recorded: it does not install beside our own packages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

import ampgraph
from ampgraph.core.ranges import Ranges
from ampgraph.numerics.strict.session import StrictSession

from . import HARD_MODELS, SAMPLES, decoder, encoders, measure

pytestmark = pytest.mark.slow

LEVELS = ("O2", "auto")
FINITE = [name for name in HARD_MODELS if name != "t5"]  # in float16, with nothing measured
RECORDED = Path(__file__).parents[2] / "benchmarks" / "hard_models.json"
BRANCHES = ["rising*", "falling*"]  # AutoCast leaves the bodies of an If in float32


@dataclass(frozen=True)
class Case:
    """A model, its inputs, what float32 gives, and the figures with only the heavy nodes low."""

    model: ModelProto
    feeds: list[dict[str, np.ndarray]]
    expected: measure.Outputs
    heavy_only: measure.Figures


@lru_cache
def case(name: str) -> Case:
    model, feeds = HARD_MODELS[name].build(), HARD_MODELS[name].feeds()
    expected = measure.reference(model, feeds)
    return Case(model, feeds, expected, measure.figures(measure.heavy_only(model), feeds, expected))


@lru_cache
def without_data(name: str, level: str) -> measure.Figures:
    held = case(name)
    return measure.figures(ampgraph.convert(held.model, level), held.feeds, held.expected)


@lru_cache
def ranges(name: str) -> Ranges:
    return ampgraph.calibrate(case(name).model, case(name).feeds)


def recorded(name: str, converter: str) -> dict[str, float]:
    rows = json.loads(RECORDED.read_text())
    (row,) = (row for row in rows if (row["model"], row["converter"]) == (name, converter))
    return row


def heavy_float32(model: ModelProto, level: str, **options: Any) -> list[str]:
    """The rules that hold heavy nodes in float32."""
    plan = ampgraph.plan(model, level, **options)
    return [d.why.rule for d in plan.decisions if d.kind in measure.HEAVY and d.dtype == "float32"]


def reached(name: str, value: str) -> list[float]:
    """The largest magnitude of an inner value, for each input."""
    model = onnx.ModelProto()
    model.CopyFrom(case(name).model)
    model.graph.output.append(helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None))
    session = StrictSession(model, threads=1)
    return [float(np.abs(session.run(feed, outputs=[value])[value]).max()) for feed in case(name).feeds]


@pytest.mark.parametrize(
    ("name", "value", "peak"),
    [
        ("llama", decoder.RESIDUAL, decoder.PEAK),
        ("vit", encoders.VIT_RESIDUAL, encoders.VIT_PEAK),
        ("t5", encoders.T5_OVERFLOW, encoders.T5_PEAK),
    ],
)
def test_massive_values_are_as_large_as_promised(name: str, value: str, peak: float) -> None:
    found = reached(name, value)
    assert max(found) == pytest.approx(peak, rel=0.02) and min(found) > 0.7 * peak


def test_the_models_mean_the_same_to_the_reference_evaluator() -> None:
    """So that what is measured is the model and no quirk of one runtime."""
    for name in ("bytes", "lstm"):
        held = case(name)
        outputs = ReferenceEvaluator(held.model).run(None, held.feeds[0])
        assert measure.error(outputs, held.expected[0]) < 1e-4


@pytest.mark.share(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FINITE)
def test_right_without_data(name: str, level: str) -> None:
    found, base = without_data(name, level), case(name).heavy_only
    assert found.failed == base.failed == 0
    assert found.median <= 2 * base.median and found.p90 <= 2 * base.p90
    assert found.casts < base.casts and without_data(name, "auto").casts <= without_data(name, "O2").casts
    assert set(heavy_float32(case(name).model, level)) <= {"positions", "inside"}  # rotary angles, LSTMs


@pytest.mark.parametrize("level", LEVELS)
def test_verify_names_the_node_that_overflows(level: str) -> None:
    held = case("t5")
    assert without_data("t5", level).failed == held.heavy_only.failed == SAMPLES
    found = ampgraph.verify(held.model, ampgraph.convert(held.model, level), data=held.feeds[:4], device="cpu")
    assert not found.ok
    assert found.first_nonfinite is not None and found.first_nonfinite.node == encoders.T5_OVERFLOW


@pytest.mark.share(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", HARD_MODELS)
def test_finite_with_data_and_heavy_nodes_low(name: str, level: str) -> None:
    held = case(name)
    found = measure.figures(ampgraph.convert(held.model, level, ranges=ranges(name)), held.feeds, held.expected)
    assert found.failed == 0 and found.p90 < 2e-3
    rules = heavy_float32(held.model, level, ranges=ranges(name))
    assert set(rules) == {"llama": {"positions"}, "lstm": {"inside"}}.get(name, set())


@pytest.mark.parametrize("name", HARD_MODELS)
def test_auto_beside_autocast(name: str) -> None:
    """No less right, as CUDA rounds, with fewer casts; on `t5` with data, on `lstm` with the branches in float32."""
    held, peer = case(name), recorded(name, "autocast, data")
    options: dict[str, dict[str, Any]] = {"t5": {"data": held.feeds}, "lstm": {"fp32": BRANCHES}}
    result = ampgraph.convert(held.model, "auto", **options.get(name, {}))
    found = measure.figures(measure.as_fused(result), held.feeds, held.expected)
    assert found.failed == peer["failed"] == 0
    assert found.median <= peer["median"] and found.p90 <= peer["p90"]
    assert measure.casts(result) < peer["casts"]
