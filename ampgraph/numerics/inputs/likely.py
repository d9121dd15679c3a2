"""Inputs as a model may really get them: pictures, sound, small and large numbers.

What an input is for is read from its name, its shape and the first operators. Nothing here needs a libm, so that the
numbers are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow
from ...oplists.traits import has
from .numbers import Numbers

SOUND_NAMES = ("audio", "wav", "pcm", "speech", "signal", "sound", "samples")
SOUND, LENGTH = 4000, 16000  # numbers that are surely no vector of features; a second of speech
CHANNELS, EDGE = (1, 3, 4), 16  # of pictures, and the least height and width of one
SCALES = (1.0, 4.0, 1 / 16)  # of plain numbers, by sample
LIKELY = ("picture", "pixels", "sound", "scaled")


class OpenPort(Protocol):
    """An input as far as its length is of interest."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str | None, ...]: ...


class Likely:
    """Says what kind of numbers an input gets."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow

    def lengths(self, ports: Iterable[OpenPort]) -> dict[str, int]:
        """Sizes of dimensions that run over sound: sixteen of its samples would say nothing."""
        found = {}
        for port in ports:
            last = port.shape[-1] if 0 < len(port.shape) <= 3 else None
            if isinstance(last, str) and "float" in port.dtype and _sounds(port.name, last):
                found[last] = LENGTH
        return found

    def kind(self, name: str, value: int, shape: tuple[int, ...]) -> tuple[str, str]:
        """The kind of an input of numbers, and what is said of it."""
        if _is_picture(shape):
            if self._divides(value):
                return "pixels", "pictures of 0 to 255"
            return "picture", "pictures of 0 to 1 and of about standard normal numbers"
        if shape and len(shape) <= 3 and (shape[-1] >= SOUND or (_sounds(name, "") and shape[-1] >= SOUND // 10)):
            return "sound", "tones, noise and silence"
        return "scaled", "about standard normal, and of 4 and 1/16 times that"

    def _divides(self, value: int, steps: int = 4) -> bool:
        """Whether the first arithmetic on an input takes numbers up to 255 to small ones."""
        for op in self._flow.readers(value) if steps else []:
            if has(op.role, "passes_on") and any(self._divides(made, steps - 1) for made in op.outputs):
                return True
            other = next((v for v in op.inputs[:2] if v not in (value, NONE)), NONE)
            size = self._size(other)
            if size is not None and (has(op.role, "scalings") or has(op.role, "cancels")) and not 1 / 64 < size < 64:
                return True
        return False

    def _size(self, value: int) -> float | None:
        item = self._flow.values[value] if value != NONE else None
        if item is None or not item.weight or not 0 < self._flow.weights.size(item) <= 16:
            return None
        array = self._flow.weights.array(item)
        return None if array is None else float(np.abs(np.asarray(array, np.float64)).max())


def _sounds(name: str, dim: str) -> bool:
    return any(word in text for text in (name.lower(), dim.lower()) for word in SOUND_NAMES)


def _is_picture(shape: tuple[int, ...]) -> bool:
    """Channels and two large sizes, in either order; frames between them."""
    if len(shape) < 4:
        return False
    first, last = (shape[1], shape[-2:]), (shape[-1], shape[-3:-1])
    return any(channels in CHANNELS and min(sizes) >= EDGE for channels, sizes in (first, last))


# -- numbers ----------------------------------------------------------------------------------------------------------


def made(kind: str, numbers: Numbers, shape: tuple[int, ...], index: int) -> Array:
    """float32 numbers of a kind; samples differ in size too."""
    if kind == "sound":
        return sound(numbers, shape)
    if kind == "scaled":
        return numbers.normal(shape) * np.float32(SCALES[index % len(SCALES)])
    field = picture(numbers, shape)
    if kind == "pixels":
        whole: Array = np.floor(field * np.float32(255))
        return whole
    return field if index % 2 else (field - np.float32(0.5)) * np.float32(4)


def picture(numbers: Numbers, shape: tuple[int, ...]) -> Array:
    """Patches with edges between them, coarse and fine, and a little noise: 0 to 1."""
    sizes = [n if n >= EDGE else 0 for n in shape]
    total = numbers.uniform(shape) * np.float32(0.1)
    for patch, share in ((32, 0.6), (6, 0.3)):
        coarse = numbers.uniform(tuple(-(-n // patch) if n else m for n, m in zip(sizes, shape, strict=True)))
        for axis, size in enumerate(sizes):
            if size:
                coarse = np.repeat(coarse, patch, axis).take(np.arange(size), axis)
        total = total + coarse * np.float32(share)
    return np.asarray(total)


def sound(numbers: Numbers, shape: tuple[int, ...]) -> Array:
    """Three tones that come and go, quiet noise, and a tenth of silence at the end."""
    length, rows = shape[-1], int(np.prod(shape[:-1], dtype=np.int64))
    place = np.arange(length, dtype=np.int64)
    found = np.empty((rows, length), np.float32)
    for row in range(rows):
        wave = numbers.normal((length,)) * np.float32(1e-3)
        for tone in range(3):
            steps, swell = numbers.integers(300, 8000, ()), numbers.integers(4, 40, ())
            wave = wave + _sine(place * steps) * np.abs(_sine(place * swell)) * np.float32(0.3 / (tone + 1))
        wave[length - length // 10 :] = 0
        found[row] = wave
    return found.reshape(shape)


def _sine(phase: Array) -> Array:
    """Two parabolas that look like a sine, of a phase in 65536ths of a turn."""
    turn = (phase % 65536).astype(np.float32) / np.float32(32768) - np.float32(1)
    wave: Array = 4 * turn * (1 - np.abs(turn))
    return wave
