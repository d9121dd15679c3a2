"""Rounding of weights: to the bit what a cast gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.arrays import Array, DType
from ampgraph.formats import rounding
from ampgraph.formats.rounding import BLOCK, LOW_TYPES, SHORT, Rounder, SumRounder
from near import rounds

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


# -- sums that are kept -----------------------------------------------------------------------------------------------

CONV, MATRIX, ROWS, STACK = ((32, 16, 3, 3), (1, 4)), ((300, 40), (0, 1)), ((40, 300), (1, 2)), ((3, 50, 7), (1, 2))


def off(low: Array, wide: Array, added: tuple[int, int]) -> Array:
    """How far the sums are off."""
    return np.abs((low.astype(np.float64) - wide).sum(tuple(range(*added))))


@pytest.mark.parametrize("dtype", LOW_TYPES)
@pytest.mark.parametrize(("shape", "added"), [CONV, MATRIX, ROWS, STACK, ((64, 1, 3, 3), (1, 4)), ((5, 1), (1, 2))])
def test_sums_are_kept(shape: tuple[int, ...], added: tuple[int, int], dtype: str) -> None:
    """To half a step of the smaller numbers, while all are rounded nearly as well as one by one."""
    wide = (np.random.default_rng(0).standard_normal(shape) * 0.05).astype(np.float32)
    low, plain = LOW_TYPES[dtype], wide.astype(LOW_TYPES[dtype])
    kept = SumRounder(low, shape, added).whole(wide.reshape(-1)).reshape(shape)
    assert rounds(kept, wide)
    step = float(np.abs(plain.astype(np.float64) - wide).max()) * 2
    count = np.prod(shape[slice(*added)])
    assert off(kept, wide, added).max() <= step * (0.51 if count > 16 else 1)
    if count > 16:
        assert np.median(off(kept, wide, added)) < np.median(off(plain, wide, added)) / 3
    squares = [float(np.square(each.astype(np.float64) - wide).sum()) for each in (kept, plain)]
    assert squares[0] <= squares[1] * (1.02 if count > 100 and len(shape) < 4 else 1.25)
    again = SumRounder(low, shape, added).whole(kept.astype(np.float32).reshape(-1))
    assert again.tobytes() == kept.tobytes(), "low numbers stay what they are"


def test_windows_keep_their_sums_too() -> None:
    shape, added = CONV
    wide = (np.random.default_rng(1).standard_normal(shape) * 0.05).astype(np.float32)
    kept = SumRounder(LOW_TYPES["float16"], shape, added).whole(wide.reshape(-1)).reshape(shape)
    windows = [np.sqrt(np.mean(off(each, wide, (2, 4)) ** 2)) for each in (kept, wide.astype(np.float16))]
    assert windows[0] < windows[1] / 1.8


@pytest.mark.parametrize(("shape", "added"), [CONV, MATRIX, ROWS, STACK])
def test_pieces_are_the_whole(shape: tuple[int, ...], added: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    whole = SumRounder(LOW_TYPES["float16"], shape, added).whole(wide.reshape(-1))
    monkeypatch.setattr(rounding, "BLOCK", 300)
    parts = [part.copy() for part in SumRounder(LOW_TYPES["float16"], shape, added).parts(wide.reshape(-1))]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    # sums across rows are kept part by part where there are too many numbers
    monkeypatch.setattr(rounding, "HELD", 2000)
    held = SumRounder(LOW_TYPES["float16"], shape, added).whole(wide.reshape(-1)).reshape(shape)
    assert rounds(held, wide)
    assert np.median(off(held, wide, added)) < np.median(off(wide.astype(np.float16), wide, added)) / 1.5


def test_what_float16_does_not_have_stays_as_it_is_rounded() -> None:
    wide = np.array([[65519, 65519, 7e4, np.inf, -np.inf, 1e-9, 65503, 0.1]], np.float32)
    kept = SumRounder(LOW_TYPES["float16"], wide.shape, (1, 2)).whole(wide.reshape(-1))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(kept[:6], wide.astype(np.float16)[0, :6])
    assert np.isfinite(kept[6:]).all()
    scaled = SumRounder(LOW_TYPES["float16"], ROWS[0], ROWS[1], 1.0004)
    numbers = np.random.default_rng(3).standard_normal(ROWS[0]).astype(np.float32)
    assert rounds(scaled.whole(numbers.reshape(-1)).reshape(ROWS[0]), numbers.astype(np.float64) * 1.0004)
