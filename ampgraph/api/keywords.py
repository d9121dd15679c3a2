"""How the verbs take a recipe: as ``recipe=``, or its fields as keywords, of which each replaces the recipe's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..core.recipe import DEFAULTS, OPTIONS, Recipe, recipe_of

Verb = TypeVar("Verb", bound=Callable[..., Any])


def takes_recipe(verb: Verb) -> Verb:
    """Shows what stands behind a verb's ``**fields``: in its signature, and in its docstring, a line for each field."""
    signature = inspect.signature(verb)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own}
    types = Recipe.__annotations__
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=types[name])
        for name in OPTIONS
        if name not in names
    ]
    verb.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    if verb.__doc__ is not None:  # None under python -OO
        head, mark, rest = verb.__doc__.partition("        **fields:")
        line, _, tail = rest.partition("\n")
        lines = "".join(f"            {name}: {OPTIONS[name].doc}\n" for name in OPTIONS)
        verb.__doc__ = f"{head}{mark}{line}\n{lines}{tail}" if mark else verb.__doc__
    return verb


def recipe_for(verb: Callable[..., Any], recipe: Recipe | str | None, fields: Mapping[str, Any]) -> Recipe:
    """The recipe that a verb was given. A level of None is none.

    Raises UnknownKeyword for what is neither a field nor the verb's own.
    """
    given = {name: value for name, value in fields.items() if name != "level" or value is not None}
    return recipe_of(recipe, given, inspect.signature(verb).parameters if given.keys() - OPTIONS.keys() else ())
