"""A step graph opened on a device: its state bound once, and handed from one step to the next without a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError, first_line
from ...formats.onnx import io as onnx_io
from ...formats.onnx.graph import OnnxGraph
from ...numerics.strict.rewrite import rewrite
from ...runtime.devices import choose, import_onnxruntime
from ...runtime.onnxruntime_session import CRASHING, QUIET, OrtTensor, as_numpy, lacks_kernel, out_of_memory
from ..step.aliasing import in_place
from ..step.session_model import session_model
from ..step.state_tensors import StateTensor
from ..step.training_step import TrainingStep
from .flat_buffer import BufferPart, GraphSession, bind_given

BFLOAT16 = "bfloat16"
HALF_DONE = "an earlier step stopped half-way, and part of the state was written"
NOT_TAKEN = "the last state was not taken to the device whole"


class Readable(Protocol):
    """Where a state is read, tensor by tensor."""

    def get(self, name: str) -> Array: ...
    def shape(self, name: str) -> tuple[int, ...]: ...


class Binding:
    """One session and the state in it: `put` the state, `run` steps, `get` a tensor back."""

    def __init__(self, step: TrainingStep, device: str, strict: bool, threads: int) -> None:
        """Raises AmpError AMP321, AMP323 and AMP505 for the device, AMP502 for a model that the runtime refuses."""
        if strict and device not in ("auto", "cpu"):
            raise AmpError("AMP323", f"strict runs on the CPU, not on {device}", hint="leave one of the two away")
        self.device, providers = choose("cpu" if strict else device)
        self.memory = "cuda" if self.device == "tensorrt" else self.device
        self.layout = step.layout
        self._session, proto = self._open(step, providers, strict, threads)
        self.in_place = self._written_in_place(proto) - {step.layout.scale}
        self._places: dict[str, tuple[OrtTensor, OrtTensor]] = {}  # now, and next; swapped by every step
        self._bindings: list[Any] = []  # of even and of odd steps
        self._turn = 0
        self._scale: OrtTensor | None = None
        self._scale_name = self.layout.scale
        names = (self.layout.loss, self.layout.finite, self.layout.norm, *(output for _, output in self.layout.parts))
        self._results = [name for name in names if name]
        self._shapes = {entry.name: entry.shape for entry in self.layout.states if entry.shape is not None}
        self._next_scale = next((e.output for e in self.layout.states if e.name == self._scale_name), "")
        self._torn = NOT_TAKEN  # why there is no state to read; empty where there is one

    @property
    def turn(self) -> int:
        """Changes with every step that was done."""
        return self._turn

    def _open(
        self, step: TrainingStep, providers: Sequence[str], strict: bool, threads: int
    ) -> tuple[GraphSession, onnx.ModelProto]:
        return open_graph(step, self.device, providers, strict, threads)

    def _written_in_place(self, proto: onnx.ModelProto) -> frozenset[str]:
        """The state that a step may write where it reads it: an engine that compiles whole subgraphs may read a state
        again after it wrote some of it."""
        if self.device not in ("cpu", "cuda"):
            return frozenset()
        return frozenset(in_place(ir.from_proto(proto).graph, self.layout.states))

    # -- state --------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        """Takes a whole state to the device, in the place of the old one, which is dropped first.

        Raises AmpError AMP504 where there is no room for it; then there is no state, until another `put`.
        """
        self._torn = NOT_TAKEN
        self._places, self._bindings, self._scale, self._turn = {}, [], None, 0
        try:
            for entry in self.layout.states:
                array = entry.fed(state[entry.name])
                twice = entry.output and entry.name not in self.in_place and entry.name != self._scale_name
                first = self.value(array)
                self._places[entry.name] = first, self.value(array) if twice else first
            self._scale = self._places[self._scale_name][0] if self._scale_name else None
            self._bindings = [self._bound(0), self._bound(1)]
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            self._places, self._bindings, self._scale = {}, [], None
            size = sum(array.nbytes for array in state.values())
            raise _not_taken(error, self.device, size) from error
        self._torn = ""

    def replace(self, arrays: Mapping[str, Array]) -> None:
        """Takes tensors that steps only read to the device, all or none; they may have another size than before."""
        self._refuse_torn()
        values = {name: self.value(array) for name, array in arrays.items()}
        try:
            self._rebind(values)
        except BaseException:  # Ctrl-C between two of them
            self._rebind(values)
            raise

    def _rebind(self, values: Mapping[str, OrtTensor]) -> None:
        for name, value in values.items():
            self._places[name] = value, value
            for binding in self._bindings:
                binding.bind_ortvalue_input(name, value)

    def get(self, name: str) -> Array:
        """A copy of a tensor of the state as it is now. Raises AmpError AMP504 after a step that stopped half-way."""
        array, shape = as_numpy(self.held(name)), self._shapes.get(name)
        return array if shape is None else array.reshape(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of a tensor of the state as it is now; nothing is copied."""
        held = tuple(self.held(name).shape())
        return self._shapes.get(name, held)

    def lent(self, entry: StateTensor) -> OrtTensor | BufferPart:
        """A tensor of the state as another step takes it that has ``entry`` for it, without a copy."""
        held, shape = self.held(entry.name), self.shape(entry.name)
        dims = shape if entry.shape is None else (math.prod(shape),)
        if dims == tuple(held.shape()):
            return held
        return BufferPart(held, held.device_name(), dims, held.data_ptr(), held.element_type())

    def held(self, name: str) -> OrtTensor:
        """The runtime's own value of a tensor of the state, a vector where the graph takes one."""
        self._refuse_torn()
        scale = self._scale if name == self._scale_name else None
        return self._places[name][self._turn] if scale is None else scale

    def value(self, array: Array) -> OrtTensor:
        """A copy of an array in the device's memory; bfloat16 stays on the host, for want of a numpy type."""
        return device_value(array, "cpu" if _is_bfloat16(array) else self.memory)

    def _bound(self, turn: int) -> Any:
        binding: Any = self._session.io_binding()
        for name in self._results:
            binding.bind_output(name, self.memory)
        if self._next_scale:
            binding.bind_output(self._next_scale, self.memory)
        for entry in self.layout.states:
            places = self._places[entry.name]
            binding.bind_ortvalue_input(entry.name, places[turn])
            if entry.output and entry.name != self._scale_name:
                binding.bind_ortvalue_output(entry.output, places[1 - turn])
        return binding

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(
        self, batch: Mapping[str, Array], given: Mapping[str, OrtTensor | BufferPart] | None = None
    ) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """One step: its results by output name and the loss scale after it, as the runtime's values.

        ``given``: what is on the device already, and is only read.

        All or nothing, also for what Ctrl-C and other signals raise: that comes before the runtime's own call or after
        it, never in it. Where the runtime itself stops half-way, in memory that holds the old state and the new one,
        the state cannot be read any more. Raises AmpError AMP504.
        """
        self._refuse_torn()
        binding = self._bindings[self._turn]
        # Copies: ONNX Runtime may write over a fed array once it has removed the Casts between. They outlive the run.
        fed = {name: device_value(array, "cpu") for name, array in batch.items()}
        for name, value in fed.items():
            binding.bind_ortvalue_input(name, value)
        for name, there in (given or {}).items():
            bind_given(binding, name, there)
        for name in self._results:
            binding.bind_output(name, self.memory)  # a fresh place: the last result may be asked for later
        if self._next_scale:
            binding.bind_ortvalue_input(self._scale_name, self._scale)
            binding.bind_output(self._next_scale, self.memory)
        self._torn = HALF_DONE if self.in_place else ""
        turn = self._turn
        try:
            self._session.run_with_iobinding(binding)
            return self._taken(binding, turn)
        except BaseException as error:  # onnxruntime raises kinds of its own for every fault
            done = binding.get_outputs_as_ortvaluevector()[0].has_value()  # the loss, whose place was empty before
            if done and not of_runtime(error):
                self._taken(binding, turn)  # the step is done, and a signal came after it
                raise
            if not isinstance(error, Exception):
                self._torn = ""  # one came before it
                raise
            raise stopped(error, self.device, bool(self._torn)) from error

    def readable(self) -> Readable:
        """Where the state is read, as it is now."""
        return self

    def run_own(self, batch: Mapping[str, Array]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """The same: all of a batch is this process's own."""
        return self.run(batch)

    def _taken(self, binding: Any, turn: int) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """What a step made becomes what the next one reads; said twice, it is the same."""
        found = binding.get_outputs_as_ortvaluevector()
        count = len(self._results) + bool(self._next_scale)
        values = [import_onnxruntime().OrtValue(found[index]) for index in range(count)]
        scale = values.pop() if self._next_scale else self._scale
        self._scale, self._turn, self._torn = scale, 1 - turn, ""
        return dict(zip(self._results, values, strict=True)), scale

    def _refuse_torn(self) -> None:
        if self._torn:
            raise AmpError("AMP504", self._torn, hint="load the last checkpoint, or load_state(step.initial_state)")


def _is_bfloat16(array: Array) -> bool:
    return array.dtype.kind == "V" and array.dtype.name == BFLOAT16  # the name is slow to make


def device_value(array: Array, memory: str) -> OrtTensor:
    ort = import_onnxruntime()
    array = np.array(array, order="C")
    if _is_bfloat16(array):
        kind = onnx.TensorProto.BFLOAT16
        held: OrtTensor = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), kind)
    else:
        held = ort.OrtValue.ortvalue_from_numpy(array, memory, 0)
    return held


def open_graph(
    step: TrainingStep, device: str, providers: Sequence[str], strict: bool, threads: int
) -> tuple[GraphSession, onnx.ModelProto]:
    """A session of a step graph without its state, and the graph as it runs. Raises AmpError AMP502."""
    proto, folder = session_model(step)
    if strict:
        graph = OnnxGraph(onnx_io.deserialize(proto, Path(folder) if folder else None))
        rewrite(graph, keep_border=True)
        proto = ir.to_proto(graph.model)
    return _opened(proto, folder, device, providers, strict, threads), proto


def _session_options(device: str, strict: bool, threads: int) -> Any:
    """What a step is opened with. On CUDA nodes run in the order of the graph: ONNX Runtime's own puts off the sums of
    gradients over rows, and holds what they read until then, a tenth of the memory (benchmarks/cuda_placement)."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    if strict:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if device == "cuda":
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


def _opened(
    proto: onnx.ModelProto, folder: str, device: str, providers: Sequence[str], strict: bool, threads: int
) -> Any:
    ort = import_onnxruntime()
    options = _session_options(device, strict, threads)
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        crashing = CRASHING if device == "cpu" else None
        return ort.InferenceSession(
            proto.SerializeToString(), options, providers=list(providers), disabled_optimizers=crashing
        )
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        message = f"ONNX Runtime refuses the step: {first_line(error)}"
        hint = (
            f"build it with --target {device}, or train with --strict, which runs on the CPU and needs no low kernels"
        )
        raise AmpError("AMP502", message, hint=hint) from error


def _not_taken(error: Exception, device: str, size: int) -> AmpError:
    if isinstance(error, MemoryError) or out_of_memory(error):
        message = f"out of memory on {device}, which is to hold a state of {size / 1e6:,.1f} MB"
        return AmpError("AMP504", message, hint="free memory there, or --device cpu")
    return AmpError("AMP504", f"ONNX Runtime does not take the state: {first_line(error)}", hint="try --device cpu")


def of_runtime(error: BaseException) -> bool:
    return isinstance(error, (RuntimeError, MemoryError)) or type(error).__module__.startswith("onnxruntime")


def stopped(error: Exception, device: str, torn: bool) -> AmpError:
    if out_of_memory(error):
        return AmpError("AMP504", f"out of memory on {device}", hint="take smaller batches, or --device cpu")
    again = "; part of the state was written: load the last checkpoint" if torn else ""
    hint = f"look at the shapes of the batch{again}"
    if lacks_kernel(first_line(error)):
        hint = f"its kernel on {device} does not take this type: build for --target {device}, or train --strict{again}"
    return AmpError("AMP504", f"ONNX Runtime stopped: {first_line(error)}", hint=hint)
