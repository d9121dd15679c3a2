"""Training steps whose batch is shared among the ranks of a group, and by each rank among its micro-batches.

Each micro-batch starts from the loss scale times its share of the whole batch, so the reduction is a plain sum, and
one rank with four micro-batches, two with two and four with one compute the same. The loss and the running statistics
of a rank are weighted by its share and summed too. The finite check and the update see nothing but sums, which are the
same bits on every rank: all decide alike, and hold the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError
from ...core.installing import pip_install
from ...runtime.devices import import_onnxruntime
from ...runtime.onnxruntime_session import OrtTensor
from ..step.cut import CutStep
from ..step.training_step import TrainingStep
from .accumulation import (
    AccumulatingBinding,
    FlatBuffer,
    MicroBatch,
    labels_that_count,
    micro_batches,
    weighed_micro_batches,
)
from .binding import Binding, CapturedBinding, Held, Made
from .checkpoint import digest, digest_of
from .options import RunOptions
from .ranks import Ranks, TorchGroup, join_group, threads_of_rank
from .shards import SHARED_OUT, shard, shares

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


def open_binding(
    step: TrainingStep, options: RunOptions, distributed: str | ProcessGroup | None
) -> tuple[Binding, Ranks]:
    """Opens what a trainer runs its steps on: one graph, or two (gradients and update) with micro-batches or with other
    processes; and returns these processes too. Raises what the bindings raise, AmpError AMP325 for options that exclude
    each other, and AMP325, AMP501 and AMP509 for the processes."""
    chosen, _ = options.place()
    group, parts = join_group(distributed, "cuda" if chosen == "tensorrt" else chosen), options.accumulate
    if group.world * parts > 1 and step.layout.whole_batch:
        sharing = f"accumulate={parts}" if group.world == 1 else f"{group.world} processes"
        hint = "omit accumulate" if group.world == 1 else "train in one process"
        raise AmpError("AMP325", f"{sharing}: {step.layout.whole_batch}", hint=hint)
    if options.cuda_graph and (options.strict or parts > 1 or isinstance(group, TorchGroup)):
        hint = "omit cuda_graph, or train in one process, without strict and accumulate"
        raise AmpError("AMP325", "a CUDA graph is of a whole step on one device", hint=hint)
    if isinstance(group, TorchGroup):
        kind = ShardedBinding if options.shard_optimizer else ParallelBinding
        return kind(step, options, group), group
    if parts > 1:
        return AccumulatingBinding(step, options), group
    return (CapturedBinding if options.cuda_graph else Binding)(step, options), group


class SharedBuffer(FlatBuffer):
    """A `FlatBuffer` in memory of torch, for several ranks: ONNX Runtime writes its tensors, torch.distributed sums it,
    and nothing is copied. ``tensor`` is the whole buffer as torch's, ``view`` one of its tensors. Raises AmpError
    AMP501 for an ONNX Runtime that shares no memory."""

    tensor: torch.Tensor

    def _allocate(self, zeros: Array, memory: str) -> OrtTensor:
        """For several ranks: a buffer of zeros in torch's memory, as a value of ONNX Runtime that shares it."""
        import torch

        self.tensor = torch.zeros(zeros.shape, device=memory)
        if not hasattr(import_onnxruntime().OrtValue, "from_dlpack"):
            message = "this ONNX Runtime has no OrtValue.from_dlpack, and shares no memory with torch"
            raise AmpError("AMP501", message, hint=pip_install("cpu" if memory == "cpu" else "gpu") + " --upgrade")
        return _from_torch(self.tensor)

    def view(self, name: str) -> torch.Tensor:
        """One tensor of the buffer that ranks sum up, where it lies."""
        start, shape = self.starts[name], self.parts[name].shape
        return self.tensor[start : start + math.prod(shape)].view(shape)


def _to_torch(value: OrtTensor) -> torch.Tensor:
    """Training by several ranks: a tensor of ONNX Runtime as torch's, sharing memory."""
    from torch.utils.dlpack import from_dlpack

    shared: torch.Tensor = from_dlpack(value)
    return shared


def _from_torch(tensor: torch.Tensor) -> OrtTensor:
    """Training by several ranks: a tensor of torch as ONNX Runtime's, sharing memory."""
    value: OrtTensor = import_onnxruntime().OrtValue.from_dlpack(tensor)
    return value


class ParallelBinding(AccumulatingBinding):
    """The `Binding` of a training with several ranks: every rank holds the whole state, and makes the same update of
    it, from gradients that are summed over the ranks. Beside the gradients (`total`), ranks sum up in ``rest`` the loss
    and the float32 running statistics, and send as rank 0 has them other next states (``_sent``: name in the gradients'
    graph -> state)."""

    total: SharedBuffer

    def __init__(self, step: TrainingStep, options: RunOptions, group: TorchGroup) -> None:
        """Raises what `AccumulatingBinding` raises, AmpError AMP325 for float16 gradients that nothing looks at for
        infinity, and AMP501 as `SharedBuffer`."""
        if options.communicate == "float16" and not step.layout.finite:
            message = "gradients are sent as float16, and the step does not look for those that overflow"
            raise AmpError("AMP325", message, hint="build it with --loss-scale dynamic, or send bfloat16")
        self.group = group
        alike = (options.accumulate, options.strict, options.communicate, options.shard_optimizer)
        self._terms = f"{digest(step)} {alike}"  # must be the same on all ranks
        self._compared = False  # whether ranks are known to agree in it, and in their state
        super().__init__(step, replace(options, threads=threads_of_rank(options.threads)), group.world)
        made = {value.name: value for value in self._cut.gradients.model.graph.outputs}
        old = {new: name for name, new in self._cut.moved.items()}
        first = step.initial_state
        self._averaged = [name for name in old if made[name].dtype == ir.DataType.FLOAT]
        self._sent = {name: before for name, before in old.items() if name not in self._averaged}
        shapes = {self._cut.loss: (), **{name: first[old[name]].shape for name in self._averaged}}
        self.rest = SharedBuffer(shapes, self.memory)
        self.low = self._low_buffer(options.communicate)

    def _buffer(self) -> SharedBuffer:
        """The buffer of the summed gradients, which torch.distributed can sum over the ranks."""
        return SharedBuffer(self._cut.summed, self.memory)

    def _low_buffer(self, kind: str) -> torch.Tensor | None:
        """A tensor for the gradients in the low type in which ranks send them, ``kind``; None for float32."""
        import torch

        return None if kind == "float32" else torch.empty_like(self.total.tensor, dtype=getattr(torch, kind))

    def put(self, state: Mapping[str, Array]) -> None:
        """Copies a whole training state to the device; before the next update the ranks compare theirs."""
        self._compared = False
        super().put(state)

    def compare(self) -> None:
        """Raises AmpError AMP509 where ranks of a training do not run the same step with the same options, or differ in
        a bit of their state. Called by all ranks together."""
        hint = "give all ranks the same step and options"
        self.group.refuse_difference(self._terms, "another step or other options", hint)
        state = {entry.name: self.get(entry.name) for entry in self.whole.states}
        hint = "load the last checkpoint on all; ranks on unlike machines may compute unlike bits"
        self.group.refuse_difference(digest_of(state), "other bits in its state", hint)
        self._compared = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, batch: Mapping[str, Array]) -> Made:
        """Runs one training step on the whole batch, which every rank is given; this rank takes (and, of data in files,
        reads) only its own micro-batches."""
        first = self.parts * self.group.rank
        return self._update_from(micro_batches(batch, self.all_parts, self.whole, range(first, first + self.parts)))

    def run_own(self, batch: Mapping[str, Array]) -> Made:
        """Runs one training step on the batches of all ranks together, of which ``batch`` is this rank's."""
        mine, other = labels_that_count(batch, self.whole)
        total, samples = self.group.sum_numbers(mine.sum(), other.sum())
        weights, whole = (mine, total) if total else (other, samples)
        return self._update_from(weighed_micro_batches(batch, self.parts, weights, whole, self.parts * self.group.rank))

    def _update_from(self, pieces: list[MicroBatch]) -> Made:
        """Runs one training step: the gradients of this rank's micro-batches (there may be none) are summed over all
        ranks, and each rank updates its state by the sum."""
        if not self._compared:
            self.compare()
        loss, moved, unweighted = self._sum_gradients(pieces, self._state())
        if not pieces:
            self.total.tensor.zero_()
        elif not self.whole.scale and unweighted != 1:
            self.total.tensor.mul_(unweighted)
        share = sum(piece.share for piece in pieces)
        self.rest.tensor.zero_()
        self.rest.view(self._cut.loss).fill_(loss)
        for name in self._averaged if pieces else ():
            self.rest.view(name).copy_(_to_torch(moved[name]) * share)
        self._reduce()
        first = {name: self._from_first_rank(moved.get(name) or self.held(old)) for name, old in self._sent.items()}
        return self._run_update({**self.total.parts, **self.rest.parts, **first})

    def _run_update(self, given: dict[str, Held]) -> Made:
        """Runs the update graph of a training with several ranks on its inputs ``given``, summed over the ranks."""
        return self._step({}, given)

    def _reduce(self) -> None:
        """Sums the buffers `total` and `rest` over all ranks, in place, the gradients in the low type if there is one.
        One that overflows in it is infinite in the sum too, and so is found."""
        if self.low is None:
            self.group.sum(self.total.tensor, self.rest.tensor)
            return
        self.low.copy_(self.total.tensor)
        self.group.sum(self.low, self.rest.tensor)
        self.total.tensor.copy_(self.low)

    def _from_first_rank(self, value: OrtTensor) -> OrtTensor:
        """A copy of rank 0's value of a next state on every rank: what is not float32 is not averaged, as in torch."""
        tensor = _to_torch(value).clone()
        self.group.broadcast(tensor)
        return _from_torch(tensor)


class ShardedBinding(ParallelBinding):
    """A `ParallelBinding` whose ranks each update a part of the parameters and keep the slots of that part alone
    (ZeRO-1). Each sends its part to all, so every rank holds all parameters, in the buffer ``_all``. Whatever asks for
    slots is called by all ranks together."""

    def __init__(self, step: TrainingStep, options: RunOptions, group: TorchGroup) -> None:
        """Raises what `ParallelBinding` raises, and AmpError AMP325 for state that is not float32."""
        first = step.initial_state
        self._first = {entry.name: first[entry.name] for entry in step.layout.of(*SHARED_OUT)}
        low = next((name for name, array in self._first.items() if array.dtype != np.float32), None)
        if low is not None:
            message = f"'{low}' is {self._first[low].dtype}, and what ranks share out is float32"
            raise AmpError("AMP325", message, hint="omit --shard-optimizer, or build the step at O2")
        super().__init__(step, options, group)
        self._all = SharedBuffer(self._parameters, self.memory)

    def _split(self, step: TrainingStep) -> CutStep:
        """The training step as gradients, which stay whole, and an update that is cut down to this rank's elements;
        sets the plan of all ranks' shares."""
        made = super()._split(step)
        sizes = {name: array.size for name, array in self._first.items()}
        self._plan = shares(made.update, sizes, self.group.world)
        fed = {value.name: value.shape for value in made.update.model.graph.inputs}
        shapes = ((name, fed[name]) for name in self._plan.order)
        self._parameters = {name: tuple(shape.numpy()) for name, shape in shapes if shape is not None}
        return replace(made, update=shard(made.update, self._plan, self.group.rank))

    # -- state ---------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        """Copies a whole training state to the device: this rank's part of it to the update, and each whole parameter
        to the buffer of all parameters."""
        import torch

        super().put({entry.name: self._own_part(entry.name, state[entry.name]) for entry in self.layout.states})
        for name in self._plan.order:
            self._parameter_vector(name).copy_(torch.from_numpy(np.array(state[name], order="C").reshape(-1)))

    def _own_part(self, name: str, array: Array) -> Array:
        """This rank's part, flat, of a state array whose run several ranks update; any other array as it is."""
        if name not in self._plan.divided:
            return array
        start, end = self._plan.spans[name][self.group.rank]
        return array.reshape(-1)[start:end]

    def _parameter_vector(self, name: str) -> torch.Tensor:
        """A whole parameter as a vector, a view of the buffer of all parameters that ranks exchange."""
        return self._all.view(name).view(-1)

    def get(self, name: str) -> Array:
        """A copy on the host of a whole training state tensor: of parameters this rank's own, of slots collected from
        all ranks, which call this together."""
        if name in self._all.parts:
            found: Array = self._parameter_vector(name).cpu().numpy().copy()
            return found.reshape(self._first[name].shape)
        return self._collect_slot(name) if name in self._plan.spans else super().get(name)

    def _collect_slot(self, name: str) -> Array:
        """A copy on the host of a whole slot of the optimizer, of which ranks hold parts; all ranks call this
        together."""
        import torch

        whole = torch.empty(self._first[name].size, device=self.memory)
        for rank, (start, end) in enumerate(self._plan.spans[name]):
            if start < end:
                part = whole[start:end]
                if rank == self.group.rank:
                    part.copy_(_to_torch(self.held(name)).reshape(-1))
                self.group.broadcast(part, rank)
        found: Array = whole.cpu().numpy().reshape(self._first[name].shape)
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a whole training state tensor, not that of this rank's part."""
        return self._first[name].shape if name in self._plan.spans else super().shape(name)

    def reader(self) -> Callable[[str], Array]:
        """A function that gives a training state tensor by name, as `get`, until the next step, on one rank alone:
        slots are collected from all ranks now, which call this together."""
        slots = {name: self.get(name) for name in self._plan.spans if name not in self._all.parts}
        return lambda name: slots[name] if name in slots else self.get(name)

    def _state(self) -> dict[str, Held]:
        """The state that the gradients read, by name: parameters in the common buffer, others in the update's state."""
        names, exchanged = [entry.name for entry in self._cut.gradients.layout.states], self._all.parts
        return {name: exchanged[name] if name in exchanged else self.held(name) for name in names}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _run_update(self, given: dict[str, Held]) -> Made:
        """Updates this rank's part of the parameters from ``given``, summed over the ranks, copies it into the buffer
        of all parameters, and exchanges that: each rank sends its elements, which lie one behind another there."""
        wanted = self._cut.update.layout.inputs
        result = self._step({}, {name: value for name, value in given.items() if name in wanted})
        for name in self._plan.order:
            start, end = self._plan.spans[name][self.group.rank]
            if start < end:
                self._parameter_vector(name)[start:end].copy_(_to_torch(self.held(name)).reshape(-1))
        for rank in range(self.group.world):
            spans = [(self._all.starts[name], *self._plan.spans[name][rank]) for name in self._plan.order]
            ends = [(place + start, place + end) for place, start, end in spans if start < end]
            if ends:
                self.group.broadcast(self._all.tensor[ends[0][0] : ends[-1][1]], rank)
        return result
