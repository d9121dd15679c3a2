"""Every guard by a strict run: with it the result agrees with float32, without it it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import ampgraph
import ampgraph.planner
from ampgraph.numerics.compare import difference
from ampgraph.numerics.strict import run_strict
from ampgraph.planner import guards_accuracy
from planner.guard_cases import CASES, LOWEST, Case
from planner.support import converted, dtype_of, float32_and_low, kinds, parse, topics

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def model_of_case(case: Case) -> Any:
    weights = {k: v for k, v in case.weights.items() if k in case.graph}
    return parse(case.graph, case.opset, weights, ["local"] if "local." in case.graph else [])


def agree(case: Case, reference: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Why the two differ, or nothing."""
    for name, expected in reference.items():
        if case.exact and not np.array_equal(expected, result[name]):
            return f"{name} differs"
        if reason := difference(expected, result[name]).reason:
            return f"{name}: {reason}"
    return ""


def without(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes one guard out of the planner."""
    if guard.startswith("guard_"):
        monkeypatch.setattr(ampgraph.planner, guard, lambda state: {})
    else:
        monkeypatch.setattr(guards_accuracy, guard, lambda state, op: None)


def flatten(levels: str) -> list[Any]:
    return [
        pytest.param(case, level, dtype, id=f"{case.name}-{level}-{dtype}")
        for case in CASES
        for level in getattr(case, levels)
        for dtype in case.dtypes
    ]


@pytest.mark.parametrize(("case", "level", "dtype"), flatten("levels"))
def test_with_the_guard(case: Case, level: str, dtype: str) -> None:
    reference, result = float32_and_low(model_of_case(case), case.feeds, level, dtype=dtype)
    assert all(np.isfinite(array).all() for array in reference.values()), "the case itself is wrong"
    assert agree(case, reference, result) == ""


@pytest.mark.parametrize(("case", "level", "dtype"), flatten("without"))
def test_without_the_guard(case: Case, level: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(case.notes) <= topics(ampgraph.plan(model_of_case(case), level, dtype=dtype))
    without(case.guard, monkeypatch)
    reference, result = float32_and_low(model_of_case(case), case.feeds, level, dtype=dtype)
    assert agree(case, reference, result) != ""
