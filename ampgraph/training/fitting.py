"""Training for some epochs: batches in random order, a learning-rate schedule, checkpoints, and going on from one.

The order of an epoch follows from the seed and the number of the epoch alone, so a training that was killed and goes
on from its checkpoint ends in the same bytes as one that ran through.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import AmpError
from . import checkpoint as files
from .loss_scale import DynamicLossScale, parse_loss_scale
from .schedules import Schedule, rates

if TYPE_CHECKING:
    from .trainer import StepResult, Trainer

FILE = "checkpoint.safetensors"
"""The checkpoint in the folder that a user names."""
WAITING = 64  # results that stay on the device before they are read together


@dataclass(frozen=True)
class Plan:
    """How long and in which steps to train. ``checkpoint``: a folder, which gets one at the end of each epoch and after
    every ``checkpoint_every`` steps (0: at the end of epochs only)."""

    epochs: int
    batch_size: int
    lr_schedule: str | Schedule | Sequence[float] | np.ndarray | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 0
    resume: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("checkpoint_every", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise AmpError("AMP325", f"{name}={value} is not a whole number from {least}", hint=f"{name}={least}")
        if self.checkpoint is None and (self.resume or self.checkpoint_every):
            hint = "name the folder of the checkpoint: --checkpoint DIR"
            raise AmpError("AMP325", "there is no checkpoint to go on from or to write", hint=hint)


@dataclass(frozen=True)
class Epoch:
    """One epoch, from 1: the mean loss of its steps, how many were skipped, the loss scale at its end, and what a
    validation found."""

    number: int
    steps: int
    loss: float
    skipped: int
    scale: float
    validation: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class History:
    """A whole training: epochs that ran here, and the loss of every step from the first, those before a resume too."""

    epochs: list[Epoch]
    losses: np.ndarray
    finite: np.ndarray
    dropped: int  # samples of each epoch that did not fill a batch
    resumed: int  # steps that were done before


def fit(
    trainer: Trainer,
    data: Any,
    validate: Any,
    plan: Plan,
    on_step: Callable[[int, int, StepResult], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Trains; the last samples of an epoch that fill no batch are left out of it.

    ``on_step(done, total, result)`` is called after every step, ``on_epoch(epoch)`` after every epoch.
    Raises AmpError AMP325 for numbers that make no sense, AMP503 for data that does not fit, AMP101, AMP108 and AMP405
    for a checkpoint to go on from, AMP105 where one cannot be written, AMP504 where training is lost.
    """
    return _Run(trainer, data, validate, plan).run(on_step, on_epoch)


class _Run:
    def __init__(self, trainer: Trainer, data: Any, validate: Any, plan: Plan) -> None:
        self.trainer, self.plan = trainer, plan
        trainer.feeds.check_batch_size(plan.batch_size)
        self.data = trainer.feeds.dataset(data)
        self.validate = None if validate is None else trainer.feeds.dataset(validate).arrays
        if self.validate is not None:
            trainer.prepare_evaluation()
        self.steps = self.data.samples // plan.batch_size  # of an epoch
        if not self.steps:
            told = f"{self.data.samples} samples do not fill one batch of {plan.batch_size}"
            raise AmpError("AMP503", told, hint="take smaller batches")
        self.file = None if plan.checkpoint is None else _folder(plan.checkpoint) / FILE
        self.losses: list[float] = []
        self.finite: list[bool] = []
        self.waiting: list[StepResult] = []
        policy = parse_loss_scale(str(trainer.layout.options.get("loss_scale", "none")))
        self.patience = policy.patience if isinstance(policy, DynamicLossScale) else None
        self.epoch, self.batch = self._resumed() if plan.resume else (0, 0)
        self.before = len(self.losses)
        if self.file is not None and self.file.exists() and not plan.resume:
            told = "a checkpoint of an earlier training is there, which this one would overwrite"
            raise AmpError("AMP325", told, where=str(self.file), hint="--resume, or name another folder")
        if plan.lr_schedule is not None:
            table = rates(plan.lr_schedule, trainer.learning_rate, self.steps * plan.epochs)
            past = 0 if plan.resume else trainer.updates  # a table counts from the first update of the state
            trainer.set_rates(np.concatenate([np.repeat(table[:1], past), table]))

    def _resumed(self) -> tuple[int, int]:
        """The place in the data where a checkpoint stopped; its state is taken."""
        assert self.file is not None
        if not self.file.is_file():
            return 0, 0  # killed before the first checkpoint: from the start
        found = files.load(self.file)
        files.check_belongs(found, self.trainer.digest, str(self.file))
        for name, mine in (
            ("seed", self.plan.seed),
            ("batch_size", self.plan.batch_size),
            ("samples", self.data.samples),
        ):
            other = getattr(found.position, name)
            if other != mine:
                told = f"is from a training with {name}={other}, not {mine}"
                hint = f"give {name.replace('_', ' ')} {other} again, or start anew without --resume"
                raise AmpError("AMP405", told, where=str(self.file), hint=hint)
        self.trainer.load_state(found.state)
        self.losses = [float(loss) for loss in found.history.get("losses", ())]
        self.finite = [bool(flag) for flag in found.history.get("finite", ())]
        return found.position.epoch, found.position.batch

    def run(
        self,
        on_step: Callable[[int, int, StepResult], None] | None,
        on_epoch: Callable[[Epoch], None] | None,
    ) -> History:
        plan, epochs, total = self.plan, [], self.steps * self.plan.epochs
        while self.epoch < plan.epochs:
            for batch in self.data.shuffled(plan.batch_size, plan.seed, self.epoch, self.batch):
                result = self.trainer.step_checked(batch)
                self.batch += 1
                self.waiting.append(result)
                if len(self.waiting) == WAITING:
                    self._read()
                if on_step is not None:
                    on_step(self.epoch * self.steps + self.batch, total, result)
                if plan.checkpoint_every and self.batch % plan.checkpoint_every == 0 and self.batch < self.steps:
                    self._save()
            self._read()
            self.epoch, self.batch = self.epoch + 1, 0
            epochs.append(self._told(result.scale))
            self._save()
            if on_epoch is not None:
                on_epoch(epochs[-1])
        losses, finite = np.array(self.losses, np.float32), np.array(self.finite, np.bool_)
        return History(epochs, losses, finite, self.data.samples % plan.batch_size, self.before)

    def _told(self, scale: float) -> Epoch:
        last = slice(-self.steps, None)
        losses, finite = self.losses[last], self.finite[last]
        usable = [loss for loss, kept in zip(losses, finite, strict=True) if kept]  # one that overflowed says nothing
        mean = float(np.mean(usable)) if usable else float("nan")
        found = {} if self.validate is None else self.trainer.evaluate(self.validate)
        return Epoch(self.epoch, self.steps, mean, finite.count(False), scale, found)

    def _read(self) -> None:
        """Copies what steps told to the host."""
        for result in self.waiting:
            self.losses.append(result.loss)
            self.finite.append(result.finite)
        self.waiting.clear()
        lost = self.patience is not None and len(self.finite) > self.patience
        if lost and not any(self.finite[-self.patience - 1 :]):  # type: ignore[operator]
            told = f"{self.patience + 1} steps in a row overflowed: training is lost"  # type: ignore[operator]
            raise AmpError("AMP504", told, hint="lower the learning rate, or keep more in float32 with --fp32")

    def _save(self) -> None:
        if self.file is None:
            return
        self._read()
        place = files.Position(self.epoch, self.batch, self.plan.seed, self.plan.batch_size, self.data.samples)
        history = {"losses": np.array(self.losses, np.float32), "finite": np.array(self.finite, np.bool_)}
        files.save(self.file, files.Checkpoint(self.trainer.digest, self.trainer.state, place, history))


def _folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a checkpoint, made if it is not there. Raises AmpError AMP105."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"no folder for checkpoints can be made: {error.strerror or error}"
        raise AmpError("AMP105", told, where=str(path), hint="choose another place with --checkpoint") from error
    return folder
