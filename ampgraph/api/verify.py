"""`ampgraph.verify`: whether a model still computes what its reference does, and which nodes are to blame if not."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.arguments import as_annotated, of_kind
from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number, is_whole
from ..core.progress import Progress
from ..core.renamed import renamed_keywords
from ..core.repairs import Mended
from ..formats.checks import faults_reported
from ..numerics.metrics.agreement import vanishing
from ..numerics.metrics.metric import metric_of
from ..report.verification import Verification
from .comparison import Comparison, chaotic
from .decoding import decoding_of
from .fault_search import SECONDS, FaultSearch
from .kinds import Data, Model, PathLike, path_of
from .mending import LOOKING, repair_of
from .opening import noted
from .pairs import paired
from .pictures import picture_verification, refuse_page

if TYPE_CHECKING:
    from ..numerics.metrics.metric import Function

TOLERANCE, NODES = 1e-2, 5
COMPARISONS = 4.0  # that a search for a repair may take beside its minute, each as long as the first one


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
    steps: int | None = None,
    cache: Sequence[str] = (),
    html: PathLike | None = None,
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
        steps: run a decoder, or another model with a state, so many steps from each sample: what it gives is fed back
            to it, to each model its own, and the likeliest token of the reference to both. A sample may lack the cache,
            which is empty then. Every step must meet the tolerance.
        cache: which outputs are fed back, as ``IN=OUT`` with a ``*`` on both sides or none; found by their names if not
            given.
        html: write a page there, whole or not at all: the graph by layers, coloured by the error behind each node in
            the worst sample.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP209 for models whose inputs or outputs differ, AMP310 for a dimension that the reference does not
            have, AMP312 for a number or a metric that makes no sense, and what `run` raises.
    """
    as_annotated(verify, locals())
    _check(tolerance, nodes, cache, metric)  # a mistake is reported before anything is read
    paths = [path_of(item) for item in (reference, model)]
    refuse_page(html, reference, model, data)
    with quiet_collector(), faults_reported(*paths):
        from ..numerics.inputs.samples import load_samples

        pair = paired(reference, model, device)
        decoding = decoding_of(pair, steps, cache)
        lacking = decoding.optional if decoding is not None else frozenset()
        drawn = load_samples(pair.reference, data, count=samples, seed=seed, dims=dims, lacking=lacking)
        opens = noted(*paths) if pair.strict else []
        pair.open()
        measure, drawn = metric_of(metric, pair.roles()), drawn.fitted(pair.expected)
        comparison = Comparison(drawn, measure, tolerance, steps, cache)
        seen = comparison.of(pair, decoding, progress)
        small = vanishing(seen.outputs, pair.roles()) if "float16" in pair.low else ""
        alone = chaotic(pair.expected, drawn, pair.low, tolerance, seen.outputs) if decoding is None else []
        job = FaultSearch(pair, seen.outputs, tolerance, NODES if nodes is None else nodes, nodes is not None)
        until = time.monotonic() + SECONDS + COMPARISONS * seen.seconds
        job.kept, job.metric, job.seen, job.seconds = seen.kept, measure, html is not None, LOOKING * SECONDS
        job.look(drawn, progress)
        mended = None if seen.ok else _mended(reference, job, comparison, until, hopeless=bool(alone))
        said = alone if decoding is None else decoding.notes(drawn.generated)
        notes = (*opens, *drawn.notes, *pair.notes, *said, *([small] if small else []), *job.notes)
        names = ["in memory" if path is None else str(path) for path in paths]
        found = Verification(
            names[0], names[1], pair.device, pair.strict, pair.run, tolerance, len(drawn), tuple(seen.outputs),
            job.born, job.growth, job.traced, tuple(pair.fallback), notes, measure.name, seen.overall, seen.by_step,
            pair.quantized(), job.left, job.errors, mended,
        )  # fmt: skip
    picture_verification(html, model, found)
    return found


def _mended(source: Model, job: FaultSearch, comparison: Comparison, until: float, hopeless: bool) -> Mended | None:
    """The search for a repair. ``hopeless``: where it finds none, nothing is suggested either."""
    found = repair_of(source, None, job, comparison.again, comparison.drawn, until)
    if hopeless and found is not None and found.repair is None:
        job.withdraw()
    return found


def _check(tolerance: float, nodes: int | None, cache: object, metric: str | Function) -> None:
    of_kind("cache", cache, (str, list, tuple), 'for example ["past_*=present_*"]')
    metric_of(metric)
    if not is_number(tolerance) or not tolerance >= 0 or math.isinf(tolerance):
        raise AmpError("AMP312", f"the tolerance must be 0 or more, not {tolerance!r}", hint="for example 1e-2")
    if nodes is not None and (not is_whole(nodes) or nodes < 0):
        raise AmpError("AMP312", f"the number of nodes must be 0 or more, not {nodes!r}", hint="0 names none")
