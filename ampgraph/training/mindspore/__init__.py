"""Training .mindir files on MindSpore."""

from .step_trainer import MindirTrainer
from .train import StepResult, TrainStep, train_step

__all__ = ["MindirTrainer", "StepResult", "TrainStep", "train_step"]
