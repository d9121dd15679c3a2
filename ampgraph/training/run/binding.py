"""A step graph opened on a device: its state is bound once, and handed from one training step to the next without a
copy. Two `Binding`s may share state."""

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
GRAPH = "gpu_graph_id"  # ONNX Runtime's key for the number of a CUDA graph among those of a session


@dataclass(frozen=True)
class BufferPart:
    """A tensor of a training step that lies in the memory of another value on the device: a part of it, or all of it in
    another shape. ``held`` is that value and keeps the memory alive; ``address`` is the tensor's first byte, ``kind``
    its type: numpy's or ONNX's number."""

    held: OrtTensor
    memory: str
    shape: tuple[int, ...]
    address: int
    kind: object = np.float32

    @property
    def place(self) -> tuple[object, ...]:
        """The arguments that onnxruntime.IOBinding's bind methods take after the name: device and number, type, shape,
        address."""
        return self.memory, 0, self.kind, list(self.shape), self.address


Held = OrtTensor | BufferPart
Made = tuple[dict[str, OrtTensor], OrtTensor | None]
"""What a training step gives: its results by output name, and the loss scale after it (None for no scale), both as
values of ONNX Runtime."""


def bind_given(binding: Any, name: str, value: Held) -> None:
    """Binds an input of a training step that lies on the device already."""
    if isinstance(value, BufferPart):
        binding.bind_input(name, *value.place)
    else:
        binding.bind_ortvalue_input(name, value)


class Binding:
    """One session of a step graph and its state: `put` the state, `run` steps, `get` a tensor back.

    A state tensor that a step writes has two places on the device, which even and odd steps (turns 0 and 1) read and
    write by turns; one that is written in place, or only read, has one. The loss scale is a value of its own, a new
    one after each step.

    Bindings that train by turns share the state of equal names: the one that wrote it last holds it, and the others
    read it there, without a copy. ``holders``: name -> the binding that holds it, one dictionary for all that share."""

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
        self._places: dict[str, tuple[OrtTensor, OrtTensor]] = {}  # what turn 0 reads and turn 1 writes; the reverse
        self._bindings: list[Any] = []  # of turn 0 and of turn 1
        self._turn = 0  # of the next step
        self._scale: OrtTensor | None = None
        self._scale_name = self.layout.scale
        names = (self.layout.loss, self.layout.finite, self.layout.norm, *(output for _, output in self.layout.parts))
        self._results = [name for name in names if name]
        self._shapes = {entry.name: entry.shape for entry in self.layout.states if entry.shape is not None}
        self._next_scale = next((e.output for e in self.layout.states if e.name == self._scale_name), "")
        self._torn = NOT_TAKEN  # why the state cannot be read; empty where it can

    def _with_provider_options(self, providers: Sequence[str]) -> Sequence[object]:
        """The providers of the training session with their options; another kind of binding may add some. Called before
        the session is opened: only ``device``, ``memory`` and ``layout`` are set by then."""
        return with_cuda_options(providers)

    # -- state --------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        """Copies a whole training state to the device, arrays by name; the old one is dropped first. Of tensors that
        other bindings share, theirs is the new value too. Raises AmpError AMP504 where there is no room for it; then
        there is no state until another `put`."""
        self._torn = NOT_TAKEN
        self._places, self._bindings, self._scale, self._turn = {}, [], None, 0
        try:
            for entry in self.layout.states:
                array = entry.fed(state[entry.name])
                twice = entry.output and entry.name not in self.in_place and entry.name != self._scale_name
                first = self.value(array)
                self._places[entry.name] = first, self.value(array) if twice else first
            self._scale = self._places[self._scale_name][0] if self._scale_name else None
            self._bindings = [self._bind_turn(0), self._bind_turn(1)]
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            self._places, self._bindings, self._scale = {}, [], None
            size = sum(array.nbytes for array in state.values())
            raise _upload_error(error, self.device, size) from error
        self._torn = ""
        self.holders.update({entry.name: self for entry in self._shared()})

    def replace(self, arrays: Mapping[str, Array]) -> None:
        """Copies state tensors that training steps only read to the device, all or none; sizes may change."""
        self._refuse_torn()
        values = {name: self.value(array) for name, array in arrays.items()}
        try:
            self._rebind(values)
        except BaseException:  # Ctrl-C between two of them
            self._rebind(values)
            raise

    def _rebind(self, values: Mapping[str, OrtTensor]) -> None:
        """Binds other values for state tensors that training steps only read."""
        for name, value in values.items():
            self._places[name] = value, value
            for binding in self._bindings:
                binding.bind_ortvalue_input(name, value)

    def _shared(self) -> list[StateTensor]:
        """The state tensors that this binding shares with others."""
        return [entry for entry in self.layout.of(*SHARED) if entry.name in self.holders]

    def get(self, name: str) -> Array:
        """A copy on the host of a training state tensor as it is now, in its own shape. Raises AmpError AMP504 after a
        step that stopped half-way."""
        holder = self.holders.get(name, self)
        array, shape = as_numpy(holder.held(name)), holder._shapes.get(name)
        return array if shape is None else array.reshape(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """The own shape of a training state tensor as it is now; nothing is copied."""
        holder = self.holders.get(name, self)
        held = tuple(holder.held(name).shape())
        return holder._shapes.get(name, held)

    def reader(self) -> Callable[[str], Array]:
        """A function that gives a training state tensor by name, as `get` does, until the next step."""
        return self.get

    def _shared_value(self, entry: StateTensor) -> Held:
        """The newest value of a shared state tensor in the shape in which this binding's graph takes it (a vector where
        ``entry`` has a shape), without a copy."""
        holder = self.holders[entry.name]
        held, shape = holder.held(entry.name), holder.shape(entry.name)
        dims = shape if entry.shape is None else (math.prod(shape),)
        if dims == tuple(held.shape()):
            return held
        return BufferPart(held, held.device_name(), dims, held.data_ptr(), held.element_type())

    def held(self, name: str) -> OrtTensor:
        """ONNX Runtime's own value of a state tensor of this binding, without a copy, in the shape that the graph
        takes. Raises AmpError AMP504 where the state cannot be read."""
        self._refuse_torn()
        scale = self._scale if name == self._scale_name else None
        return self._places[name][self._turn] if scale is None else scale

    def value(self, array: Array) -> OrtTensor:
        """A copy of a training array in the device's memory, as ONNX Runtime's value; bfloat16 stays on the host, as
        numpy has no such type."""
        return device_value(array, self.memory)

    def _bind_turn(self, turn: int) -> Any:
        """The IO binding of the training steps of a turn (0 or 1): state is read at its place number ``turn`` and
        written at the other, results get memory of their own."""
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
        """Runs one training step on a checked batch and the newest state, and returns its results (see `Made`). A step
        is done whole or not at all, also where Ctrl-C or another signal raises: that happens before ONNX Runtime's own
        call or after it, never during it. Raises AmpError AMP504 where the runtime stops; if it has written part of the
        state in place by then, the state cannot be read any more."""
        return self._step(batch, {entry.name: self._shared_value(entry) for entry in self._shared()})

    def run_own(self, batch: Mapping[str, Array]) -> Made:
        """Runs one training step on this process's own part of a batch; here, with one process, that is all of it."""
        return self.run(batch)

    def _step(self, batch: Mapping[str, Array], given: Mapping[str, Held]) -> Made:
        """Runs one training step on arrays and on values that lie on the device already (``given``), both by input
        name; see `run`."""
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
            return self._advance(binding, turn)
        except BaseException as error:  # onnxruntime raises kinds of its own for every fault
            done = binding.get_outputs_as_ortvaluevector()[0].has_value()  # the loss, whose place was empty before
            if done and not raised_by_runtime(error):
                self._advance(binding, turn)  # a signal came after the step, which is done
                raise
            if not isinstance(error, Exception):
                self._torn = ""  # a signal came before the step, which changed nothing
                raise
            raise stopped_error(error, self.device, bool(self._torn)) from error

    def _advance(self, binding: Any, turn: int) -> Made:
        """After the training step of a ``turn``: what it wrote becomes the state, and its results are returned. Calling
        it twice, as after a signal, does no harm."""
        found = binding.get_outputs_as_ortvaluevector()
        count = len(self._results) + bool(self._next_scale)
        values = [import_onnxruntime().OrtValue(found[index]) for index in range(count)]
        scale = values.pop() if self._next_scale else self._scale
        self._scale, self._turn, self._torn = scale, 1 - turn, ""
        self.holders.update({entry.name: self for entry in self._shared() if entry.output})
        return dict(zip(self._results, values, strict=True)), scale

    def _refuse_torn(self) -> None:
        """Raises AmpError AMP504 where the training state cannot be read: a step that writes in place was stopped, or
        the last state was not copied whole."""
        if self._torn:
            raise AmpError("AMP504", self._torn, hint="load the last checkpoint, or load_state(step.initial_state)")


class CapturedBinding(Binding):
    """A `Binding` whose training steps are CUDA graphs: the kernels of a step are recorded once, and launched together
    from then on. Results are copies on the host.

    A CUDA graph reads and writes the addresses that it was recorded with, and ONNX Runtime runs a step several times to
    record it. So every state tensor has two places, nothing is written in place, a graph is recorded for each turn, and
    inputs and results have fixed places too: running a step again gives the same."""

    def __init__(self, step: TrainingStep, options: RunOptions) -> None:
        """Raises AmpError AMP325 for a device other than cuda and for a step whose batch size is open, what `Binding`
        raises, and AMP502 too where a node of the step runs on the host."""
        ports = StepInputs(step).ports.values()
        open_one = next((port for port in ports if not all(isinstance(d, int) for d in port.shape)), None)
        if open_one is not None:
            hint = "build the step with --batch N, and train with --batch-size N"
            raise AmpError("AMP325", f"a CUDA graph needs sizes, and those of '{open_one.name}' are open", hint=hint)
        super().__init__(step, options)
        self.in_place = frozenset()  # a step that is run twice has to read the same state
        self._scale_name = self._next_scale = ""  # the loss scale is state as any other: two places
        self._made: list[dict[str, OrtTensor]] = []  # where results of turn 0 and of turn 1 are written
        self._recorded = 1  # the number of the CUDA graph of turn 0; that of turn 1 is the next

    def _with_provider_options(self, providers: Sequence[str]) -> Sequence[object]:
        """CUDA with its graphs, for a training step. Raises AmpError AMP325 for another device."""
        if self.device != "cuda":
            hint = "omit --cuda-graph, or --device cuda"
            raise AmpError("AMP325", f"{self.device} has no CUDA graphs", hint=hint)
        return with_cuda_options(providers, enable_cuda_graph="1")

    def put(self, state: Mapping[str, Array]) -> None:
        """Copies a whole training state to the device, and makes new places for results; the CUDA graphs of both turns
        are recorded anew."""
        self._fed: dict[str, Any] = {}  # input -> its place on the device
        self._made = [self._result_places(), self._result_places()]
        super().put(state)
        self._recorded += 2  # other addresses

    def _rebind(self, values: Mapping[str, OrtTensor]) -> None:
        """Binds other values for state tensors that training steps only read; as their addresses differ, the CUDA
        graphs of both turns are recorded anew."""
        super()._rebind(values)
        self._recorded += 2

    def _result_places(self) -> dict[str, OrtTensor]:
        """A new place on the device for each result of a training step, into which a CUDA graph will write."""
        found = {}
        for output in self._session.get_outputs():
            if output.name in self._results:
                word = output.type.removeprefix("tensor(").removesuffix(")")
                dtype = numpy_type({"float": "float32", "double": "float64"}.get(word, word))
                sizes = [dim if isinstance(dim, int) else 1 for dim in output.shape]
                found[output.name] = self.value(np.zeros(sizes, dtype))
        return found

    def _bind_turn(self, turn: int) -> Any:
        """The IO binding of the training steps of a turn, whose results go to the places made for that turn."""
        binding = super()._bind_turn(turn)
        for name, place in self._made[turn].items():
            binding.bind_ortvalue_output(name, place)
        return binding

    def run(self, batch: Mapping[str, Array]) -> Made:
        """Runs one training step, as `Binding.run`. Its state is never half written: the old one stays until the step
        is done."""
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
            raise stopped_error(error, self.device, False) from error
        self._turn = 1 - turn
        scale = self.layout.scale
        return made, device_value(self.get(scale), "cpu") if scale else None

    def _run_options(self, turn: int) -> Any:
        """The options of a training step's run that number the CUDA graph of its turn: ONNX Runtime records a graph
        when a number is new, and launches it afterwards."""
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry(GRAPH, str(self._recorded + turn))
        return options


def with_cuda_options(providers: Sequence[str], **more: str) -> list[object]:
    """The providers of a training session, CUDA with ``more`` options and an arena that grows by what is asked for: by
    default it doubles, which took a quarter more memory of a step of 5.8 GB, in the same time (benchmarks/gpu.md)."""
    options = {"arena_extend_strategy": "kSameAsRequested", **more}
    return [(name, options) if name == "CUDAExecutionProvider" else name for name in providers]


def open_graph(
    step: TrainingStep, device: str, providers: Sequence[object], options: RunOptions
) -> tuple[Any, onnx.ModelProto]:
    """Opens a step graph, without its state: the session, and the model that it was opened from, with the roundings of
    a strict run. Raises AmpError AMP502 where ONNX Runtime refuses it."""
    proto, folder = session_model(step)
    if options.strict:
        graph = OnnxGraph(onnx_io.deserialize(proto, Path(folder) if folder else None))
        make_strict(graph, keep_interface=True)
        proto = ir.to_proto(graph.model)
    ort, session_options = import_onnxruntime(), _session_options(device, options.strict, options.threads)
    if folder:
        session_options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    optimizers = {"disabled_optimizers": CRASHING if device == "cpu" else None}
    try:
        content = (with_rows(proto) if device == "cuda" else proto).SerializeToString()
        return ort.InferenceSession(content, session_options, providers=list(providers), **optimizers), proto
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        hint = (
            f"build it with --target {device}, or train with --strict, which runs on the CPU and needs no low kernels"
        )
        raise AmpError("AMP502", f"ONNX Runtime refuses the step: {first_line(error)}", hint=hint) from error


def _session_options(device: str, strict: bool, threads: int) -> Any:
    """The session options of a training step. On CUDA nodes run in the order of the graph: in ONNX Runtime's own order
    the sums of gradients over rows come late, and what they read is held until then, a tenth of the memory
    (benchmarks/cuda_placement)."""
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
    """The AmpError AMP504 for a training state of ``size`` bytes that ONNX Runtime did not take."""
    if isinstance(error, MemoryError) or out_of_memory(error):
        message = f"out of memory on {device}, which is to hold a state of {size / 1e6:,.1f} MB"
        return NoMemory(message, hint="free memory there, or --device cpu")
    return AmpError("AMP504", f"ONNX Runtime does not take the state: {first_line(error)}", hint="try --device cpu")


def raised_by_runtime(error: BaseException) -> bool:
    """Where a training step stops: whether ONNX Runtime raised the error, not a signal's handler."""
    return isinstance(error, (RuntimeError, MemoryError)) or type(error).__module__.startswith("onnxruntime")


def stopped_error(error: Exception, device: str, torn: bool) -> AmpError:
    """The AmpError AMP504 for a training step that ONNX Runtime stopped. ``torn``: part of the state was written in
    place, so that it cannot be read any more."""
    if out_of_memory(error):
        return NoMemory(f"out of memory on {device}", hint="take smaller batches, or --device cpu")
    again = "; part of the state was written: load the last checkpoint" if torn else ""
    hint = f"look at the shapes of the batch{again}"
    if lacks_kernel(first_line(error)):
        hint = f"its kernel on {device} does not take this type: build for --target {device}, or train --strict{again}"
    return AmpError("AMP504", f"ONNX Runtime stopped: {first_line(error)}", hint=hint)
