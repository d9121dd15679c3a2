"""What `verify` says of an output beside its error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ampgraph.numerics.metrics.agreement import Agreement, apart
from ampgraph.report.verification import _details

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
    output.add(apart(reference, result))
    assert _details(output) == lines
