"""Steps that train by turns what they share: a generator and a discriminator, each with a step file of its own.

State of one name is one state (`Binding.holders`). Slots, loss scale and counters stay with each step, as each torch
optimizer has its own.
"""

from __future__ import annotations

from ...core.errors import AmpError
from ..step.state_tensors import PARAMETER
from ..step.training_step import TrainingStep
from .accumulation import AccumulatingBinding
from .binding import SHARED, Binding, CapturedBinding
from .evaluation import trained_model


def join_states(step: TrainingStep, mine: Binding, other_step: TrainingStep, theirs: Binding) -> None:
    """Lets two bindings share the state of the same names, whose values are those of ``theirs``.

    Raises AmpError AMP325 for a trainer that accumulates or shares its batches, and for two devices; AMP405 for steps
    without a common state, for state that differs in type or shape, and for what one step trains and is a constant of
    the other.
    """
    if any(isinstance(one, AccumulatingBinding) for one in (mine, theirs)):
        hint = "leave accumulate away in both trainers, and give distributed=None"
        raise AmpError("AMP325", "steps that share their state run without accumulate and in one process", hint=hint)
    if any(isinstance(one, CapturedBinding) for one in (mine, theirs)):
        message = "a CUDA graph reads its state where it lay first, and a shared one may lie with the other step"
        raise AmpError("AMP325", message, hint="leave cuda_graph away in both trainers")
    if mine.device != theirs.device:
        message = f"a step on {mine.device} cannot share the state of one on {theirs.device}"
        raise AmpError("AMP325", message, hint=f"device='{theirs.device}' for both")
    names = _common(step, other_step)
    _refuse_constants(step, other_step)
    _refuse_constants(other_step, step)
    mine.holders = theirs.holders
    for name in names:
        mine.holders.setdefault(name, theirs)


def _common(step: TrainingStep, other: TrainingStep) -> list[str]:
    """Names of the state that both have."""
    mine, theirs = step.initial_state, other.initial_state
    others = {entry.name for entry in other.layout.of(*SHARED)}
    names = [entry.name for entry in step.layout.of(*SHARED) if entry.name in others]
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
