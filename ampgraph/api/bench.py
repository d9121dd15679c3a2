"""What `tune` tries out: conversions of one model with more or less of it in float32, run strictly."""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.plan import Plan
from ..core.progress import Progress
from ..core.recipe import Recipe
from ..formats import adapters
from ..formats.onnx import io as onnx_io
from ..formats.onnx.graph import OnnxGraph
from ..numerics.graphs import load_onnx
from ..numerics.search import BUDGET, ConfirmedSearch, Point, PromotionSearch, attribute
from ..numerics.strict.session import StrictSession, SwitchedSession
from ..oplists.traits import has
from ..planner.facts.facts import Facts
from ..planner.options import Options
from ..planner.order import judge
from ..planner.resolve import resolve
from . import pipeline
from .frozen import frozen
from .kinds import Feeds, Model, PathLike
from .opsets import at_given
from .pairs import in_types_of

if TYPE_CHECKING:
    from ..core.dataflow import Dataflow
    from ..numerics.inputs.samples import Samples
    from ..numerics.metrics.verdict import Judge
    from ..planner.promotions import Float32Size, Promotion


CAUTIOUS = "O1"  # the level whose plan is tried beside
PARTS = 64  # runs that measure what each group makes of the error
PREDICTIONS = 128  # runs that look for the groups to promote


def loaded(model: Model, recipe: Recipe) -> OnnxGraph:
    """A fresh graph of an ONNX model, read as the recipe says."""
    graph = adapters.load(model)[0]
    frozen(graph, recipe)
    graph = at_given(graph, recipe)
    assert isinstance(graph, OnnxGraph)
    return graph


@dataclass
class Bench:
    """Converts candidates of one model and runs them."""

    model: Model
    options: Options
    low_io: frozenset[str]
    samples: Samples
    judge: Judge
    scratch: Path
    progress: Progress | None
    groups: list[Promotion] = field(default_factory=list)
    nodes: int = 0
    _others: list[Promotion] = field(default_factory=list)
    _held: dict[frozenset[int], list[Promotion]] = field(default_factory=dict)
    _external: bool = False
    _reference: Any = None
    _moves: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _shown: list[int] = field(default_factory=list)
    _predicted: dict[tuple[int, ...], list[Point]] = field(default_factory=dict)
    _low: Any = None

    def search(self, tolerance: float) -> ConfirmedSearch:
        """Runs the reference, finds the groups, and readies the search."""
        from ..planner.promotions import find_groups, low_values

        graph = loaded(self.model, self.options.recipe)
        graph.prepare()
        self._external = bool(graph.data_files())
        as_given = self.options.recipe.opset is None and isinstance(self.model, (str, os.PathLike))
        self._reference = self.model if self._external and as_given else self._runnable(graph, "reference")
        session = StrictSession(self._reference)
        self.samples = self.samples.fitted(session.run)
        for _, feeds in self._fed("running the reference", 0):
            self.judge.learn(session.run(feeds))
        flow = graph.dataflow(self.options.dtype, self.low_io)
        self.nodes = sum(1 for op in flow.ops if op.slots and not has(op.role, "casts"))
        _, plan, planned = self.convert(frozenset())
        if not plan.changes_nothing:
            low = low_values(plan, planned)
            groups = find_groups(judge(Facts.of(flow, self.options)).task)
            self.groups = [group for group in groups if group.writes & low]
            self._others = [group for group in groups if not group.writes & low]
        self._search = ConfirmedSearch([g.cost for g in self.groups], tolerance, self.run, predict=self.predict)
        return self._search

    def sensitivity(self) -> tuple[str, float]:
        """The output that the rounding of the inputs alone changes most, and by how much."""
        from ..numerics.metrics.agreement import sensitivity

        return sensitivity(StrictSession(self._reference).run, self.samples, self.options.dtype)

    @functools.cached_property
    def _others_to_try(self) -> dict[str, frozenset[int]]:
        """The groups that `CAUTIOUS` keeps float32, where this is another level: products low, nothing else."""
        from ..planner.promotions import low_values

        if not self.groups or self.options.level.name == CAUTIOUS:
            return {}
        options = resolve(replace(self.options.recipe, level=CAUTIOUS, fp32=(), low=()), "ONNX")
        plan, flow = pipeline.planned(loaded(self.model, options.recipe), options, self.low_io)
        low = low_values(plan, flow)
        chosen = frozenset(i for i, group in enumerate(self.groups) if not group.writes & low)
        return {f"what {CAUTIOUS} keeps": chosen} if 0 < len(chosen) < len(self.groups) else {}

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
            graph = loaded(self.model, self.options.recipe)
            options = self.options.holding(self.patterns(promoted))
            plan, flow = pipeline.planned(graph, options, self.low_io)
            held = self._held.setdefault(promoted, [])
            low = low_values(plan, flow) if promoted else set()
            more = [group for group in self._others if group.writes & low and group not in held]
            if not more:
                return graph, plan, flow
            held += more

    def write(self, best: Point, output: PathLike) -> None:
        graph, plan, flow = self.convert(best.promoted)
        pipeline.applied(graph, plan, flow, describe=True)
        graph.save(output)

    def run(self, promoted: frozenset[int], step: str) -> Point:
        """One strict run of a candidate."""
        low, size = self._candidate(promoted)
        if not promoted:
            self._low = low
        session = StrictSession(low)
        types = {name: port.dtype for name, port in session.inputs.items()}
        errors = [
            self.judge.error(number, session.run(in_types_of(feeds, types)))
            for number, feeds in self._fed(step, self._search.runs)
        ]
        error = self.judge.over_samples(errors)
        decisive = next((i for i, one in enumerate(errors) if one >= error), 0)
        if decisive not in self._shown:
            self._shown.append(decisive)
        return Point(step, promoted, error, size.nodes, size.bytes, size.products, size.cost)

    # -- predictions: runs of few samples in which only some groups are low -------------------------------------------

    def predict(self, aim: float) -> frozenset[int]:
        """The cheapest groups in float32 that leave an error of ``aim``, as such runs tell."""
        self._tell("looking for what makes the error", self._search.runs, len(self.samples) - 1)
        known = self._predicted.setdefault(tuple(self._shown), [])
        search = PromotionSearch(
            self._search.costs, aim, self._prediction, PREDICTIONS, known, measure=self.measure,
            kinds=[group.kind for group in self.groups], others=self._others_to_try,
        )  # fmt: skip
        found = search.run()
        if found is None:
            return frozenset(range(len(self.groups)))
        return found.promoted.union(*(self._moves[i] for i in found.promoted))

    def _prediction(self, promoted: frozenset[int], step: str) -> Point:
        low = [unit for i, units in enumerate(self._units) if i not in promoted for unit in units]
        error = max(self.judge.error(number, self._switched.run(feeds, low)) for number, feeds in self._seen())
        held = [self.groups[i] for i in promoted]
        return Point(
            step, promoted, error, len(held), sum(group.bytes for group in held), cost=sum(group.cost for group in held)
        )

    def measure(self, promoted: frozenset[int]) -> list[float]:
        """What each group's roundings make of a candidate's squared error; infinite where one is not finite."""
        live = [i for i in range(len(self.groups)) if i not in promoted and self._units[i]]

        def error(low: Collection[int]) -> float:
            units = [unit for place in low for unit in self._units[live[place]]]
            return max(self.judge.distance(n, self._switched.run(feeds, units)) for n, feeds in self._seen())

        found = attribute(error, len(live), len(live), 0.0, PARTS)
        weights = [0.0] * len(self.groups)
        for place, share in zip(found.order, found.shares, strict=True):
            weights[live[place]] = share
        return weights

    def _seen(self) -> Iterator[tuple[int, Feeds]]:
        """The samples that predictions are made on: those that decided about a candidate, all for a mean."""
        for number, feeds in enumerate(self.samples):
            if number in self._shown or self.judge.metric.over_all:
                yield number, in_types_of(feeds, self._switched.types)

    # -- pieces -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _switched(self) -> SwitchedSession:
        """The level's plan, of which each node can be low or not, run by run."""
        return SwitchedSession(self._reference, self._low)

    @functools.cached_property
    def _units(self) -> list[list[int]]:
        """The switches of each group; what no group writes is never low."""
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
        for number, unit in enumerate(self._switched.units):
            made = [name for each in (unit, *unit.moves) for name in each.outputs]
            names = [other for name in made for other in (name, cast.get(name, ""))]
            written = [group_of[p] for name in names if (p := called.get(name, (name,))) in group_of]
            if written:
                found[written[0]].append(number)
                self._moves[written[0]].update(written)
        return found

    def _candidate(self, promoted: frozenset[int]) -> tuple[Any, Float32Size]:
        """A converted model to run, and what it has in float32."""
        from ..planner.promotions import float32_size

        graph, plan, flow = self.convert(promoted)
        size = float32_size(plan, flow, self.options)  # before the flow is out of date
        pipeline.applied(graph, plan, flow)
        return self._runnable(graph, "candidate" if promoted else "low"), size

    def _runnable(self, graph: OnnxGraph, name: str) -> Any:
        """A proto, or a file where the weights lie beside the model's."""
        if not self._external:
            return onnx_io.to_proto(graph.model)
        path = self.scratch / f"{name}.onnx"
        graph.save(path)
        return path

    def _fed(self, step: str, run: int) -> Iterable[tuple[int, Any]]:
        """The samples, with progress."""
        for number, feeds in enumerate(self.samples):
            self._tell(step, run, number)
            yield number, feeds

    def _tell(self, step: str, run: int, number: int) -> None:
        """Progress: of all runs that there may be."""
        if self.progress is not None:
            whole = len(self.samples) * (BUDGET + 1)
            self.progress(f"run {run} of at most {BUDGET}: {step}", len(self.samples) * run + number, whole)
