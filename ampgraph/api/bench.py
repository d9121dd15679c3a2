"""What `tune` tries out: conversions of one model with more or less of it in float32, run strictly."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.plan import Plan
from ..core.progress import Progress
from ..core.recipe import Recipe
from ..formats import adapters
from ..formats.onnx import io as onnx_io
from ..formats.onnx.graph import OnnxGraph
from ..numerics.tune.search import BUDGET, Point, PromotionSearch
from ..oplists.traits import has
from ..planner.facts.facts import Facts
from ..planner.options import Options
from ..planner.order import judge
from ..planner.resolve import resolve
from . import pipeline
from .frozen import frozen
from .kinds import Model, PathLike
from .opsets import at_given
from .pairs import in_types_of

if TYPE_CHECKING:
    from ..core.dataflow import Dataflow
    from ..numerics.inputs.sample_set import Samples
    from ..numerics.metrics.verdict import Judge
    from ..planner.promotions import Float32Size, Promotion


CAUTIOUS = "O1"  # the level whose plan is tried beside


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
    _local: Any = None
    _low: Any = None

    def search(self, tolerance: float) -> PromotionSearch:
        """Runs the reference, finds the groups, and readies the search."""
        from ..numerics.strict.session import StrictSession
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
        self._search = PromotionSearch(
            [g.cost for g in self.groups], tolerance, self.run, self.overflowing, self.measure,
            [g.kind for g in self.groups], self._cautious(),
        )  # fmt: skip
        return self._search

    def sensitivity(self) -> tuple[str, float]:
        """The output that the rounding of the inputs alone changes most, and by how much."""
        from ..numerics.metrics.sensitivity import sensitivity
        from ..numerics.strict.session import StrictSession

        return sensitivity(StrictSession(self._reference).run, self.samples, self.options.dtype)

    def _cautious(self) -> dict[str, frozenset[int]]:
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
        from ..numerics.strict.session import StrictSession

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
        return Point(step, promoted, error, size.nodes, size.bytes, size.products, size.cost)

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
        from ..numerics.graphs import load_onnx
        from ..numerics.tune.contributions import Measured, contributions
        from ..numerics.tune.shadow import GrownErrors

        grown = Measured()
        session = GrownErrors(self._reference, self._candidate(promoted)[0] if promoted else self._low)
        for _, feeds in self._fed("measuring how errors grow", self._search.runs):
            grown.add(session.measured(feeds))
        exact = {site.kind for site in self._sites} & self.options.lists.exact
        outputs = [value.name for value in load_onnx(self._reference).declared()[1]]
        return self._shares(contributions(self._sites, outputs, self._local, grown, exact))

    # -- pieces -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _sites(self) -> Sequence[Any]:
        from ..numerics.graphs import load_onnx

        given = load_onnx(self._reference)
        return given.sites(given.flat())

    def _shares(self, found: Mapping[str, float]) -> list[float]:
        from ..planner.promotions import share_out

        return share_out(self.groups, self._sites, found)

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
        """The samples, with progress: of all runs that there may be."""
        whole = len(self.samples) * (BUDGET + 1)
        for number, feeds in enumerate(self.samples):
            if self.progress is not None:
                self.progress(f"run {run} of at most {BUDGET}: {step}", len(self.samples) * run + number, whole)
            yield number, feeds
