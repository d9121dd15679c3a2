"""`ampgraph.verify`: whether a model still computes what its reference does, and which nodes are to blame if not."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from ..core.arguments import check_annotated, check_kind
from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number, is_whole
from ..core.progress import Progress
from ..core.repairs import RepairOutcome
from ..formats.checks import faults_reported
from ..numerics.comparison import Comparison, Outcome, chaos_notes
from ..numerics.decoding import decoding_of
from ..numerics.inputs.samples import load_samples
from ..numerics.metrics.agreement import vanishing_output
from ..numerics.metrics.metric import Function, metric_of
from ..numerics.pairs import make_pair
from ..numerics.trace.fault_search import SECONDS, FaultSearch
from ..report.inspect import view_model
from ..report.picture.page import verification_page
from ..report.picture.writing import refuse_page, write_page
from ..report.verification import Verification
from ..runtime.opening import opening_notes
from .kinds import Data, Model, PathLike, path_of
from .mending import LOOKING, find_repair
from .webgpu_page import WebgpuPage

TOLERANCE, NODES = 1e-2, 5  # that hold by default
COMPARISONS = 4.0  # a search for a repair may take a minute and the time of so many comparisons like the first


def verify(
    reference: Model,
    model: Model,
    *,
    data: Data = None,
    samples: int | None = None,
    tolerance: float = TOLERANCE,
    metric: str | Function = "auto",
    device: str = "auto",
    target: str = "",
    runtime: str = "",
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    nodes: int | None = None,
    steps: int | None = None,
    cache: Sequence[str] = (),
    html: PathLike | None = None,
    webgpu_page: PathLike | None = None,
    onnxruntime_web: PathLike | None = None,
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
        target: the model is executed by the runtime of this target in the precisions of the file, where that runtime is
            here or in the environment that ``runtime`` names; elsewhere it runs strictly.
        runtime: the Python of an environment with what the target needs; this one's if empty.
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
        webgpu_page: write a folder there, whole or not at all: a page that repeats the comparison in a browser, on its
            GPU, and all that it needs. It has to be served (``python -m http.server``); nothing is fetched then.
        onnxruntime_web: the folder of that npm package, for such a page; of the nearest node_modules if not given, else
            as npm fetches it.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: AMP105 for a place where no such folder can be, AMP209 for models whose inputs or outputs differ,
            AMP310 for a dimension that the reference does not have, AMP311 for models that no browser runs, AMP312 for
            a number or a metric that makes no sense, AMP501 where onnxruntime-web is nowhere, and what `run` raises.
    """
    check_annotated(verify, locals())
    _check_arguments(tolerance, nodes, cache, metric)  # a mistake is reported before anything is read
    refuse_page(html, reference, model, data)
    paths = path_of(reference), path_of(model)
    with quiet_collector(), faults_reported(*paths):
        pair = make_pair(reference, model, device, target, runtime)
        browser = WebgpuPage.prepared(webgpu_page, onnxruntime_web, (reference, model), pair, steps)
        decoding = decoding_of(pair, steps, cache)
        lacking = frozenset() if decoding is None else decoding.optional
        drawn = load_samples(pair.reference, data, count=samples, seed=seed, dims=dims, lacking=lacking)
        opens = opening_notes(*paths) if pair.strict else []
        pair.open()
        measure, drawn = metric_of(metric, pair.roles()), drawn.fit_to(pair.run_reference)
        comparison = Comparison(drawn, measure, tolerance, steps, cache)
        seen = comparison.compare(pair, decoding, progress)
        chaos = chaos_notes(pair, drawn, tolerance, seen.compared) if decoding is None else []
        until = time.monotonic() + SECONDS + COMPARISONS * seen.seconds
        search = FaultSearch(pair, seen.compared, tolerance, NODES if nodes is None else nodes, nodes is not None)
        search.kept, search.seen, search.seconds = seen.kept, html is not None, LOOKING * SECONDS
        search.look(drawn, progress)
        mended = None if seen.ok else find_repair(reference, None, search, comparison.compare_repaired, drawn, until)
        said = search.notes_if_chaotic(chaos, mended) if decoding is None else decoding.notes(drawn.generated)
        vanishing = vanishing_output(seen.compared.outputs, pair.roles()) if "float16" in pair.low else ""
        notes = (*opens, *drawn.notes, *pair.notes, *said, *filter(None, [vanishing]), *search.notes)
        found = _verification(paths, tolerance, len(drawn), notes, seen, search, mended)
        if browser is not None:
            browser.write(drawn, found, progress)
    write_page(html, lambda: verification_page(view_model(model), found).html())
    return found


def _verification(
    paths: Sequence[PathLike | None], tolerance: float, samples: int, notes: tuple[str, ...], seen: Outcome,
    search: FaultSearch, mended: RepairOutcome | None,
) -> Verification:  # fmt: skip
    """The report of `verify`: of the comparison (``seen``), the search for nodes to blame, and the search for a repair,
    None where none was made. ``paths``: of reference and model, None for one in memory."""
    pair, compared = seen.pair, seen.compared
    return Verification(
        _path_in_report(paths[0]), _path_in_report(paths[1]), pair.device, pair.strict, pair.run, tolerance, samples,
        tuple(compared.outputs), search.first_nonfinite, search.growth, search.traced, tuple(pair.fallback), notes,
        compared.metric.name, compared.overall, seen.by_step, pair.quantized(), search.left, search.errors, mended,
        pair.layers,
    )  # fmt: skip


def _path_in_report(path: PathLike | None) -> str:
    """A path as the report of the verb `verify` shows it; None is a model in memory."""
    return "in memory" if path is None else str(path)


def _check_arguments(tolerance: float, nodes: int | None, cache: object, metric: str | Function) -> None:
    """Raises AmpError AMP312 for a tolerance, number of nodes, cache or metric that `verify` cannot use."""
    check_kind("cache", cache, (str, list, tuple), 'for example ["past_*=present_*"]')
    metric_of(metric)
    if not is_number(tolerance) or not tolerance >= 0 or math.isinf(tolerance):
        raise AmpError("AMP312", f"the tolerance must be 0 or more, not {tolerance!r}", hint="for example 1e-2")
    if nodes is not None and (not is_whole(nodes) or nodes < 0):
        raise AmpError("AMP312", f"the number of nodes must be 0 or more, not {nodes!r}", hint="0 names none")
