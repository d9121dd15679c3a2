"""`Binding` for a step whose batch is shared among the ranks of a group, and by each among its micro-batches.

Each micro-batch starts from the loss scale times its share of the whole batch, so the reduction is a plain sum, and
one rank with four micro-batches, two with two and four with one compute the same. The loss and the running statistics
of a rank are weighted by its share and summed too. The finite check and the update see sums alone, which are the same
bits on every rank: all decide alike, and hold the same state.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ....core.arrays import Array
from ....runtime.onnxruntime_session import OrtTensor
from ...step.training_step import TrainingStep
from ..accumulation import AccumulatingBinding, MicroBatch, counted, shared, weighed
from ..checkpoint import digest, digest_of
from ..flat_buffer import BufferPart
from .alone import threads_of_rank
from .options import ParallelOptions
from .shared_buffer import SharedBuffer, as_torch, from_torch, low_copy
from .torch_group import TorchGroup


class ParallelBinding(AccumulatingBinding):
    """``parts``: micro-batches of each rank."""

    total: SharedBuffer

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
        """Raises what `AccumulatingBinding` raises, and AmpError AMP501 and AMP325."""
        options.check(step.layout)
        self.group, self.options = group, options
        self._terms = f"{digest(step)} {parts} {strict} {options}"
        self._compared = False
        super().__init__(step, device, strict, threads_of_rank(threads), parts, group.world)
        made = {value.name: value for value in self._cut.gradients.model.graph.outputs}
        old = {new: name for name, new in self._cut.moved.items()}
        first = step.initial_state
        self._averaged = [name for name in old if made[name].dtype == ir.DataType.FLOAT]
        self._sent = [name for name in old if name not in self._averaged]
        shapes = {self._cut.loss: (), **{name: first[old[name]].shape for name in self._averaged}}
        self.rest = SharedBuffer(shapes, self.memory)
        self.low = low_copy(self.total.tensor, options.communicate)

    def _buffer(self) -> SharedBuffer:
        return SharedBuffer(self._cut.summed, self.memory)

    def put(self, state: Mapping[str, Array]) -> None:
        self._compared = False
        super().put(state)

    def compare(self) -> None:
        """Raises AmpError AMP509 where ranks do not run the same step, or hold other bits."""
        hint = "give all ranks the same step and options"
        self.group.refuse_difference(self._terms, "another step or other options", hint)
        state = {entry.name: self.get(entry.name) for entry in self.layout.states}
        hint = "load the last checkpoint on all; ranks on unlike machines may compute unlike bits"
        self.group.refuse_difference(digest_of(state), "other bits in its state", hint)
        self._compared = True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, batch: Mapping[str, Array]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """One update from the whole batch, which every rank is given. Of rows that are read when they are asked for,
        this rank asks for its own."""
        first = self.parts * self.group.rank
        return self._update_of(shared(batch, self.all_parts, self.layout, range(first, first + self.parts)))

    def run_own(self, batch: Mapping[str, Array]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """One update from batches of which every rank is given another; ``batch`` is the one of this rank."""
        mine, other = counted(batch, self.layout)
        total, samples = self.group.sum_numbers(mine.sum(), other.sum())
        weights, whole = (mine, total) if total else (other, samples)
        first = self.parts * self.group.rank
        return self._update_of(weighed(batch, self.parts, weights, whole, first))

    def _update_of(self, pieces: list[MicroBatch]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        if not self._compared:
            self.compare()
        state = self._state()
        done = self._summed(pieces, state)
        if not pieces:
            self.total.tensor.zero_()
        elif not self.layout.scale and done.unweighted != 1:
            self.total.tensor.mul_(done.unweighted)
        share = sum(piece.share for piece in pieces)
        self.rest.tensor.zero_()
        self.rest.view(self._cut.loss).fill_(done.loss)
        for name in self._averaged if pieces else ():
            self.rest.view(name).copy_(as_torch(done.moved[name]) * share)
        self._reduce()
        given: dict[str, OrtTensor | BufferPart] = {**self.total.parts, **self.rest.parts}
        given |= {name: self._of_first(done.moved.get(name), name) for name in self._sent}
        return self._applied(given)

    def _applied(self, given: dict[str, OrtTensor | BufferPart]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        return self._update.run({}, given)

    def _reduce(self) -> None:
        """Sums what the ranks have made. A gradient that overflows in a low type is infinite in the sum too."""
        if self.low is None:
            self.group.sum(self.total.tensor, self.rest.tensor)
            return
        self.low.copy_(self.total.tensor)
        self.group.sum(self.low, self.rest.tensor)
        self.total.tensor.copy_(self.low)

    def _of_first(self, moved: OrtTensor | None, name: str) -> OrtTensor:
        """What is no float32 number cannot be averaged: it is that of rank 0, as in torch."""
        old = next(before for before, new in self._cut.moved.items() if new == name)
        value = self._update.held(old) if moved is None else moved
        tensor = as_torch(value).clone()
        self.group.broadcast(tensor)
        return from_torch(tensor)
