"""Policies by name: whose lists and rules decide.

A policy is one file in this folder, named as the policy is, that registers it, and one list in op_lists. One that lies
elsewhere registers itself before it is asked for.

    register(Policy(
        name="mine", framework="My framework 1.0", rule=decide, levels={"O0": "off", "O1": "on"}, default_level="O1",
        lists=lambda setting: "/path/of/mine.toml",
    ))
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from ...core.dataflow import Dataflow
from ...core.errors import AmpError, nearest
from ...core.recipe import Recipe
from ...oplists.levels import Level
from ...oplists.mindspore_schemas import Operator
from ...oplists.operators import OpLists
from ...oplists.options import Options
from ...oplists.rows import ListRow, list_rows
from ..assemble import DecidedModel

Rule = Callable[[Dataflow, Options], DecidedModel]
"""Decides every unit of a model, with reasons; everything after it is shared."""


class Answer(NamedTuple):
    """What becomes of an operator wherever it stands, ``low``, ``float32``, or ``cut`` where no list can say it, and
    whether somebody wrote it into a list."""

    at: str
    listed: bool


ByOperator = Callable[[Operator], Answer]
"""What becomes of each operator of MindSpore's."""


class Setting(NamedTuple):
    """What a policy chooses its list by."""

    level: str
    dtype: str
    target: str


@dataclass(frozen=True)
class Policy:
    """Whose lists and rules.

    Attributes:
        name: what ``--policy`` is given.
        framework: whose rules they are, as messages name it.
        rule: decides a model.
        levels: the levels that have a meaning, with what each is in the framework's own words.
        default_level: the level that counts where the user says none.
        formats: the formats that it works on.
        refusals: why it does not work on another format, with a hint.
        dtypes: the low types that it knows.
        lists: the file of op_lists, or the path of another; NAME.toml where nothing else is said.
        stores: by level, whether the framework stores parameters ``low`` or keeps them in float32 and casts them when
            the model runs (``keep``). Where it is not said: ``keep``.
        fixed: why patterns and lists of the user's cannot change it.
        ours: whether our regions, guards and rewrites apply: they do for no framework.
        rows: what ``lists`` shows, where a table of its list is not all.
        by_operator: what ``export-mixlist`` writes, where that is more than its list.
    """

    name: str
    framework: str
    rule: Rule
    levels: Mapping[str, str]
    default_level: str
    formats: tuple[str, ...] = ("ONNX", "MindIR")
    refusals: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    lists: Callable[[Setting], str | Path] | None = None
    stores: Mapping[str, str] = field(default_factory=dict)
    fixed: str = ""
    ours: bool = False
    rows: Callable[[OpLists, Level, str], list[ListRow]] = list_rows
    by_operator: Callable[[OpLists, Level], ByOperator] | None = None

    def level(self, recipe: Recipe) -> str:
        """The level of a recipe. Raises AmpError AMP302 for one that has no meaning here."""
        if recipe.level is None:
            return self.default_level
        if recipe.level not in self.levels:
            known = "; ".join(f"{level}: {meaning}" for level, meaning in self.levels.items())
            message = f"level {recipe.level} has no meaning under policy '{self.name}'"
            raise AmpError("AMP302", message, hint=f"levels of {self.framework}: {known}")
        return recipe.level

    def list_of(self, setting: Setting) -> str | Path:
        """The file of its list."""
        return f"{self.name}.toml" if self.lists is None else self.lists(setting)

    def check(self, recipe: Recipe, model_format: str = "") -> None:
        """Raises AmpError for what has no meaning here: AMP302 a level, AMP303 a format or a type, AMP305 patterns and
        lists that can change nothing."""
        self.level(recipe)
        if model_format and model_format not in self.formats:
            message, hint = self.refusals.get(model_format, (f"policy '{self.name}' is for {self.formats[0]}", ""))
            raise AmpError("AMP303", message, hint=hint or "omit --policy")
        if recipe.dtype not in self.dtypes:
            hint = f"take --dtype {self.dtypes[0]}, or another policy"
            raise AmpError("AMP303", f"policy '{self.name}' does not support {recipe.dtype}", hint=hint)
        if self.fixed and (recipe.fp32 or recipe.low or recipe.lists):
            word = "--fp32" if recipe.fp32 else "--low" if recipe.low else "--lists"
            raise AmpError("AMP305", f"{word} {self.fixed}", hint=f"omit --policy {self.name}")
        word = "--fp32-stream" if recipe.fp32_stream else "--rule" if recipe.rule else ""
        if word and not self.ours:
            message = f"{word} is not one of {self.framework}'s rules"
            raise AmpError("AMP305", message, hint=f"omit --policy {self.name}")


_POLICIES: dict[str, Policy] = {}


def register(policy: Policy) -> Policy:
    """Makes a policy known by its name; the last one of a name counts."""
    _POLICIES[policy.name] = policy
    return policy


def names() -> list[str]:
    """Every policy that there is."""
    for module in pkgutil.iter_modules(import_module(__package__).__path__):
        import_module(f"{__package__}.{module.name}")
    return sorted(_POLICIES)


def policy(name: str) -> Policy:
    """A policy. Raises AmpError AMP303 for a name that none has."""
    if name not in _POLICIES and name not in names():
        hint = nearest(name, names()) or f"available: {', '.join(names())}"
        raise AmpError("AMP303", f"unknown policy '{name}'", hint=hint)
    return _POLICIES[name]
