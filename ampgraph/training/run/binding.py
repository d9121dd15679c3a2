"""A step graph opened on a device: its state bound once, and handed from one step to the next without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError, NoMemory, first_line
from ...core.low_types import numpy_type
from ...formats.onnx import io as onnx_io
from ...formats.onnx.graph import OnnxGraph
from ...numerics.strict.session import make_strict
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import (
    CRASHING,
    QUIET,
    OrtTensor,
    as_numpy,
    device_value,
    lacks_kernel,
    out_of_memory,
)
from ..step.aliasing import in_place
from ..step.state_tensors import GIVEN, PARAMETER, RUNNING, StateTensor
from ..step.training_step import TrainingStep, session_model
from .long_splits import with_rows
from .options import RunOptions
from .step_inputs import StepInputs

SHARED = (PARAMETER, RUNNING, GIVEN)  # kinds of state that several steps may share
HALF_DONE = "an earlier step stopped half-way, and part of the state was written"
NOT_TAKEN = "the last state was not taken to the device whole"
GRAPH = "gpu_graph_id"  # what ONNX Runtime calls the number of a CUDA graph among those of a session


@dataclass(frozen=True)
class BufferPart:
    """A part of a buffer, or the whole in another shape; ``held`` keeps the memory alive, ``kind`` is its type: numpy's
    or the number of ONNX's."""

    held: OrtTensor
    memory: str
    shape: tuple[int, ...]
    address: int
    kind: object = np.float32

    @property
    def place(self) -> tuple[object, ...]:
        """The arguments of onnxruntime.IOBinding's bind methods behind the name: device, type, shape, address."""
        return self.memory, 0, self.kind, list(self.shape), self.address


Held = OrtTensor | BufferPart
Made = tuple[dict[str, OrtTensor], OrtTensor | None]
"""What a step makes: its results by output name, and the loss scale after it, as the runtime's values."""


def bind_given(binding: Any, name: str, value: Held) -> None:
    """Binds an input of a training step that lies on the device already."""
    if isinstance(value, BufferPart):
        binding.bind_input(name, *value.place)
    else:
        binding.bind_ortvalue_input(name, value)


class Binding:
    """One session and the state in it: `put` the state, `run` steps, `get` a tensor back.

    Steps that train by turns share state of one name: who wrote it last holds it, and the others read it there, without
    a copy. ``holders``: whose value of each such name is the newest, for all that share.
    """

    def __init__(self, step: TrainingStep, options: RunOptions) -> None:
        """Raises AmpError AMP321, AMP323 and AMP505 for the device, AMP502 for a model that the runtime refuses."""
        self.device, providers = options.place()
        self.memory = "cuda" if self.device == "tensorrt" else self.device
        self.layout = step.layout
        self.holders: dict[str, Binding] = {}
        self._session, proto = open_graph(step, self.device, self._with_provider_options(providers), options)
        # an engine that compiles whole subgraphs may read a state again after it wrote some of it
        written = in_place(ir.from_proto(proto).graph, self.layout.states) if self.device in ("cpu", "cuda") else ()
        self.in_place = frozenset(written) - {step.layout.scale}
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

    def _with_provider_options(self, providers: Sequence[str]) -> Sequence[object]:
        """The providers as the session is opened with them; a kind of binding may ask more of one.

        Called before the session is there: of this binding only ``device``, ``memory`` and ``layout`` are known.
        """
        return with_cuda_options(providers)

    # -- state --------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        """Takes a whole state to the device, in the place of the old one, which is dropped first; what is shared
        changes for all.

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
            raise _upload_error(error, self.device, size) from error
        self._torn = ""
        self.holders.update({entry.name: self for entry in self._shared()})

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
        """Binds other values for tensors that steps only read."""
        for name, value in values.items():
            self._places[name] = value, value
            for binding in self._bindings:
                binding.bind_ortvalue_input(name, value)

    def _shared(self) -> list[StateTensor]:
        """The state that other steps have too: of a shared kind, and held by one of them."""
        return [entry for entry in self.layout.of(*SHARED) if entry.name in self.holders]

    def get(self, name: str) -> Array:
        """A copy of a tensor of the state as it is now. Raises AmpError AMP504 after a step that stopped half-way."""
        holder = self.holders.get(name, self)
        array, shape = as_numpy(holder.held(name)), holder._shapes.get(name)
        return array if shape is None else array.reshape(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of a tensor of the state as it is now; nothing is copied."""
        holder = self.holders.get(name, self)
        held = tuple(holder.held(name).shape())
        return holder._shapes.get(name, held)

    def reader(self) -> Callable[[str], Array]:
        """A function that reads the training state as it is now, tensor by tensor, as `get` does."""
        return self.get

    def _lent(self, entry: StateTensor) -> Held:
        """The newest value of a shared tensor as the step takes it that has ``entry`` for it, without a copy."""
        holder = self.holders[entry.name]
        held, shape = holder.held(entry.name), holder.shape(entry.name)
        dims = shape if entry.shape is None else (math.prod(shape),)
        if dims == tuple(held.shape()):
            return held
        return BufferPart(held, held.device_name(), dims, held.data_ptr(), held.element_type())

    def held(self, name: str) -> OrtTensor:
        """The runtime's own value of a state tensor, without a copy; a vector where the graph takes one."""
        self._refuse_torn()
        scale = self._scale if name == self._scale_name else None
        return self._places[name][self._turn] if scale is None else scale

    def value(self, array: Array) -> OrtTensor:
        """A copy of an array in the device's memory; bfloat16 stays on the host, for want of a numpy type."""
        return device_value(array, self.memory)

    def _bound(self, turn: int) -> Any:
        """What even or odd steps read and write: state is read at one of its places and written at the other."""
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

    def run(self, batch: Mapping[str, Array]) -> Made:
        """One step on the newest values of what is shared: its results by output name and the loss scale after it.

        All or nothing, also for what Ctrl-C and other signals raise: that comes before the runtime's own call or after
        it, never in it. Where the runtime itself stops half-way, in memory that holds the old state and the new one,
        the state cannot be read any more. Raises AmpError AMP504.
        """
        return self._step(batch, {entry.name: self._lent(entry) for entry in self._shared()})

    def run_own(self, batch: Mapping[str, Array]) -> Made:
        """One step on this process's part of a batch: all of it, where there is one process."""
        return self.run(batch)

    def _step(self, batch: Mapping[str, Array], given: Mapping[str, Held]) -> Made:
        """Runs one training step. ``given``: what is on the device already, and is only read."""
        self._refuse_torn()
        binding = self._bindings[self._turn]
        # Copies: ONNX Runtime may write over a fed array once it has removed the Casts between. They outlive the run.
        fed = {name: device_value(array, "cpu") for name, array in batch.items()}
        for name, value in {**fed, **given}.items():
            bind_given(binding, name, value)
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

    def _taken(self, binding: Any, turn: int) -> Made:
        """What a training step made becomes what the next one reads; said twice, it is the same."""
        found = binding.get_outputs_as_ortvaluevector()
        count = len(self._results) + bool(self._next_scale)
        values = [import_onnxruntime().OrtValue(found[index]) for index in range(count)]
        scale = values.pop() if self._next_scale else self._scale
        self._scale, self._turn, self._torn = scale, 1 - turn, ""
        self.holders.update({entry.name: self for entry in self._shared() if entry.output})
        return dict(zip(self._results, values, strict=True)), scale

    def _refuse_torn(self) -> None:
        """Raises AMP504 if a step was stopped while it wrote over the state, which is then half old and half new."""
        if self._torn:
            raise AmpError("AMP504", self._torn, hint="load the last checkpoint, or load_state(step.initial_state)")


class CapturedBinding(Binding):
    """A `Binding` whose steps are CUDA graphs: the kernels of a step are recorded once, and launched together from then
    on. Results come back as copies on the host.

    A graph reads and writes the addresses that it was recorded with, and ONNX Runtime runs a step several times to
    record it. So every tensor of the state has two places, none is written where it is read, a graph is recorded for
    each of the two directions, and inputs and results have places of their own: what is repeated comes out the same.
    """

    def __init__(self, step: TrainingStep, options: RunOptions) -> None:
        """Raises AmpError AMP325 for a device without such graphs and for a step whose batch is open, and as Binding,
        AMP502 too where a node of the step runs on the host."""
        ports = StepInputs(step).ports.values()
        open_one = next((port for port in ports if not all(isinstance(d, int) for d in port.shape)), None)
        if open_one is not None:
            hint = "build the step with --batch N, and train with --batch-size N"
            raise AmpError("AMP325", f"a CUDA graph needs sizes, and those of '{open_one.name}' are open", hint=hint)
        super().__init__(step, options)
        self.in_place = frozenset()  # a step that is run twice has to read the same state
        self._scale_name = self._next_scale = ""  # state as any other: two places
        self._made: list[dict[str, OrtTensor]] = []  # results of even and of odd steps
        self._recorded = 1  # the number of the graph of even steps

    def _with_provider_options(self, providers: Sequence[str]) -> Sequence[object]:
        """CUDA with its graphs, for a training step. Raises AmpError AMP325 for another device."""
        if self.device != "cuda":
            hint = "omit --cuda-graph, or --device cuda"
            raise AmpError("AMP325", f"{self.device} has no CUDA graphs", hint=hint)
        return with_cuda_options(providers, enable_cuda_graph="1")

    def put(self, state: Mapping[str, Array]) -> None:
        """Puts the state, and makes new places for results; both turns are recorded anew."""
        self._fed: dict[str, Any] = {}
        self._made = [self._results_places(), self._results_places()]
        super().put(state)
        self._recorded += 2  # other addresses

    def _rebind(self, values: Mapping[str, OrtTensor]) -> None:
        """Binds a step's values at other addresses, so that the CUDA graphs of both turns are recorded anew."""
        super()._rebind(values)
        self._recorded += 2

    def _results_places(self) -> dict[str, OrtTensor]:
        """A place on the device for each result of the step, at which its CUDA graph will write."""
        found = {}
        for output in self._session.get_outputs():
            if output.name in self._results:
                word = output.type.removeprefix("tensor(").removesuffix(")")
                dtype = numpy_type({"float": "float32", "double": "float64"}.get(word, word))
                sizes = [dim if isinstance(dim, int) else 1 for dim in output.shape]
                found[output.name] = self.value(np.zeros(sizes, dtype))
        return found

    def _bound(self, turn: int) -> Any:
        """The IO binding of a turn, whose results go to the places made for that turn."""
        binding = super()._bound(turn)
        for name, place in self._made[turn].items():
            binding.bind_ortvalue_output(name, place)
        return binding

    def run(self, batch: Mapping[str, Array]) -> Made:
        """One step, as `Binding.run`: the old state stays as it is until the step is done."""
        self._refuse_torn()
        turn = self._turn
        for name, array in batch.items():
            array = np.ascontiguousarray(array)
            if name in self._fed:
                self._fed[name].update_inplace(array)
                continue
            self._fed[name] = self.value(array)
            for binding in self._bindings:
                binding.bind_ortvalue_input(name, self._fed[name])
        try:
            self._session.run_with_iobinding(self._bindings[turn], self._run_options(turn))
            made = {name: device_value(as_numpy(place), "cpu") for name, place in self._made[turn].items()}
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            raise stopped(error, self.device, False) from error
        self._turn = 1 - turn
        scale = self.layout.scale
        return made, device_value(self.get(scale), "cpu") if scale else None

    def _run_options(self, turn: int) -> Any:
        """Names the CUDA graph of a turn: ONNX Runtime records it at the first run under a name, and launches it
        afterwards."""
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry(GRAPH, str(self._recorded + turn))
        return options


def with_cuda_options(providers: Sequence[str], **more: str) -> list[object]:
    """The providers of a training step, CUDA with an arena that grows by what is asked for: its default doubles, which
    held a quarter more of a step that took 5.8 GB, in the same time (benchmarks/gpu.md). ``more``: other options of
    CUDA."""
    options = {"arena_extend_strategy": "kSameAsRequested", **more}
    return [(name, options) if name == "CUDAExecutionProvider" else name for name in providers]


def open_graph(
    step: TrainingStep, device: str, providers: Sequence[object], options: RunOptions
) -> tuple[Any, onnx.ModelProto]:
    """A session of a step graph without its state, and the graph as it runs. Raises AmpError AMP502."""
    proto, folder = session_model(step)
    if options.strict:
        graph = OnnxGraph(onnx_io.deserialize(proto, Path(folder) if folder else None))
        make_strict(graph, keep_interface=True)
        proto = ir.to_proto(graph.model)
    ort, how = import_onnxruntime(), _session_options(device, options.strict, options.threads)
    if folder:
        how.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    crashing = CRASHING if device == "cpu" else None
    try:
        content = (with_rows(proto) if device == "cuda" else proto).SerializeToString()
        return ort.InferenceSession(content, how, providers=list(providers), disabled_optimizers=crashing), proto
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        hint = (
            f"build it with --target {device}, or train with --strict, which runs on the CPU and needs no low kernels"
        )
        raise AmpError("AMP502", f"ONNX Runtime refuses the step: {first_line(error)}", hint=hint) from error


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


def _upload_error(error: Exception, device: str, size: int) -> AmpError:
    """AMP504 for a training state of ``size`` bytes that the runtime did not take."""
    if isinstance(error, MemoryError) or out_of_memory(error):
        message = f"out of memory on {device}, which is to hold a state of {size / 1e6:,.1f} MB"
        return NoMemory(message, hint="free memory there, or --device cpu")
    return AmpError("AMP504", f"ONNX Runtime does not take the state: {first_line(error)}", hint="try --device cpu")


def of_runtime(error: BaseException) -> bool:
    """Where a training step stops: whether ONNX Runtime raised the error, and no signal."""
    return isinstance(error, (RuntimeError, MemoryError)) or type(error).__module__.startswith("onnxruntime")


def stopped(error: Exception, device: str, torn: bool) -> AmpError:
    """AMP504 for a training step that the runtime stopped. ``torn``: part of the state was written, unreadable."""
    if out_of_memory(error):
        return NoMemory(f"out of memory on {device}", hint="take smaller batches, or --device cpu")
    again = "; part of the state was written: load the last checkpoint" if torn else ""
    hint = f"look at the shapes of the batch{again}"
    if lacks_kernel(first_line(error)):
        hint = f"its kernel on {device} does not take this type: build for --target {device}, or train --strict{again}"
    return AmpError("AMP504", f"ONNX Runtime stopped: {first_line(error)}", hint=hint)
