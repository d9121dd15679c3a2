"""`ampgraph tune`: as little float32 as meets a tolerance, found by strict runs."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arguments import as_annotated
from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number
from ..core.files import sources_of, try_folder
from ..core.graph import is_mindir
from ..core.progress import Progress
from ..core.recipe import OtherFields, Recipe
from ..core.renamed import renamed_keywords
from ..core.verdict import chaotic_in_itself
from ..formats.checks import faults_reported, refuse_result
from ..numerics.inputs.samples import load_samples
from ..numerics.metrics.metric import metric_of
from ..numerics.metrics.roles import roles_of
from ..numerics.metrics.verdict import Judge
from ..numerics.search import ConfirmedSearch, Point
from ..planner.resolve import resolve
from ..report.tuning import Candidate, Tuning
from .bench import Bench, loaded
from .keywords import recipe_for, takes_recipe
from .kinds import Data, Model, PathLike, path_of
from .measuring import Measuring
from .pictures import picture_tuning, refuse_page
from .sensitivity import sensitivity_of
from .steps import interface

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..numerics.metrics.metric import Function


@renamed_keywords("0.3", told="progress")
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
    tell what each makes of the error, and which are to go back to float32: those that contribute most, whole kinds of
    operators, what O1 keeps in float32, which is everything but products; of the cheapest, in bytes with those of
    products eight times, parts are made low again as long as the tolerance holds. That is converted, as patterns
    through the planner, and run strictly on all samples; what it leaves corrects the next aim. At most 20 strict runs.

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
    as_annotated(tune, locals())
    wanted = recipe_for(tune, recipe, {"level": level, **fields})
    _check(model, tolerance)
    metric_of(metric)  # a mistake is reported before anything is read
    source = path_of(model)
    refuse_page(html, model, data, output, wanted.ranges, wanted.lists)
    with quiet_collector(), faults_reported(source), tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        options = resolve(wanted, "ONNX")
        graph = loaded(model, wanted)
        if output is not None:
            refuse_result(graph, Path(output), sources_of(source, data, wanted.ranges, wanted.lists), "-o")
            try_folder(Path(output), "-o")
        low_io = interface(graph, wanted)
        drawn = load_samples(graph, data, count=samples, seed=seed, dims=options.dims)
        judge = Judge(metric_of(metric, roles_of(graph.dataflow())), Path(scratch))
        options = Measuring().steer(options, graph)
        bench = Bench(model, options, low_io, drawn, judge, Path(scratch), progress)
        found = _searched(bench, tolerance, output, sensitivity)
    picture_tuning(html, model, found)
    return found


def _check(model: Model, tolerance: float) -> None:
    if not (is_number(tolerance) and math.isfinite(tolerance) and tolerance > 0):
        raise AmpError("AMP312", f"the tolerance must be a positive number, not {tolerance!r}", hint="for example 1e-2")
    if is_mindir(model):
        hint = "tune the ONNX model, or name nodes for `convert` with --fp32"
        raise AmpError("AMP304", "MindIR models are not tuned yet", hint=hint)


def _searched(bench: Bench, tolerance: float, output: PathLike | None, sensitivity: bool) -> Tuning:
    """The search, the table where it is wanted, and the model written where one was found."""
    search = bench.search(tolerance)
    best = search.run()
    found = _tuning(bench, search, best, tolerance)
    if sensitivity:
        found = replace(found, sensitivity=sensitivity_of(bench, search))
    if best is None or output is None:
        return found
    bench.write(best, output)
    return replace(found, output=os.fspath(output))


def _tuning(bench: Bench, search: ConfirmedSearch, best: Point | None, tolerance: float) -> Tuning:
    def candidate(point: Point) -> Candidate:
        return Candidate(
            point.step, point.error, point.nodes, point.bytes, len(point.promoted), point.products, point is best
        )

    source, notes = path_of(bench.model), list(bench.samples.notes)
    if bench.judge.skipped:
        notes.append(f"not compared, as the metric is not about them: {', '.join(bench.judge.skipped)}")
    name, alone = bench.sensitivity() if best is None or best.promoted else ("", 0.0)
    if alone > tolerance:
        notes.append(f"{chaotic_in_itself(alone)} at '{name}'")
    return Tuning(
        model=os.fspath(source) if source is not None else "in memory",
        output=None,
        met=best is not None,
        error=best.error if best is not None else min(point.error for point in search.points),
        tolerance=tolerance,
        metric=bench.judge.metric.name,
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
