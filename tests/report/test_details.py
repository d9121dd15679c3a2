"""What `verify` says of an output beside its error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ampgraph.numerics.metrics.agreement import Agreement, Scores, compare_outputs
from ampgraph.numerics.trace.suspects import TracedValue
from ampgraph.numerics.trace.values import Extremes
from ampgraph.report.verification import _details, _operand_line

X = np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)
NAN = np.full((2, 2), np.nan, np.float32)


@pytest.mark.parametrize(
    ("reference", "result", "lines"),
    [
        (X, X, ["max abs 0", "cosine 1", "argmax 100 % of 2", "all finite"]),
        (
            X,
            X + np.array([[0, 0], [0, 2]], np.float32),
            ["max abs 2", "cosine 0.9690874", "argmax 50 % of 2", "all finite"],
        ),
        (X, NAN, ["argmax 0 % of 2", "0 infinite, 4 NaN"]),
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), ["25 % of the elements differ, on average"]),
    ],
    ids=["same", "apart", "nothing to compare", "integers"],
)
def test_what_is_said_of_an_output(reference: Any, result: Any, lines: list[str]) -> None:
    output = Agreement("y")
    output.add(compare_outputs(reference, result))
    assert _details(output) == lines


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        (None, "h  float16  -1 to 2.5, 3 infinite"),
        (Extremes(-1.0, 2.5, 3, 0), "h  float16  -1 to 2.5, 3 infinite"),  # the same: said once
        (Extremes(-1.0, 7e4, 0, 0), "h  float16  -1 to 2.5, 3 infinite; reference -1 to 7e+04"),
        (Extremes(None, None, 0, 1200), "h  float16  -1 to 2.5, 3 infinite; reference nothing finite, 1,200 NaN"),
    ],
)
def test_what_is_said_of_an_operand(reference: Extremes | None, line: str) -> None:
    assert _operand_line(TracedValue("h", "float16", Extremes(-1.0, 2.5, 3, 0), reference, None)) == line


def test_an_infinite_error_is_null() -> None:
    errors = [0.25, 0.5, float("inf")]
    assert Scores("top1", errors).to_dict() == {"median": 0.5, "p90": None, "worst": None, "judged": None}
    assert Scores("top1", errors[:2], over_all=True).to_dict()["judged"] == 0.375
