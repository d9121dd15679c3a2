"""Policies by name: whose rule decides. A policy is one file in this folder, named as the policy is, that registers."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

from ...core.dataflow import Dataflow
from ...core.errors import AmpError, nearest
from ..decided import DecidedModel
from ..options import Options

Rule = Callable[[Dataflow, Options], DecidedModel]
"""Decides every unit of a model, with reasons; everything after it is shared."""

_RULES: dict[str, Rule] = {}


def register(name: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of a policy."""

    def registered(rule: Rule) -> Rule:
        _RULES[name] = rule
        return rule

    return registered


def names() -> list[str]:
    """Every policy that has a rule."""
    for module in pkgutil.iter_modules(import_module(__package__).__path__):
        import_module(f"{__package__}.{module.name}")
    return sorted(_RULES)


def rule(name: str) -> Rule:
    """The rule of a policy. Raises AmpError AMP303 for one that has none."""
    if name not in _RULES and name not in names():
        hint = nearest(name, names()) or f"available: {', '.join(names())}"
        raise AmpError("AMP303", f"unknown policy '{name}'", hint=hint)
    return _RULES[name]
