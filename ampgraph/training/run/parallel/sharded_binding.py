"""`ParallelBinding` whose ranks each update a part of the parameters, keep the slots of these alone, and send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....core.arrays import Array
from ....core.errors import AmpError
from ....runtime.onnxruntime_session import OrtTensor
from ...step.cut import CutStep
from ...step.training_step import TrainingStep
from ..binding import Readable
from ..flat_buffer import BufferPart
from .options import ParallelOptions
from .parallel_binding import ParallelBinding
from .shards import SHARED_OUT, shard, shares
from .shared_buffer import SharedBuffer, as_torch
from .torch_group import TorchGroup

if TYPE_CHECKING:
    import torch


class ShardedBinding(ParallelBinding):
    """Every rank holds all parameters; slots are asked for on all ranks together."""

    def __init__(
        self,
        step: TrainingStep,
        device: str,
        strict: bool,
        threads: int,
        parts: int,
        group: TorchGroup,
        options: ParallelOptions,
    ) -> None:
        """Raises what `ParallelBinding` raises, and AmpError AMP325 for state that is not float32."""
        first = step.initial_state
        self._first = {entry.name: first[entry.name] for entry in step.layout.of(*SHARED_OUT)}
        low = next((name for name, array in self._first.items() if array.dtype != np.float32), None)
        if low is not None:
            message = f"'{low}' is {self._first[low].dtype}, and what ranks share out is float32"
            raise AmpError("AMP325", message, hint="leave --shard-optimizer away, or build the step at O2")
        super().__init__(step, device, strict, threads, parts, group, options)
        self._all = SharedBuffer({name: self._shapes[name] for name in self._plan.order}, self.memory)

    def _split(self, step: TrainingStep) -> CutStep:
        made = super()._split(step)
        sizes = {name: array.size for name, array in self._first.items()}
        self._plan = shares(made.update, sizes, self.group.world)
        fed = {value.name: value.shape for value in made.update.model.graph.inputs}
        self._shapes = {name: tuple(shape.numpy()) for name in self._plan.order if (shape := fed[name]) is not None}
        return replace(made, update=shard(made.update, self._plan, self.group.rank))

    # -- state ---------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        import torch

        held = (entry.name for entry in self._cut.update.layout.states)
        super().put({name: self._mine(name, state[name]) for name in held})
        for name in self._plan.order:
            self._flat(name).copy_(torch.from_numpy(np.array(state[name], order="C").reshape(-1)))

    def _mine(self, name: str, array: Array) -> Array:
        """Of what is divided, this rank's part."""
        if name not in self._plan.divided:
            return array
        start, end = self._plan.spans[name][self.group.rank]
        return array.reshape(-1)[start:end]

    def _flat(self, name: str) -> torch.Tensor:
        """A parameter where it lies, as a vector."""
        return self._all.view(name).view(-1)

    def get(self, name: str) -> Array:
        if name in self._all.parts:
            found: Array = self._flat(name).cpu().numpy().copy()
            return found.reshape(self._first[name].shape)
        return self._collected(name) if name in self._plan.spans else super().get(name)

    def _collected(self, name: str) -> Array:
        """A slot, of which every rank has a part: every rank asks for it."""
        import torch

        whole = torch.empty(self._first[name].size, device=self.memory)
        for rank, (start, end) in enumerate(self._plan.spans[name]):
            if start < end:
                part = whole[start:end]
                if rank == self.group.rank:
                    part.copy_(as_torch(self._update.held(name)).reshape(-1))
                self.group.broadcast(part, rank)
        found: Array = whole.cpu().numpy().reshape(self._first[name].shape)
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        return self._first[name].shape if name in self._plan.spans else super().shape(name)

    def readable(self) -> Readable:
        """The state as it is now, all of it on this rank: every rank asks for it."""
        slots = [name for name in self._plan.spans if name not in self._all.parts]
        return _Snapshot(self, {name: self.get(name) for name in slots})

    def _state(self) -> dict[str, OrtTensor | BufferPart]:
        names, sent = [entry.name for entry in self._cut.gradients.layout.states], self._all.parts
        return {name: sent[name] if name in sent else self._update.held(name) for name in names}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _applied(self, given: dict[str, OrtTensor | BufferPart]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """The update of this rank's parameters, which then go to all."""
        wanted = self._cut.update.layout.inputs
        result = self._update.run({}, {name: value for name, value in given.items() if name in wanted})
        for name in self._plan.order:
            start, end = self._plan.spans[name][self.group.rank]
            if start < end:
                self._flat(name)[start:end].copy_(as_torch(self._update.held(name)).reshape(-1))
        for rank in range(self.group.world):
            self._send(rank)
        return result

    def _send(self, rank: int) -> None:
        """The parameters of a rank, which lie one behind another, to all."""
        spans = [(self._all.starts[name], *self._plan.spans[name][rank]) for name in self._plan.order]
        ends = [(place + start, place + end) for place, start, end in spans if start < end]
        if ends:
            self.group.broadcast(self._all.tensor[ends[0][0] : ends[-1][1]], rank)


class _Snapshot:
    """A binding whose slots were collected before."""

    def __init__(self, binding: ShardedBinding, slots: Mapping[str, Array]) -> None:
        self.binding, self.slots = binding, slots

    def get(self, name: str) -> Array:
        return self.slots[name] if name in self.slots else self.binding.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.binding.shape(name)
