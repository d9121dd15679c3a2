"""What a user says of a training, and nothing of the step."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...core.errors import AmpError, is_whole, nearest
from .schedules import Given

LAST = ("drop", "keep", "pad")


@dataclass(frozen=True)
class FitOptions:
    """How long and in which steps to train. ``checkpoint``: a folder, which gets one at the end of each epoch and after
    every ``checkpoint_every`` steps (0: at the end of epochs only). ``resume``: go on from the one that is there, or
    begin where there is none."""

    epochs: int
    batch_size: int
    lr_schedule: Given = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 0
    resume: bool = False
    seed: int = 0
    last_batch: str = "drop"  # one that is not full: drop, keep, or pad with labels that count for nothing

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("checkpoint_every", 0), ("seed", 0)):
            value = getattr(self, name)
            if not is_whole(value) or value < least:
                raise AmpError("AMP325", f"{name}={value} is not a whole number from {least}", hint=f"{name}={least}")
            object.__setattr__(self, name, int(value))
        if self.last_batch not in LAST:
            message = f"last_batch={self.last_batch!r} is none of {', '.join(LAST)}"
            raise AmpError("AMP325", message, hint=nearest(str(self.last_batch), list(LAST)) or "last_batch='keep'")
        if self.checkpoint is None and (self.resume or self.checkpoint_every):
            hint = "name the folder of the checkpoint: --checkpoint DIR"
            raise AmpError("AMP325", "there is no checkpoint to go on from or to write", hint=hint)
