"""An alias of `ampgraph.training.mindspore`, which this module was called before 0.2; it goes with 0.3."""

from __future__ import annotations

from .core.renamed import warn_renamed
from .training.mindspore import StepResult, TrainStep, train_step

__all__ = ["StepResult", "TrainStep", "train_step"]

warn_renamed("ampgraph.mindspore")
