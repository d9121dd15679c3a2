"""Pictures: scenes with shapes and shades, pages with text, patches with noise. No libm: the same on every machine."""

from __future__ import annotations

import numpy as np

from ...core.arrays import Array
from .numbers import Numbers

WIDE = 2.5  # times as wide as high: a line of text
CHANNELS, EDGE = (1, 3, 4), 16  # of pictures, and the least height and width of one
SHAPES, NOISE = 12, 0.02  # of a scene
GLYPHS = {
    "A": 0x3A31FC631,
    "C": 0x3A308422E,
    "E": 0x7E10F421F,
    "H": 0x4631FC631,
    "I": 0x38842108E,
    "L": 0x42108421F,
    "N": 0x47359C631,
    "O": 0x3A318C62E,
    "P": 0x7A31F4210,
    "R": 0x7A31F5251,
    "S": 0x3E107043E,
    "T": 0x7C8421084,
    "U": 0x46318C62E,
    "1": 0x11842108E,
    "2": 0x3A211111F,
    "4": 0x08CA97C42,
    "7": 0x7C2222108,
}  # letters and figures, row by row from the top, the first bit highest
ROWS, COLUMNS = 7, 5  # of a glyph
SMALL = 2  # points of a page's glyph that make one of its bits; on large pages one more may
INK, PAPER = 0.1, 0.95
SHARP = 4 * ROWS  # the height from which a scanned letter is blurred
ROOM = 3 * (ROWS + 3) * SMALL  # the height from which a page has several lines


def is_picture(shape: tuple[int, ...]) -> bool:
    """Channels and two large sizes, in either order; frames between them."""
    return _layout(shape) is not None


def _layout(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The axes of the channels, the height and the width."""
    rank = len(shape)
    if rank < 4:
        return None
    for layout in ((1, rank - 2, rank - 1), (rank - 1, rank - 3, rank - 2)):
        channel, height, width = (shape[axis] for axis in layout)
        if channel in CHANNELS and min(height, width) >= EDGE:
            return layout
    return None


def is_line(shape: tuple[int, ...]) -> bool:
    """Whether a picture is so much wider than high that it shows a line of text."""
    layout = _layout(shape)
    return layout is not None and shape[layout[2]] >= WIDE * shape[layout[1]]


def pictures(numbers: Numbers, shape: tuple[int, ...], index: int) -> Array:
    """float32 of 0 to 1: a page, a scene, patches, by sample, or lines of text where the shape is that of one; each
    picture of a batch is another."""
    layout = _layout(shape)
    assert layout is not None  # `is_picture` was asked before
    height, width = (shape[axis] for axis in layout[1:])
    paint = line if is_line(shape) else (page, scene, patches)[index % 3]
    rest = [size for axis, size in enumerate(shape) if axis not in layout]
    count, channels = int(np.prod(rest, dtype=np.int64)), shape[layout[0]]
    painted = np.stack([_coloured(numbers, paint(numbers, height, width), channels) for _ in range(count)])
    whole = painted.reshape(*rest, channels, height, width)
    return np.ascontiguousarray(np.moveaxis(whole, (-3, -2, -1), layout))


def _coloured(numbers: Numbers, gray: Array, channels: int) -> Array:
    """Channels that differ by a tint, which is another in the darker parts, and by a little noise."""
    tints = numbers.uniform((2, channels, 1, 1)) * np.float32(0.2) + np.float32(0.8)
    picture = gray * np.where(gray < np.float32(0.5), tints[0], tints[1])
    picture = picture + (numbers.uniform((channels, *gray.shape)) - np.float32(0.5)) * np.float32(NOISE)
    clipped: Array = np.clip(picture, np.float32(0), np.float32(1))
    return clipped


def scene(numbers: Numbers, height: int, width: int) -> Array:
    """A shaded ground with boxes and discs upon it, each of a shade that changes across it."""
    rows, columns = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    across = (rows / np.float32(height) + columns / np.float32(width)) * np.float32(0.5)
    found: Array = np.float32(0.3) + np.float32(0.4) * across
    for number in range(SHAPES):
        row, column, tall, wide, shade, slope = numbers.uniform((6,))
        down, right = rows - row * np.float32(height), columns - column * np.float32(width)
        down, right = down / (height * (tall / 4 + np.float32(0.03))), right / (width * (wide / 4 + np.float32(0.03)))
        inside = (np.maximum(abs(down), abs(right)) if number % 2 else down * down + right * right) < 1
        found = np.where(inside, np.clip(shade + (slope - np.float32(0.5)) * down, 0, 1), found)
    return _softened(np.asarray(found, np.float32))


def page(numbers: Numbers, height: int, width: int) -> Array:
    """Dark lines of text on white, and ruled lines: one line of text where there is room for no more."""
    if height < ROOM:
        return line(numbers, height, width)
    found = np.full((height, width), PAPER, np.float32)
    scale = SMALL + int(numbers.integers(0, 1, ())) * (height >= 2 * ROOM)
    top = scale
    while top + ROWS * scale <= height:
        _write(numbers, found[top : top + ROWS * scale], scale)
        top += scale * (ROWS + 3)
        if top < height and int(numbers.integers(0, 3, ())) == 0:
            found[top - 2 * scale : top - 2 * scale + scale // 2] = INK
    return _softened(found)


def _write(numbers: Numbers, row: Array, scale: int) -> None:
    """Letters from left to right, with gaps between words."""
    step = scale * (COLUMNS + 1)
    for place, chosen in enumerate(numbers.integers(0, len(GLYPHS) + 2, (row.shape[1] // step,)).tolist()):
        if chosen < len(GLYPHS):
            drawn = _glyph(chosen, ROWS * scale, COLUMNS * scale)
            part = row[:, place * step + scale :][:, : drawn.shape[1]]
            part[drawn[:, : part.shape[1]]] = INK


def _glyph(chosen: int, height: int, width: int) -> Array:
    """Where a letter has ink, at a size of its own."""
    bits = list(GLYPHS.values())[chosen]
    small = np.array([bits >> bit & 1 for bit in range(ROWS * COLUMNS)][::-1], bool).reshape(ROWS, COLUMNS)
    drawn: Array = small[np.arange(height) * ROWS // height][:, np.arange(width) * COLUMNS // width]
    return drawn


def line(numbers: Numbers, height: int, width: int) -> Array:
    """One line of text as high as the picture: narrow letters of several widths, as dark as may be, soft as a scan."""
    found = np.full((height, width), PAPER, np.float32)
    share, narrow, dark = (int(n) for n in numbers.integers(0, 3, (3,)))
    tall = height * (6 + share) // 10
    wide = max(tall * (3 + narrow) // 8, COLUMNS)
    ink, top, left = np.float32(0.05 + 0.1 * dark), (height - tall) // 2, 2
    while left + wide <= width:
        chosen, less = int(numbers.integers(0, len(GLYPHS) + 2, ())), int(numbers.integers(0, wide // 4, ()))
        if chosen < len(GLYPHS):
            drawn = _glyph(chosen, tall, wide - less)
            found[top : top + tall, left : left + wide - less][drawn] = ink
        left += wide - less + max(1, wide // 5)
    return _softened(_softened(found) if tall >= SHARP else found)


def _softened(sharp: Array) -> Array:
    """Each point the mean of itself and its neighbours, as a lens leaves edges."""
    for axis in (0, 1):
        wide = np.concatenate([sharp.take([0], axis), sharp, sharp.take([-1], axis)], axis)
        size = sharp.shape[axis]
        left, right = (wide.take(np.arange(start, start + size), axis) for start in (0, 2))
        sharp = sharp * np.float32(0.5) + (left + right) * np.float32(0.25)
    return sharp


def patches(numbers: Numbers, height: int, width: int) -> Array:
    """Patches with edges between them, coarse and fine, and noise."""
    found: Array = numbers.uniform((height, width)) * np.float32(0.1)
    for patch, share in ((32, 0.6), (6, 0.3)):
        coarse = numbers.uniform((-(-height // patch), -(-width // patch)))
        whole = coarse.repeat(patch, 0).repeat(patch, 1)[:height, :width]
        found = found + whole * np.float32(share)
    return np.asarray(found)
