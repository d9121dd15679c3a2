"""`ampgraph.calibrate`: what range every value of a model has."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.arguments import as_annotated, of_kind
from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.graph import Graph
from ..core.progress import Progress
from ..core.ranges import Ranges
from ..core.renamed import renamed_keywords
from ..formats import adapters
from ..formats.checks import faults_reported
from ..formats.onnx.graph import OnnxGraph
from ..numerics.inputs.samples import load_samples
from ..numerics.ranges.calibrate import measured_ranges
from ..numerics.ranges.segments import LIMIT
from ..numerics.strict.session import StrictSession
from .kinds import Data, Model, is_graph, path_of


@renamed_keywords("0.3", told="progress")
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
    as_annotated(calibrate, locals())
    of_kind("limit", limit, (int,), "give a number of bytes")
    with quiet_collector(), faults_reported(path_of(model)):
        graph = model if is_graph(model) else adapters.load(model)[0]
        if not isinstance(graph, OnnxGraph):
            why = f"ranges of {graph.format} models are not measured: MindSpore shows the outputs alone"
            raise AmpError("AMP304", why, hint="measure the ONNX model, or name nodes with --fp32")
        graph.prepare()
        samples = load_samples(graph, data, count, seed, dims)
        try:
            return measured_ranges(graph, samples, device=device, limit=limit, progress=progress)
        except AmpError as error:
            if not samples.generated or error.code != "AMP504":
                raise
        samples = samples.fitted(StrictSession(graph).run)  # sizes that were guessed may not be the model's
        return measured_ranges(graph, samples, device=device, limit=limit, progress=progress)
