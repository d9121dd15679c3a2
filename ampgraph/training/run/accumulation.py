"""One update from several micro-batches: their scaled gradients are summed on the device, and checked once.

The gradients of a micro-batch start from the loss scale times its share of the batch, so that each sample weighs what
it would in the whole batch, and float16 overflows where it would there. Without a loss scale the sum is weighted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

from ...core.arrays import Array
from ...core.errors import AmpError
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import QUIET, OrtTensor, as_numpy, device_value
from ..step.cut import CutStep, cut, rounded_once
from ..step.training_step import StepLayout, TrainingStep
from .binding import (
    Binding,
    BufferPart,
    Held,
    Made,
    bind_given,
    open_graph,
    raised_by_runtime,
    stopped_error,
    with_cuda_options,
)
from .dataset import LazyBatch
from .options import RunOptions
from .step_inputs import IGNORED

ITERATION = "step/iteration"  # the state by which Dropout draws its masks
ALIGNED = 16  # numbers: parts of a buffer begin at multiples of 64 bytes


class FlatBuffer:
    """Micro-batches: several float32 tensors in one buffer on the device, so that they are added by one operation,
    while sessions write and read them one by one. ``value`` is the whole buffer, a vector; ``parts`` are its tensors by
    name, ``starts`` where each begins in it."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], memory: str) -> None:
        self.starts: dict[str, int] = {}
        end = 0
        for name, shape in shapes.items():
            self.starts[name] = end
            end += -(-math.prod(shape) // ALIGNED) * ALIGNED
        zeros = np.zeros(max(end, 1), np.float32)  # the gaps are added too: they must be numbers
        self.value = self._allocate(zeros, memory)
        start = self.value.data_ptr()
        self.parts = {
            name: BufferPart(self.value, memory, tuple(shape), start + 4 * self.starts[name])
            for name, shape in shapes.items()
        }

    def _allocate(self, zeros: Array, memory: str) -> OrtTensor:
        """Micro-batches: a buffer of zeros in ONNX Runtime's memory, as its value; called by the constructor."""
        made: Any = import_onnxruntime().OrtValue.ortvalue_from_shape_and_type(zeros.shape, np.float32, memory, 0)
        made.update_inplace(zeros)
        value: OrtTensor = made
        return value


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch: its arrays, its number among those of all ranks, its share (0 to 1) in the mean."""

    number: int
    batch: Mapping[str, Array]
    share: float


class AccumulatingBinding(Binding):
    """A `Binding` for a training step that is cut into gradients and update, whose batch is shared among micro-batches.
    The state is the update's, and the gradients only read it. ``whole``: the layout of the step before it was cut;
    ``parts``: micro-batches of this rank, ``all_parts`` of all ranks; ``total``: the buffer of the summed gradients."""

    def __init__(self, step: TrainingStep, options: RunOptions, ranks: int = 1) -> None:
        """Raises what `Binding` raises, and AmpError AMP206 for a step that cannot be cut."""
        self.whole, self.parts, self.all_parts = step.layout, options.accumulate, options.accumulate * ranks
        device, providers = options.place()
        self._wide = device == "cpu" and self.all_parts > 1  # its kernels compute in float32
        self._cut = self._split(step)
        super().__init__(self._cut.update, options)
        self._gradients, _ = open_graph(self._cut.gradients, self.device, with_cuda_options(providers), options)
        self._of_gradients: Any = self._gradients.io_binding()
        self.total = self._buffer()
        self._adding: _GradientSum | None = None
        if self.parts > 1:
            self._adding = _GradientSum(self.total, self._cut.summed, self.memory, providers, not step.layout.scale)

    def _split(self, step: TrainingStep) -> CutStep:
        """The training step as two graphs, gradients and update; on the CPU with several micro-batches low gradients
        are rounded only after they are summed."""
        made = cut(step)
        return rounded_once(made) if self._wide else made

    def _buffer(self) -> FlatBuffer:
        """A buffer for the sum of the gradients of micro-batches, on the device."""
        return FlatBuffer(self._cut.summed, self.memory)

    def _state(self) -> dict[str, Held]:
        """The state that the gradients of a micro-batch read, by name: parameters, statistics, loss scale, counters."""
        return {entry.name: self.held(entry.name) for entry in self._cut.gradients.layout.states}

    def run(self, batch: Mapping[str, Array]) -> Made:
        """Runs one training step on a batch, which its micro-batches share. It is done whole or not at all, as
        `Binding.run`: the gradients change no state. Raises AmpError AMP503 as `micro_batches`, AMP504."""
        state = self._state()
        if self.parts == 1:
            loss, moved = self._run_micro_batch(batch, state, self.total)
        else:
            mean_loss, moved, _ = self._sum_gradients(micro_batches(batch, self.parts, self.whole), state)
            loss = device_value(np.array(mean_loss, np.float32), self.memory)
        return self._step({}, {**self.total.parts, self._cut.loss: loss, **moved})

    def _sum_gradients(
        self, pieces: list[MicroBatch], state: dict[str, Held]
    ) -> tuple[float, dict[str, OrtTensor], float]:
        """Sums the gradients of micro-batches into the buffer `total`. Returns their part of the mean loss, the running
        statistics after the last one (as `_run_micro_batch` names them), and, for a step without loss scale, by what
        the sum must still be multiplied: the share of a single micro-batch, else 1 (0: there was none)."""
        losses, before = 0.0, 0.0  # before: what the sum so far is multiplied by when the next one is added
        moved: dict[str, OrtTensor] = {}
        old = {new: name for name, new in self._cut.moved.items()}
        for piece in pieces:
            self._set_micro_batch_state(state, piece)
            into = self.total if self._adding is None or not before else self._adding.now
            loss, moved = self._run_micro_batch(piece.batch, state, into)
            state |= {old[name]: value for name, value in moved.items()}
            if self._adding is not None and before:
                self._adding.run(before, piece.share)
            before = 1.0 if before else piece.share
            losses += piece.share * float(as_numpy(loss))
        return losses, moved, before

    def _set_micro_batch_state(self, state: dict[str, Held], piece: MicroBatch) -> None:
        """Replaces in ``state`` what a micro-batch reads otherwise than the update: the loss scale, times its share,
        and the counter by which Dropout draws, so that each has masks of its own."""
        if name := self.whole.scale:
            scale = self.get(name)
            state[name] = device_value(scale * scale.dtype.type(piece.share), self.memory)
        if name := self.whole.find("counter", ITERATION):
            state[name] = device_value(self.get(name) * self.all_parts + piece.number, self.memory)

    def _run_micro_batch(
        self, batch: Mapping[str, Array], state: Mapping[str, Held], into: FlatBuffer
    ) -> tuple[OrtTensor, dict[str, OrtTensor]]:
        """Computes the gradients of a micro-batch ``into`` a buffer, reading ``state`` by name. Returns its loss, and
        its new running statistics by the names that the gradients' graph gives them (values of `CutStep.moved`)."""
        binding, fed = self._of_gradients, {name: device_value(array, "cpu") for name, array in batch.items()}
        for name, value in (*fed.items(), *((e.name, state[e.name]) for e in self._cut.gradients.layout.states)):
            bind_given(binding, name, value)
        binding.bind_output(self.whole.loss, self.memory)
        for name, view in into.parts.items():
            binding.bind_output(name, *view.place)
        for name in self._cut.moved.values():
            binding.bind_output(name, self.memory)
        _run_bound(self._gradients, binding, self.device)
        value = import_onnxruntime().OrtValue
        loss, *made = map(value, binding.get_outputs_as_ortvaluevector())  # in the order in which they were bound
        return loss, dict(zip(self._cut.moved.values(), made[len(into.parts) :], strict=True))


class _GradientSum:
    """Micro-batches: a session that adds the buffer ``now``, into which the next one's gradients go, to the total in
    place. ``weighted``: both are multiplied first, where no loss scale has done that."""

    def __init__(
        self, total: FlatBuffer, shapes: Mapping[str, tuple[int, ...]], memory: str, providers: Any, weighted: bool
    ) -> None:
        self.now, self.weighted = FlatBuffer(shapes, memory), weighted
        ort = import_onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = QUIET
        model = _sum_model(int(total.value.shape()[0]), weighted)
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=list(providers))
        self._binding, self._memory = self._session.io_binding(), memory
        self._binding.bind_ortvalue_input("total", total.value)
        self._binding.bind_ortvalue_input("now", self.now.value)
        self._binding.bind_ortvalue_output("sum", total.value)

    def run(self, before: float, share: float) -> None:
        """Adds the gradients of one more micro-batch: total = total * before + now * share, or total + now if it is not
        weighted. Raises AmpError AMP504 where ONNX Runtime stops."""
        given = {"before": before, "share": share} if self.weighted else {}
        held = {name: device_value(np.array(number, np.float32), self._memory) for name, number in given.items()}
        for name, value in held.items():  # held until the run ends: a binding alone does not keep them
            self._binding.bind_ortvalue_input(name, value)
        _run_bound(self._session, self._binding, self._memory)


def _sum_model(size: int, weighted: bool) -> onnx.ModelProto:
    """Micro-batches: a model that adds two vectors of ``size`` numbers, "total" and "now", as "sum"; ``weighted``: sum
    = total * before + now * share, both scalar inputs."""
    more, body = "", "sum = Add (total, now)"
    if weighted:
        more = ", float before, float share"
        body = "old = Mul (total, before)  new = Mul (now, share)  sum = Add (old, new)"
    vector = f"float[{size}]"
    graph = f"sum ({vector} total, {vector} now{more}) => ({vector} sum) {{ {body} }}"
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {graph}')


def _run_bound(session: Any, binding: Any, device: str) -> None:
    """Micro-batches: runs a session by its IO binding. Raises AmpError AMP504 for what ONNX Runtime raises; the
    training state is not touched by then."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        if not raised_by_runtime(error):
            raise
        raise stopped_error(error, device, torn=False) from error


def micro_batches(
    batch: Mapping[str, Array], parts: int, layout: StepLayout, wanted: range | None = None
) -> list[MicroBatch]:
    """Cuts a batch into ``parts`` micro-batches, of sizes that differ by one at most, with the share of each in the
    mean over the batch; returns those whose numbers are ``wanted`` (None: all). A share is that of the labels that
    count, where the loss is cross entropy of the input ``labels``; otherwise of the samples. Micro-batches whose share
    is 0 are left out. Raises AmpError AMP503 for a batch smaller than ``parts``, or inputs of different lengths."""
    weights, rows = labels_that_count(batch, layout)
    weights = weights if weights.any() else rows
    return weighed_micro_batches(batch, parts, weights, float(weights.sum()), wanted=wanted)


def weighed_micro_batches(
    batch: Mapping[str, Array], parts: int, weights: Array, whole: float, first: int = 0, wanted: range | None = None
) -> list[MicroBatch]:
    """Cuts a batch into ``parts`` micro-batches, as `micro_batches`: ``weights`` is what each sample counts, and a
    share the sum of them over ``whole``, of which there may be more on other ranks; numbers begin with ``first``."""
    count = len(weights)
    if count < parts:
        message = f"a batch of {count} is too small for {parts} micro-batches"
        raise AmpError("AMP503", message, hint="take larger batches, or a smaller --accumulate")
    borders = [number * count // parts for number in range(parts + 1)]
    found = []
    for number, (start, end) in enumerate(zip(borders, borders[1:], strict=False)):
        share = float(weights[start:end].sum() / whole)
        if share and (wanted is None or number in wanted):
            if isinstance(batch, LazyBatch):
                part = batch.part(start, end)
            else:
                part = {name: array[start:end] for name, array in batch.items()}
            found.append(MicroBatch(first + number, part, share))
    return found


def labels_that_count(batch: Mapping[str, Array], layout: StepLayout) -> tuple[Array, Array]:
    """For micro-batches: how many labels of each sample count (are not `IGNORED`), and a one for each sample; twice the
    latter where the batch has no labels of classes. Raises AmpError AMP503 for inputs that differ in their number of
    samples, and for labels that do not count in one part of a loss, while other parts count every sample."""
    count = _sample_count(batch)
    rows = np.ones(count)
    labels = batch.column(layout.labels) if isinstance(batch, LazyBatch) else batch.get(layout.labels)
    if labels is None or labels.dtype.kind != "i" or not count:
        return rows, rows
    if layout.parts and (labels == IGNORED).any():
        message = f"label {IGNORED} in micro-batches of a loss that has other parts, which count every sample"
        raise AmpError("AMP503", message, hint="leave these samples out, or train without --accumulate")
    return (labels != IGNORED).reshape(count, -1).sum(1).astype(np.float64), rows


def _sample_count(batch: Mapping[str, Array]) -> int:
    """Micro-batches: the number of samples in a batch, by the first axis of its inputs. Raises AmpError AMP503 where
    inputs differ in it."""
    if isinstance(batch, LazyBatch):
        return batch.samples
    sizes = {name: len(array) if array.ndim else 0 for name, array in batch.items()}
    if len(set(sizes.values())) > 1:
        message = f"inputs with {', '.join(map(str, sizes.values()))} samples cannot be shared among micro-batches"
        raise AmpError("AMP503", message, hint="the first axis of every input must count the samples")
    return min(sizes.values())
