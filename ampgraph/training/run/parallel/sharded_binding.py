"""`ParallelBinding` whose ranks each update a part of the parameters, keep the slots of these alone, and send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ....core.arrays import Array
from ....core.errors import AmpError
from ....runtime.onnxruntime_session import OrtTensor
from ...step.cut import CutStep
from ...step.state_tensors import PARAMETER
from ...step.training_step import TrainingStep
from ..binding import Readable
from ..flat_buffer import BufferPart
from .options import ParallelOptions
from .parallel_binding import ParallelBinding
from .shards import SHARED_OUT, owners, shard
from .shared_buffer import SharedBuffer, as_torch
from .torch_group import TorchGroup


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
        self._fed = {entry.name: entry.fed(first[entry.name]) for entry in step.layout.of(*SHARED_OUT)}
        low = next((name for name, array in self._first.items() if array.dtype != np.float32), None)
        if low is not None:
            message = f"'{low}' is {self._first[low].dtype}, and what ranks share out is float32"
            raise AmpError("AMP325", message, hint="leave --shard-optimizer away, or build the step at O2")
        self._owners: dict[str, int] = {}
        super().__init__(step, device, strict, threads, parts, group, options)
        parameters = {entry.name for entry in step.layout.of(PARAMETER)} & set(self._owners)
        self._sent_by = [
            SharedBuffer({n: self._fed[n].shape for n in sorted(parameters) if self._owners[n] == rank}, self.memory)
            for rank in range(group.world)
        ]

    def _split(self, step: TrainingStep) -> CutStep:
        made = super()._split(step)
        sizes = {name: array.size for name, array in self._first.items()}
        self._owners = owners(made.update, sizes, self.group.world)
        away = {name for name, rank in self._owners.items() if rank != self.group.rank}
        return replace(made, update=shard(made.update, away))

    # -- state ---------------------------------------------------------------------------------------------------------

    def put(self, state: Mapping[str, Array]) -> None:
        import torch

        super().put({entry.name: state[entry.name] for entry in self._cut.update.layout.states})
        for buffer in self._sent_by:
            for name in buffer.parts:
                buffer.view(name).copy_(torch.from_numpy(np.array(state[name]).reshape(buffer.shapes[name])))

    def get(self, name: str) -> Array:
        owner = self._owners.get(name)
        if owner is None:
            return super().get(name)
        buffer = self._sent_by[owner]
        if name in buffer.parts:
            found: Array = buffer.view(name).cpu().numpy().copy()
            return found.reshape(self._first[name].shape)
        return self._collected(name, owner)

    def _collected(self, name: str, owner: int) -> Array:
        """A slot of another rank, or of this one for the others: every rank asks for it."""
        import torch

        if owner == self.group.rank:
            tensor = as_torch(self._update.held(name)).clone()
        else:
            tensor = torch.empty(self._fed[name].shape, device=self.memory)
        self.group.broadcast(tensor, owner)
        found: Array = tensor.cpu().numpy()
        return found.reshape(self._first[name].shape)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._first[name].shape if name in self._owners else super().shape(name)

    def readable(self) -> Readable:
        """The state as it is now, all of it on this rank: every rank asks for it."""
        slots = [name for name, rank in self._owners.items() if name not in self._sent_by[rank].parts]
        return _Snapshot(self, {name: self.get(name) for name in slots})

    def _state(self) -> dict[str, OrtTensor | BufferPart]:
        names = [entry.name for entry in self._cut.gradients.layout.states]
        sent = {name: self._sent_by[self._owners[name]].parts[name] for name in names if name in self._owners}
        return {name: sent[name] if name in sent else self._update.held(name) for name in names}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _applied(self, given: dict[str, OrtTensor | BufferPart]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """The update of this rank's parameters, which then go to all."""
        wanted = self._cut.update.layout.inputs
        result = self._update.run({}, {name: value for name, value in given.items() if name in wanted})
        for rank, buffer in enumerate(self._sent_by):
            for name in buffer.parts if rank == self.group.rank else ():
                buffer.view(name).copy_(as_torch(self._update.held(name)))
            self.group.broadcast(buffer.tensor, rank)
        return result


class _Snapshot:
    """A binding whose slots were collected before."""

    def __init__(self, binding: ShardedBinding, slots: Mapping[str, Array]) -> None:
        self.binding, self.slots = binding, slots

    def get(self, name: str) -> Array:
        return self.slots[name] if name in self.slots else self.binding.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.binding.shape(name)
