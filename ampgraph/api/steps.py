"""One conversion, for Python and the command line alike, as a list of steps:

model.onnx -> read -> (opset) -> ranges -> plan -> passes -> report -> write -> model.O2.onnx -> check
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.collector import quiet_collector
from ..core.dataflow import Dataflow
from ..core.errors import AmpError
from ..core.files import refusals_reported, same_file, sources_of, text_file
from ..core.graph import Census, Graph, is_mindir
from ..core.pass_ import Pass
from ..core.plan import Plan
from ..core.progress import Progress, silent
from ..core.recipe import Recipe
from ..core.verdict import CheckVerdict, PrecisionWarning, unchecked
from ..formats import adapters
from ..formats.checks import faults_reported, refuse_overwriting
from ..oplists.operators import OpLists
from ..report.summary import Choices, Summary, choices, summarize
from . import pipeline
from .check import Checking, beyond, check, lowers, replayed
from .frozen import frozen
from .frozen import notes as frozen_notes
from .interface import check_dims, low_interface
from .kinds import Model, PathLike
from .measuring import Measuring
from .opsets import AUTO, moved
from .optimize import Optimize, optimised

if TYPE_CHECKING:
    from ..planner.options import Options

SUFFIXES = {"ONNX": ".onnx", "MindIR": ".mindir"}


@dataclass(frozen=True)
class Job:
    """What is to be done to one model.

    Attributes:
        model: what `ampgraph.convert` takes.
        recipe: what decides precision; with ``plan`` only its opset counts, and whether weights are frozen.
        plan: a plan to follow, or a file of one, instead of making one.
        measuring: the run that measures ranges.
        output: the file to write; None: the result stays in memory, but for ``beside``.
        beside: without ``output`` the file is written beside the model's.
        plan_out: a file for the plan.
        dry_run: nothing is written but the plan.
        report: whether the result has a summary, which takes a look at every node.
        passes: the user's own, which run behind the conversion's.
        check_passes: the graph is verified behind each pass.
        option: what the caller's users call ``output``.
        checking: the strict run with which it ends.
        metadata: the result says what was done to it.
        optimize: the runtime's own offline optimisation comes first.
    """

    model: Model
    recipe: Recipe
    plan: Plan | str | None = None
    measuring: Measuring = Measuring()
    output: Path | None = None
    beside: bool = False
    plan_out: str | None = None
    dry_run: bool = False
    report: bool = False
    passes: tuple[Pass, ...] = ()
    check_passes: bool = False
    option: str = "output="
    checking: Checking = Checking()
    metadata: bool = True
    optimize: Optimize = False

    @property
    def source(self) -> PathLike | None:
        """The model's file, None for one in memory."""
        return self.model if isinstance(self.model, (str, os.PathLike)) else None


@dataclass(frozen=True)
class Planned:
    """A plan and the dataflow that it speaks of. ``own``: the lists that it was made by; None where somebody else made
    it, so that its faults are not ours."""

    plan: Plan
    flow: Dataflow
    own: OpLists | None

    @property
    def lists(self) -> OpLists:
        """The lists that it was made by, without a user's where somebody else made it."""
        from ..planner.resolve import lists_of_plan

        return lists_of_plan(self.plan) if self.own is None else self.own


@dataclass(frozen=True)
class Conversion:
    """What became of a job: the graph as it is now, the plan, whether anything changed, where it was written; the
    verdict of the check, None where there was none; what was decided of each node, where a summary was asked for."""

    graph: Graph
    back: adapters.Back
    plan: Plan
    changed: bool
    output: Path | None
    summary: Summary | None
    verdict: CheckVerdict | None = None
    choices: Choices | None = None

    def model(self) -> object:
        """The result in the caller's kind of model."""
        return self.back(self.graph, self.changed)


def run(job: Job, progress: Progress = silent) -> Conversion:
    """Does a job. Raises AmpError for every mistake in the model or in what was asked."""
    job = replace(
        job, checking=job.checking.resolved(), measuring=replace(job.measuring, data=replayed(job.measuring.data))
    )
    with quiet_collector(), faults_reported(job.model):
        plan, options = words(job)
        output = place(job, plan, options)
        graph, back = read(job, output, progress)
        low_io = frozenset() if options is None else interface(graph, job.recipe)
        before = graph.census() if job.report else None
        count = frozen(graph, job.recipe)
        as_given, first = graph, optimised(graph, job.optimize, options, progress)
        recipe = job.recipe if plan is None or not plan.opset else replace(job.recipe, opset=plan.opset)
        move = moved(first.graph, recipe, options, low_io, progress)
        graph = move.graph
        if options is not None:
            options = job.measuring.steer(replace(options, moved_to=move.opset), graph, progress)
        decided = decide(graph, plan, options, low_io, job.plan_out is None, progress)
        decided.plan.notes += [*first.notes, *move.notes, *frozen_notes(graph, decided.plan, count)]
        if job.report and options is not None:
            from ..planner.alternatives import alternatives

            decided.plan.notes += alternatives(decided.flow, options, decided.plan)
        ranges = None if options is None else options.ranges
        made = choices(decided.plan, decided.flow, decided.lists, ranges) if job.report else None
        changed = edit(job, graph, decided, progress) or graph is not as_given or count > 0
        checks = checking(job, decided.plan, changed, output)
        verdict = trial(job, decided.plan, graph, options, output, progress) if checks == "require" else None
        if verdict is not None and not verdict.stands:
            output = None
        summary = report(job, decided, output, graph, changed, before, made)
        if verdict is None or verdict.stands:
            write(job, decided.plan, options, output, graph, changed, progress)
        if checks == "auto" and output is not None:
            verdict = verdict_on(job, decided.plan, graph, options, output, progress)
    if summary is not None:
        summary = replace(summary, check=verdict)
    return Conversion(graph, back, decided.plan, changed, output, summary, verdict, made)


def ready(
    model: Model, recipe: Recipe, measuring: Measuring, progress: Progress = silent
) -> tuple[Graph, Options, frozenset[str]]:
    """The steps before planning, for verbs that write nothing: a graph, how to plan it, what of its borders is low."""
    from ..planner.resolve import resolve

    options = resolve(recipe, format_of(model))
    progress("reading", 0, 0)
    graph, _ = adapters.load(model)
    low_io = interface(graph, recipe)
    frozen(graph, recipe)
    move = moved(graph, recipe, options, low_io, progress)
    return move.graph, measuring.steer(replace(options, moved_to=move.opset), move.graph, progress), low_io


# -- the steps --------------------------------------------------------------------------------------------------------


def words(job: Job) -> tuple[Plan | None, Options | None]:
    """The plan that is given, or the options that one is made with; contradictions are refused before any work."""
    plan = Plan.read(job.plan) if isinstance(job.plan, str) else job.plan
    options = None
    if plan is None:
        from ..planner.resolve import resolve

        options = resolve(job.recipe, format_of(job.model))
    job.measuring.check(job.recipe)
    if job.dry_run and job.measuring.out is not None:
        hint = "omit --dry-run to keep what is measured"
        raise AmpError("AMP311", "--ranges-out and --dry-run exclude each other", hint=hint)
    return plan, options


def format_of(model: Model) -> str:
    """The format that a model is in."""
    return "MindIR" if is_mindir(model) else "ONNX"


def place(job: Job, plan: Plan | None, options: Options | None) -> Path | None:
    """Where the result goes: ``model.O2.onnx`` beside ``model.onnx`` where nothing else is said."""
    if job.output is not None or not job.beside or job.source is None:
        return job.output
    level = options.level.name if options is not None else plan.level if plan is not None else ""
    path = Path(job.source)
    if path.is_dir():
        raise AmpError("AMP101", "is a directory, not a model", where=str(path), hint="name the file in it")
    known = SUFFIXES[format_of(path)]
    suffix = path.suffix if path.suffix.lower() == known else known
    return path.with_name(f"{path.name.removesuffix(suffix)}.{level}{suffix}")


def read(job: Job, output: Path | None, progress: Progress) -> tuple[Graph, adapters.Back]:
    """The model; nothing that was given is written over, under whatever name, and no two results go to one file."""
    progress("reading", 0, 0)
    graph, back = adapters.load(job.model)
    plan_in = job.plan if isinstance(job.plan, str) else None
    sources = sources_of(job.source, plan_in, job.recipe.ranges, job.measuring.data, job.recipe.lists)
    plan_out = Path(job.plan_out) if job.plan_out else None
    if job.measuring.out:
        taken = [path for path in (output, plan_out) if path is not None]
        refuse_overwriting(graph, Path(job.measuring.out), [*sources, *taken], "--ranges-out")
    if plan_out is not None and output is not None and same_file(plan_out, output):
        hint = "choose another --plan-out"
        raise AmpError("AMP106", "the plan and the model would go to one file", where=str(output), hint=hint)
    if output is not None:
        refuse_overwriting(graph, output, sources, job.option)
    if plan_out is not None:
        refuse_overwriting(graph, plan_out, sources, "--plan-out")
    return graph, back


def interface(graph: Graph, recipe: Recipe) -> frozenset[str]:
    """The inputs and outputs that are to be low; names of dimensions are checked too."""
    low_io = low_interface(graph, recipe.io)
    check_dims(graph, dict(recipe.dims))
    return low_io


def decide(
    graph: Graph, plan: Plan | None, options: Options | None, low_io: frozenset[str], passing: bool, progress: Progress
) -> Planned:
    """The plan, made or given; the graph is left with its norms rewritten. ``passing``: nobody keeps one that is
    made."""
    progress("planning", 0, 0)
    if options is not None:
        plan, flow = pipeline.planned(graph, options, low_io, passing=passing)
        return Planned(plan, flow, options.lists)
    assert plan is not None  # one of the two is there
    return Planned(*pipeline.followed(plan, graph), None)


def edit(job: Job, graph: Graph, decided: Planned, progress: Progress) -> bool:
    """Runs the passes; whether anything changed."""
    progress("converting", 0, 0)
    plan, flow = decided.plan, decided.flow
    return pipeline.applied(graph, plan, flow, decided.own is None, job.passes, job.check_passes, job.metadata)


def report(
    job: Job, decided: Planned, output: Path | None, graph: Graph, changed: bool, before: Census | None,
    made: Choices | None,
) -> Summary | None:  # fmt: skip
    """The summary, where one was asked for."""
    if before is None or made is None:
        return None
    written = None if job.dry_run or output is None else str(output)
    model = os.fspath(job.source) if job.source is not None else "in memory"
    return summarize(
        decided.plan, made, before, graph.census(), decided.lists, model=model, output=written, changed=changed
    )


def write(
    job: Job, plan: Plan, options: Options | None, output: Path | None, graph: Graph, changed: bool, progress: Progress
) -> None:
    """Writes the model, and with it the plan and the ranges where asked for: all or none."""
    progress("writing", 0, 0)
    with _texts(job, plan, options):
        if job.dry_run or output is None:
            return
        if changed or job.source is None:
            graph.save(output, progress)
        else:
            graph.copy_unchanged(job.source, output)


def checking(job: Job, plan: Plan, changed: bool, output: Path | None) -> str:
    """How the result is checked, empty where it is not: nothing is lowered or written, or nobody wants it."""
    mode = job.checking.mode or ""
    wanted = mode == "require" or (mode == "auto" and output is not None)
    return mode if wanted and changed and not job.dry_run and lowers(plan) else ""


def all_that_made(job: Job, options: Options | None) -> Recipe | None:
    """The recipe of a job, with the ranges that were measured for it; None where something else made the result too."""
    if options is None or job.passes or job.optimize or job.recipe.opset == AUTO:
        return None
    return job.recipe if options.ranges is None else replace(job.recipe, ranges=options.ranges)


def trial(
    job: Job, plan: Plan, graph: Graph, options: Options | None, output: Path | None, progress: Progress
) -> CheckVerdict:
    """The verdict on a file that is gone afterwards, beside the place of the result where it has one."""
    folder = None if output is None else output.parent
    reported = contextlib.nullcontext() if output is None else refusals_reported(output, job.option)
    with reported, tempfile.TemporaryDirectory(prefix=".ampgraph-", dir=folder) as scratch:
        tried = Path(scratch) / f"result{SUFFIXES[graph.format]}"
        if not beyond(graph):
            graph.save(tried, progress)
        return verdict_on(job, plan, graph, options, tried, progress)


def verdict_on(
    job: Job, plan: Plan, graph: Graph, options: Options | None, written: Path, progress: Progress
) -> CheckVerdict:
    """What a strict run says of a file that was written, held against the model that was given."""
    dims = dict(job.recipe.dims if options is None else options.dims)
    recipe = all_that_made(job, options)
    progress("checking", 0, 0)
    if reason := beyond(graph):
        return unchecked(reason)
    with contextlib.ExitStack() as files:
        reference = job.source
        if reference is None:
            folder = files.enter_context(tempfile.TemporaryDirectory(prefix="ampgraph-"))
            reference = Path(folder) / f"reference{SUFFIXES[graph.format]}"
            adapters.load(job.model)[0].save(reference)
        return check(reference, written, plan, job.checking, job.measuring, dims, recipe)


def announce(verdict: CheckVerdict | None, check: str | None) -> None:
    """A check that was missed, or is in doubt, is not passed over. Raises AmpError AMP507 where it had to be met."""
    if verdict is None or verdict.ok:
        return
    if check == "require" and not verdict.stands:
        hint = "with check='auto' the file is written all the same"
        raise AmpError("AMP507", f"the result was not kept: {verdict}", hint=hint)
    if verdict.missed or verdict.doubtful:
        warnings.warn(PrecisionWarning(verdict), stacklevel=3)


@contextlib.contextmanager
def _texts(job: Job, plan: Plan, options: Options | None) -> Iterator[None]:
    with contextlib.ExitStack() as files:
        files.enter_context(text_file(job.plan_out, plan.to_json, "--plan-out"))
        if options is not None and options.ranges is not None:
            files.enter_context(text_file(job.measuring.out, options.ranges.to_json, "--ranges-out"))
        yield
