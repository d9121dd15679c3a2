"""Graph-level automatic mixed precision for exported models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Adam",
    "AdamW",
    "AmpError",
    "DynamicLossScale",
    "Plan",
    "Ranges",
    "SGD",
    "StaticLossScale",
    "Trainer",
    "TrainingStep",
    "apply",
    "build_training_step",
    "calibrate",
    "convert",
    "export_for_training",
    "gradient",
    "inspect",
    "plan",
    "run",
    "tune",
    "verify",
]

_HOME = {
    "Adam": "training.optimizers",
    "AdamW": "training.optimizers",
    "AmpError": "errors",
    "DynamicLossScale": "training.loss_scale",
    "Plan": "plans",
    "Ranges": "numerics.ranges",
    "SGD": "training.optimizers",
    "StaticLossScale": "training.loss_scale",
    "Trainer": "training.trainer",
    "TrainingStep": "training.step",
    "apply": "api",
    "build_training_step": "building",
    "calibrate": "numerics.calibrate",
    "convert": "api",
    "export_for_training": "training.torch_export",
    "gradient": "training.gradients",
    "inspect": "report.inspect",
    "plan": "api",
    "run": "running",
    "tune": "tuning",
    "verify": "verifying",
}

if TYPE_CHECKING:
    from .api import apply, convert, plan
    from .building import build_training_step
    from .errors import AmpError
    from .numerics.calibrate import calibrate
    from .numerics.ranges import Ranges
    from .plans import Plan
    from .report.inspect import inspect
    from .running import run
    from .training.gradients import gradient
    from .training.loss_scale import DynamicLossScale, StaticLossScale
    from .training.optimizers import SGD, Adam, AdamW
    from .training.step import TrainingStep
    from .training.torch_export import export_for_training
    from .training.trainer import Trainer
    from .tuning import tune
    from .verifying import verify


def __getattr__(name: str) -> Any:
    """Loads a public name when it is asked for, so that `import ampgraph` and `ampgraph --help` are quick."""
    if name == "mindspore":  # a module, and not an attribute of it
        import importlib

        return importlib.import_module(".mindspore", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'ampgraph' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value  # a module of the same name must not hide it
    return value
