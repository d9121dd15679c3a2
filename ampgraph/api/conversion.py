"""`ampgraph convert` as steps: read, plan, apply, report, write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli.console import Progress
from ..core.dataflow import Dataflow
from ..core.errors import AmpError, nearest
from ..core.files import same_file, sources_of, text_file
from ..core.graph import Graph
from ..core.plan import Plan, Rewrite
from ..formats import adapters
from ..formats.checks import refuse_overwriting
from ..formats.onnx.graph import quiet_collector
from ..oplists.operators import load_op_lists
from ..planner.steps import Options, decide, find_rewrites
from ..report.explain import Explanation, explain, replaced_nodes
from ..report.summary import Summary, choices, summarize
from . import pipeline
from .measuring import Measuring

if TYPE_CHECKING:
    from ..cli.app import Steering


@dataclass(frozen=True)
class Job:
    """What `convert` was asked for."""

    model: str
    output: str | None
    steering: Steering
    opset: int | None = None
    plan_in: str | None = None
    plan_out: str | None = None
    dry_run: bool = False
    measuring: Measuring = Measuring()


def run(job: Job, progress: Progress) -> Summary:
    """Does the job and reports on it."""
    given = [*job.steering.given(), *job.measuring.given()]
    if job.plan_in and given:
        raise AmpError(
            "AMP404", f"{given[0]} cannot change a plan that is given", hint="leave it away, or leave --plan-in away"
        )
    plan = Plan.read(job.plan_in) if job.plan_in else None
    options = None if plan else job.steering.options(job.model)
    job.measuring.check()
    if job.dry_run and job.measuring.ranges_out is not None:
        hint = "leave --dry-run away to keep what is measured"
        raise AmpError("AMP311", "--ranges-out and --dry-run exclude each other", hint=hint)
    level = options.level.name if options else plan.level if plan else ""
    output = Path(job.output) if job.output is not None else pipeline.default_output(job.model, level)
    with quiet_collector():
        progress.stage("reading")
        graph, _ = adapters.load(job.model)
        _refuse_outputs(output, job, graph)
        low_io = job.steering.low_io(graph)
        _check_dims(graph, options.dims if options else {})
        before = graph.census()
        if job.opset is not None:
            progress.stage(f"moving to opset {job.opset}")
            graph = adapters.at_opset(graph, job.opset)
        if options is not None:
            options = job.measuring.steer(options, graph, progress.part)
        progress.stage("planning")
        if options is not None:
            plan, flow = pipeline.planned(graph, options, low_io)
        else:
            assert plan is not None
            flow = pipeline.followed(plan, graph)
        lists = options.lists if options else load_op_lists(plan.policy)
        made = choices(plan, flow, lists)
        progress.stage("converting")
        changed = pipeline.applied(graph, plan, flow, options is None) or job.opset is not None
        summary = summarize(
            plan,
            made,
            before,
            graph.census(),
            lists,
            model=job.model,
            output=None if job.dry_run else str(output),
            changed=changed,
        )
        progress.stage("writing")
        with _reports(job, plan, options):
            if not job.dry_run and changed:
                graph.save(output, progress.part)
            elif not job.dry_run:
                graph.copy_unchanged(job.model, output)
    return summary


@contextlib.contextmanager
def _reports(job: Job, plan: Plan, options: Options | None) -> Iterator[None]:
    """Writes the plan and the ranges, where asked for, when the model is written too."""
    with contextlib.ExitStack() as files:
        files.enter_context(text_file(job.plan_out, plan.to_json, "--plan-out"))
        if options is not None and options.ranges is not None:
            files.enter_context(text_file(job.measuring.ranges_out, options.ranges.to_json, "--ranges-out"))
        yield


def explained(
    model: str, node: str, steering: Steering, progress: Progress, measuring: Measuring | None = None
) -> Explanation:
    """One node's decisions, as `convert` with these options would make them."""
    options = steering.options(model)
    with quiet_collector():
        progress.stage("reading")
        graph, _ = adapters.load(model)
        low_io = steering.low_io(graph)
        _check_dims(graph, options.dims)
        progress.stage("planning")
        graph.prepare()
        options = (measuring or Measuring()).steer(options, graph)
        replaced = replaced_nodes(*_before_rewrites(graph, options, low_io))
        flow, _ = pipeline.prepare(graph, options, low_io)
        state, _ = decide(flow, options)
        return explain(state, node, replaced)


def _before_rewrites(graph: Graph, options: Options, low_io: frozenset[str]) -> tuple[Dataflow, list[Rewrite]]:
    flow = graph.dataflow(options.dtype, low_io)
    return flow, find_rewrites(flow, options)


def _refuse_outputs(output: Path, job: Job, graph: Graph) -> None:
    """Nothing that was given is written over, under whatever name, and no two results go to one file."""
    asked = job.measuring
    sources = sources_of(job.model, job.plan_in, asked.ranges, asked.data, job.steering.lists)
    if asked.ranges_out:
        taken = [output, *([Path(job.plan_out)] if job.plan_out else ())]
        refuse_overwriting(graph, Path(asked.ranges_out), [*sources, *taken], "--ranges-out")
    if job.plan_out and same_file(Path(job.plan_out), output):
        raise AmpError(
            "AMP106", "the plan and the model would go to one file", where=str(output), hint="choose another --plan-out"
        )
    refuse_overwriting(graph, output, sources, "-o")
    if job.plan_out:
        refuse_overwriting(graph, Path(job.plan_out), sources, "--plan-out")


def _check_dims(graph: Graph, dims: dict[str, int]) -> None:
    if not dims:
        return
    known = graph.dimensions()
    for name in dims:
        if name not in known:
            names = sorted(known)
            there = f"there are: {', '.join(names[:8])}" if names else "all its dimensions are numbers"
            raise AmpError(
                "AMP310", f"--dim {name}: the model has no dimension of that name", hint=nearest(name, names) or there
            )
