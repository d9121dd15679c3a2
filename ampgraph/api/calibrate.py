"""`ampgraph.calibrate`: what range every value of a model has; and how verbs with --data measure before they plan."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arguments import check_annotated, check_kind
from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.progress import Progress
from ..core.ranges import Ranges
from ..core.recipe import Recipe
from ..formats import adapters
from ..formats.checks import faults_reported
from ..formats.onnx.graph import OnnxGraph
from ..numerics.inputs.samples import MOST_SAMPLES, Samples, load_samples
from ..numerics.ranges.segments import LIMIT
from .kinds import Data, Model, is_graph, path_of

if TYPE_CHECKING:
    from ..oplists.options import Options


@dataclass(frozen=True)
class Measuring:
    """The run that measures ranges for a plan, as a verb was asked for it by any of ``data``, as `calibrate` takes it,
    ``samples``, how many at most, and ``out``, a file that `convert` writes. None: not given. ``used`` False: no run is
    made all the same. ``until``: the time of `time.monotonic` behind which no sample is begun but the first."""

    data: Data = None
    samples: int | None = None
    out: str | None = None
    used: bool = True
    until: float = math.inf

    def options_given(self) -> list[str]:
        """The options of measuring that the user gave a verb, by their names on the command line."""
        named = {"--data": self.data, "--samples": self.samples, "--ranges-out": self.out}
        return [name for name, value in named.items() if value is not None]

    def check(self, recipe: Recipe) -> None:
        """Raises AmpError AMP311 for a verb's options of measuring that contradict each other or do nothing."""
        asked = self.options_given()  # each alone asks for the run
        if recipe.ranges is not None and asked and self.used:
            hint = "ranges that are read need no run: omit one of the two"
            raise AmpError("AMP311", f"--ranges and {asked[0]} exclude each other", hint=hint)
        if recipe.range_margin is not None and not asked and recipe.ranges is None:
            hint = "add --data DIR or --ranges FILE"
            raise AmpError("AMP311", "--range-margin does nothing without ranges", hint=hint)
        if self.samples is not None and not 0 < self.samples <= MOST_SAMPLES:
            message = f"--samples {self.samples:,} is out of range"
            raise AmpError("AMP311", message, hint=f"give 1 to {MOST_SAMPLES:,}")

    def measured_options(self, options: Options, graph: Graph, progress: Progress | None = None) -> Options:
        """For a verb with --data: its planning options with ranges: those of the recipe, read from a file if it names
        one, or measured on the graph now; unchanged where neither is asked for. Sorts the graph where ranges are used.

        Raises AmpError AMP304 (MindIR), AMP401 (no file of ranges), AMP403 (another model's ranges), and what
        `calibrate` raises."""
        self.check(options.recipe)
        given = options.recipe.ranges
        if given is None and not (self.used and self.options_given()):
            return options
        _refuse_format(graph)
        ranges = Ranges.read(Path(given)) if isinstance(given, str) else given
        if ranges is None:
            ranges = _measure(graph, self.data, self.samples, 0, options.dims, progress=progress, until=self.until)
        graph.prepare()
        ranges.check(graph.digest())
        return replace(options, ranges=ranges)


def _refuse_format(graph: Graph) -> None:
    """For `calibrate` and --data: raises AmpError AMP304 for a model whose ranges cannot be measured."""
    if graph.format != "ONNX":
        message = f"ranges of {graph.format} models are not measured: MindSpore shows the outputs alone"
        raise AmpError("AMP304", message, hint="measure the ONNX model, or name nodes with --fp32")


def calibrate(
    model: Model | Graph,
    data: Data = None,
    *,
    count: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    device: str = "cpu",
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Ranges:
    """Runs a model in float32 on samples and records what range every float32 value has.

    Integer tensors are no ranges. Values in functions are told apart by call. Of values in the bodies of If, Loop and
    Scan the extremes are recorded alone; what could not be measured is counted in ``notes``.

    Args:
        model: an ONNX model as `convert` takes it, or a Graph. It is not changed.
        data: an .npz file, a folder of them, an iterable of mappings, or None: inputs are generated.
        count: samples at most; 8 where they are generated.
        seed: for generated samples.
        dims: sizes of symbolic dimensions, for generated samples.
        device: cpu, cuda, tensorrt, cann or auto.
        limit: bytes of values that are held at once.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP1xx (files), AMP304 (MindIR), AMP501 to AMP505 (runtime, data).
    """
    check_annotated(calibrate, locals())
    check_kind("limit", limit, (int,), "give a number of bytes")
    return _measure(model, data, count, seed, dims, device, limit, progress)


def _measure(
    model: Model | Graph, data: Data, count: int | None, seed: int, dims: Mapping[str, int] | None,
    device: str = "cpu", limit: int = LIMIT, progress: Progress | None = None, until: float = math.inf,
) -> Ranges:  # fmt: skip
    """`calibrate`, which begins no sample behind ``until`` a time of `time.monotonic` but the first."""
    from ..numerics.ranges.calibrate import measured_ranges
    from ..numerics.strict.session import StrictSession

    def run(graph: OnnxGraph, samples: Samples) -> Ranges:
        late = lambda so_far: time.monotonic() > until  # noqa: E731
        return measured_ranges(graph, samples, device=device, limit=limit, progress=progress, enough=late)

    with quiet_collector(), faults_reported(path_of(model)):
        graph = model if is_graph(model) else adapters.load(model)[0]
        _refuse_format(graph)
        assert isinstance(graph, OnnxGraph)
        graph.prepare()
        samples = load_samples(graph, data, count, seed, dims)
        try:
            return run(graph, samples)
        except AmpError as error:
            if not samples.generated or error.code != "AMP504":
                raise
        return run(graph, samples.fit_to(StrictSession(graph).run))  # sizes that were guessed may not be the model's
