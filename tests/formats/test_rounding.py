"""Rounding of weights: to the bit what a cast gives."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.arrays import Array, DType
from ampgraph.formats.rounding import BLOCK, SHORT, Rounder

HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def agrees(numbers: Array, dtype: DType) -> bool:
    """Whether the bits are those of numpy's cast, element by element; a warning is an error."""
    place = np.empty(numbers.size, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
