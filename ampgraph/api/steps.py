"""One conversion, for Python and the command line alike, as a list of steps:

model.onnx -> read -> (opset) -> ranges -> plan -> passes -> summary -> write -> model.O2.onnx

The check that follows is in `check`.
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
from ..report.summary import DRY_RUN, Choices, Summary, node_choices, summarize, summary_notes
from . import pipeline
from .calibrate import Measuring
from .kinds import Model, PathLike
from .prepare import AUTO, Optimize, freeze_weights, low_interface, move_opset, notes_on_frozen, optimise

if TYPE_CHECKING:
    from ..core.dataflow import Dataflow
    from ..oplists.options import Options
    from ..report.estimate import FusedValues

SUFFIXES = {"ONNX": ".onnx", "MindIR": ".mindir"}


@dataclass(frozen=True)
class Checking:
    """How a conversion is checked. ``mode``: None: as the environment's AMPGRAPH_CHECK says, else ``auto``;
    ``tolerance``: None: the low type's own; ``repair``: convert a result that misses again, with more in float32;
    ``metric``: None: the check's own measure; ``memory``: the GB that the check may take, None: 4.3."""

    mode: str | None = "off"
    tolerance: float | None = None
    repair: bool = False
    metric: str | Function | None = None
    memory: float | None = None


@dataclass(frozen=True)
class Job:
    """What `convert` is asked to do to one model.

    Attributes:
        model: what `ampgraph.convert` takes.
        recipe: what decides precision; with ``plan`` only its opset counts, and whether weights are frozen.
        plan: a plan to follow, or the path of one; None makes one from the recipe.
        measuring: the run that measures ranges for the plan.
        output: the file to write; None: the result stays in memory, unless ``beside`` is set.
        beside: without ``output`` the file is written beside the model's.
        plan_out: a file for the plan; None writes none.
        dry_run: nothing is written but the plan.
        report: whether the conversion has a summary, for which every node is looked at.
        passes: the user's own, which run after the conversion's.
        check_passes: whether the graph is verified after each pass.
        option: what the user calls ``output``, for messages.
        checking: how the result is checked at the end.
        metadata: whether the result says in its metadata what was done to it.
        optimize: whether the runtime's own offline optimisation comes first, or in which environment.
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
    """What `convert` has made of a job so far. Where the job asks for no summary, ``known``, ``before``, ``choices``
    and ``inside``, which only the summary needs, are None.

    Attributes:
        graph: the converted graph, in memory.
        back: makes the caller's kind of model of the graph.
        options: what the plan was made with; None for a plan that was given.
        known: the same options; for a plan that was given, what the plan says of them.
        changed: whether the graph differs from the model.
        output: the file for it; None where it stays in memory, or missed a check that is required.
        before: what the model held; ``choices``: what was decided of each of its nodes.
        summary: None until `write_files`, and where none is asked for.
        verdict: of the check; None where there was none.
        ranges: what was measured for the plan, or was given for it; None without.
        inside: the values of the float32 model that the target's fusions do not write to memory.
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
        """The recipe by which `convert` would make this result again, with the ranges that were measured in it; None
        where a given plan, passes, the runtime's optimisation or a chosen opset made the result too."""
        job = self.job
        if self.options is None or job.passes or job.optimize or job.recipe.opset == AUTO:
            return None
        return job.recipe if self.options.ranges is None else replace(job.recipe, ranges=self.options.ranges)


def run_job(job: Job, progress: Progress = silent) -> Conversion:
    """Converts and writes the job's files, without the check. Raises AmpError for mistakes in the model or the job."""
    with quiet_collector(), faults_reported(job.model):
        return write_files(convert_in_memory(job, progress), progress)


def convert_in_memory(job: Job, progress: Progress = silent) -> Conversion:
    """Takes a job of `convert` through all steps before writing. Raises AmpError as `run_job` does."""
    plan, options = plan_or_options(job)
    output = output_path(job, plan, options)
    graph, back = read_model(job, output, progress)
    low_io = frozenset() if options is None else checked_low_interface(graph, job.recipe)
    before = graph.census() if job.report else None
    count = freeze_weights(graph, job.recipe)
    as_given, optimised = graph, optimise(graph, job.optimize, options, progress)
    recipe = job.recipe if plan is None or not plan.opset else replace(job.recipe, opset=plan.opset)
    moved = move_opset(optimised.graph, recipe, options, low_io, progress)
    graph = moved.graph
    if options is not None:
        options = job.measuring.measured_options(replace(options, moved_to=moved.opset), graph, progress)
    progress("planning", 0, 0)
    if options is not None:
        made_plan, flow = pipeline.plan_graph(graph, options, low_io, passing=job.plan_out is None)
    else:
        assert plan is not None  # one of the two is there
        made_plan, flow = pipeline.follow_plan(plan, graph)
    notes = made_plan.notes
    notes += [
        *optimised.notes,
        *moved.notes,
        *notes_on_frozen(graph, made_plan, count, bool(job.recipe.freeze_weights)),
    ]
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
        chosen = node_choices(made_plan, flow, known.lists, known.ranges)
    progress("converting", 0, 0)
    edited = pipeline.run_passes(
        graph, made_plan, flow, given=options is None, passes=job.passes, check=job.check_passes, describe=job.metadata
    )
    changed = edited or graph is not as_given or (count > 0 and bool(job.recipe.freeze_weights))
    ranges = None if options is None else options.ranges
    return Conversion(
        job, graph, back, made_plan, known, options, changed, output, before, chosen, ranges=ranges, inside=inside
    )


def write_files(done: Conversion, progress: Progress = silent) -> Conversion:
    """The last step of `convert`: writes the model, and with it plan and ranges where asked for, all or none. In a dry
    run the model is left out. Returns the conversion with its summary."""
    done = replace(done, summary=summary_of(done))
    progress("writing", 0, 0)
    job, output = done.job, done.output
    with _files_beside(done):
        if not job.dry_run and output is not None:
            if done.changed or job.source is None:
                done.graph.save(output, progress)
            else:
                done.graph.copy_unchanged(job.source, output)
    return done


def prepare_to_plan(
    model: Model, recipe: Recipe, measuring: Measuring, progress: Progress = silent, *, as_made: bool = False
) -> tuple[Graph, Options, frozenset[str]]:
    """The steps of `convert` before planning, for verbs that write nothing: returns the graph, the options to plan it
    with, ranges measured, and the names of the inputs and outputs that are to be low.

    ``as_made``: where the recipe names no target, the one that the file says it was converted for."""
    from ..planner.resolve import resolve, with_target_of_file

    options = resolve(recipe, format_of(model))
    progress("reading", 0, 0)
    graph, _ = adapters.load(model)
    if as_made:
        recipe = with_target_of_file(recipe, graph)
        options = resolve(recipe, graph.format)
    low_io = checked_low_interface(graph, recipe)
    freeze_weights(graph, recipe)
    moved = move_opset(graph, recipe, options, low_io, progress)
    options = measuring.measured_options(replace(options, moved_to=moved.opset), moved.graph, progress)
    return moved.graph, options, low_io


# -- the steps --------------------------------------------------------------------------------------------------------


def plan_or_options(job: Job) -> tuple[Plan | None, Options | None]:
    """The plan that `convert` was given and None, or None and the options to make one with. Reads no model: raises
    AmpError for words that contradict each other before any work."""
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


def output_path(job: Job, plan: Plan | None, options: Options | None) -> Path | None:
    """Where `convert` puts the result: the job's output; without one ``model.O2.onnx`` beside ``model.onnx``, by the
    level of the options or else of the plan, where the job wants it beside; None for a result in memory."""
    if job.output is not None or not job.beside or job.source is None:
        return job.output
    level_of_plan = "" if plan is None else plan.level
    level = level_of_plan if options is None else options.level.name
    path = Path(job.source)
    if path.is_dir():
        raise AmpError("AMP101", "is a directory, not a model", where=str(path), hint="name the file in it")
    known = SUFFIXES[format_of(path)]
    suffix = path.suffix if path.suffix.lower() == known else known
    return path.with_name(f"{path.name.removesuffix(suffix)}.{level}{suffix}")


def read_model(job: Job, output: Path | None, progress: Progress) -> tuple[Graph, adapters.Back]:
    """The first step of `convert`: reads the model, as a graph and what makes the caller's kind of model of it.

    Raises AmpError where a result would be written over a file that was given, under whatever name, or two results
    would go to one file."""
    progress("reading", 0, 0)
    graph, back = adapters.load(job.model)
    plan_in = job.plan if isinstance(job.plan, str) else None
    sources = sources_of(job.source, plan_in, job.recipe.ranges, job.measuring.data, job.recipe.lists)
    plan_out = Path(job.plan_out) if job.plan_out else None
    if job.measuring.out:
        results = [path for path in (output, plan_out) if path is not None]
        refuse_overwriting(graph, Path(job.measuring.out), [*sources, *results], "--ranges-out")
    if plan_out is not None and output is not None and same_file(plan_out, output):
        hint = "choose another --plan-out"
        raise AmpError("AMP106", "the plan and the model would go to one file", where=str(output), hint=hint)
    if output is not None:
        refuse_result(graph, output, sources, job.option)
    if plan_out is not None:
        refuse_overwriting(graph, plan_out, sources, "--plan-out")
    return graph, back


def checked_low_interface(graph: Graph, recipe: Recipe) -> frozenset[str]:
    """The names of a graph's inputs and outputs that a recipe makes low. Raises AmpError AMP305 for an input or output
    that it names and the graph does not have, AMP310 for such a dimension."""
    low_io = low_interface(graph, recipe.io)
    check_dims(graph, dict(recipe.dims))
    return low_io


def summary_of(done: Conversion) -> Summary | None:
    """The summary of a conversion by `convert`; None where the job asks for none."""
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
    notes = (*summary.notes, *summary_notes(_further_notes(summary, job, known, flow)))
    if written is not None:
        why_no_file = ""
    elif job.dry_run:
        why_no_file = DRY_RUN
    else:
        in_memory = output_path(job, done.plan, done.options) is None
        why_no_file = "in memory" if in_memory else "not written (--check require)"
    speed = None  # where nothing is low
    if summary.lowered:
        from ..report.estimate import NOTHING, estimate_speed, speed_without_device

        speed = (
            speed_without_device(known.target) if flow is None else estimate_speed(flow, known, done.inside or NOTHING)
        )
    return replace(summary, notes=notes, check=done.verdict, speed=speed, without_file=why_no_file)


def _further_notes(summary: Summary, job: Job, known: Options, flow: Dataflow | None) -> Iterator[Note]:
    """Further notes in the summary of `convert`: that a later opset would make more nodes low, where nobody chose an
    opset; and which shapes the target's engine builder has to be told. ``flow``: None for a MindIR model."""
    if summary.opset and job.recipe.opset is None:  # nodes that a later opset would make low
        text = f"optional, may be faster: --opset auto raises it where that makes more operators {summary.dtype}"
        yield Note("opset", "", text, advice=True)
    if flow is not None and known.kernels.builder:
        from ..report.fusions import shape_words

        if words := shape_words(flow, known):
            yield Note("shapes", "", words)


@contextlib.contextmanager
def _files_beside(done: Conversion) -> Iterator[None]:
    """Opens the files that `convert` writes beside the model (plan, ranges, where asked for). They appear when the
    block ends, in which the model is written; none does where it raises."""
    job = done.job
    with contextlib.ExitStack() as files:
        files.enter_context(text_file(job.plan_out, done.plan.to_json, "--plan-out"))
        if done.ranges is not None:
            files.enter_context(text_file(job.measuring.out, done.ranges.to_json, "--ranges-out"))
        yield
