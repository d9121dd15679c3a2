"""Commands that build and run training steps, by several processes too: their options and what they print."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import AmpError
from ..core.recipe import Given, recipe_of
from ..core.renamed import is_now
from .command import CommandOutput, argument, command, option, output_of_report, recipe_fields, switch
from .terminal import INTERRUPTED, Display, Interrupted, Volume, fail, hold_signals, ignore_interrupts, set_volume, show

VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextlib.contextmanager
def run_as_rank() -> Iterator[None]:
    """Runs a command inside as one rank of the processes that torchrun started, where there are several: ranks but the
    first print errors of their own alone."""
    from ..training.run.ranks import SaidByFirst, rank_and_world

    rank, world = rank_and_world()
    if world == 1:
        yield
        return
    _hide_other_devices()
    if rank:
        set_volume(Volume.QUIET)
    try:
        yield
    except SaidByFirst:
        sys.exit(2)
    except AmpError as error:
        message = f"rank {rank}: {error.message}" if rank else error.message
        raise AmpError(error.code, message, where=error.where, hint=error.hint) from error
    finally:
        # torchrun ends the others when one has ended: no handler may run while the interpreter is taken apart
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _hide_other_devices() -> None:
    """Command `train` by several processes: hides all CUDA devices but this rank's own from the libraries, before they
    are loaded: the one of its local number among those that are visible. Where there are fewer devices than ranks,
    nothing is hidden: what runs the step refuses that."""
    local, count = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not local.isdigit() or count == "1":
        return
    visible = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    if VISIBLE not in os.environ:
        os.environ[VISIBLE] = local
    elif int(local) < len(visible):
        os.environ[VISIBLE] = visible[int(local)]


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
SCHEDULES = (
    "constant, linear (with end), cosine (end) or step (every, gamma), each with warmup: cosine:warmup=100. For one "
    "group of parameters NAMES=SCHEDULE, by its pattern; repeatable."
)
LOSSES = "cross_entropy, mse, or the name of an output that is a float32 scalar. Several with weights: a=1 b=0.5."
FROZEN = (
    "Globs of parameter names not to train; repeatable. Running statistics too: their BatchNormalization then "
    "computes as in inference."
)
SAMPLES = (
    "An .npz file of arrays by input name, labels under labels, samples first; or a folder (or a quoted pattern of "
    "files) of NAME.npy, .npz and idx files, also with .gz, which stay on the disk; or a .csv file: the labels in a "
    "column of that name, or in the last."
)
COMMON = "Float32 inputs become (x scale - mean) / std; for each channel: '0.49 0.48 0.45,0.25 0.24 0.26'."


@command(
    model=argument("FORWARD", "The .onnx file of the forward graph, in float32."),
    optimizer=option("[NAMES=]KIND[:KEY=VALUE,...]", OPTIMIZERS, ..., repeats=True),
    output=option("STEP.onnx", "Where the step goes.", ..., flag=("-o", "--output")),
    loss=option("LOSS[=WEIGHT]", LOSSES, repeats=True),
    loss_scale=option("SCALE", SCALES),
    clip_norm=option("NORM", "The largest norm of all gradients together.", kind=float),
    clip_value=option("VALUE", "The largest absolute value of each number of a gradient.", kind=float),
    ema=option("DECAY", "Keep a running average of the weights: 0.999; export-weights --ema.", kind=float),
    penalty=option("KEY=VALUE,...", PENALTY),
    freeze=option("NAMES", FROZEN, repeats=True),
    gradient=option("PARAM=OUTPUT", "Of a graph that has its backward: a gradient; repeatable.", repeats=True),
    seed_input=option("INPUT", "And the scalar that the gradients start from."),
    batch=option("N", "Batches have this size alone: no shapes are computed when it runs.", kind=int),
    fields=recipe_fields(but=("io", "ranges", "range_margin", "freeze_weights")),
)
def build_step(
    bar: Display, *, model: str, output: str, optimizer: list[str], fields: Given, loss: list[str] | None,
    loss_scale: str | None, freeze: list[str] | None, gradient: list[str] | None, seed_input: str | None,
    **options: Any,
) -> CommandOutput:  # fmt: skip
    """Build a mixed-precision training step of a forward graph: one ONNX model for stock ONNX Runtime.

    \b
    ampgraph build-step model.onnx --loss cross_entropy --optimizer adam:lr=0.001 -o step.onnx
    ampgraph build-step model.onnx --loss mse --optimizer sgd:lr=0.1,momentum=0.9 --clip-norm 1 -o step.onnx
    ampgraph build-step model.onnx --loss loss --optimizer '*.bias=sgd' --optimizer adamw --freeze 'encoder.*' -o s.onnx
    """
    with hold_signals():
        from ..api.build_step import DEFAULT, build_training_step
        from ..core.graph import is_mindir
        from ..formats.checks import faults_reported, refuse_overwriting
        from ..formats.onnx.graph import OnnxGraph
        from ..report.training import describe_step
        from ..training.forward.exported_backward import parse_gradients
        from ..training.forward.losses import parse_losses
        from ..training.step.optimizers import group_words

    with faults_reported(model):
        bar.stage("reading")
        if not is_mindir(model):
            refuse_overwriting(OnnxGraph.load(model), Path(output), [Path(model)], "-o")
        bar.stage("building the step")
        step = build_training_step(
            model, loss=parse_losses(loss or ()), optimizer=group_words(optimizer),
            recipe=recipe_of(None, fields), loss_scale=DEFAULT if loss_scale is None else loss_scale,
            freeze=freeze or (), gradients=parse_gradients(gradient or ()), seed=seed_input, **options,
        )  # fmt: skip
        report = describe_step(step, model, output)
        bar.stage("writing")
        step.save(output)
    return output_of_report(report)


@command(
    run_as_rank,
    step=argument("STEP", "The .onnx file that build-step wrote, or a .mindir file of a whole step."),
    data=option("DATA", SAMPLES, ...),
    validate=option("DATA", "Measured in float32 after each epoch."),
    epochs=option("N", "How often all data is seen.", 10),
    batch_size=option("N", "Samples of one update, of all processes together.", 64),
    lr_schedule=option("[NAMES=]SCHEDULE", SCHEDULES, repeats=True),
    device=option("DEVICE", "auto (the best that is here), cpu, cuda, tensorrt, cann.", "auto"),
    strict=switch("Run on the CPU with every low value really rounded."),
    threads=option("N", "Threads of a step on the CPU; 0 for all.", 0),
    accumulate=option("N", "Share each batch among N micro-batches: less memory, the same update.", 1),
    communicate=option("TYPE", "How processes send gradients: float32, float16 or bfloat16.", "float32"),
    shard_optimizer=switch("Each process keeps the optimizer's state of its part alone (ZeRO-1)."),
    cuda_graph=switch("Launch each step as one CUDA graph; for a step built with --batch."),
    checkpoint=option("DIR", "Keep a checkpoint there after every epoch."),
    checkpoint_every=option("STEPS", "And after every so many steps of an epoch.", 0),
    resume=switch("Go on from the checkpoint in DIR, with the same data and options."),
    seed=option("N", "Decides the order of the samples.", 0),
    last_batch=option("drop|keep|pad", "One that is not full; pad fills it up with labels that count nothing.", "drop"),
    normalize=option("[INPUT=]MEAN,STD", COMMON, repeats=True),
    scale=option("[INPUT=]FACTOR", "And that scale, 1/255 for bytes; both repeatable, by input.", repeats=True),
    html=option("FILE", "Write a page: loss, loss scale, skipped steps, gradient norm, learning rate."),
    log=option("FILE.csv", "Write these of every step, a line each."),
    tensorboard=option("DIR", "And there as TensorBoard's event files (needs tensorboard)."),
    plot=option("FILE", "The old name of --html, which goes with 0.4.", hidden=True),
)
def train(
    bar: Display, *, step: str, epochs: int, lr_schedule: list[str] | None, plot: str | None, **options: Any
) -> CommandOutput | None:
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
    with hold_signals():
        from ..api.train import train as run
        from ..report.training import epoch_line
        from ..training.run.schedules import parse_schedules

    with _report_checkpoint_on_interrupt(options["checkpoint"]):
        bar.stage("training")
        if plot is not None:
            show([is_now("--plot")], sys.stderr)
        found = run(
            step, epochs=epochs, lr_schedule=parse_schedules(lr_schedule or ()), plot=plot,
            on_step=lambda count, total, result: bar.part("training", count, total),
            on_epoch=lambda epoch: bar.line(epoch_line(epoch, epochs)), **options,
        )  # fmt: skip
        ignore_interrupts()
    return output_of_report(found) if found.first else None


@contextlib.contextmanager
def _report_checkpoint_on_interrupt(folder: str | None) -> Iterator[None]:
    """Command `train`: at Ctrl-C, ends the command with the place of its last checkpoint in ``folder``."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        from ..training.run.fitting import FILE

        ignore_interrupts()
        if folder is None or not (Path(folder) / FILE).is_file():
            fail(INTERRUPTED, "interrupted: there is no checkpoint (--checkpoint DIR keeps them)")
        fail(INTERRUPTED, f"interrupted: the last checkpoint is {Path(folder) / FILE}", "hint: go on with --resume")


@command(
    step=argument("STEP", "The .onnx file that build-step wrote."),
    checkpoint=argument("CHECKPOINT", "The folder that train was given, or a file in it."),
    output=option("TRAINED.onnx", "Where the model goes.", ..., flag=("-o", "--output")),
    ema=switch("Their running average, of a step that was built with one."),
)
def export_weights(bar: Display, *, step: str, checkpoint: str, output: str, ema: bool) -> CommandOutput:
    """Write the forward model with the weights of a checkpoint: float32, for inference, ready for convert.

    \b
    ampgraph export-weights step.onnx run1 -o trained.onnx
    ampgraph convert trained.onnx --level O2
    """
    with hold_signals():
        from ..api.weights import export_weights as export

    return output_of_report(export(step, checkpoint, output, ema=ema, progress=bar.stage))
