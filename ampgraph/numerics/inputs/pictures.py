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
SMALL = 2  # points of a page's glyph that make one of its bits
INK, PAPER = 0.1, 0.95


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
    """float32 of 0 to 1: a page, a scene, patches, by sample; each picture of a batch is another."""
    layout = _layout(shape)
    assert layout is not None  # `is_picture` was asked before
    height, width = (shape[axis] for axis in layout[1:])
    paint = (page, page, scene)[index % 3] if is_line(shape) else (page, scene, patches)[index % 3]
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
    found = np.full((height, width), PAPER, np.float32)
    single = height < 3 * (ROWS + 3) * SMALL
    scale = max(1, height // (ROWS + 2)) if single else SMALL
    top = max(height - ROWS * scale, 0) // 2 if single else scale
    while top + ROWS * scale <= height:
        _write(numbers, found[top : top + ROWS * scale], scale)
        top += scale * (ROWS + 3)
        if top < height and int(numbers.integers(0, 3, ())) == 0:
            found[top - 2 * scale : top - 2 * scale + max(scale // 2, 1)] = INK
    return _softened(found)


def _write(numbers: Numbers, line: Array, scale: int) -> None:
    """Letters from left to right, with gaps between words."""
    glyphs = list(GLYPHS.values())
    step = scale * (COLUMNS + 1)
    for place, chosen in enumerate(numbers.integers(0, len(glyphs) + 2, (line.shape[1] // step,)).tolist()):
        if chosen < len(glyphs):
            bits = np.array([glyphs[chosen] >> bit & 1 for bit in range(ROWS * COLUMNS)][::-1], bool)
            drawn = bits.reshape(ROWS, COLUMNS).repeat(scale, 0).repeat(scale, 1)
            left = place * step + scale
            part = line[:, left : left + COLUMNS * scale]
            part[drawn[:, : part.shape[1]]] = INK


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
    found = numbers.uniform((height, width)) * np.float32(0.1)
    for patch, share in ((32, 0.6), (6, 0.3)):
        coarse = numbers.uniform((-(-height // patch), -(-width // patch)))
        whole = coarse.repeat(patch, 0).repeat(patch, 1)[:height, :width]
        found = found + whole * np.float32(share)
    return np.asarray(found)
