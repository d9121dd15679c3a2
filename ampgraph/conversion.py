"""`ampgraph convert` as steps: read, plan, apply, report, write."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import pipeline
from .checks import refuse_overwriting, same_file
from .console import Progress
from .dataflow import Dataflow
from .errors import AmpError, nearest
from .formats import adapters
from .formats.base import Graph
from .formats.onnx_format import quiet_collector
from .measuring import Measuring
from .oplists import load_op_lists
from .planner import Options, decide, find_rewrites
from .plans import Plan, Rewrite
from .report.explain import Explanation, explain, replaced_nodes
from .report.summary import Summary, choices, summarize

if TYPE_CHECKING:
    from .cli import Steering


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


def run(job: Job, told: Progress) -> Summary:
    """Does the job and reports on it."""
    given = [*job.steering.given(), *job.measuring.given()]
    if job.plan_in and given:
        raise AmpError(
            "AMP404", f"{given[0]} cannot change a plan that is given", hint="leave it away, or leave --plan-in away"
        )
    plan = Plan.read(job.plan_in) if job.plan_in else None
    options = None if plan else job.steering.options(job.model)
    job.measuring.check()
    level = options.level.name if options else plan.level if plan else ""
    output = Path(job.output) if job.output is not None else pipeline.default_output(job.model, level)
    with quiet_collector():
        told.stage("reading")
        graph, _ = adapters.load(job.model)
        _refuse_output(output, job, graph)
        low_io = job.steering.low_io(graph)
        _check_dims(graph, options.dims if options else {})
        before = graph.census()
        if job.opset is not None:
            told.stage(f"moving to opset {job.opset}")
            graph = adapters.at_opset(graph, job.opset)
        if options is not None:
            options = job.measuring.steer(options, graph, told.part)
        told.stage("planning")
        if options is not None:
            plan, flow = pipeline.planned(graph, options, low_io)
        else:
            assert plan is not None
            flow = pipeline.followed(plan, graph)
        lists = options.lists if options else load_op_lists(plan.policy)
        made = choices(plan, flow, lists)
        told.stage("converting")
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
        told.stage("writing")
        with _plan_file(job.plan_out, plan):
            if not job.dry_run and changed:
                graph.save(output, told.part)
            elif not job.dry_run:
                graph.copy_unchanged(job.model, output)
    return summary


def explained(
    model: str, node: str, steering: Steering, told: Progress, measuring: Measuring | None = None
) -> Explanation:
    """One node's decisions, as `convert` with these options would make them."""
    options = steering.options(model)
    with quiet_collector():
        told.stage("reading")
        graph, _ = adapters.load(model)
        low_io = steering.low_io(graph)
        _check_dims(graph, options.dims)
        told.stage("planning")
        graph.prepare()
        options = (measuring or Measuring()).steer(options, graph)
        replaced = replaced_nodes(*_before_rewrites(graph, options, low_io))
        flow, _ = pipeline.prepare(graph, options, low_io)
        state, _ = decide(flow, options)
        return explain(state, node, replaced)


def _before_rewrites(graph: Graph, options: Options, low_io: frozenset[str]) -> tuple[Dataflow, list[Rewrite]]:
    flow = graph.dataflow(options.dtype, low_io)
    return flow, find_rewrites(flow, options)


def _refuse_output(output: Path, job: Job, graph: Graph) -> None:
    """The input and its data files are never written over, under whatever name."""
    asked = job.measuring
    files = [Path(file) for file in (job.plan_in, asked.ranges, asked.data) if isinstance(file, str)]
    sources = [Path(job.model), *(f for file in files for f in (file.glob("*.npz") if file.is_dir() else [file]))]
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


@contextlib.contextmanager
def _plan_file(path: str | None, plan: Plan) -> Iterator[None]:
    """Writes the plan beside its place, and puts it there when the model is written too."""
    if path is None:
        yield
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_text(plan.to_json(), encoding="utf-8")
        except OSError as error:
            raise _unwritable(target, error) from error
        yield
        try:
            os.replace(temporary, target)
        except OSError as error:
            raise _unwritable(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> AmpError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    message = "the disk is full" if full else f"cannot be written: {error.strerror or error}"
    hint = "choose another place with --plan-out"
    return AmpError("AMP105", message, where=str(path), hint=f"free some space, or {hint}" if full else hint)
