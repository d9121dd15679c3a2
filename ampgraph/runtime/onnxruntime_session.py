"""Running an ONNX model on ONNX Runtime: on the CPU, or on what providers are installed for."""

from __future__ import annotations

import ctypes
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx

from ..core.arrays import Array, Feeds, Result
from ..core.errors import AmpError, NoMemory, first_line, nearest
from ..core.low_types import numpy_type
from .devices import choose, import_onnxruntime
from .ports import Port, check_feeds, contradiction, names_of_outputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

NUMPY_TYPES = {"float": "float32", "double": "float64", "string": "object"}
QUIET = 4  # errors of the runtime are raised; nothing is logged beside them


CRASHING = ["FuseFp16InitializerToFp32NodeTransformer"]
"""ONNX Runtime 1.31 dies of a segmentation fault where it moves a Transpose past a MatMul whose float16 weight this
optimizer of its CPU has widened."""


class OrtTensor(Protocol):
    """What a session takes and gives beside arrays: a tensor of ONNX Runtime on the host or on a device
    (onnxruntime.OrtValue, which has no types)."""

    def numpy(self) -> Array: ...
    def shape(self) -> Sequence[int]: ...
    def data_type(self) -> str: ...
    def data_ptr(self) -> int: ...
    def device_name(self) -> str: ...
    def element_type(self) -> int: ...
    def tensor_size_in_bytes(self) -> int: ...


class OnnxSession:
    """A model, opened once and run often. Low values that a CPU runs are hidden in float32: see StrictSession."""

    def __init__(
        self,
        model: str | os.PathLike[str] | onnx.ModelProto,
        device: str = "auto",
        *,
        threads: int = 0,
        profile: bool = False,
    ) -> None:
        """``model``: a path or onnx.ModelProto. Raises AmpError AMP501, AMP505 (device), AMP502 (model refused)."""
        self.device, providers = choose(device)
        options = quiet_options("", threads)
        self._profile = tempfile.mkdtemp(prefix="ampgraph-") if profile else ""
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(self._profile, "run")
        source = os.fspath(model) if isinstance(model, (str, os.PathLike)) else model.SerializeToString()
        self.where = source if isinstance(source, str) else "model"
        kept_out = CRASHING if self.device == "cpu" else []
        self._session = open_session(source, options, providers, kept_out, self.where)
        self.inputs = {item.name: _port_of(item) for item in self._session.get_inputs()}
        self.outputs = {item.name: _port_of(item) for item in self._session.get_outputs()}
        self.required = list(self.inputs)
        self.optional = {item.name for item in self._session.get_overridable_initializers()}

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
        """The outputs by name. Raises AmpError AMP503 for what does not fit, AMP504 where the run stops."""
        checked = check_feeds(self.inputs, feeds, self.optional)
        wanted = names_of_outputs(self.outputs, outputs)
        try:
            if any(port.dtype == "bfloat16" for port in (*self.inputs.values(), *self.outputs.values())):
                return self._run_values(checked, wanted)
            return dict(zip(wanted, self._session.run(wanted, checked), strict=True))
        except AmpError:
            raise
        except Exception as error:
            raise stop_error(error, self.device, contradiction(self.inputs, checked)) from error

    def _run_values(self, feeds: dict[str, Result], wanted: list[str]) -> dict[str, Result]:
        """Runs a session by OrtValues: bfloat16 goes in and out as 16-bit words, since numpy has no such type."""
        ort = import_onnxruntime()
        values = {}
        for name, array in feeds.items():
            if self.inputs[name].dtype == "bfloat16":
                words = array.view(np.uint16)
                values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, onnx.TensorProto.BFLOAT16)
            else:
                values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        found = self._session.run_with_ort_values(wanted, values)
        return {name: as_numpy(value) for name, value in zip(wanted, found, strict=True)}

    def placed(self) -> dict[str, tuple[str, str]]:
        """Node -> (operator, provider), in the order of the run, of a session opened with ``profile``. To be asked
        once, after a run: this ends the profile."""
        path = Path(self._session.end_profiling())
        events = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        Path(self._profile).rmdir()
        found: dict[str, tuple[str, str]] = {}
        for event in events:
            arguments = event.get("args", {})
            if event.get("cat") == "Node" and arguments.get("provider"):
                name = event["name"].removesuffix("_kernel_time")
                found[name] = arguments.get("op_name", "?"), arguments["provider"]
        return found


def as_numpy(value: OrtTensor) -> Array:
    """A copy of a session's OrtValue; one of bfloat16, which it cannot make an array of, must lie on the host."""
    if value.data_type() != "tensor(bfloat16)":
        return np.array(value.numpy())
    words = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(words, numpy_type("bfloat16")).reshape(value.shape()).copy()


def device_value(array: Array, memory: str) -> OrtTensor:
    """A copy of an array as a session's OrtValue in ``memory`` (``cpu``, ``cuda``); bfloat16, of which it takes no
    array, stays on the host.

    Always a copy: the runtime keeps an array's own memory where it can, and may write there.
    """
    ort, own = import_onnxruntime().OrtValue, np.array(array, order="C")
    if own.dtype.kind == "V" and own.dtype.name == "bfloat16":  # the name is slow to make
        held: OrtTensor = ort.ortvalue_from_numpy_with_onnx_type(own.view(np.uint16), onnx.TensorProto.BFLOAT16)
    else:
        held = ort.ortvalue_from_numpy(own, memory, 0)
    return held


def _port_of(item: Any) -> Port:
    """An input or output of a session of ONNX Runtime, as a port; the type is "" for what is no tensor."""
    kind = item.type
    if not kind.startswith("tensor("):
        return Port(item.name, "", ())
    name = kind[len("tensor(") : -1]
    return Port(item.name, NUMPY_TYPES.get(name, name), tuple(item.shape))


def refusal_error(error: Exception, where: str) -> AmpError:
    """The error of a session where ONNX Runtime refuses a model, in the runtime's words: AMP502, AMP101 for no such
    file, AMP504 for want of memory. ``where``: the file, or "model"."""
    message = first_line(error)
    hint = "`ampgraph inspect` may name the fault"
    if "bfloat16" in message or "Could not find an implementation" in message or "NOT_IMPLEMENTED" in message:
        hint = "this device has no kernel for it: choose another --device, or --strict, which needs none"
    hint = older_than_the_model(message) or hint
    if out_of_memory(error):
        return no_memory(f"while opening {where}")
    if "NO_SUCHFILE" in message or "File doesn't exist" in message:
        return AmpError("AMP101", "no such file", where=where, hint="check the path")
    return AmpError("AMP502", f"ONNX Runtime refuses the model: {message}", where=where, hint=hint)


NEWER = "Unsupported model IR version", "No Op registered for", "is under development and support for this is limited"


_UNREGISTERED = re.compile(r"No Op registered for (\w+) with")


def older_than_the_model(message: str) -> str:
    """A hint where ONNX Runtime's ``message`` refuses a model that is newer than it, or has an operator of a name that
    ONNX does not know; "" for any other refusal."""
    if found := _UNREGISTERED.search(message):
        known = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
        if found[1] not in known and (meant := nearest(found[1], known)):
            return f"ONNX {onnx.__version__} has no operator {found[1]}: {meant}"
    if not any(said in message for said in NEWER):
        return ""
    version = import_onnxruntime().__version__
    return f"onnxruntime {version} may be older than the model: a newer one, which may need a newer Python, reads it"


def stop_error(error: Exception, device: str, contradiction: str = "") -> AmpError:
    """The error AMP504 of a session's run that failed on ``device``, in the runtime's words. ``contradiction``: what
    does not agree in what was fed, as `contradiction` of ports says it; "" for nothing."""
    message = first_line(error)
    if out_of_memory(error):
        return no_memory(f"on {device}")
    if lacks_kernel(message):
        hint = f"its kernel on {device} does not take this type: --strict needs none, or convert for --target {device}"
    elif contradiction:
        hint = f"{contradiction}: feed rows that belong together"
    else:
        hint = "look at the shapes of what was fed"
    return AmpError("AMP504", f"ONNX Runtime stopped: {message}", hint=hint)


def lacks_kernel(message: str) -> bool:
    """Whether ONNX Runtime says that it cannot compute this at all, whatever the shapes."""
    return any(words in message for words in ("not supported", "NOT_IMPLEMENTED", "ot implemented"))


def out_of_memory(error: BaseException) -> bool:
    """Whether ONNX Runtime failed for want of memory."""
    message = str(error)
    return "Failed to allocate memory" in message or "bad_alloc" in message or "out of memory" in message.lower()


def no_memory(where: str) -> NoMemory:
    """The error of a session where ONNX Runtime ran out of memory; ``where`` goes on behind "out of memory"."""
    return NoMemory(f"out of memory {where}", hint="feed fewer rows at once, or --device cpu")


# -- models in memory whose weights may lie in files -------------------------------------------------------------------

CPU = ("CPUExecutionProvider",)
SEARCHES = ["TransposeOptimizer", "CommonSubexpressionElimination"]
"""Optimisers that search the whole graph: a fifth of the opening, and nothing won in a few runs; exact both ways."""


def quiet_options(folder: str = "", threads: int = 0) -> SessionOptions:
    """ONNX Runtime's options for a session that logs nothing; ``folder``: where the data files of a model in memory
    are, "" for none; ``threads``: 0 for its own choice."""
    options = import_onnxruntime().SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return options


def cpu_options(folder: str, threads: int = 0) -> SessionOptions:
    """The options for a strict run: what a pair of Casts rounds stays rounded at this level."""
    options = quiet_options(folder, threads)
    options.enable_mem_reuse = False  # its plan takes the square of the nodes; arrays are freed all the same
    options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def in_file_order(options: SessionOptions) -> SessionOptions:
    """Sets ONNX Runtime's options, and returns them, so that nodes run in the order of the graph, but sizes at once."""
    options.execution_order = import_onnxruntime().ExecutionOrder.PRIORITY_BASED
    return options


def open_session(
    model: str | bytes, options: SessionOptions, providers: tuple[str, ...] = CPU, kept_out: Sequence[str] = SEARCHES,
    where: str = "model",
) -> InferenceSession:  # fmt: skip
    """Opens a session of ONNX Runtime: ``model``, a path or bytes, without the optimisers ``kept_out``. Raises AmpError
    as `refusal_error` says, for the file ``where``."""
    try:
        return _make_session(model, options, providers, kept_out)
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        raise refusal_error(error, where) from error


def open_session_anyhow(content: bytes, options: SessionOptions) -> InferenceSession:
    """Opens a session of ONNX Runtime's CPU, without optimisations where these break the model, which changes
    ``options``: some do beside what nobody reads. Raises the runtime's own first error where both fail."""
    try:
        return _make_session(content, options, CPU, SEARCHES)
    except Exception as error:
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return _make_session(content, options, CPU, SEARCHES)
        except Exception:
            raise error from None


def _make_session(
    model: str | bytes, options: SessionOptions, providers: tuple[str, ...], kept_out: Sequence[str]
) -> InferenceSession:
    """Opens a model, a path or bytes; ``kept_out``: optimisations of ONNX Runtime that are switched off."""
    session = import_onnxruntime().InferenceSession
    return session(model, options, providers=[*providers], disabled_optimizers=[*kept_out] or None)
