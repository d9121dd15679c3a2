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
    "Adam": "training.step.optimizers",
    "AdamW": "training.step.optimizers",
    "AmpError": "core.errors",
    "DynamicLossScale": "training.step.loss_scale",
    "Plan": "core.plan",
    "Ranges": "core.ranges",
    "SGD": "training.step.optimizers",
    "StaticLossScale": "training.step.loss_scale",
    "Trainer": "training.run.trainer",
    "TrainingStep": "training.step.training_step",
    "apply": "api.convert",
    "build_training_step": "api.build_step",
    "calibrate": "numerics.ranges.calibrate",
    "convert": "api.convert",
    "export_for_training": "training.forward.torch_export",
    "gradient": "training.gradients.user_rules",
    "inspect": "report.inspect",
    "plan": "api.convert",
    "run": "api.run",
    "tune": "api.tune",
    "verify": "api.verify",
}

if TYPE_CHECKING:
    from .api.build_step import build_training_step
    from .api.convert import apply, convert, plan
    from .api.run import run
    from .api.tune import tune
    from .api.verify import verify
    from .core.errors import AmpError
    from .core.plan import Plan
    from .core.ranges import Ranges
    from .numerics.ranges.calibrate import calibrate
    from .report.inspect import inspect
    from .training.forward.torch_export import export_for_training
    from .training.gradients.user_rules import gradient
    from .training.run.trainer import Trainer
    from .training.step.loss_scale import DynamicLossScale, StaticLossScale
    from .training.step.optimizers import SGD, Adam, AdamW
    from .training.step.training_step import TrainingStep


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
