"""Where a conversion's ranges come from: measured now on samples, read from a file, or nowhere."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import AmpError
from ..core.graph import Graph
from ..planner.steps import Options

if TYPE_CHECKING:
    from ..core.ranges import Ranges

MARGIN = 2.0
MOST_SAMPLES = 1_000_000


@dataclass(frozen=True)
class Measuring:
    """What was asked for. ``data``: as `load_samples` takes it; ``ranges``: measured before, or a file of them.

    ``ranges_out`` is written by who converts, with the model.
    """

    data: Any = None
    samples: int | None = None
    ranges: Ranges | str | os.PathLike[str] | None = None
    ranges_out: str | None = None
    margin: float | None = None

    def given(self) -> list[str]:
        """The options that the user wrote."""
        named = {"--data": self.data, "--samples": self.samples, "--ranges": self.ranges}
        named |= {"--ranges-out": self.ranges_out, "--range-margin": self.margin}
        return [name for name, value in named.items() if value is not None]

    @property
    def runs(self) -> bool:
        """Whether the model is to be run; without data, on generated inputs."""
        return self.data is not None or self.samples is not None or self.ranges_out is not None

    def check(self) -> None:
        """Raises AmpError AMP311 for words that contradict each other or make no sense."""
        if self.ranges is not None and self.runs:
            other = next(name for name in self.given() if name != "--ranges")
            hint = "ranges that are read need no run: leave one of the two away"
            raise AmpError("AMP311", f"--ranges and {other} exclude each other", hint=hint)
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin > 0):
            hint = "2 holds what comes within half of the largest number; 1 only what overflows"
            raise AmpError("AMP311", f"--range-margin {self.margin:g} is no positive number", hint=hint)
        if self.margin is not None and not (self.runs or self.ranges is not None):
            hint = "add --data DIR or --ranges FILE"
            raise AmpError("AMP311", "--range-margin does nothing without ranges", hint=hint)
        if self.samples is not None and not 0 < self.samples <= MOST_SAMPLES:
            raise AmpError("AMP311", f"--samples {self.samples} is no number of samples", hint="give 1 or more")

    def steer(self, options: Options, graph: Graph, progress: Callable[[str, int, int], None] | None = None) -> Options:
        """The options with the ranges in them, which are measured now where they have to be; the graph is sorted.

        Raises AmpError AMP304 (MindIR), AMP401, AMP403 (another model's ranges), and what `calibrate` raises.
        """
        self.check()
        if self.ranges is None and not self.runs:
            return options
        if graph.format != "ONNX":
            hint = "measure the ONNX model, or name nodes with --fp32"
            message = f"ranges of {graph.format} models are not measured: MindSpore shows the outputs alone"
            raise AmpError("AMP304", message, hint=hint)
        ranges = self._ranges(graph, options.dims, progress)
        graph.prepare()
        ranges.check(graph.digest())
        return replace(options, ranges=ranges, range_margin=MARGIN if self.margin is None else self.margin)

    def _ranges(
        self, graph: Graph, dims: Mapping[str, int], progress: Callable[[str, int, int], None] | None
    ) -> Ranges:
        if self.ranges is None:
            from ..numerics.ranges.calibrate import calibrate

            return calibrate(graph, self.data, count=self.samples, dims=dims, progress=progress)
        if isinstance(self.ranges, (str, os.PathLike)):
            from ..core.ranges import Ranges

            return Ranges.read(Path(self.ranges))
        return self.ranges
