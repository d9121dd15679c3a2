"""One conversion, for Python and the command line alike, as a list of steps:

model.onnx -> read -> (opset) -> ranges -> plan -> passes -> report -> write -> model.O2.onnx

What a check does behind it is in `check`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.files import same_file, sources_of, text_file
from ..core.graph import Census, Graph, is_mindir
from ..core.pass_ import Pass
from ..core.plan import Note, Plan
from ..core.progress import Progress, silent
from ..core.ranges import Ranges
from ..core.recipe import Recipe
from ..core.verdict import CheckVerdict
from ..formats import adapters
from ..formats.checks import faults_reported, refuse_overwriting, refuse_result
from ..numerics.inputs.samples import check_dims
from ..numerics.metrics.metric import Function
from ..report.summary import DRY_RUN, Choices, Summary, choices, said_notes, summarize
from . import pipeline
from .calibrate import Measuring
from .kinds import Model, PathLike
from .prepare import AUTO, Optimize, frozen, frozen_notes, low_interface, moved, optimised

if TYPE_CHECKING:
    from ..core.dataflow import Dataflow
    from ..oplists.options import Options
    from ..report.estimate import FusedValues

SUFFIXES = {"ONNX": ".onnx", "MindIR": ".mindir"}


@dataclass(frozen=True)
class Checking:
    """How a conversion is checked. ``mode`` None: as the environment's AMPGRAPH_CHECK says, else ``auto``; ``metric``
    None: the check's own measure; ``memory``: the GB that the check may take, 4.3 if None."""

    mode: str | None = "off"
    tolerance: float | None = None
    repair: bool = False
    metric: str | Function | None = None
    memory: float | None = None


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
        """The file of the model to convert, None for one in memory."""
        return self.model if isinstance(self.model, (str, os.PathLike)) else None


@dataclass(frozen=True)
class Conversion:
    """What became of a job.

    Attributes:
        graph: as it is now.
        known: the options, of a plan that was given what it says of them, where a summary is asked for.
        options: with which the plan was made; None for a plan that was given. ``ranges``: that were measured for it.
        changed: whether it differs from the model.
        output: the file for it; None where there is none, or the check that had to be met was not.
        before: what the model held, where a summary is asked for; ``choices``: what was decided of each node.
        verdict: of the check, None where there was none.
        inside: what the target's fusions hold back of the float32 model's values.
    """

    job: Job
    graph: Graph
    back: adapters.Back
    plan: Plan
    known: Options | None
    options: Options | None
    changed: bool
    output: Path | None
    before: Census | None = None
    choices: Choices | None = None
    summary: Summary | None = None
    verdict: CheckVerdict | None = None
    ranges: Ranges | None = None
    inside: FusedValues | None = None

    def model(self) -> object:
        """The converted model, in the caller's kind of model."""
        return self.back(self.graph, self.changed)

    def made_with(self) -> Recipe | None:
        """The recipe, with the ranges that were measured for it; None where something else made the result too."""
        job = self.job
        if self.options is None or job.passes or job.optimize or job.recipe.opset == AUTO:
            return None
        return job.recipe if self.options.ranges is None else replace(job.recipe, ranges=self.options.ranges)


def run(job: Job, progress: Progress = silent) -> Conversion:
    """Does a job and writes its files, without its check. Raises AmpError for every mistake in the model or in what was
    asked."""
    with quiet_collector(), faults_reported(job.model):
        return finished(made(job, progress), progress)


def made(job: Job, progress: Progress = silent) -> Conversion:
    """Converts a model in memory; nothing is written. Raises AmpError as `run`."""
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
    progress("planning", 0, 0)
    if options is not None:
        made_plan, flow = pipeline.planned(graph, options, low_io, passing=job.plan_out is None)
    else:
        assert plan is not None  # one of the two is there
        made_plan, flow = pipeline.followed(plan, graph)
    notes = made_plan.notes
    notes += [*first.notes, *move.notes, *frozen_notes(graph, made_plan, count, bool(job.recipe.freeze_weights))]
    known = chosen = None
    inside: FusedValues | None = None
    if job.report:
        from ..planner.resolve import options_of_plan
        from ..report.estimate import fused_values

        if options is not None:
            from ..planner.alternatives import alternatives

            notes += alternatives(flow, options, made_plan)
        known = options_of_plan(made_plan, job.recipe, graph.format) if options is None else options
        inside = fused_values(flow, known, made_plan.rewrites)
        chosen = choices(made_plan, flow, known.lists, known.ranges)
    progress("converting", 0, 0)
    given = options is None  # its faults are not ours
    edited = pipeline.applied(graph, made_plan, flow, given, job.passes, job.check_passes, job.metadata)
    changed = edited or graph is not as_given or (count > 0 and bool(job.recipe.freeze_weights))
    ranges = None if options is None else options.ranges
    return Conversion(
        job, graph, back, made_plan, known, options, changed, output, before, chosen, ranges=ranges, inside=inside
    )


def finished(done: Conversion, progress: Progress = silent) -> Conversion:
    """The last step of a conversion: writes the model, and with it plan and ranges where asked for, all or none;
    returns it with its summary."""
    done = replace(done, summary=report(done))
    progress("writing", 0, 0)
    job, output = done.job, done.output
    with _files_beside(done):
        if not job.dry_run and output is not None:
            if done.changed or job.source is None:
                done.graph.save(output, progress)
            else:
                done.graph.copy_unchanged(job.source, output)
    return done


def ready(
    model: Model, recipe: Recipe, measuring: Measuring, progress: Progress = silent, *, as_made: bool = False
) -> tuple[Graph, Options, frozenset[str]]:
    """The steps before planning, for verbs that write nothing: a graph, how to plan it, which inputs and outputs
    are low.

    ``as_made``: for the target that a converted file was made for, where the recipe names none."""
    from ..planner.resolve import resolve, with_target_of_file

    options = resolve(recipe, format_of(model))
    progress("reading", 0, 0)
    graph, _ = adapters.load(model)
    if as_made:
        recipe = with_target_of_file(recipe, graph)
        options = resolve(recipe, graph.format)
    low_io = interface(graph, recipe)
    frozen(graph, recipe)
    move = moved(graph, recipe, options, low_io, progress)
    return move.graph, measuring.steer(replace(options, moved_to=move.opset), move.graph, progress), low_io


# -- the steps --------------------------------------------------------------------------------------------------------


def words(job: Job) -> tuple[Plan | None, Options | None]:
    """The plan that `convert` was given, or the options to make one with; contradictions raise before any work."""
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
    """The format of the model that a verb was given: MindIR or ONNX."""
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
    """The first step of `convert`: the model; nothing that was given is written over, under whatever name, and no two
    results go to one file."""
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
        refuse_result(graph, output, sources, job.option)
    if plan_out is not None:
        refuse_overwriting(graph, plan_out, sources, "--plan-out")
    return graph, back


def interface(graph: Graph, recipe: Recipe) -> frozenset[str]:
    """For `convert`: the inputs and outputs that a recipe makes low; names of dimensions are checked too."""
    low_io = low_interface(graph, recipe.io)
    check_dims(graph, dict(recipe.dims))
    return low_io


def report(done: Conversion) -> Summary | None:
    """The summary of a conversion by `convert`, where one was asked for."""
    known = done.known
    if done.before is None or done.choices is None or known is None:
        return None
    job = done.job
    written = None if job.dry_run or done.output is None else str(done.output)
    model = os.fspath(job.source) if job.source is not None else "in memory"
    summary = summarize(
        done.plan, done.choices, done.before, done.graph.census(), known.lists, model=model, output=written,
        changed=done.changed,
    )  # fmt: skip
    flow = done.graph.dataflow(done.plan.dtype) if done.graph.format == "ONNX" else None
    notes = (*summary.notes, *said_notes(_further_notes(summary, job, known, flow)))
    in_memory = place(job, done.plan, done.options) is None
    said = DRY_RUN if job.dry_run else "in memory" if in_memory else "not written (--check require)"
    speed = None  # where nothing is low
    if summary.lowered:
        from ..report.estimate import NOTHING, no_device, speed_of

        speed = no_device(known.target) if flow is None else speed_of(flow, known, done.inside or NOTHING)
    without = "" if written else said
    return replace(summary, notes=notes, check=done.verdict, speed=speed, without_file=without)


def _further_notes(summary: Summary, job: Job, known: Options, flow: Dataflow | None) -> Iterator[Note]:
    """Notes in the summary of `convert`: what other options would gain, what the target's own tools have to be told."""
    if summary.opset and job.recipe.opset is None:  # nodes that a later opset would make low
        text = f"optional, may be faster: --opset auto raises it where that makes more operators {summary.dtype}"
        yield Note("opset", "", text, advice=True)
    if flow is not None and known.kernels.builder:
        from ..report.fusions import shape_words

        if words := shape_words(flow, known):
            yield Note("shapes", "", words)


@contextlib.contextmanager
def _files_beside(done: Conversion) -> Iterator[None]:
    """Opens the files that `convert` writes beside the model (plan, ranges): all appear with it, or none."""
    job = done.job
    with contextlib.ExitStack() as files:
        files.enter_context(text_file(job.plan_out, done.plan.to_json, "--plan-out"))
        if done.ranges is not None:
            files.enter_context(text_file(job.measuring.out, done.ranges.to_json, "--ranges-out"))
        yield
