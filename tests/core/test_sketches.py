"""Sketches for notebooks: what of many values is drawn."""

from __future__ import annotations

import base64
import re

import pytest

from ampgraph.core.sketches import COLOURS, HOT, PARTS, _equal_pieces, heights, strip


def colours(sketch: str) -> list[str]:
    """What the rectangles of an image are filled with, from left to right."""
    drawn = base64.b64decode(sketch.partition("base64,")[2].partition('"')[0]).decode()
    return re.findall(r'<rect [^>]*fill="([^"]*)"', drawn)


@pytest.mark.parametrize(("count", "pieces", "last"), [(0, 0, 0), (300, 300, 1), (301, 151, 1), (900, 300, 3)])
def test_many_values_are_drawn_in_pieces(count: int, pieces: int, last: int) -> None:
    found = _equal_pieces(range(count))
    assert len(found) == pieces <= PARTS and sum(map(len, found)) == count
    assert not found or len(found[-1]) == last


def test_a_piece_has_the_colour_of_most_of_it() -> None:
    assert colours(strip(["float16", "float32"], "two")) == [COLOURS["float16"], COLOURS["float32"]]
    types = ["float16", "float32", "float16"] * 200 + ["float32", "float32", "float16"] * 100
    assert colours(strip(types, "many")) == [COLOURS["float16"]] * 200 + [COLOURS["float32"]] * 100


def test_a_height_is_the_largest_of_its_piece() -> None:
    assert colours(heights([1.0, 9.0] + [1.0] * 598, 8.0, "errors")) == [HOT] + [COLOURS["float16"]] * 299
