"""What inputs are made of: random numbers, pictures (scenes with shapes and shades, pages with text, patches with
noise), sound (speech-like waves, tones, noise, silence) and its spectra.

The same on every machine: integer arithmetic on PCG64's raw stream, and no libm.
"""

from __future__ import annotations

import math

import numpy as np

from ...core.arrays import Array


class RandomNumbers:
    """The random numbers of one input in one sample, by seed."""

    def __init__(self, *key: int) -> None:
        self.bits = np.random.PCG64(np.random.SeedSequence([k & 0xFFFFFFFF for k in key]))

    def _raw(self, count: int) -> Array:
        """Generated inputs: the next ``count`` raw random numbers of the stream, uint64."""
        return np.atleast_1d(self.bits.random_raw(count)) if count else np.zeros(0, np.uint64)

    def integers(self, first: int, last: int, shape: tuple[int, ...]) -> Array:
        """Generated inputs: random int64 numbers from ``first`` to ``last``, both included."""
        span = np.uint64(max(last - first, 0) + 1)
        return (self._raw(math.prod(shape)) % span).astype(np.int64).reshape(shape) + first

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Generated inputs: random float32 numbers in [0, 1), of 24 bits."""
        return ((self._raw(math.prod(shape)) >> np.uint64(40)) * 2.0**-24).astype(np.float32).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Generated inputs: random float32 numbers, about standard normal: sums of twelve 16-bit numbers, exact."""
        count = math.prod(shape)
        words = self._raw(3 * count).astype("<u8").view("<u2").reshape(count, 12)
        sums: Array = words.sum(axis=1, dtype=np.int64)
        return (sums / 65536 - 6 + 6 / 65536).astype(np.float32).reshape(shape)


# -- pictures ---------------------------------------------------------------------------------------------------------

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
    """Whether a generated input of this shape is a picture: channels first or last, and two large sizes."""
    return _picture_axes(shape) is not None


def _picture_axes(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Of a generated picture: its axes of channels, height and width, channels first before last; None for no picture:
    fewer than 4 axes, channels other than `CHANNELS`, a side below `EDGE`."""
    rank = len(shape)
    if rank < 4:
        return None
    for layout in ((1, rank - 2, rank - 1), (rank - 1, rank - 3, rank - 2)):
        channel, height, width = (shape[axis] for axis in layout)
        if channel in CHANNELS and min(height, width) >= EDGE:
            return layout
    return None


def is_line(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of a generated picture so much wider than high (`WIDE`) that it shows a line of text."""
    layout = _picture_axes(shape)
    return layout is not None and shape[layout[2]] >= WIDE * shape[layout[1]]


def draw_pictures(numbers: RandomNumbers, shape: tuple[int, ...], index: int) -> Array:
    """Generated pictures, float32 of 0 to 1, in a shape that `is_picture`: a page, a scene or patches by ``index``, the
    sample's number; lines of text where `is_line`. Each picture of a batch is another."""
    layout = _picture_axes(shape)
    assert layout is not None  # `is_picture` was asked before
    height, width = (shape[axis] for axis in layout[1:])
    paint = paint_line if is_line(shape) else (paint_page, paint_scene, paint_patches)[index % 3]
    batch = [size for axis, size in enumerate(shape) if axis not in layout]
    count, channels = int(np.prod(batch, dtype=np.int64)), shape[layout[0]]
    painted = np.stack([_colour(numbers, paint(numbers, height, width), channels) for _ in range(count)])
    whole = painted.reshape(*batch, channels, height, width)
    return np.ascontiguousarray(np.moveaxis(whole, (-3, -2, -1), layout))


def _colour(numbers: RandomNumbers, gray: Array, channels: int) -> Array:
    """Makes a generated picture of a gray one [height, width] of 0 to 1: [channels, height, width] of 0 to 1, with one
    tint in dark parts, another elsewhere, and noise."""
    tints = numbers.uniform((2, channels, 1, 1)) * np.float32(0.2) + np.float32(0.8)
    picture = gray * np.where(gray < np.float32(0.5), tints[0], tints[1])
    picture = picture + (numbers.uniform((channels, *gray.shape)) - np.float32(0.5)) * np.float32(NOISE)
    clipped: Array = np.clip(picture, np.float32(0), np.float32(1))
    return clipped


def paint_scene(numbers: RandomNumbers, height: int, width: int) -> Array:
    """A generated picture [height, width] of 0 to 1: a shaded ground with shaded boxes and discs upon it."""
    rows, columns = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    across = (rows / np.float32(height) + columns / np.float32(width)) * np.float32(0.5)
    found: Array = np.float32(0.3) + np.float32(0.4) * across
    for number in range(SHAPES):
        row, column, tall, wide, shade, slope = numbers.uniform((6,))
        down, right = rows - row * np.float32(height), columns - column * np.float32(width)
        down, right = down / (height * (tall / 4 + np.float32(0.03))), right / (width * (wide / 4 + np.float32(0.03)))
        inside = (np.maximum(abs(down), abs(right)) if number % 2 else down * down + right * right) < 1
        found = np.where(inside, np.clip(shade + (slope - np.float32(0.5)) * down, 0, 1), found)
    return _soften(np.asarray(found, np.float32))


def paint_page(numbers: RandomNumbers, height: int, width: int) -> Array:
    """A generated picture [height, width] of 0 to 1: dark text on white with ruled lines; one line if no more fit."""
    if height < ROOM:
        return paint_line(numbers, height, width)
    found = np.full((height, width), PAPER, np.float32)
    scale = SMALL + int(numbers.integers(0, 1, ())) * (height >= 2 * ROOM)
    top = scale
    while top + ROWS * scale <= height:
        _write_letters(numbers, found[top : top + ROWS * scale], scale)
        top += scale * (ROWS + 3)
        if top < height and int(numbers.integers(0, 3, ())) == 0:
            found[top - 2 * scale : top - 2 * scale + scale // 2] = INK
    return _soften(found)


def _write_letters(numbers: RandomNumbers, row: Array, scale: int) -> None:
    """Writes letters into ``row``, a view of a generated picture, from left to right, with gaps between words; in
    place. ``scale``: points that make one bit of a glyph; the row is `ROWS` times that high."""
    step = scale * (COLUMNS + 1)
    for place, chosen in enumerate(numbers.integers(0, len(GLYPHS) + 2, (row.shape[1] // step,)).tolist()):
        if chosen < len(GLYPHS):
            drawn = _glyph_ink(chosen, ROWS * scale, COLUMNS * scale)
            part = row[:, place * step + scale :][:, : drawn.shape[1]]
            part[drawn[:, : part.shape[1]]] = INK


def _glyph_ink(chosen: int, height: int, width: int) -> Array:
    """Of a generated picture: where letter number ``chosen`` of `GLYPHS` has ink at a size, bool [height, width]."""
    bits = list(GLYPHS.values())[chosen]
    small = np.array([bits >> bit & 1 for bit in range(ROWS * COLUMNS)][::-1], bool).reshape(ROWS, COLUMNS)
    drawn: Array = small[np.arange(height) * ROWS // height][:, np.arange(width) * COLUMNS // width]
    return drawn


def paint_line(numbers: RandomNumbers, height: int, width: int) -> Array:
    """A generated picture [height, width] of 0 to 1: one line of text over most of the height, blurred as by a scan."""
    found = np.full((height, width), PAPER, np.float32)
    share, narrow, dark = (int(n) for n in numbers.integers(0, 3, (3,)))
    tall = height * (6 + share) // 10
    wide = max(tall * (3 + narrow) // 8, COLUMNS)
    ink, top, left = np.float32(0.05 + 0.1 * dark), (height - tall) // 2, 2
    while left + wide <= width:
        chosen, less = int(numbers.integers(0, len(GLYPHS) + 2, ())), int(numbers.integers(0, wide // 4, ()))
        if chosen < len(GLYPHS):
            drawn = _glyph_ink(chosen, tall, wide - less)
            found[top : top + tall, left : left + wide - less][drawn] = ink
        left += wide - less + max(1, wide // 5)
    return _soften(_soften(found) if tall >= SHARP else found)


def _soften(sharp: Array) -> Array:
    """A generated picture blurred as by a lens, along each axis: half of a point, a quarter of either neighbour."""
    for axis in (0, 1):
        wide = np.concatenate([sharp.take([0], axis), sharp, sharp.take([-1], axis)], axis)
        size = sharp.shape[axis]
        left, right = (wide.take(np.arange(start, start + size), axis) for start in (0, 2))
        sharp = sharp * np.float32(0.5) + (left + right) * np.float32(0.25)
    return sharp


def paint_patches(numbers: RandomNumbers, height: int, width: int) -> Array:
    """A generated picture [height, width] of 0 to 1: patches with edges between them, coarse and fine, and noise."""
    found: Array = numbers.uniform((height, width)) * np.float32(0.1)
    for patch, share in ((32, 0.6), (6, 0.3)):
        coarse = numbers.uniform((-(-height // patch), -(-width // patch)))
        whole = coarse.repeat(patch, 0).repeat(patch, 1)[:height, :width]
        found = found + whole * np.float32(share)
    return np.asarray(found)


# -- sound ------------------------------------------------------------------------------------------------------------

TURN = 65536  # of a phase
LOUD = (0.3, 0.9, 0.05)  # by sample
FLOOR = (1e-3, 1e-3, 1e-2)  # noise under it: recordings have no less
SYLLABLE = 2400  # samples of a wave
VOICES = 8  # harmonics


def draw_sound(numbers: RandomNumbers, shape: tuple[int, ...], index: int) -> Array:
    """Generated sound, float32 waves of -1 to 1 along the last axis: speech-like syllables, or tones in every third
    sample. ``index``, the sample's number, sets loudness and noise; the last tenth is zeros."""
    length, rows = shape[-1], int(np.prod(shape[:-1], dtype=np.int64))
    found = np.empty((rows, length), np.float32)
    paint = (_draw_speech, _draw_tones, _draw_speech)[index % 3]
    for row in range(rows):
        wave = paint(numbers, length)
        largest = abs(wave).max(initial=np.float32(0)) or np.float32(1)
        wave = wave * (np.float32(LOUD[index % 3]) / largest)
        wave = wave + numbers.normal((length,)) * np.float32(FLOOR[index % 3])
        wave[length - length // 10 :] = 0
        found[row] = np.clip(wave, -1, 1)
    return found.reshape(shape)


def _draw_speech(numbers: RandomNumbers, length: int) -> Array:
    """Generated sound of ``length`` samples, of any loudness: syllables that swell: vowels, noise, or nothing."""
    wave = np.zeros(length, np.float32)
    for start in range(0, length, SYLLABLE):
        size = min(SYLLABLE, length - start)
        swell = _sine(np.arange(size, dtype=np.int64) * (TURN // 2) // SYLLABLE)
        kind = int(numbers.integers(0, 5, ()))
        if kind < 4:
            wave[start : start + size] = swell * _draw_vowel(numbers, size)
        elif kind == 4:
            wave[start : start + size] = swell * numbers.normal((size,)) * np.float32(0.2)
    return wave


def _draw_vowel(numbers: RandomNumbers, size: int) -> Array:
    """Generated sound: a vowel-like wave of ``size`` samples: harmonics of a gliding pitch, of several strengths."""
    pitch, glide = (int(n) for n in numbers.integers(400, 1000, (2,)))  # of 65536ths of a turn a sample
    place = np.arange(size, dtype=np.int64)
    phase = place * pitch + place * place * (glide - 700) // (4 * SYLLABLE)
    strengths = numbers.uniform((VOICES,))
    found: Array = np.zeros(size, np.float32)
    for number in range(VOICES):
        found = found + _sine(phase * (number + 1)) * (strengths[number] / np.float32(1 + number))
    return found


def _draw_tones(numbers: RandomNumbers, length: int) -> Array:
    """Generated sound of ``length`` samples, of any loudness: three tones that come and go, and one that rises."""
    place = np.arange(length, dtype=np.int64)
    wave: Array = _sine(place * place * 8 // max(length // 1000, 1) // 1000) * np.float32(0.3)
    for tone in range(3):
        steps, swell = numbers.integers(300, 8000, ()), numbers.integers(4, 40, ())
        wave = wave + _sine(place * steps) * np.abs(_sine(place * swell)) * np.float32(0.3 / (tone + 1))
    return wave


def _sine(phase: Array) -> Array:
    """For generated sound: minus the sine of a phase in 65536ths of a turn (int64), approximated by two parabolas."""
    turn = (phase % TURN).astype(np.float32) / np.float32(TURN // 2) - np.float32(1)
    wave: Array = 4 * turn * (1 - np.abs(turn))
    return wave


# -- spectra ----------------------------------------------------------------------------------------------------------

SPECTRA = ((-1.0, 2.0), (-11.0, 13.0), (-0.3, 2.0))  # least value and span, by sample: scaled, logarithms, whitened


def draw_spectrum(numbers: RandomNumbers, shape: tuple[int, ...], index: int) -> Array:
    """Generated spectrograms, float32 [..., time, bands]: harmonics that move, less of them high up, pauses, a noisy
    floor. ``index``, the sample's number, sets the range: scaled, logarithms of power, whitened (`SPECTRA`)."""
    time, bands = shape[-2:]
    rows = int(np.prod(shape[:-2], dtype=np.int64))
    place = np.arange(bands, dtype=np.int64)
    found = np.empty((rows, time, bands), np.float32)
    least, span = SPECTRA[index % len(SPECTRA)]
    for row in range(rows):
        pitch = numbers.integers(TURN // 24, TURN // 6, (time // 16 + 1,)).repeat(16)[:time, None]
        loud = numbers.uniform((time // 8 + 1,)).repeat(8)[:time, None]
        harmonics = np.abs(_sine(pitch * place)) * (1 - place / np.float32(2 * bands)).astype(np.float32)
        level = harmonics * loud * np.float32(0.7) + numbers.uniform((time, bands)) * np.float32(0.3)
        found[row] = np.where(loud < np.float32(0.15), np.float32(0.05) * level, level)
    return (found * np.float32(span) + np.float32(least)).astype(np.float32).reshape(shape)
