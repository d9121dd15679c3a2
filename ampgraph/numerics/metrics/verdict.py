"""One number for a model's error over its samples, by the metric that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.arrays import Feeds, Result
from ...core.errors import AmpError
from ...core.files import unwritable
from .agreement import Scores, apart, scale_of
from .metric import SAMPLE, Metric

IN_MEMORY = 256 << 20  # bytes of the reference's outputs


class Judge:
    """Keeps the reference's outputs and judges results against them, as `verify` does.

    Where the result or the reference alone is not finite the error is infinite.

    Attributes:
        outputs: those that are compared.
        skipped: those that the metric is not about.
    """

    def __init__(self, metric: Metric, scratch: Path | None = None) -> None:
        """``scratch``: a folder for what is too much for memory."""
        self.metric = metric
        self.outputs: list[str] = []
        self.skipped: list[str] = []
        self._expected: list[dict[str, Result]] = []
        self._sizes: dict[str, list[float]] = {}
        self._spill = scratch / "expected.bin" if scratch is not None else None
        self._held = 0

    def learn(self, outputs: Feeds) -> None:
        """The reference's outputs for the next sample.

        Raises AmpError: AMP312 when the metric is about none of them, AMP503 when one of them says nothing.
        """
        judged = self.metric.judge(outputs, outputs)
        if not self._expected:
            self.outputs = [name for name in outputs if name in judged or SAMPLE in judged]
            self.skipped = [name for name in outputs if name not in self.outputs]
        silent = next((name for name in judged if name and apart(outputs[name], outputs[name]).silent), None)
        if silent is not None:
            message = f"the float32 model's own output '{silent}' is nowhere finite in sample {len(self._expected)}"
            raise AmpError("AMP503", message, hint="leave that sample out: there is nothing to tune for")
        for name, found in judged.items():
            self._sizes.setdefault(name, []).append(found.size)
        self._expected.append({name: self._kept(value) for name, value in outputs.items()})

    def error(self, sample: int, outputs: Feeds) -> float:
        """The error of one sample's result: of its worst output."""
        expected = self._expected[sample]
        if any(apart(expected[name], outputs[name]).astray for name in self.outputs):
            return math.inf
        judged = self.metric.judge(expected, outputs)
        return max(found.error(scale_of(self._sizes.get(name, ()))) for name, found in judged.items())

    def distance(self, sample: int, outputs: Feeds) -> float:
        """How far the worst output is from the reference's by relative L2, whatever the metric: a share of places says
        nothing of small errors."""
        found = [apart(self._expected[sample][name], outputs[name]) for name in self.outputs]
        return max((math.inf if each.astray else each.error for each in found), default=0.0)

    def over_samples(self, errors: Sequence[float]) -> float:
        """Infinite if any sample's is; else the mean for shares, an error at the 90th percentile for the others."""
        if not np.isfinite(errors).all():
            return math.inf
        return Scores(self.metric.name, list(errors), self.metric.over_all).decisive

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
                start = file.tell()
                value.tofile(file)
        except OSError as error:
            raise unwritable(self._spill, error) from error
        return np.memmap(self._spill, value.dtype, "r", start, value.shape)
