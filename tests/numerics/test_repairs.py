"""A repair that is printed mends: `convert` takes its options, and what comes of it is right on the same inputs."""

from __future__ import annotations

import shlex
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from onnx import ModelProto

import ampgraph
from ampgraph.api.verify import verify
from ampgraph.numerics.search import Ranking
from ampgraph.report.verification import Verification
from fuzz.models import random_model
from numerics.test_causes import graphs
from onnx_text import parse
from present import present
from share import FULL

pytest.importorskip("onnxruntime")
Data = list[dict[str, Any]]


def options(found: Verification) -> list[str]:
    """The patterns of a repair, as a shell reads them."""
    words = [shlex.split(text) for text in present(found.repair).options]
    assert {word for word, _ in words} == {"--fp32"}
    return [pattern for _, pattern in words]


def half_as_wrong(model: ModelProto, level: str, data: Data) -> Verification | None:
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
def test_of_random_models() -> None:
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


def test_a_repair_is_said_with_what_it_leaves_and_nothing_else_is_suggested() -> None:
    model = parse(SHIFTED, opset=21)
    found = verify(model, ampgraph.convert(model, "O3"), data=DATA)
    text, repair = text_of(found), present(found.repair)
    assert "repair      --fp32 shift --fp32 back" in text and f"error {repair.error:.2e} on the same inputs" in text
    assert "try:" not in text and found.to_dict()["repair"] == repair.to_dict() and repair.recipe.startswith("O3")


def test_what_cannot_be_tried_is_said_to_be_a_suggestion() -> None:
    """A file that does not tell how it was made, as of another tool."""
    model = parse(SHIFTED, opset=21)
    low = ampgraph.convert(model, "O3", low=["op:Sub", "op:Add", "op:Neg"], fp32=["start"], metadata=False)
    found = verify(model, low, data=DATA)
    assert found.repair is None and "repair      not looked for, as the file does not tell" in text_of(found)
    assert "try: --fp32 " in text_of(found)


def test_nothing_is_suggested_where_every_node_in_float32_misses() -> None:
    model = parse(SHIFTED.replace("Tanh (x)", "Sub (x, big)"), opset=21)
    data = [{"x": 500 + feeds["x"]} for feeds in DATA]
    found = verify(model, ampgraph.convert(model, "O3", io=["x=low"]), data=data)
    text = text_of(found)
    assert not found.ok and "chaotic in itself" in text and "try:" not in text
    assert "repair      none found: with every node in float32 that a run can switch the error is" in text


def test_a_ranking_finds_few_units_and_leaves_out_what_is_not_needed() -> None:
    weights = {0: 5.0, 1: 0.0, 2: 4.0, 3: 0.0, 4: 0.1, 5: 0.1}
    ranking = Ranking([0, 1, 2, 3, 4, 5], lambda low: sum(weights[unit] for unit in low), lambda unit: [f"n{unit}"])
    assert ranking.needed(0.5, lambda: False) == [0, 2] and ranking.named([0, 2]) == ("n0", "n2")
    assert ranking.needed(-1.0, lambda: False) is None
    slow = Ranking([0, 2, 1], lambda low: sum(weights[unit] for unit in low), lambda unit: [], [25.0, 16.0, 0.0])
    assert slow.needed(0.5, lambda: True) == [0, 2]
