"""The steps of a conversion, for the API and the command line alike: read, plan, apply, verify, write."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.dataflow import Dataflow
from ..core.errors import AmpError, nearest
from ..core.graph import Graph, is_mindir
from ..core.pass_ import Pass, run
from ..core.plan import Note, Plan, Rewrite
from ..oplists.lists import load_kernels, load_level, load_op_lists
from ..passes.pipeline import default_pipeline
from ..passes.rewrite_regions import RewriteRegions
from ..planner.guards.weights import exceeds
from ..planner.state import largest
from ..planner.steps import Options, find_rewrites, make_plan

DTYPES = ("float16", "bfloat16")
STORES = ("low", "keep")
DEFAULT_TARGETS = {"ONNX": "cuda", "MindIR": "ascend"}


def build_options(
    level: str,
    dtype: str,
    policy: str,
    lists: Any,
    fp32: Iterable[str],
    low: Iterable[str],
    target: str | None,
    dims: Mapping[str, int] | None,
    store_weights: str | None = None,
    model_format: str = "ONNX",
) -> Options:
    """Options from words, with the lists, levels and kernels that they name. Raises AmpError 3xx for a wrong word."""
    if dtype not in DTYPES:
        raise AmpError("AMP301", f"unknown dtype '{dtype}'", hint=nearest(dtype, list(DTYPES)) or "float16 or bfloat16")
    if policy == "mindspore" and model_format != "MindIR":
        raise AmpError(
            "AMP303",
            "policy 'mindspore' goes by MindSpore's cells",
            hint="it is for .mindir files; leave --policy away",
        )
    if policy == "mindspore" and (fp32 or low or lists):
        word = "--fp32" if fp32 else "--low" if low else "--lists"
        raise AmpError("AMP305", f"{word} cannot change what MindSpore does", hint="leave --policy mindspore away")
    store = store_weights or ("keep" if policy == "mindspore" else "low")
    if store not in STORES:
        raise AmpError("AMP301", f"weights cannot be stored '{store}'", hint="--store-weights low or keep")
    target = DEFAULT_TARGETS[model_format] if target is None else target
    files = [Path(f) for f in ([lists] if isinstance(lists, (str, os.PathLike)) else lists or ())]
    return Options(
        level=load_level(level, files),
        lists=load_op_lists(policy, files),
        kernels=load_kernels(target, model_format),
        dtype=dtype,
        policy=policy,
        target=target,
        fp32=_words(fp32),
        low=_words(low),
        dims=dict(dims or {}),
        store_weights=store,
    )


def _words(patterns: Iterable[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def low_interface(graph: Graph, io: str | Sequence[str]) -> frozenset[str]:
    """The graph inputs and outputs that ``io`` asks to be low."""
    if io == "keep":
        return frozenset()
    names = graph.interface()
    if io == "low":
        return frozenset(names)
    chosen: set[str] = set()
    for word in _words(io):
        pattern, _, kind = word.partition("=")
        if word in ("keep", "low"):
            chosen |= set(names) if word == "low" else set()
            continue
        matched = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if kind not in ("low", "keep") or not matched:
            problem = f"'{word}' matches no input or output" if not matched else f"'{word}' does not say =low or =keep"
            raise AmpError("AMP305", problem, hint=nearest(pattern, names) or f"there are: {', '.join(names[:8])}")
        chosen = chosen | set(matched) if kind == "low" else chosen - set(matched)
    return frozenset(chosen)


def prepare(graph: Graph, options: Options, low_io: frozenset[str]) -> tuple[Dataflow, list[Rewrite]]:
    """Sorts the graph and rewrites the norms that are better written as one operator; a dataflow of the result."""
    graph.prepare()
    graph.refuse_training()
    flow = graph.dataflow(options.dtype, low_io)
    rewrites = find_rewrites(flow, options)
    if rewrites:
        RewriteRegions(tuple(rewrites), options.dtype)(graph)
        flow = graph.dataflow(options.dtype, low_io)
    return flow, rewrites


def planned(graph: Graph, options: Options, low_io: frozenset[str]) -> tuple[Plan, Dataflow]:
    """The plan of a graph, which is left with its norms rewritten, and the dataflow that the plan speaks of."""
    graph.prepare()
    digest = graph.digest()
    if options.ranges is not None:
        options.ranges.check(digest)
    flow, rewrites = prepare(graph, options, low_io)
    if low_io and options.dtype == "bfloat16" and 0 < flow.opset < 13:
        raise AmpError(
            "AMP305", f"opset {flow.opset} has no Cast to bfloat16 for --io", hint="add --opset 13, or use float16"
        )
    plan = make_plan(flow, options, digest)
    plan.rewrites, plan.low_io = rewrites, sorted(low_io)
    if options.ranges is not None:
        plan.notes += [Note("samples", "", text) for text in options.ranges.notes]
    return plan, flow


def followed(plan: Plan, graph: Graph) -> Dataflow:
    """Checks that a given plan is this model's, rewrites its norms, and returns the dataflow that it speaks of."""
    graph.prepare()
    graph.refuse_training()
    if plan.digest != graph.digest():
        raise AmpError(
            "AMP403",
            "the plan was made for another model",
            hint="make a plan for this model, or give the one it was made for",
        )
    low_io = frozenset(plan.low_io)
    flow = graph.dataflow(plan.dtype, low_io)
    _refuse_other_weights(plan, flow)
    if plan.rewrites:
        RewriteRegions(tuple(plan.rewrites), plan.dtype)(graph)
        flow = graph.dataflow(plan.dtype, low_io)
    return flow


def _refuse_other_weights(plan: Plan, flow: Dataflow) -> None:
    """The digest does not read large weights: that the low type can hold them is looked at here."""
    limit = largest(plan.dtype)
    values = {(flow.scopes[v.scope].path, v.name): v for v in flow.values if v.weight}
    for edit in plan.weights:
        value = values.get((edit.scope, edit.value))
        if value is not None and edit.store != "float32" and edit.floor is None and exceeds(flow, value, limit):
            raise AmpError(
                "AMP403",
                f"the plan was made for other weights: '{edit.value}' is beyond {plan.dtype}",
                hint="make a plan for this model",
            )


def applied(
    graph: Graph, plan: Plan, flow: Dataflow, given: bool = False, passes: Sequence[Pass] = (), check: bool = False
) -> bool:
    """Runs the passes over a graph and its fresh dataflow; False when the model stays as it is.

    ``given``: somebody else made the plan, so that its faults are not ours. ``passes``: the user's, behind ours."""
    pipeline = default_pipeline(plan, flow, more=passes, given=given)
    changes = run(pipeline, graph, check=check)
    return not plan.changes_nothing or any(change.count for change in changes)


def default_output(path: str | os.PathLike, level: str) -> Path:
    """``model.O2.onnx`` beside ``model.onnx``, ``net.O2.mindir`` beside ``net.mindir``."""
    path = Path(path)
    if path.is_dir():
        raise AmpError("AMP101", "is a directory, not a model", where=str(path), hint="name the file in it")
    suffix = ".mindir" if is_mindir(path) else ".onnx"
    return path.with_name(f"{path.name.removesuffix(suffix)}.{level}{suffix}")
