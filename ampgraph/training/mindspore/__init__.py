"""Training .mindir files on MindSpore."""

from .train import StepResult, TrainStep, train_step

__all__ = ["StepResult", "TrainStep", "train_step"]
