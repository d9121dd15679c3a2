"""`ampgraph tune`: as little float32 as meets a tolerance, found by strict runs."""

from __future__ import annotations

import functools
import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.arguments import check_annotated
from ..core.collector import quiet_collector
from ..core.dataflow import Dataflow
from ..core.errors import AmpError, is_number
from ..core.files import sources_of, try_folder
from ..core.graph import is_mindir
from ..core.plan import Plan
from ..core.progress import Progress
from ..core.recipe import OtherFields, Recipe, Unpack
from ..core.verdict import chaotic_in_itself
from ..formats import adapters
from ..formats.adapters import load_onnx
from ..formats.checks import faults_reported, refuse_result
from ..formats.onnx import io as onnx_io
from ..formats.onnx.graph import OnnxGraph
from ..numerics.inputs.samples import Samples, load_samples
from ..numerics.metrics.agreement import sensitivity as to_rounding
from ..numerics.metrics.metric import Function, Metric, metric_of
from ..numerics.metrics.roles import roles_of
from ..numerics.metrics.verdict import Compared, References
from ..numerics.pairs import in_types_of
from ..numerics.search import BUDGET, Search, attribute, confirm_by_runs
from ..numerics.strict.session import StrictSession, SwitchedSession
from ..oplists.options import Options
from ..oplists.traits import has
from ..planner.facts.facts import Facts
from ..planner.order import judge
from ..planner.promotions import Float32Size, Promotion, find_groups, float32_size, low_values
from ..planner.resolve import resolve
from ..report.inspect import view_model
from ..report.picture.page import tuning_page
from ..report.picture.writing import refuse_page, write_page
from ..report.tuning import Candidate, Sensitivity, Tuning, UnitSensitivity
from . import pipeline
from .calibrate import Measuring
from .keywords import recipe_for, takes_recipe
from .kinds import Data, Feeds, Model, PathLike, path_of
from .prepare import at_given_opset, freeze_weights
from .steps import checked_low_interface


@takes_recipe
def tune(
    model: Model,
    level: str | int | None = None,
    *,
    recipe: Recipe | str | None = None,
    data: Data = None,
    tolerance: float = 1e-2,
    metric: str | Function = "l2",
    samples: int | None = None,
    seed: int = 0,
    output: PathLike | None = None,
    sensitivity: bool = False,
    html: PathLike | None = None,
    progress: Progress | None = None,
    **fields: Unpack[OtherFields],
) -> Tuning:
    """Finds the smallest set of nodes to keep in float32 so that a level's conversion meets a tolerance.

    Starts from the level's plan. Where it misses the tolerance, runs of one session in which only some nodes are low
    tell what each makes of the error, and which are to go back to float32: those that contribute most, or most
    for what they cost, in bytes with those of products eight times; parts are made low again as long as the tolerance
    holds. The cheaper of both is converted, as patterns through the planner, and run strictly on all samples; what it
    leaves corrects the next aim. At most 20 strict runs.

    Args:
        model: an ONNX model as `convert` takes it.
        level: the level to start from: O1, O2, O3 or auto; O2, or the policy's own, if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one.
        data: an .npz file, a folder of them, an iterable of mappings; without it inputs are generated from ``seed``.
        tolerance: the error that 9 of 10 samples must meet (for a share such as argmax: their mean).
        metric: as `verify` takes it, of the worst output. A sample whose result is not finite where the reference is
            misses every tolerance.
        samples: how many samples at most; 8 where they are generated.
        output: write the tuned model there, whole or not at all, if the tolerance is met.
        sensitivity: measure as well which nodes matter how much; 18 runs more. ``Tuning.sensitivity`` has the table.
        html: write a page there, whole or not at all: the graph, the candidates by error and cost, each node's part of
            the error where ``sensitivity`` is asked for.
        progress: hears of progress: what is done, how much of it, of how much.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: AMP304 (MindIR), AMP312 (a tolerance or metric that makes no sense), what `convert` and `run` raise.
    """
    check_annotated(tune, locals())
    wanted = recipe_for(tune, recipe, {"level": level, **fields})
    if not (is_number(tolerance) and math.isfinite(tolerance) and tolerance > 0):
        raise AmpError("AMP312", f"the tolerance must be a positive number, not {tolerance!r}", hint="for example 1e-2")
    if is_mindir(model):
        hint = "tune the ONNX model, or name nodes for `convert` with --fp32"
        raise AmpError("AMP304", "MindIR models are not tuned yet", hint=hint)
    metric_of(metric)  # a mistake is reported before anything is read
    source = path_of(model)
    refuse_page(html, model, data, output, wanted.ranges, wanted.lists)
    with quiet_collector(), faults_reported(source), tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        if output is not None:
            sources = sources_of(source, data, wanted.ranges, wanted.lists)
            refuse_result(load_graph(model, wanted), Path(output), sources, "-o")
            try_folder(Path(output), "-o")
        bench = bench_of(model, wanted, data, samples, metric, Path(scratch), progress, seed)
        found = _search_and_write(bench, tolerance, output, sensitivity)
    write_page(html, lambda: tuning_page(view_model(found.output or model), found).html())
    return found


def bench_of(
    model: Model, recipe: Recipe, data: Data, samples: int | None, metric: str | Function, scratch: Path,
    progress: Progress | None, seed: int = 0, until: float = math.inf,
) -> Bench:  # fmt: skip
    """The `Bench` for the arguments of `tune`, on which nothing was run yet. ``scratch``: a folder for its files;
    ``until``: the time of `time.monotonic` at which its search ends. Raises AmpError as `tune`."""
    options, graph = resolve(recipe, "ONNX"), load_graph(model, recipe)
    drawn = load_samples(graph, data, count=samples, seed=seed, dims=options.dims)
    measure = metric_of(metric, roles_of(graph.dataflow()))
    with_ranges = Measuring().measured_options(options, graph)
    return Bench(model, with_ranges, checked_low_interface(graph, recipe), drawn, measure, scratch, progress, until)


def _search_and_write(bench: Bench, tolerance: float, output: PathLike | None, sensitivity: bool) -> Tuning:
    """For `tune`: searches, measures the table of sensitivities where it is wanted, and writes the best model to
    ``output`` where one was found; returns the report."""
    best = bench.search(tolerance)
    found = _report(bench, best, tolerance)
    if sensitivity:
        found = replace(found, sensitivity=sensitivity_of(bench))
    if best is None or output is None:
        return found
    bench.write(best, output)
    return replace(found, output=os.fspath(output))


def _report(bench: Bench, best: Point | None, tolerance: float) -> Tuning:
    """The report of `tune` after a search; ``best`` None: no candidate met the tolerance. Notes say which outputs were
    not compared, and that a model is sensitive by itself where all in float32 is not enough or only just."""

    def candidate(point: Point) -> Candidate:
        return Candidate(
            point.step, point.error, point.nodes, point.bytes, len(point.promoted), point.products, point is best
        )

    source, notes = path_of(bench.model), list(bench.samples.notes)
    skipped = [output.name for output in bench.start.outputs if not (output.counts or bench.start.whole)]
    if skipped:
        notes.append(f"not compared, as the metric is not about them: {', '.join(skipped)}")
    mended_by_some = best is not None and len(best.promoted) < len(bench.groups)  # such a model is not chaotic
    if bench.groups and not mended_by_some:
        name, error = bench.sensitivity()
        if error > tolerance:
            notes.append(chaotic_in_itself(error, name))
    return Tuning(
        model=os.fspath(source) if source is not None else "in memory",
        output=None,
        met=best is not None,
        error=best.error if best is not None else min(point.error for point in bench.points),
        tolerance=tolerance,
        metric=bench.metric.name,
        level=bench.options.level.name,
        dtype=bench.options.dtype,
        runs=len(bench.points),
        samples=len(bench.samples),
        nodes=bench.nodes,
        plan=bench.convert(best.promoted)[1] if best is not None else None,
        patterns=bench.patterns(best.promoted) if best is not None else (),
        frontier=tuple(map(candidate, bench.frontier())),
        candidates=tuple(map(candidate, bench.points)),
        notes=tuple(notes),
    )


# -- what is tried out: conversions with more or less in float32, run strictly ----------------------------------------

REFERENCE = "running the reference"
PARTS = 64  # runs at most that measure what each group makes of the error


@dataclass(frozen=True)
class Point:
    """A candidate of `tune` that was run. ``step``: how it came about, in words; ``promoted``: the numbers of the
    groups put back to float32; then the error, and what it has in float32: nodes, bytes, products among the nodes, and
    the cost of all of it (bytes, those of products eight times)."""

    step: str
    promoted: frozenset[int]
    error: float
    nodes: int
    bytes: int
    products: int
    cost: int

    @property
    def size(self) -> tuple[int, int, int]:
        """What `tune` wants small in a candidate, the most important first: cost, nodes, groups."""
        return self.cost, self.nodes, len(self.promoted)


def load_graph(model: Model, recipe: Recipe) -> OnnxGraph:
    """For `tune`: a fresh graph of an ONNX model, with weights frozen and the opset moved as the recipe says."""
    graph = adapters.load(model)[0]
    freeze_weights(graph, recipe)
    graph = at_given_opset(graph, recipe)
    assert isinstance(graph, OnnxGraph)
    return graph


@dataclass
class Bench:
    """Converts candidates of one model for `tune`, with some groups of nodes put back to float32, and runs them.

    A group is known by its number in ``groups``; a candidate by the set of those that are ``promoted`` to float32.

    Attributes:
        until: as `bench_of` takes it.
        groups: what the level's plan makes low and can be put back; ``nodes``: how many have a type to decide.
        points: the candidates that were run, in their order, that of the level's plan first.
        start: the outputs of the level's plan over all samples.
    """

    model: Model
    options: Options
    low_io: frozenset[str]
    samples: Samples
    metric: Metric
    scratch: Path
    progress: Progress | None
    until: float = math.inf
    groups: list[Promotion] = field(default_factory=list)
    nodes: int = 0
    points: list[Point] = field(default_factory=list)
    start: Compared = field(init=False)
    _expected: References = field(init=False)  # the reference's outputs on each sample
    _others: list[Promotion] = field(default_factory=list)  # groups that the level's plan has in float32
    _held: dict[frozenset[int], list[Promotion]] = field(default_factory=dict)  # candidate -> those to be pinned too
    _external: bool = False  # whether the model's weights lie in data files
    _reference: Any = None  # the float32 model and the level's result (`_low`), as sessions take them
    _low: Any = None
    _moves: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # group -> groups that switch with it
    _decisive: list[int] = field(default_factory=list)  # samples whose error was a candidate's
    _predicted: dict[tuple[int, ...], dict[frozenset[int], float]] = field(default_factory=dict)  # by these samples

    def search(self, tolerance: float) -> Point | None:
        """For `tune`: runs candidates, and returns the smallest that meets the tolerance; None where even all groups in
        float32 do not. To be called once, before any other method but `late`."""
        self._prepare()
        start = self._try(frozenset(), "the level's plan")
        if start.error > tolerance and self.groups:
            all_float32 = self._try(frozenset(range(len(self.groups))), "all in float32")
            if all_float32.error <= tolerance:

                def run(chosen: frozenset[int], aim: float) -> float | None:
                    return None if self.late() else self._try(chosen, f"what is to leave {aim:.3g}").error

                confirm_by_runs(tolerance, self.predict, run, BUDGET - 2)
        return min((p for p in self.points if p.error <= tolerance), key=lambda p: p.size, default=None)

    def late(self) -> bool:
        """Whether ``until`` has passed: a limit that `convert --repair` alone sets, `tune` itself has none."""
        return time.monotonic() > self.until

    def frontier(self) -> list[Point]:
        """The candidates of `tune` that no other one beats in size and in error, the smallest first."""
        kept: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.size, p.error)):
            if not kept or point.error < kept[-1].error:
                kept.append(point)
        return kept

    def _prepare(self) -> None:
        """For `tune`: fits the samples to the model, runs the reference on them, and finds the groups to promote."""
        graph = load_graph(self.model, self.options.recipe)
        graph.prepare()
        self._external = bool(graph.data_files())
        as_given = self.options.recipe.opset is None and isinstance(self.model, (str, os.PathLike))
        self._reference = self.model if self._external and as_given else self._runnable(graph, "reference")
        session, self._expected = StrictSession(self._reference), References(self.scratch)
        self.samples = self.samples.fit_to(session.run)
        for _, feeds in self._each_sample(REFERENCE):
            self._expected.add(session.run(feeds), self.metric)
        flow = graph.dataflow(self.options.dtype, self.low_io)
        self.nodes = sum(1 for op in flow.ops if op.slots and not has(op.role, "casts"))
        _, plan, planned = self.convert(frozenset())
        if not plan.changes_nothing:
            low = low_values(plan, planned)
            groups = find_groups(judge(Facts.of(flow, self.options)).task)
            self.groups = [group for group in groups if group.writes & low]
            self._others = [group for group in groups if not group.writes & low]

    def sensitivity(self) -> tuple[str, float]:
        """For `tune`: the output that the rounding of the inputs alone changes most, and by how much."""
        return to_rounding(StrictSession(self._reference).run, self.samples, self.options.dtype)

    def patterns(self, promoted: Iterable[int]) -> tuple[str, ...]:
        """For `tune`: patterns of `--fp32` that name these groups, and those that `convert` had to pin with them."""
        chosen = [self.groups[i] for i in sorted(promoted)] + self._held.get(frozenset(promoted), [])
        return tuple(dict.fromkeys(pattern for group in chosen for pattern in group.patterns))

    def convert(self, promoted: frozenset[int]) -> tuple[OnnxGraph, Plan, Dataflow]:
        """Plans a candidate of `tune`: returns a fresh graph, the plan for it, and the dataflow that the plan speaks
        of; the passes are still to be run.

        A group that the level's plan has in float32 may become low when its neighbours do not: it is pinned too."""
        while True:
            graph = load_graph(self.model, self.options.recipe)
            options = self.options.holding(self.patterns(promoted))
            plan, flow = pipeline.plan_graph(graph, options, self.low_io)
            held = self._held.setdefault(promoted, [])
            low = low_values(plan, flow) if promoted else set()
            more = [group for group in self._others if group.writes & low and group not in held]
            if not more:
                return graph, plan, flow
            held += more

    def write(self, best: Point, output: PathLike) -> None:
        """Converts the best candidate of `tune` once more, and saves it."""
        graph, plan, flow = self.convert(best.promoted)
        pipeline.run_passes(graph, plan, flow, describe=True)
        graph.save(output)

    def _try(self, promoted: frozenset[int], step: str) -> Point:
        """Runs a candidate of `tune` with these groups in float32, and keeps it in ``points``; one that ran before does
        not run again. ``step``: what progress calls it."""
        for point in self.points:
            if point.promoted == promoted:
                return point
        self.points.append(self.run(promoted, step))
        return self.points[-1]

    def run(self, promoted: frozenset[int], step: str) -> Point:
        """Runs a candidate of `tune` strictly over the samples, as `_try` takes it, and measures its error."""
        model, size = self._convert_to_run(promoted)
        session, seen = StrictSession(model, target=self.options.target), Compared(self.metric)
        types = {name: port.dtype for name, port in session.inputs.items()}
        for number, feeds in self._each_sample(step):
            seen.add(self._expected[number], session.run(in_types_of(feeds, types)))
        if not promoted:
            self._low, self.start = model, seen
        error = seen.error
        decisive = next((i for i, one in enumerate(seen.errors) if one >= error), 0)
        if decisive not in self._decisive:
            self._decisive.append(decisive)
        return Point(step, promoted, error, size.nodes, size.bytes, size.products, size.cost)

    # -- predictions: runs of few samples in which only some groups are low -------------------------------------------

    def predict(self, aim: float) -> frozenset[int]:
        """For `tune`: the cheapest groups in float32 that leave an error of ``aim``, as runs of the switched model on
        few samples tell; all groups where none are enough."""
        self._report_progress("looking for what makes the error", len(self.samples) - 1)
        known = self._predicted.setdefault(tuple(self._decisive), {})
        costs, products = [group.cost for group in self.groups], self.options.lists.products
        heavy = frozenset(i for i, group in enumerate(self.groups) if not products.isdisjoint(group.kinds))
        search = Search(costs, self._predicted_error, self.measure, late=self.late, known=known, heavy=heavy)
        found = search.cheapest(aim)
        if found is None:
            return frozenset(range(len(self.groups)))
        return found.union(*(self._moves[i] for i in found))

    def _predicted_error(self, promoted: frozenset[int]) -> float:
        """The error of the switched model of `tune` with these groups in float32, the largest over decisive samples."""
        low = [unit for i, units in enumerate(self._switches) if i not in promoted for unit in units]
        return max(
            self.start.error_of(self._expected[n], self._switched_session.run(feeds, low))
            for n, feeds in self._decisive_samples()
        )

    def measure(self, promoted: frozenset[int]) -> list[float]:
        """For `tune`: by group, what its roundings make of the squared error of the switched model with ``promoted`` in
        float32; infinite where they make what is not finite, 0 for those promoted."""
        live = [i for i in range(len(self.groups)) if i not in promoted and self._switches[i]]

        def error(low: Collection[int]) -> float:
            units = [unit for place in low for unit in self._switches[live[place]]]
            return max(
                self.start.distance(self._expected[n], self._switched_session.run(feeds, units))
                for n, feeds in self._decisive_samples()
            )

        found = attribute(error, len(live), len(live), 0.0, PARTS, self.late)
        weights = [0.0] * len(self.groups)
        for place, share in zip(found.order, found.shares, strict=True):
            weights[live[place]] = share
        return weights

    def _decisive_samples(self) -> Iterator[tuple[int, Feeds]]:
        """The samples on which `tune` predicts, with their numbers: those whose error decided about a candidate, or all
        where their mean is judged. In the types of the low model's inputs."""
        for number, feeds in enumerate(self.samples):
            if number in self._decisive or self.metric.over_all:
                yield number, in_types_of(feeds, self._switched_session.types)

    # -- pieces -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _switched_session(self) -> SwitchedSession:
        """For `tune`: a strict run of the level's plan in which every node can be switched to float32; opened once."""
        return SwitchedSession(self._reference, self._low, target=self.options.target)

    @functools.cached_property
    def _switches(self) -> list[list[int]]:
        """For `tune`: by group, the switches of its nodes in the switched model, by number. A node that no group writes
        has none. Fills ``_moves`` with the groups that one switch moves together."""
        given = load_onnx(self._reference)
        called = {
            name: (site.node, written)
            for site in given.sites(given.flat())
            if site.scope
            for name, written in zip(site.outputs, site.written, strict=True)
        }
        group_of = {place: i for i, group in enumerate(self.groups) for place in group.makes}
        flow = load_onnx(self._low).flat().dataflow()
        cast = {  # an output has its name behind a Cast
            flow.values[op.inputs[0]].name: flow.values[op.outputs[0]].name for op in flow.ops if has(op.role, "casts")
        }
        found: list[list[int]] = [[] for _ in self.groups]
        for number, unit in enumerate(self._switched_session.units):
            made = [name for each in (unit, *unit.moves) for name in each.outputs]
            names = [other for name in made for other in (name, cast.get(name, ""))]
            places = (called.get(name, (name,)) for name in names)
            written = [group_of[place] for place in places if place in group_of]
            if written:
                found[written[0]].append(number)
                self._moves[written[0]].update(written)
        return found

    def _convert_to_run(self, promoted: frozenset[int]) -> tuple[Any, Float32Size]:
        """Converts a candidate of `tune`; returns the model, as a session takes it, and what it has in float32."""
        graph, plan, flow = self.convert(promoted)
        size = float32_size(plan, flow, self.options)  # before the flow is out of date
        pipeline.run_passes(graph, plan, flow)
        name = "candidate" if promoted else "low"  # the level's own file stays: `_switched_session` opens it later
        return self._runnable(graph, name), size

    def _runnable(self, graph: OnnxGraph, name: str) -> Any:
        """For `tune`: a graph as a strict session takes it: a proto, or a file ``name`` in the scratch folder where its
        weights lie in data files."""
        if not self._external:
            return onnx_io.to_proto(graph.model)
        path = self.scratch / f"{name}.onnx"
        graph.save(path)
        return path

    def _each_sample(self, step: str) -> Iterable[tuple[int, Any]]:
        """The samples of one run of `tune` with their numbers; progress is told of each before it is given."""
        for number, feeds in enumerate(self.samples):
            self._report_progress(step, number)
            yield number, feeds

    def _report_progress(self, step: str, number: int) -> None:
        """Tells the caller which run of the most that there may be is at which sample: run 0 is the reference's, and
        each point tried is one more."""
        if self.progress is not None:
            run, count = len(self.points) + (step != REFERENCE), len(self.samples)
            self.progress(f"run {run} of at most {BUDGET}: {step}", count * run + number, count * (BUDGET + 1))


# -- the table of sensitivities ---------------------------------------------------------------------------------------

MEASURED = 8  # units of the table that get runs of their own, two each


def sensitivity_of(bench: Bench) -> Sensitivity:
    """For `tune`, after its search: the part of every unit, which is a group of the bench, in the error of the level's
    plan; those of the largest are measured by two runs of their own, the others estimated."""
    start = bench.points[0]
    weights = _squared_shares(bench, start)
    order = sorted(range(len(bench.groups)), key=lambda i: (-weights[i], i))
    rows = [_estimate_unit(bench, i, weights, start) for i in order]
    for place, i in enumerate(order[:MEASURED]):
        if weights[i]:
            others = frozenset(order) - {i}
            low, rest = bench.run(others, "one unit low"), bench.run(frozenset([i]), "one unit in float32")
            rows[place] = replace(rows[place], alone_low=low.error, alone_float32=rest.error, measured=True)
    return Sensitivity(bench.options.level.name, bench.metric.name, start.error, tuple(rows))


def _squared_shares(bench: Bench, start: Point) -> Sequence[float]:
    """For `tune`: by unit, what its roundings add to the squared error of the level's plan (``start``); infinite for
    one that makes what is not finite, and the others are measured with those in float32."""
    if not bench.groups:
        return []
    weights = bench.measure(start.promoted)
    forced = frozenset(i for i, weight in enumerate(weights) if math.isinf(weight))
    rest = bench.measure(forced) if forced else weights
    return [math.inf if i in forced else weight for i, weight in enumerate(rest)]


def _estimate_unit(bench: Bench, i: int, weights: Sequence[float], start: Point) -> UnitSensitivity:
    """For `tune`: the sensitivity of unit ``i``, estimated from the squared error that each makes (``weights``), as if
    these added up to the error of the level's plan (``start``)."""
    group, weight = bench.groups[i], weights[i]
    total = sum(w for w in weights if math.isfinite(w))
    if math.isinf(weight):
        share, others = None, total
    else:
        share, others = weight / total if total else 0.0, total - weight
    scale = start.error**2 / total if math.isfinite(start.error) and total else 1 / len(bench.samples)
    alone_low, alone_float32 = math.sqrt(weight * scale), math.sqrt(max(0.0, others) * scale)
    if any(math.isinf(w) for j, w in enumerate(weights) if j != i):
        alone_float32 = math.inf
    return UnitSensitivity(group.patterns, group.kinds, group.bytes, share, alone_low, alone_float32, False)
