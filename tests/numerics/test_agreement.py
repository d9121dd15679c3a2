"""The figures of verify, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ampgraph.numerics.metrics.agreement import Agreement, Apart, apart


def test_one_output_by_hand() -> None:
    found = apart(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[3.0, 4.5], [0.0, 0.1]]))
    assert found.error == pytest.approx(np.sqrt(0.26) / 5)
    assert found.max_abs == pytest.approx(0.5)
    assert found.cosine == pytest.approx((9 + 18) / (5 * np.linalg.norm([3, 4.5, 0.1])))
    assert found.same_argmax == (1, 2) and not found.astray


def test_what_is_not_finite_is_counted() -> None:
    nan, inf = np.nan, np.inf
    found = apart(np.array([1.0, inf, nan, -inf, 2.0, 3.0]), np.array([1.0, inf, nan, inf, nan, inf]))
    assert (found.astray, found.infinite, found.nan) == (3, 3, 2)
    assert found.error == inf
    same = apart(np.array([1.0, -inf]), np.array([1.0, -inf]))
    assert same.error == 0 and not same.astray


def test_zeros_integers_and_sequences() -> None:
    assert apart(np.zeros(3), np.full(3, 0.1)).error == pytest.approx(0.1 / 1e-3)  # the floor: float16's step at one
    assert apart(np.full(3, 1e-6), np.full(3, 2e-6)).error == pytest.approx(1e-3)  # a probability near zero
    assert apart(np.arange(4), np.array([0, 1, 5, 3])).error == 0.25
    assert apart(np.array(["a"], object), np.array(["a"], object)).error == 0
    assert apart([np.ones(2)], [np.ones(2), np.ones(2)]).reason == "sequences of different lengths"
    assert apart([np.ones(2), np.ones(1)], [np.ones(2), np.zeros(1)]).error == 1
    assert apart(np.ones((1, 2)), np.ones((2, 1))).reason == "shape [2, 1] instead of [1, 2]"
    assert apart(np.full(2, 1e300), np.full(2, 1e300)).error == 0  # whose squares overflow


@pytest.mark.parametrize("held", [np.nan, np.inf])
def test_a_reference_that_holds_nothing_finite_agrees_with_nothing(held: float) -> None:
    output = Agreement("y")
    output.add(apart(np.full((2, 3), held), np.full((2, 3), held)))
    assert output.silent == {0} and not output.compared and not output.within(1e9)
    output.add(apart(np.ones((2, 3)), np.ones((2, 3)) * 1.5))
    assert output.errors == [np.inf, 0.5] and output.p90 == output.worst == 0.5  # of what could be compared
    assert output.within(0.5) and not output.within(0.4)
    empty = Agreement("y")
    empty.add(apart(np.zeros((0, 3)), np.zeros((0, 3))))
    assert not empty.silent and not empty.compared and empty.within(0)


def test_sequences_count_what_they_hold() -> None:
    assert apart([np.ones(2), np.full(3, np.nan)], [np.ones(2), np.full(3, np.nan)]).compared == 2
    found = apart([np.full(3, np.nan)], [np.full(3, np.nan)])
    assert found.silent and found.error == np.inf and not found.astray


def test_rows_without_an_argmax_are_counted_out() -> None:
    nan, inf = np.nan, np.inf
    want = np.array([[1.0, 2.0], [nan, 2.0], [1.0, inf], [-inf, 3.0], [-inf, -inf], [4.0, 1.0]])
    assert apart(want, want).same_argmax == (3, 3)  # -inf beside a number is a mask: the row has a largest
    assert apart(want, np.where(np.isfinite(want), want[:, ::-1], want)).same_argmax == (0, 3)
    assert apart(want, np.full_like(want, nan)).same_argmax == (0, 3)
    assert apart(np.full((2, 2), nan), np.full((2, 2), nan)).same_argmax is None


def test_quantiles_and_the_tolerance() -> None:
    output = Agreement("y", [Apart(i / 100, 0.0) for i in range(1, 11)])
    assert (output.median, output.p90, output.worst) == (0.05, 0.09, 0.1)
    assert output.within(0.09) and not output.within(0.08)
    output.add(Apart(0.0, 0.0, astray=1))
    assert not output.within(1.0)
