"""Rounding of weights: to the bit what a cast gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.arrays import Array, DType
from ampgraph.formats.rounding import BLOCK, SHORT, Rounder

HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def agrees(numbers: Array, dtype: DType) -> bool:
    """Whether the bits are those of numpy's cast, element by element."""
    place = np.empty(numbers.size, dtype)
    Rounder(dtype).round(numbers, place)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = numbers.astype(dtype)
    return bool((place.view(np.uint16) == expected.view(np.uint16)).all())


def around_every_half() -> Array:
    """Every finite float16, what lies half-way to the next one, and the float32 numbers beside both; signs too."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    exact = np.concatenate([halves, middles])
    near = [np.nextafter(exact, np.float32(side)) for side in (0, 1e38)]
    numbers = np.concatenate([exact, *near, np.array([2.0**-149, 2.0**-26, 3.0 * 2.0**-26, 65519.996], np.float32)])
    return np.concatenate([numbers, -numbers])


def test_what_is_cast_or_unaligned() -> None:
    assert agrees(around_every_half(), HALF)
    # other types are cast
    assert agrees(np.linspace(-70000, 70000, SHORT), HALF)
    # data of a file need not be aligned
    content = b"\0" + np.linspace(-1, 1, SHORT, dtype=np.float32).tobytes()
    assert agrees(np.frombuffer(content, np.float32, offset=1), HALF)


@pytest.mark.parametrize("odd", [65520.0, 3.4e38, np.inf, -np.inf, np.nan])
def test_a_block_with_what_float16_does_not_have_is_cast(odd: float) -> None:
    numbers = np.linspace(-3, 3, 2 * BLOCK + 5, dtype=np.float32)
    numbers[BLOCK + 7] = odd
    assert agrees(numbers, HALF)


@pytest.mark.parametrize("size", [0, 1, SHORT - 1, SHORT, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
def test_every_length_is_rounded_whole(size: int, dtype: DType) -> None:
    assert agrees(np.random.default_rng(0).standard_normal(size, np.float32), dtype)


def rounded_rows(rows: Array, dtype: DType) -> Array:
    """Rows, each rounded so that it keeps its sum."""
    parts = Rounder(dtype).rows(rows.reshape(-1), rows.shape[1])
    return np.concatenate([part.copy() for part in parts]).reshape(rows.shape)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("length", [1, 9, 4608, BLOCK + 1])
def test_rows_that_keep_their_sum(dtype: DType, length: int) -> None:
    rows = np.random.default_rng(length).standard_normal((3, length)).astype(np.float32)
    rows[1] = rows[1].astype(dtype).astype(np.float32)  # low numbers stay what they are
    plain = rows.astype(dtype)
    kept = rounded_rows(rows, dtype)
    steps = np.abs(kept.view(np.int16).astype(int) - plain.view(np.int16).astype(int))
    assert steps.max() <= 1 and kept.dtype == dtype
    assert np.array_equal(kept[1].view(np.uint16), plain[1].view(np.uint16))
    exact, wide = rows.astype(np.float64), kept.astype(np.float64)
    largest = np.abs(wide - exact).max(1)  # below a step of it
    assert (np.abs((wide - exact).sum(1)) <= largest + 1e-12).all()
    if length > 100:  # few are moved, and the error of each is little more than before
        assert steps.mean() < 0.05
        assert np.square(wide - exact).mean() < 1.1 * np.square(plain.astype(np.float64) - exact).mean()


def test_a_row_of_what_is_beneath_the_type_stays_zero_beside_one_that_is_not_finite() -> None:
    rows = np.full((2, 64), 2e-8, np.float32)
    rows[1, 3] = np.nan
    assert not rounded_rows(rows, HALF)[0].any()


def test_large_numbers_of_bfloat16_turn_by_their_nearness_to_the_middle() -> None:
    rows = np.float32(2.0**123) * (1 + np.array([[0.45, 0.49, 0.3, 0.2]], np.float32) / 128)
    assert np.argmax(rounded_rows(rows, BRAIN)[0]) == 1


def test_what_has_no_neighbour_is_left_alone() -> None:
    largest, smallest = 65504.0, 2.0**-24
    rows = np.array([largest + 1, largest + 1, 0.25 * smallest, 0.0], np.float32)
    kept = rounded_rows(rows.reshape(2, 2), HALF)
    assert kept.reshape(-1).tolist() == [largest, largest, 0.0, 0.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e9])
def test_a_row_with_a_number_that_is_not_finite_stays_as_it_was_rounded(number: float) -> None:
    rows = np.random.default_rng(5).standard_normal((2, 64)).astype(np.float32) + np.float32(0.3)
    rows[0, 7] = number
    with np.errstate(over="ignore"):
        plain = rows.astype(HALF)
    kept = rounded_rows(rows, HALF)
    assert np.array_equal(kept[0].view(np.uint16), plain[0].view(np.uint16))
    assert not np.array_equal(kept[1], plain[1])
