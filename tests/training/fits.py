"""A short training for tests of checkpoints and resuming: it clips, casts, counts and overflows at first."""

from __future__ import annotations

from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import Adam
from training.steps import blobs, linear_step

DATA = blobs(100)
FIT = {"epochs": 3, "batch_size": 16, "lr_schedule": "cosine:warmup=2", "seed": 5}


def make_step():
    return linear_step(Adam(0.05), DynamicLossScale(init=2.0**17, interval=4), clip=1.0, low=True, counted=True)


def make_trainer():
    return Trainer(make_step(), strict=True, threads=1)
