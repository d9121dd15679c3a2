"""``optimize=``: ONNX Runtime's own offline optimisation for the target, before a conversion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ..core.errors import AmpError
from ..core.graph import LOW, Graph
from ..core.plan import Note
from ..core.progress import Progress, silent
from ..formats import adapters
from ..formats.onnx import copying
from ..formats.onnx import io as onnx_io
from ..formats.onnx.graph import OnnxGraph
from ..runtime.optimized import kind_of, walk
from ..runtime.optimizing import SIZE_LIMIT, Counter, NotOptimized, best_fused, node_count
from . import pipeline
from .opsets import Moved

if TYPE_CHECKING:
    from ..planner.options import Options

Optimize = bool | str
"""Whether to, or the Python of an environment whose onnxruntime does it."""
OWN = "com.microsoft::"


def optimised(graph: Graph, wanted: Optimize, options: Options | None, progress: Progress = silent) -> Moved:
    """The model as the runtime optimises it, with a note that says what was done; as it is where that is no gain.

    Raises AmpError AMP304 for a format or target whose runtime has no such operators, AMP404 beside a plan, AMP501
    where there is no onnxruntime, AMP502 where it refuses the model, AMP508 for a Python that cannot be asked.
    """
    if not wanted:
        return Moved(graph)
    if options is None:
        hint = "a plan is of the graph as it is: optimise and plan in one go"
        raise AmpError("AMP404", "optimize= cannot change the given plan", hint=hint)
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"{graph.format} models are not for ONNX Runtime", hint="omit --optimize")
    if not any(kind.startswith(OWN) for kind in options.kernels.entries):
        hint = "omit --optimize: it fuses by itself when it loads the model"
        raise AmpError("AMP304", f"{options.target} has none of ONNX Runtime's own operators", hint=hint)
    if low := _low_types(graph, options):
        return Moved(graph, (Note("optimize", "", f"not done: the model holds {low} already"),))
    if not len(graph.model.graph):
        return Moved(graph, (Note("optimize", "", "not done: the model has no nodes"),))
    progress("optimising", 0, 0)
    return _fused(graph, wanted if isinstance(wanted, str) else "", options)


def _low_types(graph: OnnxGraph, options: Options) -> str:
    """The low types that a model has: what was converted is not fused anew, and converting it again changes nothing."""
    copy = adapters.copied(graph)
    copy.prepare()
    flow = copy.dataflow(options.dtype, frozenset())
    return " and ".join(low for low in LOW if any(value.dtype == low for value in flow.values))


def runs_on(options: Options, proto: onnx.ModelProto) -> bool:
    """Whether the target has kernels for the operators of ONNX Runtime's own in a model, and the CPU has, on which the
    result is checked."""
    imported = {entry.domain: entry.version for entry in proto.opset_import}
    kinds = {(kind_of(node), imported.get(node.domain, 1)) for node, _ in walk(proto.graph)}
    tables = [table for table in (options.kernels, options.kernels.fallback) if table is not None]
    return all(table.runs(kind, opset) for kind, opset in kinds if kind.startswith(OWN) for table in tables)


def _fused(graph: OnnxGraph, python: str, options: Options) -> Moved:
    try:
        found = best_fused(_proto(graph), options.kernels.provider, lambda made: runs_on(options, made), python=python)
    except NotOptimized as why:
        code = "AMP501" if why.elsewhere else "AMP502"
        hint = "name an environment that has it with --runtime PYTHON, or omit --optimize"
        raise AmpError(code, f"ONNX Runtime does not optimise the model: {why}", hint=hint) from why
    by = found.counter.provider.removesuffix("ExecutionProvider")
    if not found.how:
        text = f"nothing makes fewer than the {found.before} nodes that {by} runs"
        return Moved(graph, (Note("optimize", "", text),))
    fused = OnnxGraph(onnx_io.deserialize(found.proto, None))
    if worse := _worse(graph, fused, found.counter, options):
        return Moved(graph, (Note("optimize", "", f"not kept, by {found.how}: {worse}"),))
    text = f"by {found.how}: {found.before} -> {found.after} nodes that {by} runs, in float32"
    return Moved(fused, (Note("optimize", "", text),))


def _worse(plain: OnnxGraph, fused: OnnxGraph, counter: Counter, options: Options) -> str:
    """Why a model is better converted as it was given; empty where it is not.

    What counts are the nodes that the target's provider runs; where there is no such provider, those of the files."""
    there = counter.provider == options.kernels.provider
    before, after = (_low(graph, options) for graph in (plain, fused))
    try:
        least = counter(before) if there else node_count(before)
    except NotOptimized:  # nothing to compare with: that is the model's own fault, and said where it is converted
        return ""
    try:
        nodes = counter(after) if there else node_count(after)
    except NotOptimized as why:
        return f"converted then, {why}"
    where = f"that {counter.provider.removesuffix('ExecutionProvider')} runs" if there else "of the file"
    return f"{nodes} nodes {where} in {options.dtype}, {least} without it" if nodes > least else ""


def _low(graph: OnnxGraph, options: Options) -> onnx.ModelProto:
    """A model as it is converted, with its weights in it."""
    copy = OnnxGraph(onnx_io.deserialize(_proto(graph), None))
    plan, flow = pipeline.planned(copy, replace(options, ranges=None), frozenset())
    pipeline.applied(copy, plan, flow)
    return onnx_io.to_proto(copy.model)


def _proto(graph: OnnxGraph) -> onnx.ModelProto:
    """The model with its weights in it. Raises NotOptimized where they are too many."""
    if sum(tensor.nbytes for tensor in onnx_io.external_tensors(graph.model)) > SIZE_LIMIT:
        raise NotOptimized("it is over 2 GB in one piece")
    model = copying.copied(graph.model)
    ir.external_data.load_to_model(model)
    return onnx_io.to_proto(model)
