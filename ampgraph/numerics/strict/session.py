"""A strict run: a CPU run in which every low value is really rounded.

ONNX Runtime's CPU provider wraps float16 nodes in Casts and deletes the round trips it made itself, so a plain run
hides float16. Here every low value is retyped to float32 and rounded by an explicit float32 -> low -> float32 pair,
which the runtime keeps at every optimisation level: each operator computes in float32 from rounded inputs and each low
output is rounded once. What a kernel does inside its accumulators is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from ampgraph.core.errors import AmpError, nearest
from ampgraph.numerics.strict import value_types as vt
from ampgraph.numerics.strict.protos import folder_of, load_proto
from ampgraph.numerics.strict.rewrite import rewrite
from ampgraph.runtime.onnxruntime_session import no_memory, out_of_memory
from ampgraph.runtime.ports import Port, check_feeds


def strict_model(model: ModelProto | str | Path) -> ModelProto:
    """The float32 model with every low value rounded; inputs, outputs and their types are those of `model`.

    A sequence or an optional of a low type becomes one of float32, at the border too: no Cast exists for it. Given a
    path, external data stays where it is and the references to it are kept.
    """
    return rewrite(inlined(load_proto(model)), keep_border=True, folder=folder_of(model))


class StrictSession:
    """A strict run, opened once and run often; low inputs and outputs are arrays of the low type."""

    def __init__(self, model: ModelProto | str | Path, *, threads: int = 0) -> None:
        ort = _runtime()
        given = inlined(load_proto(model))
        self.input_types = {v.name: vt.of_proto(v.type) for v in given.graph.input}
        self.inputs = {v.name: _port(v) for v in given.graph.input}
        self.outputs = {v.name: _port(v) for v in given.graph.output}
        self.output_types = {v.name: vt.of_proto(v.type) for v in given.graph.output}
        optional = {i.name for i in given.graph.initializer}
        self.required = [v.name for v in given.graph.input if v.name not in optional]
        # Low values cross the border as float32: numpy has no bfloat16 that the runtime would take.
        rewritten = rewrite(given, keep_border=False, folder=folder_of(model))
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.enable_mem_reuse = False  # its plan takes the square of the nodes; arrays are freed all the same
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        if folder_of(model):
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder_of(model))
        try:
            self._session = ort.InferenceSession(rewritten.SerializeToString(), options, ["CPUExecutionProvider"])
        except Exception as e:
            if out_of_memory(e):
                raise no_memory("while opening the model for a strict run") from e
            hint = "`ampgraph inspect` and onnx.checker.check_model may name the fault"
            raise AmpError("AMP502", f"ONNX Runtime refuses the model: {_first_line(e)}", hint=hint) from e

    def run(self, feeds: Mapping[str, Any], *, outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """The outputs by name; `outputs` picks some."""
        wanted = list(self.output_types) if outputs is None else list(outputs)
        for name in wanted:
            if name not in self.output_types:
                hint = nearest(name, list(self.output_types)) or f"there are: {', '.join(self.output_types)}"
                raise AmpError("AMP503", f"no output '{name}'", hint=hint)
        needed = {name for name in self.required if "optional" not in self.input_types[name]}
        ports = {name: port for name, port in self.inputs.items() if name in needed or name in feeds}
        checked = check_feeds(ports, feeds, set())
        raised = {name: _to_float32(checked[name], self.input_types[name]) for name in checked}
        try:
            results = self._session.run(wanted, raised)
        except Exception as e:
            if out_of_memory(e):
                raise no_memory("in a strict run") from e
            raise AmpError("AMP504", f"ONNX Runtime stopped: {_first_line(e)}") from e
        return {n: _to_low(r, vt.low_of(self.output_types[n])) for n, r in zip(wanted, results, strict=True)}


def run_strict(
    model: ModelProto | str | Path, feeds: Mapping[str, Any], *, outputs: Sequence[str] | None = None
) -> dict[str, Any]:
    """Open a strict session and run it once."""
    return StrictSession(model).run(feeds, outputs=outputs)


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as e:
        raise AmpError("AMP501", "onnxruntime is not installed", hint="pip install 'ampgraph[cpu]'") from e
    return onnxruntime


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _low_dtype(low: int) -> Any:
    return helper.tensor_dtype_to_np_dtype(low)


def _port(info: ValueInfoProto) -> Port:
    """What may be fed: type and sizes of a tensor of numbers; anything else is left to the runtime."""
    kind = vt.of_proto(info.type)
    if not info.type.HasField("tensor_type"):
        return Port(info.name, "", ())
    low, given = vt.low_of(kind), info.type.tensor_type.shape.dim
    expected = _low_dtype(low) if low else _numpy_type(kind)
    plain = expected is not None and (low or np.dtype(expected).kind in "iufbc")
    sizes = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None) for dim in given]
    return Port(info.name, np.dtype(expected).name if plain else "", tuple(sizes))


def _to_float32(value: Any, kind: str) -> Any:
    """A fed value as the session takes it."""
    if value is None or isinstance(value, (list, tuple)):
        return value if value is None else [_to_float32(v, kind) for v in value]
    array = np.asarray(value)
    if array.dtype.kind == "V" and array.dtype.names is None and not vt.low_of(kind):
        return _opaque(array)
    low = vt.low_of(kind)
    # A copy: ONNX Runtime may write a node's output over a fed array once it has removed the Casts between them.
    return array.astype(np.float32 if low else array.dtype)


def _opaque(array: np.ndarray) -> Any:
    """float8 and the like, which the runtime takes as bytes with a type number."""
    raw = array.view(np.uint8 if array.itemsize == 1 else np.uint16)
    return _runtime().OrtValue.ortvalue_from_numpy_with_onnx_type(raw, helper.np_dtype_to_tensor_dtype(array.dtype))


def _numpy_type(kind: str) -> Any:
    """The numpy type of a tensor type, None where any may be fed (strings)."""
    elem = next((e for e, spelled in vt.TYPE_NAMES.items() if f"tensor({spelled})" in kind), 0)
    return None if elem in (0, TensorProto.STRING) else helper.tensor_dtype_to_np_dtype(elem)


def _to_low(value: Any, low: int) -> Any:
    if not low or value is None:
        return value
    if isinstance(value, list):
        return [_to_low(v, low) for v in value]
    with np.errstate(over="ignore"):
        return value.astype(_low_dtype(low))


def inlined(model: ModelProto) -> ModelProto:
    """The model without functions of its own: their formals have no types to rewrite."""
    if not model.functions:
        return model
    import onnx.inliner

    flat = onnx.inliner.inline_local_functions(model)
    # A function of another opset is left alone unless its body may be converted.
    return onnx.inliner.inline_local_functions(flat, convert_version=True) if flat.functions else flat
