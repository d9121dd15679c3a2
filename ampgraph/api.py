"""What a program calls: convert, plan, apply, inspect."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .dataflow import Dataflow
from .errors import AmpError, nearest
from .formats import adapters, onnx_io
from .formats.onnx_format import OnnxGraph, quiet_collector
from .oplists import load_kernels, load_level, load_op_lists
from .passes.apply_plan import ApplyPlan
from .passes.fuse_casts import FuseCasts
from .passes.rewrite_regions import RewriteRegions
from .passes.verify_types import VerifyTypes
from .planner import Options, find_rewrites, make_plan
from .plans import Plan

DTYPES = ("float16", "bfloat16")


def convert(
    model: Any,
    level: str = "O2",
    *,
    dtype: str = "float16",
    policy: str = "ampgraph",
    lists: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    fp32: Iterable[str] = (),
    low: Iterable[str] = (),
    io: str | Sequence[str] = "keep",
    target: str = "cuda",
    dims: Mapping[str, int] | None = None,
    plan: Plan | None = None,
    opset: int | None = None,
    output: str | os.PathLike | None = None,
) -> Any:
    """Converts a model to mixed precision; the caller's object is never changed.

    Args:
        model: a path, onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch ONNXProgram.
        level: O0, O1, O2, O3 or auto.
        dtype: float16 or bfloat16.
        policy: whose lists and rules; ``ampgraph`` is there.
        lists: TOML files merged over the policy's lists.
        fp32, low: patterns of nodes to keep in float32 or to make low: a node name glob,
            ``op:Kind``, ``scope:layers.3.*`` or ``value:NAME``.
        io: ``keep``, ``low``, or ``["name-pattern=low", ...]`` for graph inputs and outputs.
        target: cuda, tensorrt, cann or cpu: whose kernels count.
        dims: sizes of symbolic dimensions, for costs only.
        plan: apply this plan instead of making one.
        opset: convert the default domain to this opset first.
        output: write the result there, whole or not at all, and return the path.

    Returns:
        ``output`` when it is given, else the same kind as ``model`` (for a path: onnx.ModelProto, or onnx_ir.Model when
        its weights are external).

    Raises:
        AmpError: for every mistake in the input or the arguments.
    """
    with quiet_collector():
        graph, back = adapters.load(model)
        low_io = graph_io(graph, io)
        if opset is not None:
            graph = _at_opset(graph, opset)
        if plan is None:
            plan, flow = _plan(graph, _options(level, dtype, policy, lists, fp32, low, target, dims), low_io)
        else:
            flow = _follow(plan, graph)
        changed = _apply(graph, plan, flow) or opset is not None
        if output is None:
            return back(graph, changed)
        write(graph, output, model if not changed and isinstance(model, (str, os.PathLike)) else None)
        return output


def plan(
    model: Any,
    level: str = "O2",
    *,
    dtype: str = "float16",
    policy: str = "ampgraph",
    lists: Any = None,
    fp32: Iterable[str] = (),
    low: Iterable[str] = (),
    io: str | Sequence[str] = "keep",
    target: str = "cuda",
    dims: Mapping[str, int] | None = None,
) -> Plan:
    """The plan that `convert` would apply; arguments as there."""
    with quiet_collector():
        graph, _ = adapters.load(model)
        return _plan(graph, _options(level, dtype, policy, lists, fp32, low, target, dims), graph_io(graph, io))[0]


def apply(model: Any, plan: Plan, *, io: str | Sequence[str] = "keep", output: str | os.PathLike | None = None) -> Any:
    """Applies a plan to the model that it was made for. Raises AmpError AMP403 for another model."""
    return convert(model, plan=plan, io=io, output=output)


def write(graph: OnnxGraph, output: str | os.PathLike, unchanged_source: Any = None) -> None:
    """Writes a graph whole or not at all; a file in which nothing changed is copied byte for byte."""
    if unchanged_source is not None:
        onnx_io.copy_unchanged(unchanged_source, output)
    else:
        onnx_io.save(graph.model, output)


def _options(
    level: str,
    dtype: str,
    policy: str,
    lists: Any,
    fp32: Iterable[str],
    low: Iterable[str],
    target: str,
    dims: Mapping[str, int] | None,
) -> Options:
    if dtype not in DTYPES:
        raise AmpError("AMP301", f"unknown dtype '{dtype}'", hint=nearest(dtype, list(DTYPES)) or "float16 or bfloat16")
    files = [Path(f) for f in ([lists] if isinstance(lists, (str, os.PathLike)) else lists or ())]
    return Options(
        level=load_level(level, files),
        lists=load_op_lists(policy, files),
        kernels=load_kernels(target),
        dtype=dtype,
        policy=policy,
        target=target,
        fp32=_words(fp32),
        low=_words(low),
        dims=dict(dims or {}),
    )


def _words(patterns: Iterable[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def graph_io(graph: OnnxGraph, io: str | Sequence[str]) -> frozenset[str]:
    """The graph inputs and outputs that ``io`` asks to be low."""
    names = [v.name or "" for v in [*graph.model.graph.inputs, *graph.model.graph.outputs]]
    if io == "keep":
        return frozenset()
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


def _plan(graph: OnnxGraph, options: Options, low_io: frozenset[str]) -> tuple[Plan, Dataflow]:
    """Plans on the graph with its norms rewritten, and leaves it so; returns the dataflow that the plan speaks of."""
    graph.prepare()
    digest = _digest(graph, low_io)
    flow = graph.dataflow(options.dtype, low_io)
    rewrites = find_rewrites(flow, options)
    if rewrites:
        RewriteRegions(tuple(rewrites))(graph, flow)
        flow = graph.dataflow(options.dtype, low_io)
    made = make_plan(flow, options, digest)
    made.rewrites = rewrites
    return made, flow


def _digest(graph: OnnxGraph, low_io: frozenset[str]) -> str:
    return graph.digest() + ("" if not low_io else ":" + ",".join(sorted(low_io)))


def _follow(plan: Plan, graph: OnnxGraph) -> Dataflow:
    """Checks that a given plan is this model's, rewrites its norms, and returns the dataflow that it speaks of."""
    graph.prepare()
    if plan.digest.split(":")[0] != graph.digest():
        raise AmpError(
            "AMP403",
            "the plan was made for another model",
            hint="make a plan for this model, or give the one it was made for",
        )
    low_io = frozenset(plan.digest.split(":", 1)[1].split(",")) if ":" in plan.digest else frozenset()
    flow = graph.dataflow(plan.dtype, low_io)
    if plan.rewrites:
        RewriteRegions(tuple(plan.rewrites))(graph, flow)
        flow = graph.dataflow(plan.dtype, low_io)
    return flow


def _apply(graph: OnnxGraph, plan: Plan, flow: Dataflow) -> bool:
    """Runs the passes over a graph and its fresh dataflow; False when the model stays as it is."""
    if plan.changes_nothing:
        return False
    known = frozenset(flow.conflicts)
    graph.import_default_domain()
    editor = ApplyPlan(plan)(graph, flow)
    FuseCasts(plan.dtype)(editor, flow)
    VerifyTypes(known)(graph)
    return True


def _at_opset(graph: OnnxGraph, opset: int) -> OnnxGraph:
    """The model in another opset, by onnx's version converter."""
    import onnx
    import onnx_ir as ir

    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise AmpError("AMP307", f"opset {opset} does not exist here", hint=f"1 to {newest} with the installed onnx")
    folder = next((t.base_dir for t in onnx_io.external_tensors(graph.model)), None)
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(graph.model), opset)
    except Exception as error:  # the converter raises many kinds for operators it cannot move
        raise AmpError(
            "AMP307",
            f"cannot be moved to opset {opset}: {str(error).splitlines()[0]}",
            hint="leave --opset away, or export the model at that opset",
        ) from error
    return OnnxGraph(onnx_io.deserialize(proto, None if folder is None else Path(folder)))


def default_output(path: str | os.PathLike, level: str) -> Path:
    """``model.O2.onnx`` beside ``model.onnx``."""
    path = Path(path)
    stem = path.name[: -len(".onnx")] if path.name.endswith(".onnx") else path.name
    return path.with_name(f"{stem}.{level}.onnx")
