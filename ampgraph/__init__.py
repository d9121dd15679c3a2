"""Graph-level automatic mixed precision for exported models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core import light_imports
from .core.version import __version__ as __version__

light_imports.install()

if TYPE_CHECKING:
    from .api.bench import bench as bench
    from .api.build_step import build_training_step as build_training_step
    from .api.calibrate import calibrate as calibrate
    from .api.check_model import check as check
    from .api.convert import apply as apply
    from .api.convert import convert as convert
    from .api.diff import diff as diff
    from .api.inspect import inspect as inspect
    from .api.inspect import lists as lists
    from .api.mixlist import export_mixlist as export_mixlist
    from .api.plan import explain as explain
    from .api.plan import explain_all as explain_all
    from .api.plan import plan as plan
    from .api.run import run as run
    from .api.train import train as train
    from .api.tune import tune as tune
    from .api.verify import verify as verify
    from .api.weights import export_weights as export_weights
    from .core.errors import AmpError as AmpError
    from .core.plan import Plan as Plan
    from .core.ranges import Ranges as Ranges
    from .core.recipe import Recipe as Recipe
    from .core.verdict import CheckVerdict as CheckVerdict
    from .core.verdict import PrecisionWarning as PrecisionWarning
    from .oplists.rows import ListRow as ListRow
    from .report.benched import Benched as Benched
    from .report.diff import SideBySide as SideBySide
    from .report.explain import Explanation as Explanation
    from .report.findings import Checked as Checked
    from .report.inspect import Inspection as Inspection
    from .report.inspect import overlay as overlay
    from .report.listing import ListRows as ListRows
    from .report.summary import Summary as Summary
    from .report.tuning import Tuning as Tuning
    from .report.verification import Verification as Verification
    from .training.forward.torch_export import export_for_training as export_for_training
    from .training.gradients.rules import gradient as gradient
    from .training.run.dataset import Normalized as Normalized
    from .training.run.trainer import Trainer as Trainer
    from .training.step.loss_scale import DynamicLossScale as DynamicLossScale
    from .training.step.loss_scale import StaticLossScale as StaticLossScale
    from .training.step.optimizers import SGD as SGD
    from .training.step.optimizers import Adam as Adam
    from .training.step.optimizers import AdamW as AdamW
    from .training.step.penalty import GradientPenalty as GradientPenalty
    from .training.step.training_step import TrainingStep as TrainingStep

    __all__: list[str]
else:  # type checkers do not see this: by it any name would pass
    import importlib

    _NAMES = {
        "api.bench": "bench",
        "api.build_step": "build_training_step",
        "api.calibrate": "calibrate",
        "api.check_model": "check",
        "api.convert": "apply convert",
        "api.diff": "diff",
        "api.inspect": "inspect lists",
        "api.mixlist": "export_mixlist",
        "api.plan": "explain explain_all plan",
        "api.run": "run",
        "api.train": "train",
        "api.tune": "tune",
        "api.verify": "verify",
        "api.weights": "export_weights",
        "core.errors": "AmpError",
        "core.plan": "Plan",
        "core.ranges": "Ranges",
        "core.recipe": "Recipe",
        "core.verdict": "CheckVerdict PrecisionWarning",
        "oplists.rows": "ListRow",
        "report.benched": "Benched",
        "report.diff": "SideBySide",
        "report.explain": "Explanation",
        "report.findings": "Checked",
        "report.inspect": "Inspection overlay",
        "report.listing": "ListRows",
        "report.summary": "Summary",
        "report.tuning": "Tuning",
        "report.verification": "Verification",
        "training.forward.torch_export": "export_for_training",
        "training.gradients.rules": "gradient",
        "training.run.dataset": "Normalized",
        "training.run.trainer": "Trainer",
        "training.step.loss_scale": "DynamicLossScale StaticLossScale",
        "training.step.optimizers": "Adam AdamW SGD",
        "training.step.penalty": "GradientPenalty",
        "training.step.training_step": "TrainingStep",
    }
    _HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
    __all__ = [*_HOME]

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
