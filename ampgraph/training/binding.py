"""A step graph opened on a device: its state bound once, and handed from one step to the next without a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import AmpError, first_line
from ..formats import onnx_io
from ..runtime.devices import choose, import_onnxruntime
from ..runtime.onnxruntime import QUIET, as_numpy
from .aliasing import in_place
from .packing import ORIGINAL
from .state import SCALE
from .step import TrainingStep

BFLOAT16 = "bfloat16"
SCALE_NAME = "step/scale"


class Binding:
    """One session and the state in it: `put` the state, `run` steps, `get` a tensor back."""

    def __init__(self, step: TrainingStep, device: str, strict: bool, threads: int) -> None:
        """Raises AmpError AMP321, AMP323 and AMP505 for the device, AMP502 for a model that the runtime refuses."""
        if strict and device not in ("auto", "cpu"):
            raise AmpError("AMP323", f"strict runs on the CPU, not on {device}", hint="leave one of the two away")
        self.device, providers = choose("cpu" if strict else device)
        self.memory = "cuda" if self.device == "tensorrt" else self.device
        self.layout = step.layout
        proto, folder = session_model(step)
        if strict:
            from ..numerics.strict_rewrite import rewrite

            proto = rewrite(proto, keep_border=True, folder=folder)
        self.in_place = in_place(ir.from_proto(proto).graph, step.layout.states) - {SCALE_NAME}
        self._session = _opened(proto, folder, providers, strict, threads)
        self._places: dict[str, tuple[Any, Any]] = {}  # now, and next; swapped by every step
        self._bindings: list[Any] = []  # of even and of odd steps
        self._turn = 0
        self._scale: Any = None
        names = (self.layout.loss, self.layout.finite, self.layout.norm)
        self._results = [name for name in names if name]
        self._next_scale = next((e.output for e in self.layout.of(SCALE) if e.name == SCALE_NAME), "")
        self._torn = False

    # -- state --------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes a whole state to the device."""
        self._places, self._turn = {}, 0
        for entry in self.layout.states:
            first = self.value(state[entry.name])
            twice = entry.output and entry.name not in self.in_place and entry.name != SCALE_NAME
            self._places[entry.name] = first, self.value(state[entry.name]) if twice else first
        self._scale = self._places[SCALE_NAME][0] if SCALE_NAME in self._places else None
        self._bindings = [self._bound(0), self._bound(1)]
        self._torn = False

    def replace(self, name: str, array: np.ndarray) -> None:
        """Takes one tensor that steps only read to the device; it may have another size than before."""
        value = self.value(array)
        self._places[name] = value, value
        for binding in self._bindings:
            binding.bind_ortvalue_input(name, value)

    def get(self, name: str) -> np.ndarray:
        """A copy of a tensor of the state as it is now. Raises AmpError AMP504 after a step that stopped half-way."""
        self._refuse_torn()
        return as_numpy(self.held(name))

    def held(self, name: str) -> Any:
        """The runtime's own value of a tensor of the state."""
        return self._scale if name == SCALE_NAME else self._places[name][self._turn]

    def value(self, array: np.ndarray) -> Any:
        """A copy of an array in the device's memory; bfloat16 stays on the host, for want of a numpy type."""
        return _value(array, "cpu" if _is_bfloat16(array) else self.memory)

    def _bound(self, turn: int) -> Any:
        binding = self._session.io_binding()
        for name in self._results:
            binding.bind_output(name, self.memory)
        if self._next_scale:
            binding.bind_output(self._next_scale, self.memory)
        for entry in self.layout.states:
            places = self._places[entry.name]
            binding.bind_ortvalue_input(entry.name, places[turn])
            if entry.output and entry.name != SCALE_NAME:
                binding.bind_ortvalue_output(entry.output, places[1 - turn])
        return binding

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(self, batch: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Any]:
        """One step: its results by output name and the loss scale after it, as the runtime's values."""
        self._refuse_torn()
        binding = self._bindings[self._turn]
        # Copies: ONNX Runtime may write over a fed array once it has removed the Casts between. They outlive the run.
        fed = {name: _value(array, "cpu") for name, array in batch.items()}
        for name, value in fed.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._results:
            binding.bind_output(name, self.memory)  # a fresh place: the last result may be asked for later
        if self._next_scale:
            binding.bind_ortvalue_input(SCALE_NAME, self._scale)
            binding.bind_output(self._next_scale, self.memory)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            self._torn = bool(self.in_place)
            raise _stopped(error, self.device, self._torn) from error
        found = binding.get_outputs_as_ortvaluevector()
        values = [
            import_onnxruntime().OrtValue(found[index]) for index in range(len(self._results) + bool(self._next_scale))
        ]
        if self._next_scale:
            self._scale = values.pop()
        self._turn = 1 - self._turn
        return dict(zip(self._results, values, strict=True)), self._scale

    def _refuse_torn(self) -> None:
        if self._torn:
            told = "an earlier step stopped half-way, and part of the state was written"
            raise AmpError("AMP504", told, hint="load the last checkpoint, or load_state(step.initial_state)")


def _is_bfloat16(array: np.ndarray) -> bool:
    return array.dtype.kind == "V" and array.dtype.name == BFLOAT16  # the name is slow to make


def _value(array: np.ndarray, memory: str) -> Any:
    ort = import_onnxruntime()
    array = np.array(array, order="C")
    if _is_bfloat16(array):
        kind = onnx.TensorProto.BFLOAT16
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), kind)
    return ort.OrtValue.ortvalue_from_numpy(array, memory, 0)


@contextlib.contextmanager
def without(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """The graph without some of its initializers, for as long as the block lasts."""
    held = dict(graph.initializers)
    for name in names:
        graph.initializers.pop(name, None)
    try:
        yield
    finally:
        for name in list(graph.initializers):
            graph.initializers.pop(name)
        for name, value in held.items():
            graph.initializers[name] = value


def session_model(step: TrainingStep) -> tuple[onnx.ModelProto, str]:
    """The step without its state and without the packed forward graph, and the folder of its data files if it has any.

    Raises AmpError AMP502 for weights beyond what fits into one message; a saved step has them in a data file.
    """
    graph = step.model.graph
    unread = [name for name in graph.initializers if name.startswith(ORIGINAL)]
    with without(graph, [*(entry.name for entry in step.layout.states), *unread]):
        outside = {tensor.base_dir for tensor in onnx_io.external_tensors(step.model)}
        kept = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value is not None)
        if len(outside) > 1 or (not outside and kept > onnx_io.INLINE_LIMIT):
            told = f"{kept / 1e9:.1f} GB of frozen weights do not fit into one message"
            raise AmpError("AMP502", told, hint="save the step, and give the path of the file")
        proto = ir.to_proto(step.model)
    del proto.metadata_props[:]
    return proto, str(next(iter(outside), ""))


def _opened(proto: onnx.ModelProto, folder: str, providers: Sequence[str], strict: bool, threads: int) -> Any:
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    if strict:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, providers=list(providers))
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        told = f"ONNX Runtime refuses the step: {first_line(error)}"
        hint = "build it for another --target, or choose another --device, or strict, which needs no low kernels"
        raise AmpError("AMP502", told, hint=hint) from error


def _stopped(error: Exception, device: str, torn: bool) -> AmpError:
    told = str(error)
    if "Failed to allocate memory" in told or "out of memory" in told.lower():
        return AmpError("AMP504", f"out of memory on {device}", hint="take smaller batches, or --device cpu")
    again = "; part of the state was written: load the last checkpoint" if torn else ""
    hint = f"look at the shapes of the batch{again}"
    return AmpError("AMP504", f"ONNX Runtime stopped: {first_line(error)}", hint=hint)
