"""`ampgraph tune`: as little float32 as meets a tolerance, found by strict runs."""

from __future__ import annotations

import functools
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import AmpError, is_number
from ..core.files import sources_of, try_folder
from ..core.graph import is_mindir
from ..core.plan import Plan
from ..core.progress import Progress
from ..formats import adapters
from ..formats.checks import faults_reported, refuse_overwriting
from ..formats.onnx.graph import OnnxGraph, quiet_collector
from ..numerics.tune.search import BUDGET, Point, Search
from ..planner.steps import Options, judge
from . import pipeline

if TYPE_CHECKING:
    from ..core.dataflow import Dataflow
    from ..numerics.inputs.samples import Samples
    from ..numerics.metrics.verdict import Judge
    from ..planner.promotions import Group


@dataclass(frozen=True)
class Candidate:
    """A conversion that was run: how it came about, its error, the nodes and bytes that it has in float32."""

    step: str
    error: float
    nodes: int
    bytes: int
    promoted: int  # groups
    chosen: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; null for an infinite error."""
        return {**asdict(self), "error": self.error if math.isfinite(self.error) else None}


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes:
        met: whether the tolerance is met; if not, ``plan`` is None and nothing was written.
        error: of the chosen candidate, or the smallest that was reached.
        patterns: for ``fp32=`` or ``--fp32``, beside those that were given.
        frontier: candidates that none beats in bytes and in error, the smallest first.
        candidates: all, in the order of the runs.
        runs: strict runs, that is passes over the samples, of candidates and to measure.
    """

    model: str
    output: str | None
    met: bool
    error: float
    tolerance: float
    metric: str
    level: str
    dtype: str
    runs: int
    samples: int
    nodes: int  # that have something to decide
    plan: Plan | None
    patterns: tuple[str, ...]
    frontier: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; without the plan."""
        names = ("model", "output", "met", "tolerance", "metric", "level", "dtype", "runs", "samples", "nodes")
        return {name: getattr(self, name) for name in names} | {
            "error": self.error if math.isfinite(self.error) else None,
            "patterns": list(self.patterns),
            "frontier": [point.to_dict() for point in self.frontier],
            "candidates": [point.to_dict() for point in self.candidates],
            "notes": list(self.notes),
        }


def tune(
    model: Any,
    *,
    data: Any = None,
    tolerance: float = 1e-2,
    metric: str = "l2",
    level: str = "O2",
    dtype: str = "float16",
    samples: int | None = None,
    seed: int = 0,
    lists: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    fp32: Iterable[str] = (),
    low: Iterable[str] = (),
    io: str | Sequence[str] = "keep",
    target: str | None = None,
    dims: Mapping[str, int] | None = None,
    store_weights: str | None = None,
    output: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Finds the smallest set of nodes to keep in float32 so that a level's conversion meets a tolerance.

    Starts from the level's plan. Where it misses the tolerance, one strict run measures every low node's own error and
    one how errors grow; the nodes that contribute most go back to float32, as patterns through the planner, as many as
    are needed; then parts of them are made low again as long as the tolerance holds. At most 20 strict runs.

    Args:
        model: an ONNX model as `convert` takes it.
        data: an .npz file, a folder of them, an iterable of mappings; without it inputs are generated from ``seed``.
        tolerance: the error that 9 of 10 samples must meet (for argmax: on average).
        metric: ``l2``, ``max``, ``argmax`` or ``cosine``, of the worst output; see `Judge`. A sample whose result is
            not finite where the reference is misses every tolerance.
        level: the level to start from; and the other arguments as in `convert`.
        samples: how many samples at most; 8 where they are generated.
        output: write the tuned model there, whole or not at all, if the tolerance is met.
        progress: hears of progress.

    Raises:
        AmpError: AMP304 (MindIR), AMP312 (a tolerance or metric that makes no sense), what `convert` and `run` raise.
    """
    if not (is_number(tolerance) and math.isfinite(tolerance) and tolerance > 0):
        raise AmpError("AMP312", f"tolerance {tolerance!r} is no positive number", hint="for example 1e-2")
    if is_mindir(model):
        hint = "tune the ONNX model, or name nodes for `convert` with --fp32"
        raise AmpError("AMP304", "MindIR models are not tuned yet", hint=hint)
    source = model if isinstance(model, (str, os.PathLike)) else None
    with quiet_collector(), faults_reported(source), tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        from ..numerics.inputs.samples import load_samples
        from ..numerics.metrics.verdict import Judge

        options = pipeline.build_options(level, dtype, "ampgraph", lists, fp32, low, target, dims, store_weights)
        judge = Judge(metric, Path(scratch))
        graph = _loaded(model)
        if output is not None:
            refuse_overwriting(graph, Path(output), sources_of(source, data, lists), "-o")
            try_folder(Path(output), "-o")
        low_io = pipeline.low_interface(graph, io)
        drawn = load_samples(graph, data, count=samples, seed=seed, dims=dims)
        bench = _Bench(model, options, low_io, drawn, judge, Path(scratch), progress)
        search = bench.search(tolerance)
        best = search.run()
        found = _tuning(bench, search, best, tolerance, source)
        if best is None or output is None:
            return found
        bench.write(best, output)
        return replace(found, output=os.fspath(output))


def _loaded(model: Any) -> OnnxGraph:
    graph = adapters.load(model)[0]
    assert isinstance(graph, OnnxGraph)
    return graph


def _tuning(bench: _Bench, search: Search, best: Point | None, tolerance: float, source: Any) -> Tuning:
    def candidate(point: Point) -> Candidate:
        return Candidate(point.step, point.error, point.nodes, point.bytes, len(point.promoted), point is best)

    notes = list(bench.samples.notes)
    if bench.judge.skipped:
        notes.append(f"not compared, as they have no classes: {', '.join(bench.judge.skipped)}")
    return Tuning(
        model=os.fspath(source) if source is not None else "in memory",
        output=None,
        met=best is not None,
        error=best.error if best is not None else min(point.error for point in search.points),
        tolerance=tolerance,
        metric=bench.judge.metric,
        level=bench.options.level.name,
        dtype=bench.options.dtype,
        runs=search.runs,
        samples=len(bench.samples),
        nodes=bench.nodes,
        plan=bench.convert(best.promoted)[1] if best is not None else None,
        patterns=bench.patterns(best.promoted) if best is not None else (),
        frontier=tuple(map(candidate, search.frontier())),
        candidates=tuple(map(candidate, search.points)),
        notes=tuple(notes),
    )


@dataclass
class _Bench:
    """Converts candidates and runs them."""

    model: Any
    options: Options
    low_io: frozenset[str]
    samples: Samples
    judge: Judge
    scratch: Path
    progress: Progress | None
    groups: list[Group] = field(default_factory=list)
    nodes: int = 0
    _others: list[Group] = field(default_factory=list)
    _held: dict[frozenset[int], list[Group]] = field(default_factory=dict)
    _external: bool = False
    _reference: Any = None
    _local: Any = None
    _low: Any = None

    def search(self, tolerance: float) -> Search:
        """Runs the reference, finds the groups, and readies the search."""
        from ..numerics.strict.session import StrictSession
        from ..planner.promotions import find_groups, low_values

        graph = _loaded(self.model)
        graph.prepare()
        self._external = bool(graph.data_files())
        on_disk = self._external and isinstance(self.model, (str, os.PathLike))
        self._reference = self.model if on_disk else self._runnable(graph, "reference")
        session = StrictSession(self._reference)
        for _, feeds in self._fed("running the reference", 0):
            self.judge.learn(session.run(feeds))
        flow = graph.dataflow(self.options.dtype, self.low_io)
        self.nodes = sum(1 for op in flow.ops if op.slots and op.role != "Cast")
        _, plan, planned = self.convert(frozenset())
        if not plan.changes_nothing:
            low = low_values(plan, planned)
            groups = find_groups(judge(flow, self.options)[0])
            self.groups = [group for group in groups if group.writes & low]
            self._others = [group for group in groups if not group.writes & low]
        self._search = Search([g.cost for g in self.groups], tolerance, self.run, self.overflowing, self.measure)
        return self._search

    def patterns(self, promoted: Iterable[int]) -> tuple[str, ...]:
        """What names the groups, and what had to be held beside them."""
        chosen = [self.groups[i] for i in sorted(promoted)] + self._held.get(frozenset(promoted), [])
        return tuple(dict.fromkeys(pattern for group in chosen for pattern in group.patterns))

    def convert(self, promoted: frozenset[int]) -> tuple[OnnxGraph, Plan, Dataflow]:
        """A fresh graph, still as it was, with its plan and the dataflow that it speaks of.

        What the level's plan has in float32 must not become low because its neighbours left: it is held too.
        """
        from ..planner.promotions import low_values

        while True:
            graph = _loaded(self.model)
            options = replace(self.options, fp32=(*self.options.fp32, *self.patterns(promoted)))
            plan, flow = pipeline.planned(graph, options, self.low_io)
            held = self._held.setdefault(promoted, [])
            low = low_values(plan, flow) if promoted else set()
            more = [group for group in self._others if group.writes & low and group not in held]
            if not more:
                return graph, plan, flow
            held += more

    def write(self, best: Point, output: str | os.PathLike) -> None:
        graph, plan, flow = self.convert(best.promoted)
        pipeline.applied(graph, plan, flow)
        graph.save(output)

    def run(self, promoted: frozenset[int], step: str) -> Point:
        """One strict run of a candidate."""
        from ..numerics.strict.session import StrictSession

        low, size = self._candidate(promoted)
        if not promoted:
            self._low = low
        session = StrictSession(low)
        errors = [self.judge.error(number, session.run(feeds)) for number, feeds in self._fed(step, self._search.runs)]
        return Point(step, promoted, self.judge.over_samples(errors), *size)

    def overflowing(self) -> list[int]:
        """Measures every low node's own error; the groups in which one is not finite."""
        from ..numerics.tune.contributions import Measured
        from ..numerics.tune.shadow import LocalErrors

        self._local = Measured()
        session = LocalErrors(self._reference, self._low)
        for _, feeds in self._fed("measuring every node's own error", self._search.runs):
            self._local.add(session.measured(feeds))
        infinite = {name: square for name, square in self._local.squares.items() if math.isinf(square)}
        return [i for i, share in enumerate(self._shares(infinite)) if share]

    def measure(self, promoted: frozenset[int]) -> list[float]:
        """Measures how errors grow in a candidate; every group's contribution."""
        from ..numerics.strict.protos import load_proto
        from ..numerics.tune.contributions import Measured, contributions
        from ..numerics.tune.shadow import GrownErrors

        grown = Measured()
        session = GrownErrors(self._reference, self._candidate(promoted)[0] if promoted else self._low)
        for _, feeds in self._fed("measuring how errors grow", self._search.runs):
            grown.add(session.measured(feeds))
        lists = self.options.lists
        exact = {site.kind for site in self._sites if (held := lists.of(site.kind)) and held.cls == "neutral"}
        outputs = [v.name for v in load_proto(self._reference).graph.output]
        return self._shares(contributions(self._sites, outputs, self._local, grown, exact))

    # -- pieces -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _sites(self) -> Sequence[Any]:
        from ..numerics.strict.protos import load_proto
        from ..numerics.strict.session import inlined
        from ..numerics.trace.sites import read_sites

        given = load_proto(self._reference)
        return read_sites(given, inlined(given))

    def _shares(self, found: Mapping[str, float]) -> list[float]:
        from ..planner.promotions import share_out

        return share_out(self.groups, self._sites, found)

    def _candidate(self, promoted: frozenset[int]) -> tuple[Any, tuple[int, int]]:
        """A converted model to run, and the nodes and bytes that it has in float32."""
        from ..planner.promotions import float32_size

        graph, plan, flow = self.convert(promoted)
        size = float32_size(plan, flow, self.options)  # before the flow is out of date
        pipeline.applied(graph, plan, flow)
        return self._runnable(graph, "candidate" if promoted else "low"), size

    def _runnable(self, graph: OnnxGraph, name: str) -> Any:
        """A proto, or a file where the weights lie beside the model's."""
        import onnx_ir as ir

        if not self._external:
            return ir.to_proto(graph.model)
        path = self.scratch / f"{name}.onnx"
        graph.save(path)
        return path

    def _fed(self, step: str, run: int) -> Iterable[tuple[int, Any]]:
        """The samples, with progress: of all runs that there may be."""
        whole = len(self.samples) * (BUDGET + 1)
        for number, feeds in enumerate(self.samples):
            if self.progress is not None:
                self.progress(f"run {run} of at most {BUDGET}: {step}", len(self.samples) * run + number, whole)
            yield number, feeds
