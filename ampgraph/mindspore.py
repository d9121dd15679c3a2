"""An alias of `ampgraph.training.mindspore`, which this module was called before 0.2; it goes with 0.3."""

from __future__ import annotations

import warnings

from .training.mindspore import StepResult, TrainStep, train_step

__all__ = ["StepResult", "TrainStep", "train_step"]

warnings.warn(
    "ampgraph.mindspore is now ampgraph.training.mindspore; the old name goes with 0.3",
    DeprecationWarning,
    stacklevel=2,
)
