"""The search of a tuning run, without models."""

import math

import numpy as np
import pytest

from ampgraph.numerics.search import BUDGET, ConfirmedSearch, Point, PromotionSearch
from present import present

pytest.importorskip("onnxruntime")


def searched(squares, tolerance, costs=None, overflow=(), floor=0.0):
    """A search over groups whose squared errors add up; (best, search)."""
    costs = costs or [1] * len(squares)

    def evaluate(promoted, step):
        left = [square for i, square in enumerate(squares) if i not in promoted]
        error = math.inf if set(overflow) - promoted else math.sqrt(sum(left) + floor**2)
        return Point(step, promoted, error, len(promoted), sum(costs[i] for i in promoted))

    def measure(promoted):
        return [math.inf if i in overflow and i not in promoted else square for i, square in enumerate(squares)]

    search = PromotionSearch(costs, tolerance, evaluate, measure=measure)
    return search.run(), search


def test_a_level_that_meets_the_tolerance_costs_one_run():
    best, search = searched([1e-6] * 10, 1e-2)
    assert best.promoted == frozenset() and search.runs == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_search_comes_close_to_the_smallest_set(seed):
    rng = np.random.default_rng(seed)
    squares = list(rng.lognormal(0, 2, 300) * 1e-8)
    tolerance = math.sqrt(sum(squares) * rng.uniform(0.05, 0.8))
    best, search = searched(squares, tolerance)
    left = sorted(squares)
    fewest = len(squares) - max(k for k in range(301) if sum(left[:k]) <= tolerance**2)
    assert best.error <= tolerance and search.runs <= BUDGET
    assert fewest <= len(best.promoted) <= fewest * 1.08 + 1


def test_what_overflows_is_promoted_first():
    best, search = searched([0.0] * 50, 1e-3, overflow=(7, 30))
    assert best.promoted == {7, 30} and search.runs <= 6


def test_what_costs_much_and_helps_little_is_taken_back():
    squares, costs = [1e-6] * 8, [1] * 7 + [1000]
    best, _ = searched(squares, math.sqrt(1.5e-6), costs)
    assert len(best.promoted) == 7 and 7 not in best.promoted


def test_a_tolerance_that_cannot_be_met_has_no_result():
    best, search = searched([1e-6] * 10, 1e-3, floor=0.1)
    assert best is None and search.runs == 2


def test_the_frontier_holds_what_nothing_beats():
    _, search = searched([10.0**-k for k in range(2, 12)], 1e-4)
    points = search.frontier()
    assert [p.bytes for p in points] == sorted(p.bytes for p in points)
    assert all(a.error > b.error for a, b in zip(points, points[1:], strict=False))
    for other in search.points:
        assert any(p.bytes <= other.bytes and p.error <= other.error for p in points)


@pytest.mark.parametrize("off", [0.8, 1.0, 1.3])
def test_predictions_that_are_off_are_asked_again_for_less(off):
    """What is left is as much more, or less, than was predicted."""
    squares = [10.0**-k for k in range(4, 12)]

    def evaluate(promoted, step):
        left = math.sqrt(sum(square for i, square in enumerate(squares) if i not in promoted))
        return Point(step, promoted, left, len(promoted), len(promoted))

    def predict(aim):
        return next(frozenset(range(k)) for k in range(9) if off * evaluate(frozenset(range(k)), "").error <= aim)

    search = ConfirmedSearch([1] * 8, 2e-5, evaluate, predict=predict)
    best = present(search.run())
    assert best.error <= 2e-5 and search.runs <= 6
    assert len(best.promoted) <= 1 + next(k for k in range(9) if evaluate(frozenset(range(k)), "").error <= 2e-5)
