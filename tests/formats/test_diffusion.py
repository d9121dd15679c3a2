"""A convolution's weights, rounded so that errors of neighbours cancel."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.arrays import Array, DType
from ampgraph.core.low_types import low_type
from ampgraph.formats import diffusion
from ampgraph.formats.diffusion import MEAN, RHO, Places, factors_for_biases

HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
SHAPES = [
    (16, 3, 3, 3),
    (16, 1, 3, 3),
    (8, 40, 3, 3),
    (8, 300, 1, 1),
    (8, 3, 7, 7),
    (8, 20, 5),
    (4, 2, 3, 3, 3),
    (8, 30),
]


def weights(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def diffused(exact: Array, dtype: DType) -> Array:
    """The weights, rounded together, in their shape."""
    parts = diffusion.diffuse_errors(exact, np.ones(len(exact)), dtype)
    return np.concatenate([part.copy() for part in parts]).reshape(exact.shape)


def second_moments(channels: int, shape: tuple[int, ...]) -> Array:
    """H of the module, as a matrix."""
    places = np.array(list(np.ndindex(shape))).reshape(-1, len(shape)) if shape else np.zeros((1, 0))
    distances = np.abs(places[:, None] - places[None]).sum(-1)
    return np.asarray(np.kron(np.eye(channels), RHO**distances) + MEAN)


def error(exact: Array, low: Array) -> float:
    """The mean square of what a row computes wrongly."""
    e = (low.astype(np.float64) - exact).reshape(len(exact), -1)
    return float(np.einsum("ri,ij,rj->r", e, second_moments(exact.shape[1], exact.shape[2:]), e).mean())


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 3), (1, 7), (2, 3, 2)])
def test_an_error_goes_to_the_places_that_make_up_for_it_best(shape: tuple[int, ...]) -> None:
    moments, kernel = second_moments(1, shape) - MEAN, Places.of(shape)
    for place, (shares, left) in enumerate(zip(kernel.shares, kernel.left, strict=True)):
        later = slice(place + 1, None)
        best = np.linalg.solve(moments[later, later], moments[later, place])
        given = np.zeros(len(moments))
        given[[to for to, _ in shares]] = [share for _, share in shares]
        assert np.allclose(given[later], best, atol=1e-6) and not given[: place + 1].any()
        assert np.isclose(left, 1 - best.sum(), atol=1e-6)
    assert np.allclose(kernel.takes[:, 0], np.linalg.inv(moments).sum(1), atol=1e-6)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_correlates_has_less_error(shape: tuple[int, ...], dtype: DType) -> None:
    exact = weights(shape)
    plain = exact.astype(dtype)
    low = diffused(exact, dtype)
    assert low.shape == plain.shape and low.dtype == dtype
    assert error(exact, low) < (0.6 if len(shape) > 2 and 1 < shape[2] < 70 else 0.9) * error(exact, plain)
    known = low_type(dtype.name)
    steps = np.maximum(2.0 ** (np.frexp(exact)[1] - known.bits), known.smallest_subnormal)
    assert (np.abs(low.astype(np.float64) - exact) <= 1.5 * steps).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mean_of_all_inputs_is_kept(shape: tuple[int, ...]) -> None:
    exact = weights(shape)
    before, now = (
        np.abs((low.astype(np.float64) - exact).reshape(len(exact), -1).sum(1))
        for low in (exact.astype(HALF), diffused(exact, HALF))
    )
    assert now.mean() < 0.6 * before.mean()


def test_the_factor_for_a_bias_is_the_best_there_is() -> None:
    random = np.random.default_rng(3)
    biases, exact = random.normal(0, 3, 200), random.normal(0, 0.3, (200, 4, 3, 3))
    low, variances = biases.astype(HALF), 1 + np.square(exact).sum((1, 2, 3))
    factors = factors_for_biases(biases, low, exact)

    def shift(factors: Array) -> Array:
        """What is added to w x + b, squared, where w x has a mean of -b."""
        return np.square(low - biases - (factors - 1) * biases) + np.square(factors - 1) * variances

    assert (shift(factors) < shift(factors + 1e-6)).all() and (shift(factors) < shift(factors - 1e-6)).all()
    low = np.array([np.inf, np.nan, 0.0], HALF)
    assert factors_for_biases(np.array([1e9, np.nan, 0.0]), low, np.ones((3, 2))).tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(0, 3, 3, 3), (4, 0, 3, 3), (5,)], ids=str)
def test_what_is_no_kernel_is_rounded_all_the_same(shape: tuple[int, ...]) -> None:
    exact = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    parts = [part.tolist() for part in diffusion.diffuse_errors(exact, np.ones(len(exact)), HALF)]
    assert sum(parts, []) == exact.astype(HALF).reshape(-1).tolist()


def test_zeros_and_low_numbers_stay() -> None:
    exact = weights((4, 8, 3, 3))
    exact[:, ::2, 1] = 0
    low = diffused(exact, HALF)
    assert not low[:, ::2, 1].any() and low[:, 1::2].all()
    assert np.array_equal(diffused(low.astype(np.float32), HALF), low)


def test_a_small_weight_is_not_changed_for_a_large_one() -> None:
    exact = weights((64, 2, 1, 1))
    exact[:, 1] *= 1e-3  # of an input of a thousand, say
    low = diffused(exact, HALF).astype(np.float64)
    assert (np.abs(low - exact)[:, 1] <= 1.5 * np.maximum(2.0**-10 * np.abs(exact[:, 1]), 2.0**-24)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e9])
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
def test_a_row_with_a_number_that_is_not_finite_is_plainly_rounded(number: float, dtype: DType) -> None:
    exact = weights((3, 80, 3, 3))
    exact[0, 7, 1, 1] = number
    with np.errstate(over="ignore", invalid="ignore"):
        plain = exact.astype(dtype)
    low = diffused(exact, dtype)
    if not np.isfinite(plain[0].astype(np.float32)).all():
        assert np.array_equal(low[0].view(np.uint16), plain[0].view(np.uint16))
    assert np.isfinite(low[1:].astype(np.float32)).all() and not np.array_equal(low[1], plain[1])


def test_the_ends_of_the_range_stay_in_it() -> None:
    ends = np.array([65504, 65519, -65504, 2.0**-24, 2.0**-25, 0, -(2.0**-24), 3e-8], np.float32)
    exact = np.stack([np.roll(ends, k) for k in range(8)]).reshape(8, 2, 4)
    low = diffused(exact, HALF)
    assert np.isfinite(low).all() and np.isin(np.abs(low[np.abs(exact) > 1]), [65408, 65440, 65472, 65504]).all()


def test_a_factor_makes_nothing_infinite() -> None:
    exact = np.array([[65510, 1], [-65519, 2]], np.float32)
    (part,) = diffusion.diffuse_errors(exact, np.array([1 + 2.0**-12, 1 + 2.0**-11]), HALF)
    assert part.tolist() == [65504, 1, -65504, 2]


def test_all_rows_of_many_are_rounded_alike() -> None:
    row = weights((1, 20, 3, 3))
    exact = np.repeat(row, 3000, axis=0)
    low = diffused(exact, HALF)
    assert all(np.array_equal(low[0], other) for other in itertools.islice(low, 0, None, 97))
