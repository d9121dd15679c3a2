"""The search of a tuning run, and the contributions that lead it, without models."""

import math

import numpy as np
import pytest

from ampgraph.core.sites import Site
from ampgraph.numerics.tune.contributions import Measured, contributions
from ampgraph.numerics.tune.search import BUDGET, Point, PromotionSearch

pytest.importorskip("onnxruntime")


def searched(squares, tolerance, costs=None, overflow=(), floor=0.0):
    """A search over groups whose squared errors add up; (best, search)."""
    costs = costs or [1] * len(squares)

    def evaluate(promoted, step):
        left = [square for i, square in enumerate(squares) if i not in promoted]
        error = math.inf if set(overflow) - promoted else math.sqrt(sum(left) + floor**2)
        return Point(step, promoted, error, len(promoted), sum(costs[i] for i in promoted))

    search = PromotionSearch(costs, tolerance, evaluate, lambda: overflow, lambda promoted: squares)
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
    assert best is None and search.runs == 3


def test_the_frontier_holds_what_nothing_beats():
    _, search = searched([10.0**-k for k in range(2, 12)], 1e-4)
    points = search.frontier()
    assert [p.bytes for p in points] == sorted(p.bytes for p in points)
    assert all(a.error > b.error for a, b in zip(points, points[1:], strict=False))
    for other in search.points:
        assert any(p.bytes <= other.bytes and p.error <= other.error for p in points)


# -- contributions ----------------------------------------------------------------------------------------------------


def site(kind, inputs, output):
    return Site(output, kind, "", "", tuple(inputs), (output,), (output,))


def measured(**values):
    found = Measured()
    found.add(values)
    return found


def test_an_error_counts_by_its_share_of_a_sum_and_by_the_growth_that_was_measured():
    sites = [site("MatMul", "x", "a"), site("MatMul", "x", "b"), site("Add", "ab", "c"), site("Exp", "c", "y")]
    local = measured(a=(0.01, 1), b=(0.01, 10), y=(0.0, 1))
    grown = measured(a=(0.01, 1), b=(0.01, 10), c=(0.0141421, 10), y=(0.0141421, 1))
    found = contributions(sites, ["y"], local, grown, set())
    assert found["a"] == pytest.approx(1e-4, rel=1e-3) and found["b"] == pytest.approx(1e-4, rel=1e-3)


def test_moves_have_no_error_of_their_own_unless_they_overflow():
    sites = [site("MatMul", "x", "a"), site("Reshape", "a", "b"), site("Reshape", "b", "y")]
    local = measured(a=(0.01, 1), b=(0.01, 1), y=(math.inf, 1))
    found = contributions(sites, ["y"], local, measured(a=(0.01, 1), b=(0.01, 1), y=(0.01, 1)), {"Reshape"})
    assert found == {"a": pytest.approx(1e-4), "y": math.inf}
