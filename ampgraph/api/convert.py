"""What a program calls: convert, plan, apply, inspect."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import AmpError, is_number
from ..core.files import sources_of
from ..core.plan import Plan
from ..formats import adapters
from ..formats.checks import faults_reported, refuse_overwriting
from ..formats.onnx.graph import quiet_collector
from . import pipeline
from .measuring import Measuring


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
    target: str | None = None,
    dims: Mapping[str, int] | None = None,
    store_weights: str | None = None,
    plan: Plan | None = None,
    data: Any = None,
    ranges: Any = None,
    range_margin: float | None = None,
    opset: int | None = None,
    output: str | os.PathLike | None = None,
) -> Any:
    """Converts a model to mixed precision; the caller's object is never changed.

    Args:
        model: a path (.onnx or .mindir), onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch ONNXProgram.
        level: O0, O1, O2, O3 or auto.
        dtype: float16 or bfloat16.
        policy: whose lists and rules; ``ampgraph`` is there.
        lists: TOML files merged over the policy's lists.
        fp32, low: patterns of nodes to keep in float32 or to make low: a node name glob,
            ``op:Kind``, ``scope:layers.3.*`` or ``value:NAME``.
        io: ``keep``, ``low``, or ``["name-pattern=low", ...]`` for graph inputs and outputs.
        target: cuda (the default), tensorrt, cann or cpu, for MindIR ascend (the default) or cpu: whose kernels count.
        dims: sizes of symbolic dimensions, for costs.
        store_weights: ``low`` stores weights low that only low operators read, ``keep`` casts them when the model runs;
            ``low`` if not given, with the policy mindspore ``keep``.
        plan: apply this plan instead of making one.
        data: run the model in float32 on these samples (an .npz file, a folder of them, an iterable of mappings): what
            passes the limit of the low type stays float32.
        ranges: what `calibrate` measured before, or a file of it, instead of ``data``.
        range_margin: a value is held that would overflow this many times over; 2 if not given.
        opset: convert the default domain to this opset first.
        output: write the result there, whole or not at all, and return the path.

    Returns:
        ``output`` when it is given, else the same kind as ``model`` (for a path: onnx.ModelProto, or onnx_ir.Model when
        its weights are external).

    Raises:
        AmpError: for every mistake in the input or the arguments.
    """
    source = model if isinstance(model, (str, os.PathLike)) else None
    with quiet_collector(), faults_reported(source):
        graph, back = adapters.load(model)
        if output is not None:
            refuse_overwriting(graph, Path(output), sources_of(source, data, ranges, lists), "output=")
        low_io = pipeline.low_interface(graph, io)
        if opset is not None:
            graph = adapters.at_opset(graph, opset)
        given = plan is not None
        measuring = _measuring(data, ranges, range_margin)
        if given and (fp32 or low or io != "keep" or measuring.given()):
            message = "fp32=, low=, io=, data= and ranges= cannot change a plan that is given"
            raise AmpError("AMP404", message, hint="make the plan with them")
        if plan is None:
            options = pipeline.build_options(
                level, dtype, policy, lists, fp32, low, target, dims, store_weights, graph.format
            )
            plan, flow = pipeline.planned(graph, measuring.steer(options, graph), low_io)
        else:
            flow = pipeline.followed(plan, graph)
        changed = pipeline.applied(graph, plan, flow, given) or opset is not None
        if output is None:
            return back(graph, changed)
        if changed or source is None:
            graph.save(output)
        else:
            graph.copy_unchanged(source, output)
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
    target: str | None = None,
    dims: Mapping[str, int] | None = None,
    store_weights: str | None = None,
    data: Any = None,
    ranges: Any = None,
    range_margin: float | None = None,
) -> Plan:
    """The plan that `convert` would apply; arguments as there."""
    with quiet_collector(), faults_reported(model if isinstance(model, (str, os.PathLike)) else None):
        graph, _ = adapters.load(model)
        options = pipeline.build_options(
            level, dtype, policy, lists, fp32, low, target, dims, store_weights, graph.format
        )
        low_io = pipeline.low_interface(graph, io)
        options = _measuring(data, ranges, range_margin).steer(options, graph)
        return pipeline.planned(graph, options, low_io)[0]


def _measuring(data: Any, ranges: Any, margin: float | None) -> Measuring:
    """Where the ranges come from. Raises AmpError AMP311 for what is neither ranges nor a file, or no number."""
    if ranges is not None and not isinstance(ranges, (str, os.PathLike)):
        from ..core.ranges import Ranges

        if not isinstance(ranges, Ranges):
            hint = "give what ampgraph.calibrate returned, or a file of it"
            raise AmpError("AMP311", f"ranges= is a {type(ranges).__name__}, not ranges", hint=hint)
    if margin is not None and not is_number(margin):
        raise AmpError("AMP311", f"range_margin={margin!r} is no number", hint="for example 2.0")
    return Measuring(data, None, ranges, None, margin)


def apply(model: Any, plan: Plan, *, output: str | os.PathLike | None = None) -> Any:
    """Applies a plan to the model that it was made for. Raises AmpError AMP403 for another model."""
    return convert(model, plan=plan, output=output)
