"""`ampgraph.train`: a step file over data, epoch by epoch, on ONNX Runtime or MindSpore."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arguments import check_annotated
from ..core.errors import AmpError
from ..core.files import text_file
from ..core.graph import is_mindir
from ..core.light_imports import Later
from ..core.renamed import warn_renamed
from ..report.picture.writing import refuse_page, write_page
from ..report.training import Trained
from ..training.run.dataset import TrainingData, normalized
from ..training.run.fitting import OnEpoch, OnStep, fit
from ..training.run.options import FitOptions, RunOptions
from ..training.run.ranks import ALONE, Ranks, rank_and_world
from ..training.run.schedules import Given, tables_by_group
from ..training.run.step_log import EventLog, StepLog, check_log, check_tensorboard_folder
from .kinds import PathLike

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ..training.mindspore.step_trainer import MindirTrainer
    from ..training.run.trainer import Trainer
    from ..training.step.training_step import StepResult
else:  # imported when somebody asks for the types of what names them
    ProcessGroup = Later("torch.distributed", "ProcessGroup")
    MindirTrainer = Later("ampgraph.training.mindspore.step_trainer", "MindirTrainer")
    Trainer = Later("ampgraph.training.run.trainer", "Trainer")


def train(
    step: PathLike,
    data: TrainingData,
    *,
    validate: TrainingData | None = None,
    epochs: int = 10,
    batch_size: int = 64,
    lr_schedule: Given = None,
    device: str = "auto",
    strict: bool = False,
    threads: int = 0,
    accumulate: int = 1,
    checkpoint: PathLike | None = None,
    checkpoint_every: int = 0,
    resume: bool = False,
    seed: int = 0,
    last_batch: str = "drop",
    normalize: Sequence[str] | None = None,
    scale: Sequence[str] | None = None,
    html: PathLike | None = None,
    log: PathLike | None = None,
    tensorboard: PathLike | None = None,
    distributed: str | ProcessGroup | None = "auto",
    communicate: str = "float32",
    shard_optimizer: bool = False,
    cuda_graph: bool = False,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
    plot: PathLike | None = None,
) -> Trained:
    """Trains a step over data. What `ampgraph.Trainer` and its ``fit`` do, in one call, and for .mindir files too.

    Args:
        step: the .onnx file of a training step, or a .mindir file of a whole step.
        data: arrays by input name, labels under ``labels``; an .npz file, a folder or a pattern of files; an iterable
            of batches.
        validate: measured in float32 after each epoch.
        epochs: how often all data is seen.
        batch_size: samples of one update, of all ranks.
        lr_schedule: of the learning rate over all updates; a mapping for groups of parameters.
        device: auto (the best that is here), cpu, cuda, tensorrt, cann.
        strict: run on the CPU with every low value really rounded.
        threads: of a step on the CPU; 0 for all.
        accumulate: micro-batches that share each batch.
        checkpoint: a folder that keeps one after every epoch; ``checkpoint_every``: and after so many steps of one.
        resume: go on from the checkpoint there.
        seed: decides the order of the samples.
        last_batch: drop, keep or pad one that is not full.
        normalize: ``[INPUT=]MEAN,STD``; ``scale``: ``[INPUT=]FACTOR``, of data in files.
        html: a page with loss (of validation too), loss scale, skipped steps, gradient norm and learning rate.
        log: a .csv file with these of every step; ``tensorboard``: a folder for TensorBoard's event files of them,
            which grow while it runs.
        distributed, communicate, shard_optimizer, cuda_graph: as `ampgraph.Trainer` takes them.
        on_step, on_epoch: hear of every step and epoch.
        plot: what ``html`` was called until 0.2; writes the page, as .html, and goes with 0.4.

    Raises:
        AmpError: what `ampgraph.Trainer` and its ``fit`` raise; AMP105 for a place where nothing can be written, AMP325
            for what MindSpore has not got.
    """
    check_annotated(train, locals())
    if plot is not None:
        warn_renamed("plot=", "train(plot=)")
        html = html or Path(plot).with_suffix(".html")
    given, held_out = (_normalised(one, normalize, scale) for one in (data, validate))
    assert given is not None
    options = FitOptions(epochs, batch_size, lr_schedule, checkpoint, checkpoint_every, resume, seed, last_batch)
    run = RunOptions(device, strict, threads, accumulate, communicate, shard_optimizer, cuda_graph)
    trainer, group = _open_trainer(step, run, distributed)
    with _open_log(group, trainer, step, lr_schedule, html, log, tensorboard) as step_log:
        history = fit(trainer, given, held_out, options, _join_listeners(step_log, on_step), on_epoch, group)
    found = Trained(
        os.fspath(step), trainer.device, strict, _path_text(checkpoint), _path_text(html), resume, group.rank,
        group.world, history, trainer, step_log,
    )  # fmt: skip
    _write_reports(found, log)
    return found


@contextlib.contextmanager
def _open_log(
    group: Ranks, trainer: Trainer | MindirTrainer, step: PathLike, lr_schedule: Given, html: PathLike | None,
    log: PathLike | None, tensorboard: PathLike | None,
) -> Iterator[StepLog | None]:  # fmt: skip
    """Verb `train`: the log that hears of every step, while the training runs; None where no file is wanted of it, and
    on every rank but the first, which alone writes files. Refuses places for these files first. TensorBoard's files are
    written by the log as it hears, the others by `_write_reports`."""
    if not group.first:
        yield None
        return
    if log is not None:
        check_log(os.fspath(log), step)
    if tensorboard is not None:
        check_tensorboard_folder(tensorboard)
    refuse_page(html, step)
    step_log = StepLog(lambda total: _learning_rates(trainer, lr_schedule, total))
    if tensorboard is None:
        yield step_log if html or log else None
        return
    with contextlib.closing(EventLog(tensorboard)) as step_log.told:
        yield step_log


def _join_listeners(*listeners: OnStep | None) -> OnStep:
    """Verb `train`: one listener to the steps that calls all of these in turn; None among them is left out."""

    def on_step(done: int, total: int, result: StepResult[object]) -> None:
        for listener in listeners:
            if listener is not None:
                listener(done, total, result)

    return on_step


def _path_text(path: PathLike | None) -> str | None:
    """A path as text, as the report of the verb `train` has it; None for none."""
    return None if path is None else os.fspath(path)


def _normalised(
    data: TrainingData | None, normalize: Sequence[str] | None, scale: Sequence[str] | None
) -> TrainingData | None:
    """Verb `train`: the data, with the normalisation that was asked for; None for no data. Raises AmpError AMP325 where
    one is asked for and the data are no files."""
    if data is None or (not normalize and not scale):
        return data
    if not isinstance(data, (str, os.PathLike)):
        hint = "give files, or ampgraph.Normalized(data, ...)"
        raise AmpError("AMP325", "normalize and scale are for data in files", hint=hint)
    return normalized(os.fspath(data), normalize, scale)


def _open_trainer(
    step: PathLike, options: RunOptions, distributed: str | ProcessGroup | None
) -> tuple[Trainer | MindirTrainer, Ranks]:
    """Verb `train`: the trainer of a step, by ONNX Runtime or for a .mindir file by MindSpore, and the ranks that train
    together. Raises AmpError AMP325 for options, or several processes, that MindSpore's has not."""
    if not is_mindir(step):
        from ..training.run.trainer import Trainer

        trainer = Trainer(step, **asdict(options), distributed=distributed)
        return trainer, trainer.group
    for field in fields(options):
        if field.name != "device" and getattr(options, field.name) != field.default:
            flag = f"--{field.name.replace('_', '-')}"
            raise AmpError("AMP325", f"{flag} is for steps of ONNX Runtime", hint="omit it for a .mindir file")
    if distributed is not None and rank_and_world()[1] > 1:
        message = "a .mindir file is trained by one process, and this is one of several"
        raise AmpError("AMP325", message, hint="start it without torchrun; MindSpore's own launcher is msrun")
    from ..training.mindspore.step_trainer import MindirTrainer

    return MindirTrainer(step, options.device), ALONE


def _learning_rates(trainer: Trainer | MindirTrainer, lr_schedule: Given, steps: int) -> list[float]:
    """Verb `train`, for its log: the learning rate of the first group of parameters at each of ``steps`` updates; a
    list of one where it never changes."""
    tables = tables_by_group(trainer.layout, trainer.learning_rate, lr_schedule, steps)
    return [trainer.learning_rate] if tables is None else [float(rate) for rate in next(iter(tables.values()))]


def _write_reports(found: Trained, log: PathLike | None) -> None:
    """Writes the files that the verb `train` was asked for after training: the log of steps as .csv, and the page."""
    if found.log is None:
        return
    with text_file(log, found.log.to_csv, "--log"):
        pass
    if found.html is not None:
        from ..report.picture.training_page import training_page

        epochs = found.history.epochs
        measured = [(e.number * e.steps, e.validation["loss"]) for e in epochs if "loss" in e.validation]
        title = f"ampgraph train {os.path.basename(found.step)}"
        page = training_page(title, found.log.rows, found.lines(), measured)
        write_page(found.html, lambda: page)
