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
from ..report.verification import Verification
from .fault_search import FaultSearch
from .kinds import Data, Model, path_of
from .pairs import Pair, paired

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from ..numerics.inputs.samples import Samples

TOLERANCE, NODES = 1e-2, 5


@renamed_keywords("0.3", told="progress")
def verify(
    reference: Model,
    model: Model,
    *,
    data: Data = None,
    samples: int | None = None,
    tolerance: float = TOLERANCE,
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
        tolerance: the relative L2 error that the 90th percentile of every output may have.
        device: auto takes the best that is here; on the CPU ONNX models run strictly. The reference runs on the CPU.
        dims: sizes of symbolic dimensions, for generated inputs.
        nodes: how many nodes to name where the error grows. If not given, 5 where the tolerance is missed, those behind
            which the error is larger by a tenth of it; else none.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP209 for models whose inputs or outputs differ, AMP310 for a dimension that the reference does not
            have, AMP312 for a number that makes no sense, and what `run` raises.
    """
    _check(tolerance, nodes)
    paths = [path_of(item) for item in (reference, model)]
    with quiet_collector(), faults_reported(*paths):
        from ..numerics.inputs.samples import load_samples

        pair = paired(reference, model, device)
        drawn = load_samples(pair.reference, data, count=samples, seed=seed, dims=dims)
        pair.open()
        drawn = drawn.fitted(pair.probe)
        outputs = _compared(pair, drawn, progress)
        job = FaultSearch(pair, outputs, tolerance, NODES if nodes is None else nodes, nodes is not None)
        job.look(drawn, progress)
        names = [str(path) if path is not None else "in memory" for path in paths]
        return Verification(
            names[0], names[1], pair.device, pair.strict, pair.run, tolerance, len(outputs[0].errors), tuple(outputs),
            job.born, job.growth, job.traced, tuple(pair.fallback), (*drawn.notes, *pair.notes, *job.notes),
        )  # fmt: skip


def _check(tolerance: float, nodes: int | None) -> None:
    if not is_number(tolerance) or not tolerance >= 0 or math.isinf(tolerance):
        raise AmpError("AMP312", f"tolerance {tolerance!r} is no number from 0 on", hint="for example 1e-2")
    if nodes is not None and (not is_whole(nodes) or nodes < 0):
        raise AmpError("AMP312", f"{nodes!r} nodes are asked for", hint="0 names none")


def _compared(pair: Pair, drawn: Samples, progress: Progress | None) -> list[Agreement]:
    outputs: dict[str, Agreement] = {}
    for number, feeds in enumerate(drawn):
        if progress:
            progress("comparing", number, len(drawn))
        expected, found = pair.both(feeds)
        for name, value in expected.items():
            outputs.setdefault(name, Agreement(name)).add(apart(value, found[name]))
    if not outputs:
        raise AmpError("AMP209", "the models have no output to compare", hint="see `ampgraph inspect`")
    return list(outputs.values())
