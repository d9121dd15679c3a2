"""A strict run: a CPU run in which every low value is really rounded.

ONNX Runtime's CPU provider wraps float16 nodes in Casts and deletes the round trips it made itself, so a plain run
hides float16. Here every low value is retyped to float32 and rounded by an explicit float32 -> low -> float32 pair,
which the runtime keeps at every optimisation level: each operator computes in float32 from rounded inputs and each low
output is rounded once. What a kernel does inside its accumulators is not modelled.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from ...core.arrays import Array, Feeds, Result
from ...core.collector import quiet_collector
from ...core.errors import AmpError, first_line, nearest
from ...core.graph import LOW, Graph
from ...formats.kinds import Model
from ...formats.onnx.io import to_proto
from ...formats.onnx.types import DTYPES, declared_type
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import no_memory, out_of_memory, stopped
from ...runtime.ports import Port, check_feeds, contradiction
from ..graphs import flat_graph, folder_of, port_of, serialized
from ..sessions import cpu_options, opened
from .rewrite import rewrite

COLLECT_FROM = 4 << 20  # bytes of a model: from there on its graph is not kept a moment longer


def strict_model(model: Model | Graph) -> ModelProto:
    """The float32 model with every low value rounded; inputs, outputs and their types are those of ``model``.

    A sequence or an optional of a low type becomes one of float32, at the border too: no Cast exists for it. References
    to external data are kept. ``model``: what `convert` takes, or a Graph; it is not changed.
    """
    with quiet_collector():
        graph = flat_graph(model)
        rewrite(graph, keep_border=True)
        return to_proto(graph.model)


class StrictSession:
    """A strict run, opened once and run often; low inputs and outputs are arrays of the low type.

    Attributes:
        inputs: what may be fed, by name.
        outputs: what comes out, by name.
        required: inputs without a default.
    """

    def __init__(self, model: Model | Graph, *, threads: int = 0) -> None:
        """``model``: what `convert` takes, or a Graph. Raises AmpError AMP1xx, AMP501, AMP502."""
        import_onnxruntime()
        with quiet_collector():
            graph = flat_graph(model)
            main = graph.model.graph
            self._types = {v.name: declared_type(v) for v in (*main.inputs, *main.outputs)}
            self.inputs = {v.name or "": _plain(port_of(v)) for v in main.inputs}
            self.outputs = {v.name or "": port_of(v) for v in main.outputs}
            self.required = [v.name or "" for v in main.inputs if not v.is_initializer()]
            # Low values cross the border as float32: numpy has no bfloat16 that the runtime would take.
            rewrite(graph, keep_border=False)
            content, folder = serialized(graph.model), folder_of(graph)
        del graph, main
        if len(content) > COLLECT_FROM:
            gc.collect()  # the nodes of a graph know each other; the runtime makes its own of them
        try:
            self._session = opened(content, cpu_options(folder, threads))
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            if out_of_memory(error):
                raise no_memory("while opening the model for a strict run") from error
            hint = "`ampgraph inspect` and onnx.checker.check_model may name the fault"
            raise AmpError("AMP502", f"ONNX Runtime refuses the model: {first_line(error)}", hint=hint) from error

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
        """The outputs by name; `outputs` picks some. Raises AmpError AMP503 for what does not fit, AMP504."""
        wanted = list(self.outputs) if outputs is None else list(outputs)
        for name in wanted:
            if name not in self.outputs:
                hint = nearest(name, list(self.outputs)) or f"there are: {', '.join(self.outputs)}"
                raise AmpError("AMP503", f"no output '{name}'", hint=hint)
        needed = {name for name in self.required if self._types[name][0] != "optional"}
        ports = {name: port for name, port in self.inputs.items() if name in needed or name in feeds}
        checked = check_feeds(ports, feeds, set())
        raised = {name: _to_float32(checked[name], self._low(name)) for name in checked}
        try:
            results = self._session.run(wanted, raised)
        except Exception as error:
            if out_of_memory(error):
                raise no_memory("in a strict run") from error
            raise stopped(error, "cpu", contradiction(ports, checked)) from error
        return {name: _to_low(result, self._low(name)) for name, result in zip(wanted, results, strict=True)}

    def _low(self, name: str) -> str:
        """The low type of an input or output, or of what it contains."""
        dtype = self._types[name][1]
        return dtype if dtype in LOW else ""


def run_strict(model: Model | Graph, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
    """Open a strict session and run it once."""
    return StrictSession(model).run(feeds, outputs=outputs)


def _plain(port: Port) -> Port:
    """A tensor of numbers that numpy has; anything else is left to the runtime."""
    numpy_type = DTYPES[port.dtype].numpy() if port.dtype and port.dtype in DTYPES else np.dtype(object)
    known = port.dtype in LOW or (numpy_type.isbuiltin == 1 and numpy_type.kind in "iufbc")
    return port if known else Port(port.name, "", port.shape)


def _to_float32(value: Any, low: str) -> Any:
    """A fed value as the session takes it."""
    if value is None or isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple)):
        return [_to_float32(v, low) for v in value]
    array = np.asarray(value)
    if array.dtype.kind == "V" and array.dtype.names is None and not low:
        return _opaque(array)
    # A copy: ONNX Runtime may write a node's output over a fed array once it has removed the Casts between them.
    return array.astype(np.float32 if low else array.dtype)


def _opaque(array: Array) -> Any:
    """float8 and the like, which the runtime takes as bytes with a type number."""
    raw = array.view(np.uint8 if array.itemsize == 1 else np.uint16)
    number = ir.DataType.from_numpy(array.dtype).value
    return import_onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type(raw, number)


def _to_low(value: Any, low: str) -> Any:
    if not low or value is None:
        return value
    if isinstance(value, list):
        return [_to_low(v, low) for v in value]
    with np.errstate(over="ignore"):
        return value.astype(DTYPES[low].numpy())
