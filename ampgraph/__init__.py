"""Graph-level automatic mixed precision for exported models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core import homes, light_imports
from .core.version import __version__ as __version__

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AmpError",
    "CheckVerdict",
    "Checked",
    "DynamicLossScale",
    "Explanation",
    "GradientPenalty",
    "Inspection",
    "ListRow",
    "ListRows",
    "Normalized",
    "Plan",
    "PrecisionWarning",
    "Ranges",
    "Recipe",
    "SideBySide",
    "StaticLossScale",
    "Trainer",
    "TrainingStep",
    "Tuning",
    "Verification",
    "apply",
    "build_training_step",
    "calibrate",
    "check",
    "convert",
    "diff",
    "explain",
    "explain_all",
    "export_for_training",
    "export_mixlist",
    "export_weights",
    "gradient",
    "inspect",
    "lists",
    "overlay",
    "plan",
    "run",
    "train",
    "tune",
    "verify",
]

light_imports.install()
homes.REWRITES.append("ampgraph.rules.rewrites")

if TYPE_CHECKING:
    from .api.build_step import build_training_step
    from .api.calibrate import calibrate
    from .api.check_model import check
    from .api.convert import convert
    from .api.diff import diff
    from .api.explain import explain, explain_all
    from .api.inspect import inspect
    from .api.lists import lists
    from .api.mixlist import export_mixlist
    from .api.plan import apply, plan
    from .api.run import run
    from .api.train import train
    from .api.tune import tune
    from .api.verify import verify
    from .api.weights import export_weights
    from .core.errors import AmpError
    from .core.plan import Plan
    from .core.ranges import Ranges
    from .core.recipe import Recipe
    from .core.verdict import CheckVerdict, PrecisionWarning
    from .oplists.rows import ListRow
    from .report.diff import SideBySide
    from .report.explain import Explanation
    from .report.findings import Checked
    from .report.inspect import Inspection
    from .report.listing import ListRows
    from .report.overlay import overlay
    from .report.tuning import Tuning
    from .report.verification import Verification
    from .training.forward.torch_export import export_for_training
    from .training.gradients.user_rules import gradient
    from .training.run.normalized import Normalized
    from .training.run.trainer import Trainer
    from .training.step.loss_scale import DynamicLossScale, StaticLossScale
    from .training.step.optimizers import SGD, Adam, AdamW
    from .training.step.penalty import GradientPenalty
    from .training.step.training_step import TrainingStep
else:  # type checkers do not see this: by it any name would pass
    import importlib

    _HOME = {
        "Adam": "training.step.optimizers",
        "AdamW": "training.step.optimizers",
        "AmpError": "core.errors",
        "DynamicLossScale": "training.step.loss_scale",
        "Explanation": "report.explain",
        "GradientPenalty": "training.step.penalty",
        "Inspection": "report.inspect",
        "ListRow": "oplists.rows",
        "ListRows": "report.listing",
        "Normalized": "training.run.normalized",
        "Plan": "core.plan",
        "PrecisionWarning": "core.verdict",
        "Ranges": "core.ranges",
        "Recipe": "core.recipe",
        "SGD": "training.step.optimizers",
        "SideBySide": "report.diff",
        "StaticLossScale": "training.step.loss_scale",
        "Trainer": "training.run.trainer",
        "TrainingStep": "training.step.training_step",
        "Tuning": "report.tuning",
        "CheckVerdict": "core.verdict",
        "Verification": "report.verification",
        "apply": "api.plan",
        "build_training_step": "api.build_step",
        "calibrate": "api.calibrate",
        "check": "api.check_model",
        "Checked": "report.findings",
        "convert": "api.convert",
        "diff": "api.diff",
        "explain": "api.explain",
        "explain_all": "api.explain",
        "export_for_training": "training.forward.torch_export",
        "export_mixlist": "api.mixlist",
        "export_weights": "api.weights",
        "gradient": "training.gradients.user_rules",
        "inspect": "api.inspect",
        "lists": "api.lists",
        "overlay": "report.overlay",
        "plan": "api.plan",
        "run": "api.run",
        "train": "api.train",
        "tune": "api.tune",
        "verify": "api.verify",
    }

    def __getattr__(name: str) -> object:
        """Loads a public name when it is asked for, so that `import ampgraph` and `ampgraph --help` are quick."""
        if name == "mindspore":  # a module, and not an attribute of it
            return importlib.import_module(".mindspore", __name__)
        if name not in _HOME:
            raise AttributeError(f"module 'ampgraph' has no attribute '{name}'")
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value  # a module of the same name must not hide it
        return value

    def __dir__() -> list[str]:
        """The public names, loaded or not, for those who press the tab key."""
        return sorted({*__all__, "__version__"})
