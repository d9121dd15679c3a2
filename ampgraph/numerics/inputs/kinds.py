"""What kind of numbers an input gets, pictures, sound, spectra or plain ones: by names, shapes, first operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow, Op
from ...oplists.traits import has
from .numbers import Numbers
from .pictures import is_line, is_picture, pictures
from .sizes import GraphInput, sounds
from .sounds import sound, spectrum

SOUND = 4000  # numbers that are surely no vector of features
SPECTRA = ("mel", "spec", "audio")  # in the names of what has bands of frequencies
BANDS = 32  # at least
SCALES = (1.0, 4.0, 1 / 16)  # of plain numbers, by sample
FAINT = 0.1  # a first product whose weights are so small takes numbers of 0 to 255
STEPS = 6  # operators from an input to the first that tells
LARGE = 1 << 22  # elements of weights that are looked at
# What becomes of pictures of 0 to 1, by sample: as means and deviations leave them. Readers of text take -1 to 1.
SHIFTS, SHIFTS_OF_LINES = ((4.6, -2.1), (1.0, 0.0), (2.0, -1.0)), ((2.0, -1.0), (1.0, 0.0), (2.0, -1.0))


@dataclass(frozen=True)
class Span:
    """The numbers that a quantized input can tell apart."""

    low: float
    high: float


class Kinds:
    """Says what kind of numbers the inputs of a model get."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow

    def of(self, port: GraphInput, shape: tuple[int, ...]) -> tuple[str, str]:
        """The kind of an input of numbers, and what is said of it."""
        if self._are_spectra(port, shape):
            return "spectrum", "spectra: of -1 to 1, logarithms, whitened"
        if is_picture(shape):
            if self._takes_bytes(port.value):
                return "pixels", "pictures of 0 to 255"
            return "picture", "pictures: of 0 to 1, of -1 to 1, normalised"
        if shape and len(shape) <= 3 and (shape[-1] >= SOUND or (sounds(port.name) and shape[-1] >= SOUND // 10)):
            return "sound", "speech-like sound, tones, noise and silence"
        return PLAIN, "about standard normal, and of 4 and 1/16 times that"

    def _are_spectra(self, port: GraphInput, shape: tuple[int, ...]) -> bool:
        words = SPECTRA if len(shape) > 3 else (*SPECTRA, "feature")
        over_time = any(isinstance(dim, str) and "frame" in dim.lower() for dim in port.shape[-2:])
        named = over_time or any(word in port.name.lower() for word in words)
        return named and len(shape) in (3, 4) and min(shape[-2:]) >= BANDS and shape[-1] < SOUND

    # -- hints in the first operators ---------------------------------------------------------------------------------

    def _takes_bytes(self, value: int) -> bool:
        """Whether the first arithmetic on an input takes numbers up to 255 to small ones."""
        work, seen = [(value, STEPS)], set()
        while work:
            value, steps = work.pop()
            for op in self._flow.readers(value) if steps else []:
                if op.id in seen:
                    continue
                seen.add(op.id)
                if has(op.role, "products"):
                    gain = self._gain(op)
                    if gain is not None:
                        return gain < FAINT
                elif self._divides(op, value):
                    return True
                elif has(op.role, "passes_on") or has(op.role, "joins"):
                    work += [(made, steps - 1) for made in op.outputs]
        return False

    def _divides(self, op: Op, value: int) -> bool:
        other = next((v for v in op.inputs[:2] if v not in (value, NONE)), NONE)
        size = self._largest(other)
        return size is not None and (has(op.role, "scalings") or has(op.role, "cancels")) and not 1 / 64 < size < 64

    def _gain(self, op: Op) -> float | None:
        """The root of the sum of squares of what one output of a product is made with, the median of all outputs.

        Networks keep their numbers about one: where the weights are far below it, what comes in is far above."""
        item = self._flow.values[op.inputs[1]] if len(op.inputs) > 1 and op.inputs[1] != NONE else None
        if item is None or not item.weight or not 0 < self._flow.weights.size(item) <= LARGE:
            return None
        array = self._flow.weights.array(item, LARGE)
        if array is None or array.ndim < 4:
            return None
        rows = np.asarray(array, np.float64).reshape(len(array), -1)
        return float(np.median(np.sqrt(np.square(rows).sum(1))))

    def _largest(self, value: int) -> float | None:
        item = self._flow.values[value] if value != NONE else None
        if item is None or not item.weight or not 0 < self._flow.weights.size(item) <= 16:
            return None
        array = self._flow.weights.array(item)
        return None if array is None else float(np.abs(np.asarray(array, np.float64)).max())


# -- numbers ----------------------------------------------------------------------------------------------------------

PLAIN = "scaled"
KINDS = ("picture", "pixels", "sound", "spectrum", PLAIN)


def made(kind: str, numbers: Numbers, shape: tuple[int, ...], index: int) -> Array:
    """float32 numbers of one of `KINDS`; samples differ in content and in size."""
    if kind == "sound":
        return sound(numbers, shape, index)
    if kind == "spectrum":
        return spectrum(numbers, shape, index)
    if kind == PLAIN:
        return numbers.normal(shape) * np.float32(SCALES[index % len(SCALES)])
    field = pictures(numbers, shape, index)
    if kind == "pixels":
        whole: Array = np.floor(field * np.float32(255))
        return whole
    shifts = SHIFTS_OF_LINES if is_line(shape) else SHIFTS
    span, least = shifts[index % len(shifts)]
    return field * np.float32(span) + np.float32(least)
