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
        refusals: format that it does not work on -> (why, hint), where there is more to say than that.
        dtypes: the low types that it knows.
        lists: gives for a setting the file of op_lists, or the path of another; None: NAME.toml.
        stores: by level, whether the framework stores parameters ``low`` or keeps them in float32 and casts them when
            the model runs (``keep``). Where it is not said: ``keep``.
        fixed: the rest of the sentence "--fp32 ..." that refuses patterns and lists of the user's; empty: they count.
        ours: whether our regions, guards and rewrites apply: they do for no framework.
        rows: the rows that ``lists`` shows of its lists at a level, "" or the operator that was asked for.
        by_operator: what ``export-mixlist`` writes of its lists at a level; None: what the lists say.
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
        """The level of a recipe, or the policy's default. Raises AmpError AMP302 for one that has no meaning here."""
        if recipe.level is None:
            return self.default_level
        if recipe.level not in self.levels:
            known = "; ".join(f"{level}: {meaning}" for level, meaning in self.levels.items())
            message = f"level {recipe.level} has no meaning under policy '{self.name}'"
            raise AmpError("AMP302", message, hint=f"levels of {self.framework}: {known}")
        return recipe.level

    def list_of(self, setting: Setting) -> str | Path:
        """The file of the policy's list: a name in op_lists, or a path."""
        return f"{self.name}.toml" if self.lists is None else self.lists(setting)

    def check(self, recipe: Recipe, model_format: str = "") -> None:
        """Raises AmpError for what has no meaning under this policy: AMP302 a level, AMP303 a format ("": not known
        yet) or a low type, AMP305 patterns, lists and rules of ours that can change nothing."""
        self.level(recipe)
        if model_format and model_format not in self.formats:
            message, hint = self.refusals.get(model_format, (f"policy '{self.name}' is for {self.formats[0]}", ""))
            raise AmpError("AMP303", message, hint=hint or "omit --policy")
        if recipe.dtype not in self.dtypes:
            hint = f"take --dtype {self.dtypes[0]}, or another policy"
            raise AmpError("AMP303", f"policy '{self.name}' does not support {recipe.dtype}", hint=hint)
        hint = f"omit --policy {self.name}"
        for word, given in (("--fp32", recipe.fp32), ("--low", recipe.low), ("--lists", recipe.lists)):
            if given and self.fixed:
                raise AmpError("AMP305", f"{word} {self.fixed}", hint=hint)
        for word, wanted in (("--fp32-stream", recipe.fp32_stream), ("--rule", recipe.rule)):
            if wanted and not self.ours:
                raise AmpError("AMP305", f"{word} is not one of {self.framework}'s rules", hint=hint)


_POLICIES: dict[str, Policy] = {}


def register(policy: Policy) -> Policy:
    """Makes a policy known by its name; the last one of a name counts."""
    _POLICIES[policy.name] = policy
    return policy


def names() -> list[str]:
    """The names of all policies, sorted; imports the modules of this folder, each of which registers its policy."""
    for module in pkgutil.iter_modules(import_module(__package__).__path__):
        import_module(f"{__package__}.{module.name}")
    return sorted(_POLICIES)


def policy(name: str) -> Policy:
    """The policy of a name. Raises AmpError AMP303 for a name that none has."""
    if name not in _POLICIES and name not in names():
        hint = nearest(name, names()) or f"available: {', '.join(names())}"
        raise AmpError("AMP303", f"unknown policy '{name}'", hint=hint)
    return _POLICIES[name]
