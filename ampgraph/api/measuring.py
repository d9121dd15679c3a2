"""Where a conversion's ranges come from: measured now on samples, read from a file, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.progress import Progress
from ..core.ranges import Ranges
from ..core.recipe import Recipe
from ..numerics.inputs.samples import MOST_SAMPLES
from .kinds import Data

if TYPE_CHECKING:
    from ..planner.options import Options


@dataclass(frozen=True)
class Measuring:
    """The run that measures. ``data``: as `load_samples` takes it; ``out``: a file for what was measured, which who
    converts writes with the model."""

    data: Data = None
    samples: int | None = None
    out: str | None = None

    def given(self) -> list[str]:
        """The options that the user wrote."""
        named = {"--data": self.data, "--samples": self.samples, "--ranges-out": self.out}
        return [name for name, value in named.items() if value is not None]

    def check(self, recipe: Recipe) -> None:
        """Raises AmpError AMP311 for words that contradict each other or make no sense."""
        asked = self.given()  # without data, the run is on generated inputs
        if recipe.ranges is not None and asked:
            hint = "ranges that are read need no run: omit one of the two"
            raise AmpError("AMP311", f"--ranges and {asked[0]} exclude each other", hint=hint)
        if recipe.range_margin is not None and not asked and recipe.ranges is None:
            hint = "add --data DIR or --ranges FILE"
            raise AmpError("AMP311", "--range-margin does nothing without ranges", hint=hint)
        if self.samples is not None and not 0 < self.samples <= MOST_SAMPLES:
            message = f"--samples {self.samples:,} is out of range"
            raise AmpError("AMP311", message, hint=f"give 1 to {MOST_SAMPLES:,}")

    def steer(self, options: Options, graph: Graph, progress: Progress | None = None) -> Options:
        """The options with the ranges in them, which are measured now where they have to be; the graph is sorted.

        Raises AmpError AMP304 (MindIR), AMP401, AMP403 (another model's ranges), and what `calibrate` raises.
        """
        self.check(options.recipe)
        given = options.recipe.ranges
        if given is None and not self.given():
            return options
        if graph.format != "ONNX":
            hint = "measure the ONNX model, or name nodes with --fp32"
            message = f"ranges of {graph.format} models are not measured: MindSpore shows the outputs alone"
            raise AmpError("AMP304", message, hint=hint)
        ranges = Ranges.read(Path(given)) if isinstance(given, str) else given
        if ranges is None:
            from .calibrate import calibrate

            ranges = calibrate(graph, self.data, count=self.samples, dims=options.dims, progress=progress)
        graph.prepare()
        ranges.check(graph.digest())
        return replace(options, ranges=ranges)
