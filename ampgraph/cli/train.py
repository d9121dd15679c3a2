"""Commands that build and run training steps: their arguments and printing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.recipe import Given, recipe_of
from .options import JsonOption, recipe_options
from .ranks import one_reports
from .terminal import INTERRUPTED, Interrupted, done, fail, progress, show, show_json, signals_wait

if TYPE_CHECKING:
    from ..training.run.fitting import History

LOSSES = "cross_entropy, mse, or the name of an output that is a float32 scalar"
OPTIMIZERS = (
    "sgd, with lr, momentum, nesterov, weight_decay; adam or adamw, with lr, beta1, beta2, eps, weight_decay: "
    "sgd:lr=0.1,momentum=0.9. For groups of parameters repeated, PATTERN=KIND[:...], the first that matches a name: "
    "'*.bias=adamw:weight_decay=0' '*=adamw'; frozen is not trained, shared is trained by another step."
)
PENALTY = (
    "A gradient penalty in the loss, weight * |norm - target|^power: of (parameters, inputs, or a name), output (what "
    "is differentiated, else the loss), weight, norm, target, power: weight=10,of=inputs,output=score,target=1."
)
SCALES = (
    "none, static:1024, or dynamic, with rule (pytorch, apex, tensorflow, keras, mxnet, mindspore, mindspore-cell, "
    "mindspore-manager), init, growth, backoff, interval, floor, cap, hysteresis, refill, patience: "
    "dynamic:init=2^16,interval=2000. Not given: dynamic with float16 at O1, O2 and auto, else none."
)
SCHEDULES = "constant, linear (with end), cosine (end) or step (every, gamma), each with warmup: cosine:warmup=100. "
SCHEDULES += "For one group of parameters NAMES=SCHEDULE, by its pattern; repeatable."
DATA = (
    "An .npz file of arrays by input name, labels under labels, samples first; or a folder (or a quoted pattern of "
    "files) of NAME.npy, .npz and idx files, also with .gz, which stay on the disk."
)
FROZEN = (
    "Globs of parameter names not to train; repeatable. Running statistics too: their BatchNormalization then "
    "computes as in inference."
)


def _text(option: str, metavar: str, message: str) -> Any:
    return typer.Option(option, metavar=metavar, help=message)


StepArgument = Annotated[str, typer.Argument(metavar="STEP", help="The .onnx file that build-step wrote.")]
ForwardArgument = Annotated[
    str, typer.Argument(metavar="FORWARD", help="The .onnx file of the forward graph, in float32.")
]
CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The folder that train was given, or a file in it.")
]
OptimizerOption = Annotated[list[str], _text("--optimizer", "[NAMES=]KIND[:KEY=VALUE,...]", OPTIMIZERS)]
StepOption = Annotated[str, typer.Option("-o", "--output", metavar="STEP.onnx", help="Where the step goes.")]
TrainedOption = Annotated[str, typer.Option("-o", "--output", metavar="TRAINED.onnx", help="Where the model goes.")]
LossOption = Annotated[
    list[str] | None, _text("--loss", "LOSS[=WEIGHT]", f"{LOSSES}. Several with weights: a=1 b=0.5.")
]
PenaltyOption = Annotated[str | None, _text("--penalty", "KEY=VALUE,...", PENALTY)]
LossScaleOption = Annotated[str | None, _text("--loss-scale", "SCALE", SCALES)]
ClipOption = Annotated[float | None, _text("--clip-norm", "NORM", "The largest norm of all gradients together.")]
ClipValueOption = Annotated[
    float | None, _text("--clip-value", "VALUE", "The largest absolute value of each number of a gradient.")
]
EmaOption = Annotated[
    float | None, _text("--ema", "DECAY", "Keep a running average of the weights: 0.999; export-weights --ema.")
]
FreezeOption = Annotated[list[str] | None, _text("--freeze", "NAMES", FROZEN)]
GradientOption = Annotated[
    list[str] | None,
    _text("--gradient", "PARAM=OUTPUT", "Of a graph that has its backward: a gradient; repeatable."),
]
SeedInputOption = Annotated[str | None, _text("--seed-input", "INPUT", "And the scalar that the gradients start from.")]
AverageOption = Annotated[bool, typer.Option("--ema", help="Their running average, of a step that was built with one.")]
DataOption = Annotated[str, _text("--data", "DATA", DATA)]
ValidateOption = Annotated[str | None, _text("--validate", "DATA", "Measured in float32 after each epoch.")]
EpochsOption = Annotated[int, _text("--epochs", "N", "How often all data is seen.")]
BatchSizeOption = Annotated[int, _text("--batch-size", "N", "Samples of one update, of all ranks.")]
ScheduleOption = Annotated[list[str] | None, _text("--lr-schedule", "[NAMES=]SCHEDULE", SCHEDULES)]
DeviceOption = Annotated[str, _text("--device", "DEVICE", "auto (the best that is here), cpu, cuda, tensorrt, cann.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Run on the CPU with every low value really rounded.")]
CheckpointOption = Annotated[str | None, _text("--checkpoint", "DIR", "Keep a checkpoint there after every epoch.")]
EveryOption = Annotated[int, _text("--checkpoint-every", "STEPS", "And after every so many steps of an epoch.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on from the checkpoint in DIR, with the same data and options.")
]
AccumulateOption = Annotated[
    int, _text("--accumulate", "N", "Share each batch among N micro-batches: less memory, the same update.")
]
ThreadsOption = Annotated[int, _text("--threads", "N", "Threads of a step on the CPU; 0 for all.")]
LastOption = Annotated[
    str, _text("--last-batch", "drop|keep|pad", "One that is not full; pad fills it up with labels that count nothing.")
]
NormalizeOption = Annotated[
    list[str] | None,
    _text(
        "--normalize", "[INPUT=]MEAN,STD",
        "Float32 inputs become (x scale - mean) / std; for each channel: '0.49 0.48 0.45,0.25 0.24 0.26'.",
    ),
]  # fmt: skip
ScaleOption = Annotated[
    list[str] | None, _text("--scale", "[INPUT=]FACTOR", "And that scale, 1/255 for bytes; both repeatable, by input.")
]
SeedOption = Annotated[int, _text("--seed", "N", "Decides the order of the samples.")]
PlotOption = Annotated[str | None, _text("--plot", "LOSS.png", "Draw the loss curve (needs matplotlib).")]


@recipe_options(but=("io", "ranges", "range_margin", "freeze_weights"))
def build_step(
    model: ForwardArgument,
    optimizer: OptimizerOption,
    output: StepOption,
    loss: LossOption = None,
    loss_scale: LossScaleOption = None,
    clip_norm: ClipOption = None,
    clip_value: ClipValueOption = None,
    ema: EmaOption = None,
    penalty: PenaltyOption = None,
    freeze: FreezeOption = None,
    gradient: GradientOption = None,
    seed_input: SeedInputOption = None,
    *,
    fields: Given,
    as_json: JsonOption = False,
) -> None:
    """Build a mixed-precision training step of a forward graph: one ONNX model for stock ONNX Runtime.

    \b
    ampgraph build-step model.onnx --loss cross_entropy --optimizer adam:lr=0.001 -o step.onnx
    ampgraph build-step model.onnx --loss mse --optimizer sgd:lr=0.1,momentum=0.9 --clip-norm 1 -o step.onnx
    ampgraph build-step model.onnx --loss loss --optimizer '*.bias=sgd' --optimizer adamw --freeze 'encoder.*' -o s.onnx
    """
    with signals_wait():
        from ..api.build_step import DEFAULT, build_training_step
        from ..core.graph import is_mindir
        from ..formats.checks import faults_reported, refuse_overwriting
        from ..formats.onnx.graph import OnnxGraph
        from ..report.training import describe_step, step_lines
        from ..training.forward.exported_backward import parse_gradients
        from ..training.step.groups import group_words
        from ..training.step.loss_terms import parse_losses

    with progress() as bar, faults_reported(model):
        bar.stage("reading")
        if not is_mindir(model):
            refuse_overwriting(OnnxGraph.load(model), Path(output), [Path(model)], "-o")
        bar.stage("building the step")
        step = build_training_step(
            model,
            loss=parse_losses(loss or ()),
            optimizer=group_words(optimizer),
            recipe=recipe_of(None, fields),
            loss_scale=DEFAULT if loss_scale is None else loss_scale,
            clip_norm=clip_norm,
            clip_value=clip_value,
            ema=ema,
            penalty=penalty,
            freeze=freeze or (),
            gradients=parse_gradients(gradient or ()),
            seed=seed_input,
        )
        bar.stage("writing")
        report = describe_step(step, model, output)
        step.save(output)
        done()
    show_json(report.to_dict()) if as_json else show(step_lines(report))


def train(
    step: StepArgument,
    data: DataOption,
    validate: ValidateOption = None,
    epochs: EpochsOption = 10,
    batch_size: BatchSizeOption = 64,
    lr_schedule: ScheduleOption = None,
    device: DeviceOption = "auto",
    strict: StrictOption = False,
    threads: ThreadsOption = 0,
    accumulate: AccumulateOption = 1,
    checkpoint: CheckpointOption = None,
    checkpoint_every: EveryOption = 0,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    last_batch: LastOption = "drop",
    normalize: NormalizeOption = None,
    scale: ScaleOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train: run a step over data, epoch by epoch.

    \b
    ampgraph train step.onnx --data train.npz --validate held_out.npz --epochs 10 --checkpoint run1
    ampgraph train step.onnx --data train.npz --lr-schedule cosine:warmup=100 --plot loss.png
    ampgraph train step.onnx --data train.npz --epochs 20 --checkpoint run1 --resume
    ampgraph train step.onnx --data train.npz --batch-size 256 --accumulate 4
    ampgraph train step.onnx --data 'mnist/train-*' --validate 'mnist/t10k-*' --scale 1/255
    torchrun --nproc-per-node 2 -m ampgraph train step.onnx --data train.npz --batch-size 256
    """
    with signals_wait():
        from ..report.plot import check_plot
        from ..report.training import epoch_line, history_dict
        from ..training.run.group_rates import parse_schedules
        from ..training.run.normalized import normalized
        from ..training.run.trainer import Trainer

    held_out = None if validate is None else normalized(validate, normalize, scale)
    with one_reports() as first:
        if plot is not None and first:
            check_plot(plot)
        with progress() as bar:
            bar.stage("opening the step")
            trainer = Trainer(step, device, strict=strict, threads=threads, accumulate=accumulate, distributed="auto")
            bar.stage("training")
            with _reports_where_it_stopped(checkpoint):
                history: History = trainer.fit(
                    normalized(data, normalize, scale), validate=held_out, epochs=epochs, batch_size=batch_size,
                    lr_schedule=parse_schedules(lr_schedule or ()), checkpoint=checkpoint, resume=resume, seed=seed,
                    checkpoint_every=checkpoint_every, last_batch=last_batch,
                    on_step=lambda count, total, result: bar.part("training", count, total),
                    on_epoch=None if as_json else lambda epoch: bar.line(epoch_line(epoch, epochs)),
                )  # fmt: skip
            done()
    if first:
        report = {"step": step, "device": trainer.device, "strict": strict, "checkpoint": checkpoint, "plot": plot}
        report |= {"ranks": trainer.group.world} if trainer.group.world > 1 else {}
        _draw(plot, history)
        show_json({**report, **history_dict(history)}) if as_json else show(_closing(history, checkpoint, plot, resume))


def _draw(plot: str | None, history: History) -> None:
    if plot is not None:
        from ..report.plot import draw_losses

        measured = [(e.number * e.steps, e.validation["loss"]) for e in history.epochs if "loss" in e.validation]
        draw_losses(plot, history.losses, history.finite, measured)


@contextlib.contextmanager
def _reports_where_it_stopped(folder: str | None) -> Iterator[None]:
    """Ctrl-C ends a training with the place of its last checkpoint."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        from ..training.run.fitting import FILE

        done()
        if folder is None or not (Path(folder) / FILE).is_file():
            fail(INTERRUPTED, "interrupted: there is no checkpoint (--checkpoint DIR keeps them)")
        fail(INTERRUPTED, f"interrupted: the last checkpoint is {Path(folder) / FILE}", "hint: go on with --resume")


def _closing(history: History, checkpoint: str | None, plot: str | None, resume: bool) -> list[str]:
    lines = []
    if history.dropped:
        lines.append(f"left out     {history.dropped} samples of each epoch: they fill no batch")
    if resume:
        before = f"went on after {history.resumed} steps" if history.resumed else "no checkpoint yet: from the start"
        lines.append(f"resumed      {before}" + ("" if history.epochs else "; nothing was left to train"))
    if checkpoint is None:
        lines.append("checkpoint   none: the trained weights are not kept (--checkpoint DIR keeps them)")
    else:
        from ..training.run.fitting import FILE

        lines.append(f"checkpoint   {Path(checkpoint) / FILE}")
    return [*lines, f"loss curve   {plot}"] if plot is not None else lines


def export_weights(
    step: StepArgument,
    checkpoint: CheckpointArgument,
    output: TrainedOption,
    ema: AverageOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the forward model with the weights of a checkpoint: float32, for inference, ready for convert.

    \b
    ampgraph export-weights step.onnx run1 -o trained.onnx
    ampgraph convert trained.onnx --level O2
    """
    with signals_wait():
        from ..api.weights import export_weights as export
        from ..api.weights import weights_lines

    with progress() as bar:
        found = export(step, checkpoint, output, ema=ema, progress=bar.stage)
        done()
    show_json(found.to_dict()) if as_json else show(weights_lines(found))
