"""One number for a model's error over its samples, by the metric that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.arrays import Array, DType, Feeds, Result
from ...core.errors import AmpError, nearest
from ...core.files import unwritable
from .agreement import apart

METRICS = ("l2", "max", "argmax", "cosine")
QUANTILE = 0.9
IN_MEMORY = 256 << 20  # bytes of the reference's outputs


@dataclass(frozen=True)
class _Spilled:
    """An array in a file: bytes, since files cannot name bfloat16."""

    path: Path
    start: int
    dtype: DType
    shape: tuple[int, ...]

    def load(self) -> Array:
        size = math.prod(self.shape) * self.dtype.itemsize
        return np.fromfile(self.path, np.uint8, size, offset=self.start).view(self.dtype).reshape(self.shape)


class Judge:
    """Keeps the reference's outputs and judges results against them, as `verify` does.

    ``l2``: norm of the difference over norm of the reference; ``max``: largest difference over the largest magnitude;
    ``cosine``: 1 - cosine similarity; for integer outputs the share of elements that differ; each of the worst output.
    ``argmax``: share of places where another class is the largest; integer outputs are classes. Where the result or the
    reference alone is not finite the error is infinite.

    Attributes:
        outputs: those that are compared.
        skipped: those that are not.
    """

    def __init__(self, metric: str, scratch: Path | None = None) -> None:
        """``scratch``: a folder for what is too much for memory. Raises AmpError AMP312 for an unknown metric."""
        if metric not in METRICS:
            hint = nearest(metric, list(METRICS)) or ", ".join(METRICS)
            raise AmpError("AMP312", f"unknown metric '{metric}'", hint=hint)
        self.metric = metric
        self.outputs: list[str] = []
        self.skipped: list[str] = []
        self._expected: list[dict[str, Result]] = []
        self._spill = scratch / "expected.bin" if scratch is not None else None
        self._held = 0

    def learn(self, outputs: Feeds) -> None:
        """The reference's outputs for the next sample.

        Raises AmpError: AMP312 when the metric fits none of them, AMP503 when one of them says nothing.
        """
        if not self._expected:
            self.outputs = [name for name, value in outputs.items() if self.metric != "argmax" or _has_classes(value)]
            self.skipped = [name for name in outputs if name not in self.outputs]
            if not self.outputs:
                hint = "use --metric l2, max or cosine: argmax is for scores of classes"
                raise AmpError("AMP312", "no output has an axis of classes for metric argmax", hint=hint)
        silent = next((name for name in self.outputs if apart(outputs[name], outputs[name]).silent), None)
        if silent is not None:
            message = f"the float32 model's own output '{silent}' is nowhere finite in sample {len(self._expected)}"
            raise AmpError("AMP503", message, hint="leave that sample out: there is nothing to tune for")
        self._expected.append({name: self._kept(outputs[name]) for name in self.outputs})

    def error(self, sample: int, outputs: Feeds) -> float:
        """The error of one sample's result: of its worst output."""
        return max(self._one(_read(want), outputs[name]) for name, want in self._expected[sample].items())

    def over_samples(self, errors: Sequence[float]) -> float:
        """Infinite if any sample's is; else the mean for argmax, an error at the 90th percentile for the others."""
        if not np.isfinite(errors).all():
            return math.inf
        if self.metric == "argmax":
            return float(np.mean(errors))
        return sorted(errors)[math.ceil(QUANTILE * len(errors)) - 1]

    def _kept(self, value: Any) -> Any:
        """The value, or where it was put once the memory for them is full."""
        if isinstance(value, list):
            return [self._kept(item) for item in value]
        if not isinstance(value, np.ndarray) or value.dtype.hasobject or self._spill is None:
            return value
        if self._held + value.nbytes <= IN_MEMORY:
            self._held += value.nbytes
            return value
        try:
            with open(self._spill, "ab") as file:
                stored = _Spilled(self._spill, file.tell(), value.dtype, value.shape)
                file.write(np.ascontiguousarray(value).tobytes())
        except OSError as error:
            raise unwritable(self._spill, error) from error
        return stored

    def _one(self, want: Any, got: Any) -> float:
        if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
            return max((self._one(a, b) for a, b in zip(want, got, strict=True)), default=0.0)
        found = apart(want, got)
        if not math.isfinite(found.error) or want is None or not _is_float(np.asarray(want)):
            return found.error
        if self.metric == "argmax":
            return _other_class(np.asarray(want), np.asarray(got))
        if self.metric == "max":
            finite = np.abs(np.asarray(want, np.float64)[np.isfinite(want)])
            return found.max_abs / (float(finite.max(initial=0)) or 1.0)
        if self.metric == "cosine":
            return 1 - found.cosine if found.cosine is not None else float(found.error > 0)
        return found.error


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    return value.load() if isinstance(value, _Spilled) else value


def _other_class(want: Array, got: Array) -> float:
    axis = _class_axis(want)
    return float(np.mean(want.argmax(axis) != got.argmax(axis))) if want.size else 0.0


def _has_classes(value: Any) -> bool:
    if value is None or isinstance(value, list):
        return False
    array = np.asarray(value)
    return array.dtype.kind in "iu" or (_is_float(array) and array.ndim > 0 and array.shape[_class_axis(array)] > 1)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _class_axis(array: Array) -> int:
    """The second axis of maps [N, C, H, W], else the last."""
    return 1 if array.ndim >= 4 else array.ndim - 1
