"""Training for some epochs: batches in random order, a learning-rate schedule, checkpoints, and going on from one.

The order of an epoch follows from the seed and the number of the epoch alone, so a training that was killed and goes
on from its checkpoint ends in the same bytes as one that ran through. What would make it end in others is refused:
other data, another seed, batch size or schedule, and another number of epochs for a schedule that ends with them
(linear, cosine). With any other schedule, or none, a training may go on for more epochs than it was begun with.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ...core.arrays import Array
from ...core.errors import AmpError
from ...core.json_types import JsonObject
from ..step.loss_scale import DynamicLossScale, parse_loss_scale
from ..step.training_step import StepLayout, StepResult
from . import checkpoint as files
from .checkpoint import claim_folder
from .dataset import LazyBatch, TrainingData
from .options import FitOptions
from .ranks import ALONE, Ranks
from .schedules import Tables, kind_by_length, rates_after, schedule_text, tables_by_group
from .step_inputs import IGNORED, StepInputs

FILE = "checkpoint.safetensors"
"""The checkpoint in the folder that a user names."""
SLOWER, WIDER = "lower the learning rate", "keep more in float32 with --fp32"
LOST = f"{SLOWER}, or {WIDER}"
WAITING = 64  # results that stay on the device before they are read together


@dataclass(frozen=True)
class Epoch:
    """What is reported of an epoch of a training."""

    number: int  # from 1
    steps: int
    loss: float  # the mean over its finite steps; NaN for none
    skipped: int  # steps whose gradients were not finite
    scale: float  # the loss scale at its end
    validation: dict[str, float]  # what `Trainer.evaluate` says at its end; empty without validation data
    parts: dict[str, float] = field(default_factory=dict)  # the mean of each part of the loss over steps that ran here

    def to_dict(self) -> JsonObject:
        """The epoch of a training as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class History:
    """A whole training: the epochs that ran here, and every step from the first, those before a resume too."""

    epochs: list[Epoch]
    losses: Array  # float32, of each step
    finite: Array  # bool, of each step
    dropped: int  # samples of each epoch that did not fill a batch
    resumed: int  # steps that were done before


class Fittable(Protocol):
    """What `fit` asks of a trainer; see `Trainer` for each member."""

    @property
    def layout(self) -> StepLayout: ...
    @property
    def feeds(self) -> StepInputs: ...
    @property
    def digest(self) -> str: ...
    @property
    def accumulate(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def updates(self) -> int: ...
    @property
    def scale(self) -> float: ...
    def set_rates(self, table: Sequence[float] | Array | Tables) -> None: ...
    def step_checked(self, batch: Mapping[str, Array]) -> StepResult[object]: ...
    def load_state(self, state: Mapping[str, Array]) -> None: ...
    def late_state(self) -> Mapping[str, files.LateArray]: ...
    def prepare_evaluation(self) -> object: ...
    def evaluate(self, data: TrainingData, *, batch_size: int = 256) -> dict[str, float]: ...


OnStep = Callable[[int, int, StepResult[object]], None]
"""Called after every step with how many steps of the training are done, how many there are, and the result."""
OnEpoch = Callable[[Epoch], None]
"""Called after every epoch, when its checkpoint is written."""


def fit(
    trainer: Fittable,
    data: TrainingData,
    validate: TrainingData | None,
    options: FitOptions,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
    group: Ranks = ALONE,
) -> History:
    """Trains for the epochs of ``options``, or on from a checkpoint. ``validate``: data to evaluate after every epoch;
    ``group``: the processes that share every batch, of which rank 0 alone reads and writes checkpoints. Raises AmpError
    AMP324 for a schedule and AMP325 for numbers that make no sense, AMP503 for data that does not fit, AMP101, AMP108
    and AMP405 for a checkpoint to go on from, AMP105 where one cannot be written, AMP504 where training is lost, AMP509
    where ranks differ in what they are given or hold, or one is gone. Ctrl-C takes effect between two steps."""
    run = _TrainingRun(trainer, data, validate, options, group)
    with contextlib.ExitStack() as held:
        if run.file is not None:
            group.from_first(functools.partial(claim_folder, run.file, held))
        run.begin()
        return run.run(on_step, on_epoch)


class _TrainingRun:
    """One call of `fit`: what it trains, where it is in the data, and the results so far. Call `begin`, then `run`."""

    def __init__(
        self,
        trainer: Fittable,
        data: TrainingData,
        validate: TrainingData | None,
        options: FitOptions,
        group: Ranks,
    ) -> None:
        """Checks all that is given to `fit`, on all ranks together; for a checkpoint the data are read once, for
        their digest, and the first rank's trainer opens its evaluation. The trainer's state is not changed yet."""
        self.trainer, self.group = trainer, group
        self.options = options = replace(options, batch_size=trainer.feeds.check_batch_size(options.batch_size))
        self.data = trainer.feeds.dataset(data)
        self.validate = None if validate is None else trainer.feeds.dataset(validate)
        if self.validate is not None and group.first:
            trainer.prepare_evaluation()
        self.left_over = self.data.samples % options.batch_size
        self.last = self._trains_last() and bool(self.left_over)
        self.steps = self.data.samples // options.batch_size + self.last  # of an epoch
        if not self.steps:
            message = f"{self.data.samples} samples do not fill one batch of {options.batch_size}"
            raise AmpError("AMP503", message, hint="take smaller batches")
        given = options.lr_schedule
        self.tables = tables_by_group(trainer.layout, trainer.learning_rate, given, self.steps * options.epochs)
        self.file = None if options.checkpoint is None else Path(options.checkpoint) / FILE
        self.losses: list[float] = []
        self.finite: list[bool] = []
        self.parts: dict[str, list[float]] = {}
        self.waiting: list[StepResult[object]] = []  # results that are still on the device
        policy = parse_loss_scale(str(trainer.layout.options.get("loss_scale", "none")))
        self.patience = policy.patience if isinstance(policy, DynamicLossScale) else None
        self.place = files.Position(
            seed=options.seed,
            batch_size=options.batch_size,
            accumulate=trainer.accumulate,
            last_batch=options.last_batch,
            samples=self.data.samples,
            epochs=options.epochs,
            lr_schedule=schedule_text(given),
            data="" if self.file is None else self.data.digest(),
        )
        self.epoch = self.batch = self.resumed_steps = 0  # epochs that are done, and batches of the next one
        given_alike = f"{trainer.digest} {self.place}"
        group.refuse_difference(given_alike, "another step, other data or other options", "give all ranks the same")

    def begin(self) -> None:
        """Before a training's first step: loads the checkpoint, if there is one, and sets the learning rates."""
        found = self.group.from_first(self._checkpoint_to_resume)
        if found is None:
            # a table counts from the first update of the state, which an earlier fit may have made
            self.place = replace(self.place, past=self.trainer.updates)
        else:
            self.trainer.load_state(found.state)
            self.losses = [float(loss) for loss in found.history.get("losses", ())]
            self.finite = [bool(flag) for flag in found.history.get("finite", ())]
            self.epoch, self.batch, self.resumed_steps = found.position.epoch, found.position.batch, len(self.losses)
            self.place = replace(self.place, past=found.position.past)
        if self.tables is not None:
            self.trainer.set_rates(rates_after(self.tables, self.place.past))
        self._check_scale(self.trainer.scale)

    def _trains_last(self) -> bool:
        """Whether the last batch of an epoch is trained where it is smaller. Raises AmpError AMP325 for an option
        ``last_batch`` that does not suit the step or the number of samples."""
        options, feeds, rest = self.options, self.trainer.feeds, self.left_over
        if options.last_batch == "pad" and (feeds.layout.options.get("loss") != "cross_entropy" or feeds.layout.parts):
            message = "only with cross_entropy alone, where a label can count for nothing, is a last batch padded"
            raise AmpError("AMP325", message, hint="--last-batch keep, or drop")
        if options.last_batch == "keep" and rest:
            if any(port.shape and isinstance(port.shape[0], int) for port in feeds.ports.values()):
                message = f"a last batch of {rest} is kept, and the step takes {options.batch_size} samples at once"
                raise AmpError("AMP325", message, hint="--last-batch drop, or export with a dynamic batch")
            if rest < feeds.parts:
                message = f"a last batch of {rest} is too small for {feeds.parts} micro-batches"
                raise AmpError("AMP325", message, hint="--last-batch drop, or another --batch-size")
        return options.last_batch != "drop"

    def _checkpoint_to_resume(self) -> files.Checkpoint[Array] | None:
        """The checkpoint that a training goes on from; None where the folder has none: it begins anew, also with
        ``resume``. Raises AmpError AMP325 for one that would be overwritten, AMP405 for one of another training."""
        if self.file is None or not self.file.exists():
            return None
        where = str(self.file)
        if not self.options.resume:
            message = "a checkpoint of an earlier training is there, which this one would overwrite"
            raise AmpError("AMP325", message, where=where, hint="--resume, or name another folder")
        found = files.load(self.file)
        files.check_belongs(found, self.trainer.digest, where)
        _check_same(found.position, self.place, kind_by_length(self.options.lr_schedule), where)
        return found

    def run(self, on_step: OnStep | None, on_epoch: OnEpoch | None) -> History:
        """Trains from where `begin` left it to the last epoch; raises as `fit`."""
        options, epochs, total = self.options, [], self.steps * self.options.epochs
        while self.epoch < options.epochs:
            for batch in self.data.shuffled(
                options.batch_size, options.seed, self.epoch, self.batch, last=bool(self.last)
            ):
                if self.group.world > 1 and not self.waiting:  # at least one batch of each epoch is compared
                    hint = "an iterable must give the same order on all ranks: shuffle it by a seed"
                    self.group.refuse_difference(files.digest_of(batch), "another batch", hint)
                if options.last_batch == "pad":
                    batch = _padded_batch(batch, options.batch_size, self.trainer.layout.labels)
                result = self.trainer.step_checked(batch)
                self.batch += 1
                self.waiting.append(result)
                if len(self.waiting) == WAITING:
                    self._collect_results()
                if on_step is not None:
                    on_step(self.epoch * self.steps + self.batch, total, result)
                if options.checkpoint_every and self.batch % options.checkpoint_every == 0 and self.batch < self.steps:
                    self._save()
            self._collect_results()
            self.epoch, self.batch = self.epoch + 1, 0
            if result.scale < 1 and not any(self.finite[-self.steps :]):  # it is not the scaling that overflows
                message = f"no step of epoch {self.epoch} was finite, and the loss scale is down to {result.scale:g}"
                raise AmpError("AMP504", f"{message}: training is lost", hint=LOST)
            if self.group.world > 1:
                hint = "go on from the last checkpoint; ranks on unlike machines may compute unlike bits"
                state = files.digest_of(self.trainer.late_state())
                self.group.refuse_difference(state, "other bits in its state", hint)
            epochs.append(self._epoch_done(result.scale))
            self._save()
            if on_epoch is not None:
                on_epoch(epochs[-1])
        losses, finite = np.array(self.losses, np.float32), np.array(self.finite, np.bool_)
        return History(epochs, losses, finite, 0 if self.last else self.left_over, self.resumed_steps)

    def _epoch_done(self, scale: float) -> Epoch:
        """Sums up the epoch of a training that has just ended, ``scale`` being the loss scale now; rank 0 validates."""
        last = slice(-self.steps, None)
        losses, finite = self.losses[last], self.finite[last]
        usable = [loss for loss, kept in zip(losses, finite, strict=True) if kept]  # one that overflowed says nothing
        mean = float(np.mean(usable)) if usable else float("nan")
        validate, found = self.validate, {}
        if validate is not None:
            found = self.group.from_first(lambda: self.trainer.evaluate(validate))
        parts = {name: float(np.mean(numbers)) for name, numbers in self.parts.items()}
        self.parts.clear()
        return Epoch(self.epoch, self.steps, mean, finite.count(False), scale, found, parts)

    def _collect_results(self) -> None:
        """Copies the results of a training's steps that are still on the device to the host. Raises AmpError AMP504
        where they show that training is lost."""
        if self.waiting:
            self._check_scale(self.waiting[-1].scale)
        for result in self.waiting:
            self.losses.append(result.loss)
            self.finite.append(result.finite)
            if self.finite[-1]:
                for name, number in result.parts.items():
                    self.parts.setdefault(name, []).append(number)
        self.waiting.clear()
        if not self.trainer.layout.finite and self.losses and not np.isfinite(self.losses[-1]):
            message = f"the loss is {self.losses[-1]:g}, and no loss scale skips such a step: the weights are lost"
            raise AmpError("AMP504", message, hint=f"{SLOWER}, or build with --loss-scale dynamic")
        if self.patience is not None:
            row = self.patience + 1
            if len(self.finite) >= row and not any(self.finite[-row:]):
                raise AmpError("AMP504", f"{row} steps in a row overflowed: training is lost", hint=LOST)

    def _check_scale(self, scale: float) -> None:
        """Raises AmpError AMP504 for a training's loss scale that is infinite, so that every step is skipped, or whose
        inverse is infinite in float32, so that weights become so. A float64 scale just beyond float32 is neither: the
        next step overflows, is skipped, and shrinks it."""
        with np.errstate(over="ignore", divide="ignore"):
            usable = np.isfinite(scale) and np.isfinite(np.float32(1) / np.float32(scale))
        if not usable:
            hint = f"{SLOWER}, {WIDER}, or build with --loss-scale dynamic:floor=1"
            raise AmpError("AMP504", f"the loss scale has become {scale:g}: training is lost", hint=hint)

    def _save(self) -> None:
        """Writes a training's checkpoint, on rank 0, if a folder was given for it; collects results first."""
        if self.file is None:
            return
        self._collect_results()
        place = replace(self.place, epoch=self.epoch, batch=self.batch)
        history = {"losses": np.array(self.losses, np.float32), "finite": np.array(self.finite, np.bool_)}
        made = files.Checkpoint(self.trainer.digest, self.trainer.late_state(), place, history)
        self.group.from_first(functools.partial(files.save, self.file, made))


def _padded_batch(batch: Mapping[str, Array], size: int, labels: str) -> Mapping[str, Array]:
    """A batch of training data filled up to ``size`` samples: the first ones again, with labels that do not count."""
    count = batch.samples if isinstance(batch, LazyBatch) else len(batch[labels])
    if count == size:
        return batch
    made = {name: np.resize(array, (size, *array.shape[1:])) for name, array in batch.items()}
    made[labels][count:] = IGNORED
    return made


def _check_same(found: files.Position, mine: files.Position, stretched: str, where: str) -> None:
    """Raises AmpError AMP405 where a training (``mine``) that goes on from a checkpoint (``found``, of the file
    ``where``) would not end as one that ran through. ``stretched``: the kind of schedule that depends on the number of
    epochs, "" for none (see `kind_by_length`)."""
    if not found.batch_size:  # as `Trainer.save` writes it
        message = "was saved by trainer.save, and holds no place in a training to go on from"
        raise AmpError(
            "AMP405", message, where=where, hint="trainer.load it, and fit with another folder for checkpoints"
        )
    for name in ("seed", "batch_size", "accumulate", "last_batch", "samples", "lr_schedule", "epochs"):
        other, given = getattr(found, name), getattr(mine, name)
        if other != given and (name != "epochs" or stretched):
            message = f"is from a training with {name}={other}, not {given}"
            why = f": {stretched} ends with the last epoch" if name == "epochs" else ""
            hint = f"give {name.replace('_', ' ')} {other} again{why}; or start anew in another folder"
            raise AmpError("AMP405", message, where=where, hint=hint)
    if found.data != mine.data:
        hint = "give the data that it was begun with, or start anew in another folder"
        raise AmpError("AMP405", "is from a training with other data", where=where, hint=hint)
