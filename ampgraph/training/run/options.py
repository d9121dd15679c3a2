"""The options of a training that do not depend on its step: where and how steps run, how long `fit` goes on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import AmpError, is_whole, nearest
from ...runtime.devices import choose
from .schedules import Given

LAST = ("drop", "keep", "pad")
COMMUNICATED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class RunOptions:
    """Where and how training steps run, as `Trainer` describes each option. Raises AmpError AMP325 for an option that
    makes no sense; `place` looks at the device."""

    device: str = "auto"
    strict: bool = False
    threads: int = 0
    accumulate: int = 1
    communicate: str = "float32"
    shard_optimizer: bool = False
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        _check_whole(self, "threads", 0, "threads=0 takes all")
        _check_whole(self, "accumulate", 1, "accumulate=4 makes four micro-batches of each batch")
        _check_one_of(self, "communicate", COMMUNICATED)

    def place(self) -> tuple[str, Sequence[str]]:
        """The device that training steps run on, and ONNX Runtime's providers for it. Raises AmpError AMP323 for strict
        on another device than the CPU, and AMP321, AMP323 and AMP505 for a device that is not there."""
        if self.strict and self.device not in ("auto", "cpu"):
            raise AmpError("AMP323", f"strict runs on the CPU, not on {self.device}", hint="omit one of the two")
        return choose("cpu" if self.strict else self.device)


@dataclass(frozen=True)
class FitOptions:
    """How long a training is, in which batches and with which checkpoints. Raises AmpError AMP325 for options that make
    no sense. ``checkpoint``: a folder, which gets a checkpoint at the end of each epoch and after every
    ``checkpoint_every`` steps (0: at the end of epochs only). ``resume``: go on from the one that is there, or begin
    anew where there is none."""

    epochs: int
    batch_size: int  # samples of one update
    lr_schedule: Given = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 0
    resume: bool = False
    seed: int = 0  # of the order of the samples
    last_batch: str = "drop"  # what is done with one that is not full: drop, keep, pad with labels that do not count

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("checkpoint_every", 0), ("seed", 0)):
            _check_whole(self, name, least, f"{name}={least}")
        _check_one_of(self, "last_batch", LAST)
        if self.checkpoint is None and (self.resume or self.checkpoint_every):
            hint = "name the folder of the checkpoint: --checkpoint DIR"
            raise AmpError("AMP325", "no checkpoint folder is given to resume from or write to", hint=hint)


def _check_whole(options: object, name: str, least: int, hint: str) -> None:
    """Makes an int of a training's option. Raises AmpError AMP325 for no whole number from ``least`` on."""
    value = getattr(options, name)
    if not is_whole(value) or value < least:
        raise AmpError("AMP325", f"{name}={value} is not a whole number from {least}", hint=hint)
    object.__setattr__(options, name, int(value))


def _check_one_of(options: object, name: str, words: tuple[str, ...]) -> None:
    """Checks that a training's option is one of ``words``. Raises AmpError AMP325, whose hint names the nearest."""
    value = getattr(options, name)
    if value not in words:
        hint = nearest(str(value), list(words)) or f"{name}={words[1]!r}"
        raise AmpError("AMP325", f"{name}={value!r} is not one of {', '.join(words)}", hint=hint)
