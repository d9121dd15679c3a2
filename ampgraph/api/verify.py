"""`ampgraph.verify`: whether a model still computes what its reference does, and which nodes are to blame if not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number, is_whole
from ..core.progress import Progress
from ..core.renamed import renamed_keywords
from ..formats.checks import faults_reported
from ..numerics.metrics.agreement import Agreement, apart
from ..numerics.metrics.judged import Scores
from ..numerics.metrics.metric import SAMPLE, Metric, metric_of
from ..report.verification import Verification
from .fault_search import FaultSearch
from .kinds import Data, Model, path_of
from .pairs import Pair, paired

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples
    from ..numerics.metrics.custom import Function

TOLERANCE, NODES = 1e-2, 5


@renamed_keywords("0.3", told="progress")
def verify(
    reference: Model,
    model: Model,
    *,
    data: Data = None,
    samples: int | None = None,
    tolerance: float = TOLERANCE,
    metric: str | Function = "auto",
    device: str = "auto",
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    nodes: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Runs two models on the same samples and compares them.

    Args:
        reference: the float32 model: a path (.onnx or .mindir), or an ONNX model as `convert` takes it.
        model: what was made from it, of the same format.
        data: an .npz file, a folder of them, an iterable of mappings; without it inputs are generated from ``seed``.
        samples: how many at most; 8 where they are generated.
        tolerance: the error that 9 of 10 samples must meet at every output, or their mean where it is a share.
        metric: how an output's error is measured: ``auto`` (numbers by relative L2, probabilities as such, classes
            and tokens by the share that differs, detections as sets), another that ``--help`` names, a function of two
            mappings from outputs to arrays (the reference's and the model's, of one sample) that returns one error, 0
            for alike; or where such a function is: ``module:function``, ``file.py:function``.
        device: auto takes the best that is here; on the CPU ONNX models run strictly. The reference runs on the CPU.
        dims: sizes of symbolic dimensions, for generated inputs.
        nodes: how many nodes to name where the error grows. If not given, 5 where the tolerance is missed, those behind
            which the error is larger by a tenth of it; else none.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP209 for models whose inputs or outputs differ, AMP310 for a dimension that the reference does not
            have, AMP312 for a number or a metric that makes no sense, and what `run` raises.
    """
    _check(tolerance, nodes)
    metric_of(metric)  # a mistake is told before anything is read
    paths = [path_of(item) for item in (reference, model)]
    with quiet_collector(), faults_reported(*paths):
        from ..numerics.inputs.samples import load_samples

        pair = paired(reference, model, device)
        drawn = load_samples(pair.reference, data, count=samples, seed=seed, dims=dims)
        pair.open()
        drawn = drawn.fitted(pair.probe)
        measure = metric_of(metric, pair.roles())
        outputs, overall = compared(pair, drawn, measure, progress)
        job = FaultSearch(pair, outputs, tolerance, NODES if nodes is None else nodes, nodes is not None)
        job.look(drawn, progress)
        names = [str(path) if path is not None else "in memory" for path in paths]
        return Verification(
            names[0], names[1], pair.device, pair.strict, pair.run, tolerance, len(outputs[0].errors), tuple(outputs),
            job.born, job.growth, job.traced, tuple(pair.fallback), (*drawn.notes, *pair.notes, *job.notes),
            measure.name, overall,
        )  # fmt: skip


def _check(tolerance: float, nodes: int | None) -> None:
    if not is_number(tolerance) or not tolerance >= 0 or math.isinf(tolerance):
        raise AmpError("AMP312", f"tolerance {tolerance!r} is no number from 0 on", hint="for example 1e-2")
    if nodes is not None and (not is_whole(nodes) or nodes < 0):
        raise AmpError("AMP312", f"{nodes!r} nodes are asked for", hint="0 names none")


def compared(
    pair: Pair, drawn: Samples, metric: Metric, progress: Progress | None
) -> tuple[list[Agreement], Scores | None]:
    """The outputs over the samples, and what the metric says of samples as a whole where it does that."""
    outputs: dict[str, Agreement] = {}
    overall: list[float] = []
    for number, feeds in enumerate(drawn):
        if progress:
            progress("comparing", number, len(drawn))
        expected, found = pair.both(feeds)
        judged = metric.judge(expected, found)
        overall += [judged[SAMPLE].error()] if SAMPLE in judged else []
        for name, value in expected.items():
            output = outputs.setdefault(name, Agreement(name, over_all=metric.over_all))
            output.counts = name in judged
            output.add(apart(value, found[name]), judged.get(name))
    if not outputs:
        raise AmpError("AMP209", "the models have no output to compare", hint="see `ampgraph inspect`")
    return list(outputs.values()), Scores(metric.name, overall) if overall else None
