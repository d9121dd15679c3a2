"""Steps whose batch is shared among the ranks of a group, and by each among its micro-batches.

Each micro-batch starts from the loss scale times its share of the whole batch, so the reduction is a plain sum, and
one rank with four micro-batches, two with two and four with one compute the same. The loss and the running statistics
of a rank are weighted by its share and summed too. The finite check and the update see sums alone, which are the same
bits on every rank: all decide alike, and hold the same state.
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
    """What a trainer runs its steps on, one graph, two with micro-batches, or two with other processes between; and
    these processes. Raises what the bindings raise, and AmpError AMP501, AMP325 and AMP509 for the processes."""
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
    """A buffer that torch owns: ONNX Runtime writes its tensors and torch.distributed sums it, and nothing is copied.

    ``tensor`` is the whole buffer in torch, ``view`` one of its tensors. Raises AmpError AMP501 for an ONNX Runtime
    that shares no memory.
    """

    tensor: torch.Tensor

    def _held(self, zeros: Array, memory: str) -> OrtTensor:
        """Zeros in torch's memory, as the value of ONNX Runtime that shares it."""
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


def _as_torch(value: OrtTensor) -> torch.Tensor:
    """Training by several ranks: a tensor of ONNX Runtime as torch's, sharing memory."""
    from torch.utils.dlpack import from_dlpack

    shared: torch.Tensor = from_dlpack(value)
    return shared


def _from_torch(tensor: torch.Tensor) -> OrtTensor:
    """Training by several ranks: a tensor of torch as ONNX Runtime's, sharing memory."""
    value: OrtTensor = import_onnxruntime().OrtValue.from_dlpack(tensor)
    return value


class ParallelBinding(AccumulatingBinding):
    """Every rank holds the whole state, and makes the same update of it."""

    total: SharedBuffer

    def __init__(self, step: TrainingStep, options: RunOptions, group: TorchGroup) -> None:
        """Raises what `AccumulatingBinding` raises, and AmpError AMP501 and AMP325."""
        if options.communicate == "float16" and not step.layout.finite:
            message = "gradients are sent as float16, and the step does not look for those that overflow"
            raise AmpError("AMP325", message, hint="build it with --loss-scale dynamic, or send bfloat16")
        self.group = group
        sent = (options.accumulate, options.strict, options.communicate, options.shard_optimizer)
        self._terms = f"{digest(step)} {sent}"
        self._compared = False
        super().__init__(step, replace(options, threads=threads_of_rank(options.threads)), group.world)
        made = {value.name: value for value in self._cut.gradients.model.graph.outputs}
        old = {new: name for name, new in self._cut.moved.items()}
        first = step.initial_state
        self._averaged = [name for name in old if made[name].dtype == ir.DataType.FLOAT]
        self._sent = {name: before for name, before in old.items() if name not in self._averaged}
        shapes = {self._cut.loss: (), **{name: first[old[name]].shape for name in self._averaged}}
        self.rest = SharedBuffer(shapes, self.memory)
        self.low = self._low(options.communicate)

    def _buffer(self) -> SharedBuffer:
        """A buffer for the sum of the gradients that torch.distributed can sum over the ranks."""
        return SharedBuffer(self._cut.summed, self.memory)

    def _low(self, kind: str) -> torch.Tensor | None:
        """Room for the gradients in the low type in which ranks send them; None for float32."""
        import torch

        return None if kind == "float32" else torch.empty_like(self.total.tensor, dtype=getattr(torch, kind))

    def put(self, state: Mapping[str, Array]) -> None:
        """Puts the state; that all ranks hold the same is compared before the next update."""
        self._compared = False
        super().put(state)

    def compare(self) -> None:
        """Raises AmpError AMP509 where ranks do not run the same step, or hold other bits."""
        hint = "give all ranks the same step and options"
        self.group.refuse_difference(self._terms, "another step or other options", hint)
        state = {entry.name: self.get(entry.name) for entry in self.whole.states}
        hint = "load the last checkpoint on all; ranks on unlike machines may compute unlike bits"
        self.group.refuse_difference(digest_of(state), "other bits in its state", hint)
        self._compared = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, batch: Mapping[str, Array]) -> Made:
        """One update from the whole batch, which every rank is given. Of rows that are read when they are asked for,
        this rank asks for its own."""
        first = self.parts * self.group.rank
        return self._update_of(micro_batches(batch, self.all_parts, self.whole, range(first, first + self.parts)))

    def run_own(self, batch: Mapping[str, Array]) -> Made:
        """One update from batches of which every rank is given another; ``batch`` is the one of this rank."""
        mine, other = labels_that_count(batch, self.whole)
        total, samples = self.group.sum_numbers(mine.sum(), other.sum())
        weights, whole = (mine, total) if total else (other, samples)
        return self._update_of(weighed_micro_batches(batch, self.parts, weights, whole, self.parts * self.group.rank))

    def _update_of(self, pieces: list[MicroBatch]) -> Made:
        """One update by the micro-batches of all ranks, which may be none on this one: sums are reduced, then each rank
        updates."""
        if not self._compared:
            self.compare()
        loss, moved, unweighted = self._summed(pieces, self._state())
        if not pieces:
            self.total.tensor.zero_()
        elif not self.whole.scale and unweighted != 1:
            self.total.tensor.mul_(unweighted)
        share = sum(piece.share for piece in pieces)
        self.rest.tensor.zero_()
        self.rest.view(self._cut.loss).fill_(loss)
        for name in self._averaged if pieces else ():
            self.rest.view(name).copy_(_as_torch(moved[name]) * share)
        self._reduce()
        first = {name: self._of_first(moved.get(name) or self.held(old)) for name, old in self._sent.items()}
        return self._applied({**self.total.parts, **self.rest.parts, **first})

    def _applied(self, given: dict[str, Held]) -> Made:
        """Runs the update graph on the summed gradients."""
        return self._step({}, given)

    def _reduce(self) -> None:
        """Sums over all ranks the gradients and whatever else each has made. A gradient that overflows in a low type is
        infinite in the sum too."""
        if self.low is None:
            self.group.sum(self.total.tensor, self.rest.tensor)
            return
        self.low.copy_(self.total.tensor)
        self.group.sum(self.low, self.rest.tensor)
        self.total.tensor.copy_(self.low)

    def _of_first(self, value: OrtTensor) -> OrtTensor:
        """What is no float32 number cannot be averaged: it is that of rank 0, as in torch."""
        tensor = _as_torch(value).clone()
        self.group.broadcast(tensor)
        return _from_torch(tensor)


class ShardedBinding(ParallelBinding):
    """Ranks each update a part of the parameters, keep the slots of these alone, and send them. Every rank holds all
    parameters; slots are asked for on all ranks together."""

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
        """The update cut to this rank's share of the elements; the gradients stay whole."""
        made = super()._split(step)
        sizes = {name: array.size for name, array in self._first.items()}
        self._plan = shares(made.update, sizes, self.group.world)
        fed = {value.name: value.shape for value in made.update.model.graph.inputs}
        shapes = ((name, fed[name]) for name in self._plan.order)
        self._parameters = {name: tuple(shape.numpy()) for name, shape in shapes if shape is not None}
        return replace(made, update=shard(made.update, self._plan, self.group.rank))

    # -- state ---------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        """Puts this rank's share of the state, and the whole of each parameter into the buffer that ranks exchange."""
        import torch

        super().put({entry.name: self._mine(entry.name, state[entry.name]) for entry in self.layout.states})
        for name in self._plan.order:
            self._flat(name).copy_(torch.from_numpy(np.array(state[name], order="C").reshape(-1)))

    def _mine(self, name: str, array: Array) -> Array:
        """This rank's part of an array that is shared out; any other array whole."""
        if name not in self._plan.divided:
            return array
        start, end = self._plan.spans[name][self.group.rank]
        return array.reshape(-1)[start:end]

    def _flat(self, name: str) -> torch.Tensor:
        """A parameter as a vector, in the buffer that ranks exchange."""
        return self._all.view(name).view(-1)

    def get(self, name: str) -> Array:
        """A state tensor, whole: parameters from this rank, slots collected from all ranks, which call this
        together."""
        if name in self._all.parts:
            found: Array = self._flat(name).cpu().numpy().copy()
            return found.reshape(self._first[name].shape)
        return self._collected(name) if name in self._plan.spans else super().get(name)

    def _collected(self, name: str) -> Array:
        """A whole slot, of which every rank holds a part; all ranks call this together."""
        import torch

        whole = torch.empty(self._first[name].size, device=self.memory)
        for rank, (start, end) in enumerate(self._plan.spans[name]):
            if start < end:
                part = whole[start:end]
                if rank == self.group.rank:
                    part.copy_(_as_torch(self.held(name)).reshape(-1))
                self.group.broadcast(part, rank)
        found: Array = whole.cpu().numpy().reshape(self._first[name].shape)
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor, not that of this rank's share."""
        return self._first[name].shape if name in self._plan.spans else super().shape(name)

    def reader(self) -> Callable[[str], Array]:
        """A function as `get`, for which the parts of slots are collected from all ranks now; all ranks call this
        together."""
        slots = {name: self.get(name) for name in self._plan.spans if name not in self._all.parts}
        return lambda name: slots[name] if name in slots else self.get(name)

    def _state(self) -> dict[str, Held]:
        """What the gradients read: parameters from the buffer that ranks exchange, the rest from the update's state."""
        names, sent = [entry.name for entry in self._cut.gradients.layout.states], self._all.parts
        return {name: sent[name] if name in sent else self.held(name) for name in names}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _applied(self, given: dict[str, Held]) -> Made:
        """The update of this rank's parameters, which then go to all, each rank's one behind another."""
        wanted = self._cut.update.layout.inputs
        result = self._step({}, {name: value for name, value in given.items() if name in wanted})
        for name in self._plan.order:
            start, end = self._plan.spans[name][self.group.rank]
            if start < end:
                self._flat(name)[start:end].copy_(_as_torch(self.held(name)).reshape(-1))
        for rank in range(self.group.world):
            spans = [(self._all.starts[name], *self._plan.spans[name][rank]) for name in self._plan.order]
            ends = [(place + start, place + end) for place, start, end in spans if start < end]
            if ends:
                self.group.broadcast(self._all.tensor[ends[0][0] : ends[-1][1]], rank)
        return result
