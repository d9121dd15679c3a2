"""A strict run: a CPU run in which every low value is really rounded.

ONNX Runtime's CPU provider wraps float16 nodes in Casts and deletes the round trips it made itself, so a plain run
hides float16. Here every low value is retyped to float32 and rounded by an explicit float32 -> low -> float32 pair,
which the runtime keeps at every optimisation level: each operator computes in float32 from rounded inputs and each low
output is rounded once. Where a target's kernels accumulate in the low type (`accumulates` in its kernel table), so do
products here, and functions that they compute step by step (`stepwise`); what other kernels do inside is not modelled.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.helper import np_dtype_to_tensor_dtype

from ...core.annotations import target_in
from ...core.arrays import Array, Feeds, Result
from ...core.collector import quiet_collector
from ...core.dataflow import NONE, Dataflow, Op, Scope, Value
from ...core.errors import AmpError, first_line
from ...core.graph import LOW, DescribedGraph, Graph
from ...core.low_types import numpy_type
from ...core.runnable import SWITCHES, Sums
from ...formats.adapters import OnnxGraph, OnnxStrictEditor
from ...formats.kinds import Model
from ...oplists.kernels import TARGETS, Kernels, load_kernels
from ...oplists.traits import has
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import (
    cpu_options,
    no_memory,
    older_than_the_model,
    open_session,
    open_session_anyhow,
    out_of_memory,
    stop_error,
)
from ...runtime.ports import Port, check_feeds, contradiction, names_of_outputs, port_of
from ..graphs import flat_graph


def strict_model(model: Model | Graph) -> ModelProto:
    """The float32 model with every low value rounded; inputs, outputs and their types are those of ``model``.

    A sequence or an optional of a low type becomes one of float32, at the boundary too: no Cast exists for it.
    References to external data are kept. ``model``: what `convert` takes, or a Graph; it is not changed.
    """
    with quiet_collector():
        graph = flat_graph(model)
        make_strict(graph, keep_interface=True)
        strict: ModelProto = ModelProto.FromString(graph.content())
        return strict


class StrictSession:
    """A strict run, opened once and run often; low inputs and outputs are arrays of the low type.

    Attributes:
        inputs: what may be fed, by name.
        outputs: what comes out, by name.
        required: inputs without a default.
    """

    def __init__(self, model: Model | Graph, *, threads: int = 0, target: str = "") -> None:
        """``model``: what `convert` takes, or a Graph, not changed; ``threads``: 0 for the runtime's own choice;
        ``target`` as in `make_strict`. Raises AmpError AMP1xx, AMP501, AMP502."""
        import_onnxruntime()
        with quiet_collector():
            graph = flat_graph(model)
            taken, given = graph.declared()
            self._types = {value.name: (value.container, value.dtype) for value in (*taken, *given)}
            self.inputs = {value.name: _checked_port(port_of(value)) for value in taken}
            self.outputs = {value.name: port_of(value) for value in given}
            self.required = [value.name for value in taken if not value.stored]
            # Low values cross the boundary as float32: numpy has no bfloat16 that the runtime would take.
            folder = graph.folder()  # asked before there are twice the nodes
            make_strict(graph, keep_interface=False, target=target)
            content = graph.content()
        del graph
        try:
            self._session = open_session_anyhow(content, cpu_options(folder, threads))
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            if out_of_memory(error):
                raise no_memory("while opening the model for a strict run") from error
            message = first_line(error)
            hint = older_than_the_model(message) or "`ampgraph inspect` and onnx.checker.check_model may name the fault"
            raise AmpError("AMP502", f"ONNX Runtime refuses the model: {message}", hint=hint) from error

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
        """The outputs of a strict run by name; `outputs` picks some. AmpError AMP503 for what does not fit, AMP504."""
        wanted = names_of_outputs(self.outputs, outputs)
        needed = {name for name in self.required if self._types[name][0] != "optional"}
        ports = {name: port for name, port in self.inputs.items() if name in needed or name in feeds}
        checked = check_feeds(ports, feeds, set())
        raised = {name: _to_feed(checked[name], self._low_type(name)) for name in checked}
        try:
            results = self._session.run(wanted, raised)
        except Exception as error:
            if out_of_memory(error):
                raise no_memory("in a strict run") from error
            raise stop_error(error, "cpu", contradiction(ports, checked)) from error
        return {name: _to_low(result, self._low_type(name)) for name, result in zip(wanted, results, strict=True)}

    def _low_type(self, name: str) -> str:
        """The low type of an input or output of a strict run, or of what it contains; "" for another type."""
        dtype = self._types[name][1]
        return dtype if dtype in LOW else ""


def run_strict(model: Model | Graph, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
    """Open a strict session and run it once."""
    return StrictSession(model).run(feeds, outputs=outputs)


def _checked_port(port: Port) -> Port:
    """A port of a strict run as feeds are checked against it: with no dtype, and so not, where numpy lacks the type."""
    known = port.dtype in LOW or np.dtype(np.sctypeDict.get(port.dtype, object)).kind in "iufbc"
    return port if known else Port(port.name, "", port.shape)


def _to_feed(value: Any, low: str) -> Any:
    """What a strict run is fed as its session takes it: an array copied, in float32 where the port has a ``low`` type
    ("" for none), float8 and the like as an `OrtValue`; lists element by element; None and maps as they are."""
    if value is None or isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple)):
        return [_to_feed(v, low) for v in value]
    array = np.asarray(value)
    if array.dtype.kind == "V" and array.dtype.names is None and not low:
        return _to_ort_value(array)
    # A copy: ONNX Runtime may write a node's output over a fed array once it has removed the Casts between them.
    return array.astype(np.float32 if low else array.dtype)


def _to_ort_value(array: Array) -> Any:
    """A strict run's feed of float8 and the like as the runtime's OrtValue: bytes with the number of the type."""
    raw = array.view(np.uint8 if array.itemsize == 1 else np.uint16)
    number = np_dtype_to_tensor_dtype(array.dtype)
    return import_onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type(raw, number)


def _to_low(value: Any, low: str) -> Any:
    """A strict run's result rounded to the type ``low`` of the output, "" for no low one; lists element by element."""
    if not low or value is None:
        return value
    if isinstance(value, list):
        return [_to_low(v, low) for v in value]
    with np.errstate(over="ignore"):
        return value.astype(numpy_type(low))


# -- some nodes low, some not -----------------------------------------------------------------------------------------


class SwitchedSession:
    """A strict run of a model in which each low node can compute in float32 instead, chosen run by run.

    Attributes:
        units: the nodes that can be switched, in the order of the file; a unit's number is its place here.
        types: of its inputs, by name, as the low model declares them.
    """

    def __init__(self, reference: Model | Graph, low: Model | Graph, *, target: str = "") -> None:
        """``reference``, ``low``: what `convert` takes, or Graphs, the second made from the first; ``target`` as in
        `make_strict`.

        Raises AmpError AMP1xx for files, AMP502 where the runtime refuses.
        """
        with quiet_collector():
            graph, given = flat_graph(low), flat_graph(reference)
            flow = graph.dataflow()
            self.types = {flow.values[v].name: flow.values[v].dtype for v in flow.scopes[0].inputs}
            self.units = graph.switched(given, functools.partial(make_strict, keep_interface=False, target=target))
            self._names = [value.name for value in graph.declared()[1]]
            content, options = graph.content(), cpu_options(graph.folder())
        self._session = open_session(content, options)

    def run(self, feeds: Mapping[str, Result], low: Collection[int]) -> dict[str, Result]:
        """The outputs of a strict run where only the units ``low``, by number, are low. Raises AmpError AMP504."""
        switches = np.zeros(len(self.units), bool)
        switches[list(low)] = True
        fed = {n: np.asarray(v).astype(np.float32) if self.types.get(n) in LOW else v for n, v in feeds.items()}
        fed = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in fed.items()}
        try:
            found = self._session.run(self._names, {**fed, SWITCHES: switches})
        except Exception as error:
            raise stop_error(error, "cpu") from error
        return dict(zip(self._names, found, strict=True))


# -- low values become float32, each rounded by a pair of Casts where it is made --------------------------------------

# Constants up to this many bytes are upcast in the file, larger ones by a Cast: a model near 2 GB must not outgrow it.
INLINE_LIMIT = 1 << 20
LOW_BYTES = 2  # of an element


def make_strict(graph: OnnxGraph, *, keep_interface: bool, target: str = "") -> None:
    """Makes a model without functions strict, in place: every low value really rounded; unless ``keep_interface``,
    inputs and outputs become float32 as well.

    ``target``: whose accumulators are modelled; empty: of the one that the file was made for, where it says so."""
    flow, kernels = graph.dataflow(), low_accumulators(graph, target)
    ops: list[list[Op]] = [[] for _ in flow.scopes]
    weights: list[list[Value]] = [[] for _ in flow.scopes]
    for op in flow.ops:
        ops[op.scope].append(op)
    for value in flow.values:
        if value.weight and value.producer == NONE and _is_low(value):
            weights[value.scope].append(value)
    given_out = {i for scope in flow.scopes for i in scope.outputs}
    found = {} if kernels is None else {op.id: _low_sums(flow, op, kernels) for op in flow.ops}
    sums = {op: each for op, each in found.items() if each is not None}
    with graph.strict_editor(flow) as edit:
        for scope in flow.scopes:
            kept = {*scope.inputs, *scope.outputs} if keep_interface and scope.id == 0 else set()
            writer = _StrictWriter(flow, edit, kept, sums)
            writer.inputs(scope)
            for value in weights[scope.id]:
                writer.weight(value, outside=graph.outside(value), given_out=value.id in given_out)
            for op in ops[scope.id]:
                writer.op(op)
            writer.declare_boundary(scope)
            edit.forget_annotations(scope)


def low_accumulators(graph: Graph, target: str = "") -> Kernels | None:
    """Strict run: the kernel table of a target of which some add up in a low type; None where all do in float32, or the
    target is not known. ``target``: empty for the one that the file was made for, where it says so."""
    said = target_in(graph.metadata()) if isinstance(graph, DescribedGraph) and not target else target
    found = load_kernels(said) if said in TARGETS["ONNX"] else None
    return found if found is not None and (found.accumulates in LOW or found.low_inside) else None


SPREADS = 7  # the opset from which on operands are spread, as a mean by its count needs it


def _low_sums(flow: Dataflow, op: Op, kernels: Kernels) -> Sums | None:
    """Strict run: how an operator's own kernel adds up in a low type, rounding each sum; None where it does not."""
    inside = op.kind in kernels.low_inside and flow.opset >= SPREADS
    low = "float16" if inside else kernels.accumulates
    made = {flow.values[i].dtype for i in op.outputs if i != NONE}
    if low not in LOW or low not in made or not kernels.computes(op.kind, flow.opset, "T", low):
        return None
    shapes = tuple(flow.shape(i) for i in op.inputs if i != NONE)
    folded = _folded_conv(flow, op, kernels) if op.kind in kernels.folds else None
    return Sums(op, shapes, kernels.fused_sums, op.kind in kernels.stepwise, folded)


def _folded_conv(flow: Dataflow, op: Op, kernels: Kernels) -> Sums | None:
    """Strict run: the sums of the Conv that a kernel makes one with the norm ``op`` behind it; None where it does not:
    the norm must be the Conv's only reader, and all their other operands stored."""
    conv = flow.writer(op.inputs[0])
    if conv is None or conv.kind != "Conv" or len(flow.uses[op.inputs[0]]) != 1:
        return None
    stored = all(flow.values[i].weight for i in (*conv.inputs[1:], *op.inputs[1:]) if i != NONE)
    return _low_sums(flow, conv, kernels) if stored else None


def _is_low(value: Value) -> bool:
    """Strict run: whether a value is a low tensor."""
    return value.dtype in LOW and not value.container


class _StrictWriter:
    """Writes one graph of a model so that it is strict. ``kept``: its inputs and outputs that keep their types, by id;
    ``sums``: by operator, how its kernel adds up where that is in a low type."""

    def __init__(self, flow: Dataflow, edit: OnnxStrictEditor, kept: set[int], sums: Mapping[int, Sums]) -> None:
        self._flow, self._edit, self._kept, self._sums = flow, edit, kept, sums

    def inputs(self, scope: Scope) -> None:
        """Strict run: makes a graph's low inputs float32, defaults too; one that keeps its type is read by a Cast."""
        for value in (self._flow.values[i] for i in scope.inputs):
            if value.id not in self._kept:
                self._edit.store_float32(value)  # the default of an input turns float32 with it
            elif _is_low(value):
                self._edit.read_float32(value)

    def weight(self, value: Value, *, outside: bool, given_out: bool) -> None:
        """Strict run: has a low stored tensor stored as float32, or read so by a Cast if it is large or ``outside``, in
        a data file; one that a graph gives out (``given_out``) is always stored so, unless it is kept."""
        large = outside or LOW_BYTES * self._flow.weights.size(value) > INLINE_LIMIT
        if value.id in self._kept or (large and not given_out):
            self._edit.read_float32(value)
        else:
            self._edit.store_float32(value)

    def op(self, op: Op) -> None:
        """Strict run: makes one operator compute in float32, with its low results rounded."""
        made = [self._flow.values[i] for i in op.outputs]
        low = [value for value in made if value.name and _is_low(value)]
        if op.kind == "BitCast":  # its meaning is the bits: it reads, and makes, the low type itself
            for position, source in enumerate(op.inputs):
                if source != NONE and _is_low(self._flow.values[source]):
                    self._edit.read_low(op, position, self._flow.values[source].dtype)
        if has(op.kind, "converts"):
            for value in low:
                self._edit.name_type(op, value.dtype)
                self._edit.read_float32(value, stays_low=value.id in self._kept)
            return
        self._edit.compute_float32(op)
        exact = has(op.kind, "exact")
        for value in low:
            kept = value.id in self._kept
            if kept or not exact:
                sums = self._sums.get(op.id) if value.id == op.outputs[0] else None
                self._edit.round_all(value, stays_low=kept, sums=sums)

    def declare_boundary(self, scope: Scope) -> None:
        """Strict run: declares the graph's inputs and outputs: in the types that they had, or in float32."""
        for value in (self._flow.values[i] for i in {*scope.inputs, *scope.outputs}):
            if value.container or value.id not in self._kept:
                self._edit.declare_float32(value)
