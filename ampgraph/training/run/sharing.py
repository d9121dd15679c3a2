"""Steps that train by turns what they share: a generator and a discriminator, each with a step file of its own.

State of one name is one state: who wrote it last holds it, and the others read it there, without a copy. Slots, loss
scale and counters stay with each step, as each torch optimizer has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.arrays import Array
from ...core.errors import AmpError
from ...runtime.onnxruntime_session import OrtTensor
from ..step.state_tensors import GIVEN, PARAMETER, RUNNING
from ..step.training_step import TrainingStep
from .binding import Binding, Readable
from .captured import CapturedBinding
from .evaluation import trained_model
from .flat_buffer import BufferPart

KINDS = (PARAMETER, RUNNING, GIVEN)


class SharedBinding:
    """A `Binding` some of whose state is common; ``holders``: who has the newest value of each common name."""

    def __init__(self, own: Binding, holders: dict[str, Binding]) -> None:
        self.own, self.holders = own, holders
        self.device, self.memory, self.layout = own.device, own.memory, own.layout
        self._written = {entry.name for entry in own.layout.states if entry.output}

    def put(self, state: Mapping[str, Array]) -> None:
        """Takes a whole state; what is common changes for all."""
        self.own.put(state)
        self.holders.update(dict.fromkeys(self._common(), self.own))

    def replace(self, arrays: Mapping[str, Array]) -> None:
        self.own.replace(arrays)

    def get(self, name: str) -> Array:
        return self.holder(name).get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.holder(name).shape(name)

    def readable(self) -> Readable:
        """Where the state is read, as it is now."""
        return self

    def holder(self, name: str) -> Binding:
        """Whose value of a name counts."""
        return self.holders.get(name, self.own)

    def run(
        self, batch: Mapping[str, Array], given: Mapping[str, OrtTensor | BufferPart] | None = None
    ) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """One step on the newest values. All or nothing, as `Binding.run`."""
        common = self._common()
        mine = {entry.name: entry for entry in self.layout.of(*KINDS)}
        newest = {name: self.holders[name].lent(mine[name]) for name in common}
        before = self.own.turn
        try:
            return self.own.run(batch, {**newest, **(given or {})})
        finally:
            if self.own.turn != before:  # the step was done, whatever came after it
                self.holders.update(dict.fromkeys((name for name in common if name in self._written), self.own))

    def run_own(self, batch: Mapping[str, Array]) -> tuple[dict[str, OrtTensor], OrtTensor | None]:
        """The same: all of a batch is this process's own."""
        return self.run(batch)

    def _common(self) -> list[str]:
        return [entry.name for entry in self.layout.of(*KINDS) if entry.name in self.holders]


def joined(
    step: TrainingStep, mine: object, other_step: TrainingStep, other: object
) -> tuple[SharedBinding, SharedBinding]:
    """Both bindings, sharing the state of the same names, whose values are those of ``other``.

    Raises AmpError AMP325 for a trainer that accumulates or shares its batches, and for two devices; AMP405 for steps
    without a common
    state, for state that differs in type or shape, and for what one step trains and is a constant of the other.
    """
    theirs = other.own if isinstance(other, SharedBinding) else other
    if not isinstance(mine, Binding) or not isinstance(theirs, Binding):
        hint = "leave accumulate away in both trainers, and give distributed=None"
        raise AmpError("AMP325", "steps that share their state run without accumulate and in one process", hint=hint)
    if isinstance(mine, CapturedBinding) or isinstance(theirs, CapturedBinding):
        message = "a CUDA graph reads its state where it lay first, and a shared one may lie with the other step"
        raise AmpError("AMP325", message, hint="leave cuda_graph away in both trainers")
    if mine.device != theirs.device:
        message = f"a step on {mine.device} cannot share the state of one on {theirs.device}"
        raise AmpError("AMP325", message, hint=f"device='{theirs.device}' for both")
    names = _common(step, other_step)
    _refuse_constants(step, other_step)
    _refuse_constants(other_step, step)
    holders = other.holders if isinstance(other, SharedBinding) else {}
    for name in names:
        holders.setdefault(name, theirs)
    return SharedBinding(mine, holders), other if isinstance(other, SharedBinding) else SharedBinding(theirs, holders)


def _common(step: TrainingStep, other: TrainingStep) -> list[str]:
    """Names of the state that both have."""
    mine, theirs = step.initial_state, other.initial_state
    others = {entry.name for entry in other.layout.of(*KINDS)}
    names = [entry.name for entry in step.layout.of(*KINDS) if entry.name in others]
    if not names:
        hint = "export both from modules that hold the networks under the same names: self.g, self.d"
        raise AmpError("AMP405", "the two steps have no parameter of the same name to share", hint=hint)
    for name in names:
        one, two = mine[name], theirs[name]
        if one.dtype != two.dtype or one.shape != two.shape:
            message = (
                f"'{name}' is {one.dtype} {list(one.shape)} here, and {two.dtype} {list(two.shape)} in the other step"
            )
            raise AmpError("AMP405", message, hint="build both from the same networks, at the same level")
    return names


def _refuse_constants(step: TrainingStep, other: TrainingStep) -> None:
    """What the other step trains must be no constant of this one: it would stay as it was."""
    trained = {entry.name for entry in other.layout.of(PARAMETER)}
    stored = trained_model(step, step.initial_state).graph.initializers
    frozen = [name for name in stored if name in trained and name not in step.initial_state]
    if frozen:
        more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
        message = f"'{frozen[0]}'{more} is trained by one step and a constant of the other, where it would never change"
        raise AmpError("AMP405", message, hint=f"build that one with --optimizer '{frozen[0]}=shared', and not frozen")
