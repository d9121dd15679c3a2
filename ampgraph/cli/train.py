"""Commands that build and run training steps, by several processes too: their arguments and printing."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import AmpError
from ..core.recipe import Given, recipe_of
from .options import JsonOption, recipe_options
from .terminal import INTERRUPTED, Interrupted, done, fail, progress, show, show_json, signals_wait
from .volume import hush

VISIBLE = "CUDA_VISIBLE_DEVICES"


def of_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """The command as one of several processes runs it: all but the first are quiet but for errors of their own."""

    @functools.wraps(command)
    def run(*args: Any, **values: Any) -> None:
        from ..training.run.ranks import SaidByFirst, launched

        rank, world = launched()
        if world == 1:
            return command(*args, **values)
        _take_device()
        if rank:
            hush()
        try:
            command(*args, **values)
        except SaidByFirst:
            sys.exit(2)
        except AmpError as error:
            message = f"rank {rank}: {error.message}" if rank else error.message
            raise AmpError(error.code, message, where=error.where, hint=error.hint) from error
        finally:
            # torchrun ends the others when one has ended: no handler may run while the interpreter is taken apart
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return run


def _take_device() -> None:
    """Shows the libraries, before they are loaded, the one CUDA device that is this rank's."""
    local, count = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not local.isdigit() or count == "1":
        return
    shown = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if VISIBLE not in os.environ:
        os.environ[VISIBLE] = local
    elif int(local) < len(shown):
        os.environ[VISIBLE] = shown[int(local)]


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
AnyStepArgument = Annotated[
    str, typer.Argument(metavar="STEP", help="The .onnx file that build-step wrote, or a .mindir file of a whole step.")
]
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
CudaGraphOption = Annotated[
    bool, typer.Option("--cuda-graph", help="Launch each step as one CUDA graph; for a step built with --batch.")
]
BatchOption = Annotated[
    int | None, _text("--batch", "N", "Batches have this size alone: no shapes are computed when it runs.")
]
DataOption = Annotated[str, _text("--data", "DATA", DATA)]
ValidateOption = Annotated[str | None, _text("--validate", "DATA", "Measured in float32 after each epoch.")]
EpochsOption = Annotated[int, _text("--epochs", "N", "How often all data is seen.")]
BatchSizeOption = Annotated[int, _text("--batch-size", "N", "Samples of one update, of all processes together.")]
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
CommunicateOption = Annotated[
    str, _text("--communicate", "TYPE", "How processes send gradients: float32, float16 or bfloat16.")
]
ShardOption = Annotated[
    bool, typer.Option("--shard-optimizer", help="Each process keeps the optimizer's state of its part alone (ZeRO-1).")
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
TrainingPageOption = Annotated[
    str | None, _text("--html", "FILE", "Write a page: loss, loss scale, skipped steps, gradient norm, learning rate.")
]
LogOption = Annotated[str | None, _text("--log", "FILE.csv", "Write these of every step, a line each.")]
TensorboardOption = Annotated[
    str | None, _text("--tensorboard", "DIR", "And there as TensorBoard's event files (needs tensorboard).")
]
PlotOption = Annotated[str | None, typer.Option("--plot", hidden=True)]  # --html since 0.2; goes with 0.3


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
    batch: BatchOption = None,
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
        from ..report.training import describe_step
        from ..training.forward.exported_backward import parse_gradients
        from ..training.step import groups
        from ..training.step.loss import parse_losses

    with progress() as bar, faults_reported(model):
        bar.stage("reading")
        if not is_mindir(model):
            refuse_overwriting(OnnxGraph.load(model), Path(output), [Path(model)], "-o")
        bar.stage("building the step")
        step = build_training_step(
            model, loss=parse_losses(loss or ()), optimizer=groups.group_words(optimizer),
            recipe=recipe_of(None, fields), loss_scale=DEFAULT if loss_scale is None else loss_scale,
            clip_norm=clip_norm, clip_value=clip_value, ema=ema, penalty=penalty, freeze=freeze or (),
            gradients=parse_gradients(gradient or ()), seed=seed_input, batch=batch,
        )  # fmt: skip
        report = describe_step(step, model, output)
        bar.stage("writing")
        step.save(output)
        done()
    show_json(report.to_dict()) if as_json else show(report.lines())


@of_ranks
def train(
    step: AnyStepArgument,
    data: DataOption,
    validate: ValidateOption = None,
    epochs: EpochsOption = 10,
    batch_size: BatchSizeOption = 64,
    lr_schedule: ScheduleOption = None,
    device: DeviceOption = "auto",
    strict: StrictOption = False,
    threads: ThreadsOption = 0,
    accumulate: AccumulateOption = 1,
    communicate: CommunicateOption = "float32",
    shard_optimizer: ShardOption = False,
    cuda_graph: CudaGraphOption = False,
    checkpoint: CheckpointOption = None,
    checkpoint_every: EveryOption = 0,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    last_batch: LastOption = "drop",
    normalize: NormalizeOption = None,
    scale: ScaleOption = None,
    html: TrainingPageOption = None,
    log: LogOption = None,
    tensorboard: TensorboardOption = None,
    as_json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Train: run a step over data, epoch by epoch.

    \b
    ampgraph train step.onnx --data train.npz --validate held_out.npz --epochs 10 --checkpoint run1
    ampgraph train step.onnx --data train.npz --lr-schedule cosine:warmup=100 --html run.html
    ampgraph train step.onnx --data train.npz --epochs 20 --checkpoint run1 --resume
    ampgraph train step.onnx --data train.npz --batch-size 256 --accumulate 4
    ampgraph train step.onnx --data 'mnist/train-*' --validate 'mnist/t10k-*' --scale 1/255
    ampgraph train step.onnx --data train.npz --log run.csv --tensorboard runs/1
    torchrun --nproc-per-node 2 -m ampgraph train step.onnx --data train.npz --batch-size 256
    ampgraph train step.O2.mindir --data train.npz --checkpoint run1
    """
    with signals_wait():
        from ..api.train import train as run
        from ..report.training import epoch_line
        from ..training.run.schedules import parse_schedules

    with progress() as bar, _reports_where_it_stopped(checkpoint):
        bar.stage("training")
        if plot is not None:
            show(["--plot is now --html, and writes a page; the old name goes with 0.3"], sys.stderr)
        found = run(
            step, data, validate=validate, epochs=epochs, batch_size=batch_size, device=device, strict=strict,
            lr_schedule=parse_schedules(lr_schedule or ()), threads=threads, accumulate=accumulate, seed=seed,
            checkpoint=checkpoint, checkpoint_every=checkpoint_every, resume=resume, last_batch=last_batch,
            normalize=normalize, scale=scale, html=html, plot=plot, log=log, tensorboard=tensorboard,
            communicate=communicate, shard_optimizer=shard_optimizer, cuda_graph=cuda_graph,
            on_step=lambda count, total, result: bar.part("training", count, total),
            on_epoch=None if as_json else lambda epoch: bar.line(epoch_line(epoch, epochs)),
        )  # fmt: skip
        done()
    if found.first:
        show_json(found.to_dict()) if as_json else show(found.lines())


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

    with progress() as bar:
        found = export(step, checkpoint, output, ema=ema, progress=bar.stage)
        done()
    show_json(found.to_dict()) if as_json else show(found.lines())
