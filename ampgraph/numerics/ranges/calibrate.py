"""Measuring ranges: one float32 run for each sample, every value looked at and freed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from ...core.borders import Borders
from ...core.dataflow import FLOAT32, NONE, Dataflow, Value
from ...core.errors import AmpError
from ...core.progress import Progress
from ...core.ranges import Range, Ranges, measure, value_key
from ...formats import adapters
from ...formats.checks import faults_reported
from ...formats.onnx import io as onnx_io
from ...formats.onnx.graph import OnnxGraph, quiet_collector
from ..inputs.samples import load_samples
from ..strict.rewrite import rewrite
from ..strict.session import inlined
from .bodies import expose_bodies, range_of_rows
from .segments import LIMIT, SegmentedModel

LOW = ("float16", "bfloat16")


def calibrate(
    model: Any,
    data: Any = None,
    *,
    count: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    device: str = "cpu",
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Ranges:
    """Runs a model in float32 on samples and records what range every float32 value has.

    Integer tensors are no ranges. Values in functions are told apart by call. Of values in the bodies of If, Loop and
    Scan the extremes are recorded alone; what could not be measured is counted in ``notes``.

    Args:
        model: an ONNX model as `convert` takes it, or a Graph. It is not changed.
        data: an .npz file, a folder of them, an iterable of mappings, or None: generated. See `load_samples`.
        count: samples at most; 8 where they are generated.
        seed: for generated samples.
        dims: sizes of symbolic dimensions, for generated samples.
        device: cpu, cuda, tensorrt, cann or auto.
        limit: bytes of values that are held at once.
        progress: hears of progress.

    Raises:
        AmpError: AMP1xx (files), AMP304 (MindIR), AMP501 to AMP505 (runtime, data).
    """
    source = model if isinstance(model, (str, os.PathLike)) else None
    with quiet_collector(), faults_reported(source):
        graph = model if hasattr(model, "dataflow") else adapters.load(model)[0]
        if not isinstance(graph, OnnxGraph):
            why = f"ranges of {graph.format} models are not measured: MindSpore shows the outputs alone"
            raise AmpError("AMP304", why, hint="measure the ONNX model, or name nodes with --fp32")
        graph.prepare()
        samples = load_samples(graph, data, count, seed, dims)
        flow = graph.dataflow()
        ranges = Ranges(graph.digest())
        proto = ir.to_proto(graph.model)
        keys = _names(proto, flow)
        runner = _Runner(proto, flow, keys, _folder(graph), device, limit)
        for number, feeds in enumerate(samples):
            for name, array in runner.run(feeds, _progress(progress, number, len(samples))):
                found = range_of_rows(array) if name in runner.rows else measure(array)
                for key in runner.keys[name]:
                    ranges.values.setdefault(key, Range()).add(found)
            ranges.samples += 1
        order = {value_key(flow, value.id): None for value in _wanted(flow)}
        ranges.values = {key: ranges.values[key] for key in order if key in ranges.values}
        never = len(order) - len({key for row in runner.keys.values() for key in row})
        ranges.notes = (*samples.notes, *_unseen_notes(never), *_odd(ranges))
        return ranges


class _Runner:
    """One model, its low values computed as rounded float32 where it has any: few CPU kernels are low."""

    def __init__(
        self, proto: ModelProto, flow: Dataflow, keys: dict[str, list[str]], folder: str, device: str, limit: int
    ) -> None:
        self._low = {v.name for v in (flow.values[i] for i in flow.scopes[0].inputs) if v.dtype in LOW}
        self._inputs = {flow.values[i].name for i in flow.scopes[0].inputs} & set(keys)
        flat = inlined(proto)
        if any(value.dtype in LOW for value in flow.values):
            flat = rewrite(flat, keep_border=False, folder=folder)
        if flat is proto:
            flat = ModelProto()
            flat.CopyFrom(proto)
        inside = {value_key(flow, v.id) for v in _wanted(flow) if v.scope in _bodies(flow)}
        self.rows = {name: key for name, key in expose_bodies(flat).items() if key in inside}
        self.keys = {**keys, **{name: [key] for name, key in self.rows.items()}}
        self._model = SegmentedModel(flat, sorted(self.keys), folder=folder, device=device, limit=limit)

    def run(self, feeds: Any, progress: Callable[[int, int], None] | None) -> Any:
        fed = {n: v.astype(np.float32) if n in self._low else v for n, v in feeds.items()}
        yield from ((name, fed[name]) for name in fed if name in self._inputs)
        yield from self._model.run(fed, progress)


def _progress(progress: Progress | None, number: int, count: int) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, parts: progress("measuring ranges", number * parts + done, count * parts)


def _folder(graph: OnnxGraph) -> str:
    """Where the data files of a model are."""
    first = next(onnx_io.external_tensors(graph.model), None)
    return "" if first is None else str(Path(first.base_dir).resolve())


def _unseen_notes(count: int) -> list[str]:
    if not count:
        return []
    are = "value was" if count == 1 else "values were"
    return [f"{count:,} float32 {are} not measured: in bodies within functions, or not to be told apart"]


def _odd(ranges: Ranges) -> list[str]:
    """What a float32 run should not show: NaN or infinities. Infinities may be masks, so it is said, not judged."""
    odd = [key for key, found in ranges.values.items() if found.nonfinite]
    if not odd:
        return []
    return [f"{len(odd):,} values hold infinities or NaN in float32 already, the first is '{odd[0]}'"]


# -- names ------------------------------------------------------------------------------------------------------------


def _wanted(flow: Dataflow) -> list[Value]:
    """The float32 tensors that something computes, or that the model is fed; a weight by another name is a weight."""
    computed = {target for source, target in flow.passed if source != NONE and not flow.values[source].weight}
    given = {target for source, target in flow.passed if source != NONE} - computed
    found = [v for v in flow.values if v.dtype == FLOAT32 and not v.container and not v.weight and v.unit != NONE]
    return [v for v in found if v.id not in given]


def _names(proto: ModelProto, flow: Dataflow) -> dict[str, list[str]]:
    """Name in the model with its functions inlined -> the keys of the values that it stands for, bodies left out."""
    inside, wanted = _bodies(flow), _wanted(flow)
    if not proto.functions:
        return {v.name: [value_key(flow, v.id)] for v in wanted if v.scope == 0 and v.name}
    pairs = _paired(proto, flow, inside)
    borders = Borders(flow)
    good = {v.id for v in wanted if v.scope not in inside}
    names: dict[str, list[str]] = {}
    for value, name in pairs.items():
        same = sorted(v for v in borders.copies(value) | borders.origins(value) if v in good)
        if same:
            names[name] = sorted({*names.get(name, []), *(value_key(flow, v) for v in same)})
    return names


def _bodies(flow: Dataflow) -> set[int]:
    """The scopes that are bodies, or stand in one."""
    found: set[int] = set()
    for scope in flow.scopes:  # parents come before their children
        if scope.kind == "body" or scope.parent in found:
            found.add(scope.id)
    return found


def _paired(proto: ModelProto, flow: Dataflow, bodies: set[int]) -> dict[int, str]:
    """Value -> its name once functions are inlined: the same operators follow each other, and calls are left away."""
    flat = inlined(proto)
    copy = ModelProto()
    copy.CopyFrom(flat)
    other = OnnxGraph(onnx_io.deserialize(copy, None)).dataflow()
    pairs = {v: flow.values[v].name for v in flow.scopes[0].inputs}
    calls = {scope.op for scope in flow.scopes if scope.kind == "function"}
    mine = [op for op in flow.ops if op.id not in calls and op.scope not in bodies]
    theirs = [op for op in other.ops if op.scope == 0]
    if [op.kind for op in mine] != [op.kind for op in theirs]:  # the inliner converted versions
        made = {other.values[v].name for op in theirs for v in op.outputs}
        return pairs | {v.id: v.name for v in flow.values if v.scope == 0 and v.name in made}
    for one, two in zip(mine, theirs, strict=True):
        pairs |= {
            v: other.values[w].name for v, w in zip(one.outputs, two.outputs, strict=False) if other.values[w].name
        }
    return pairs
