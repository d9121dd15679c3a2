"""The float32 tensors that the stored tensors of a low model were rounded from."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.low_types import MOST_LOST
from .weights import dims, flat, size

STEPS = {ir.DataType.FLOAT16: (2.0**-10, 2.0**-24), ir.DataType.BFLOAT16: (2.0**-7, 2.0**-133)}
"""The step from one number to the next, of the number at most, and the least number."""


class Originals:
    """Those of a reference, by name; what a conversion has renamed, by its numbers."""

    def __init__(self, tensors: Mapping[str, ir.TensorProtocol]) -> None:
        """``tensors``: the reference's in float32, by name; those beside the file are never taken."""
        self._tensors = {name: t for name, t in tensors.items() if not isinstance(t, ir.ExternalTensor)}
        self._by_size: dict[int, list[ir.TensorProtocol]] = {}
        for tensor in self._tensors.values():
            self._by_size.setdefault(size(tensor), []).append(tensor)

    def of(self, name: str, own: ir.TensorProtocol, low: ir.DataType) -> Array | None:
        """The numbers that ``own`` was rounded from, in its shape; None where they are not known.

        ``low``: what it was rounded to. Of a tensor under a new name, as a bias that an addition's constant became, it
        is the closest that differs by rounding and by a factor beside the product (`factors`) alone."""
        known = self._tensors.get(name)
        if known is not None:
            return known.numpy() if dims(known) == dims(own) else None
        alike = [flat(tensor) for tensor in self._by_size.get(size(own), [])]
        numbers = flat(own).astype(np.float64) if alike else np.zeros(0)
        off = [_apart(each.astype(np.float64), numbers, low) for each in alike]
        closest = min(range(len(off)), key=off.__getitem__, default=None)
        return None if closest is None or off[closest] == math.inf else alike[closest].reshape(dims(own))


def _apart(given: Array, numbers: Array, low: ir.DataType) -> float:
    """How far rounded numbers are from those given; infinite where more than a rounding and a factor is between."""
    relative, least = STEPS[low]
    square = float(given @ given)
    factor = float(given @ numbers) / square if square > 0 and given.size > 1 else 1.0
    with np.errstate(invalid="ignore"):
        step = np.abs(given) * relative + least
        same = abs(factor - 1) <= MOST_LOST and bool(np.all(np.abs(numbers - factor * given) <= step))
        return float(np.abs(numbers - given).max(initial=0)) if same else math.inf
