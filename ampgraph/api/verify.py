"""`ampgraph.verify`: whether a model still computes what its reference does, and which nodes are to blame if not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..core.arguments import as_annotated, of_kind
from ..core.arrays import Result
from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number, is_whole
from ..core.progress import Progress
from ..core.repairs import Mended
from ..core.verdict import chaotic_in_itself
from ..formats.checks import faults_reported
from ..numerics.inputs.samples import Samples, load_samples
from ..numerics.metrics.agreement import Agreement, sensitivity, vanishing
from ..numerics.metrics.metric import Function, Metric, metric_of
from ..numerics.metrics.verdict import Compared
from ..numerics.trace.fault_search import SECONDS, FaultSearch
from ..report.inspect import see
from ..report.picture.page import verification_page
from ..report.verification import Verification
from ..runtime.opening import noted
from .decoding import Decoding, Run, decoding_of
from .kinds import Data, Feeds, Model, PathLike, path_of
from .mending import LOOKING, Outcome, repair_of
from .pairs import OnnxPair, Pair, paired
from .pictures import refuse_page, write_page
from .webgpu_page import WebgpuPage

TOLERANCE, NODES = 1e-2, 5
COMPARISONS = 4.0  # that a search for a repair may take beside its minute, each as long as the first one


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
    as_annotated(verify, locals())
    _check_arguments(tolerance, nodes, cache, metric)  # a mistake is reported before anything is read
    refuse_page(html, reference, model, data)
    paths = path_of(reference), path_of(model)
    with quiet_collector(), faults_reported(*paths):
        pair = paired(reference, model, device, target, runtime)
        browser = WebgpuPage.of(webgpu_page, onnxruntime_web, (reference, model), pair, steps)
        decoding = decoding_of(pair, steps, cache)
        lacking = frozenset() if decoding is None else decoding.optional
        drawn = load_samples(pair.reference, data, count=samples, seed=seed, dims=dims, lacking=lacking)
        opens = noted(*paths) if pair.strict else []
        pair.open()
        measure, drawn = metric_of(metric, pair.roles()), drawn.fitted(pair.expected)
        comparison = Comparison(drawn, measure, tolerance, steps, cache)
        seen = comparison.of(pair, decoding, progress)
        alone = chaotic(pair.expected, drawn, pair.low, tolerance, seen.compared.outputs) if decoding is None else []
        until = time.monotonic() + SECONDS + COMPARISONS * seen.seconds
        job = FaultSearch(pair, seen.compared, tolerance, NODES if nodes is None else nodes, nodes is not None)
        job.kept, job.seen, job.seconds = seen.kept, html is not None, LOOKING * SECONDS
        job.look(drawn, progress)
        mended = None if seen.ok else repair_of(reference, None, job, comparison.again, drawn, until)
        said = job.chaotic(alone, mended) if decoding is None else decoding.notes(drawn.generated)
        small = filter(None, [vanishing(seen.compared.outputs, pair.roles())] if "float16" in pair.low else [])
        notes = (*opens, *drawn.notes, *pair.notes, *said, *small, *job.notes)
        found = _verification(paths, tolerance, len(drawn), notes, seen, job, mended)
        if browser is not None:
            browser.write(drawn, found, progress)
    write_page(html, lambda: verification_page(see(model), found).html())
    return found


def _verification(
    paths: Sequence[PathLike | None], tolerance: float, samples: int, notes: tuple[str, ...], seen: Outcome,
    job: FaultSearch, mended: Mended | None,
) -> Verification:  # fmt: skip
    """The report of `verify`, of what was compared and of what was looked for."""
    pair, compared = seen.pair, seen.compared
    return Verification(
        _path_in_report(paths[0]), _path_in_report(paths[1]), pair.device, pair.strict, pair.run, tolerance, samples,
        tuple(compared.outputs), job.first_nonfinite, job.growth, job.traced, tuple(pair.fallback), notes,
        compared.metric.name, compared.overall, seen.by_step, pair.quantized(), job.left, job.errors, mended,
        pair.layers,
    )  # fmt: skip


def _path_in_report(path: PathLike | None) -> str:
    """A path as the report shows it."""
    return "in memory" if path is None else str(path)


def _check_arguments(tolerance: float, nodes: int | None, cache: object, metric: str | Function) -> None:
    """Refuses a tolerance, number of nodes, cache or metric that verify cannot use."""
    of_kind("cache", cache, (str, list, tuple), 'for example ["past_*=present_*"]')
    metric_of(metric)
    if not is_number(tolerance) or not tolerance >= 0 or math.isinf(tolerance):
        raise AmpError("AMP312", f"the tolerance must be 0 or more, not {tolerance!r}", hint="for example 1e-2")
    if nodes is not None and (not is_whole(nodes) or nodes < 0):
        raise AmpError("AMP312", f"the number of nodes must be 0 or more, not {nodes!r}", hint="0 names none")


# -- the comparison, of the pair that is given and of what is tried instead --------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """How models are compared: on which samples, by which metric; ``steps`` and ``cache`` as `verify` takes them."""

    drawn: Samples
    metric: Metric
    tolerance: float
    steps: int | None = None
    cache: Sequence[str] = ()

    def of(self, pair: Pair, decoding: Decoding | None, progress: Progress | None = None) -> Outcome:
        """Compares the outputs of a pair of models that is open, sample by sample."""
        start = time.monotonic()
        runs = self._one_by_one(pair, progress) if decoding is None else decoding.runs(self.drawn, progress)
        seen = Compared(self.metric)
        for number, (expected, found) in enumerate(runs):
            error = seen.add(expected, found)
            if decoding is not None:
                decoding.keep_worst(number, error)
        if not seen.found:
            raise AmpError("AMP209", "the models have no output to compare", hint="see `ampgraph inspect`")
        by_step = () if decoding is None else decoding.by_step(seen.outputs)
        largest = max((seen.error, *(step.error for step in by_step)))
        ok = seen.within(self.tolerance) and all(step.error <= self.tolerance for step in by_step)
        kept = None if decoding is None else decoding.worst
        return Outcome(largest, ok, pair, seen, kept, by_step, time.monotonic() - start)

    def again(self, pair: OnnxPair) -> Outcome:
        """Compares another model, as a repair made it, with the same reference."""
        return self.of(pair, decoding_of(pair, self.steps, self.cache))

    def _one_by_one(self, pair: Pair, progress: Progress | None) -> Iterator[Run]:
        """Runs both models on each sample, one after the other; their outputs."""
        for number, feeds in enumerate(self.drawn):
            if progress:
                progress("comparing", number, len(self.drawn))
            yield pair.both(feeds)


def chaotic(
    run: Callable[[Feeds], Mapping[str, Result]], drawn: Samples, low: Sequence[str], tolerance: float,
    outputs: Sequence[Agreement],
) -> list[str]:  # fmt: skip
    """A note on a model that misses a tolerance, and would whatever was low in it: its inputs' rounding is enough."""
    if not low or all(output.within(tolerance) for output in outputs):
        return []
    name, found = sensitivity(run, drawn, low[0])
    return [chaotic_in_itself(found, name)] if found > tolerance else []
