"""How the verbs take a recipe: as ``recipe=``, or its fields as keywords, of which each replaces the recipe's own."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..core.recipe import DEFAULTS, OPTIONS, Recipe, RecipeFields, recipe_of

Verb = TypeVar("Verb", bound=Callable[..., object])


def takes_recipe(verb: Verb) -> Verb:
    """A decorator of verbs: shows what stands behind ``**fields``, in the signature and, a line each, the docstring."""
    signature = inspect.signature(verb)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [name for name in OPTIONS if name not in signature.parameters]
    for name in more:
        given = RecipeFields.__annotations__[name]
        kind = getattr(given, "__forward_arg__", given)
        own.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=kind))
    verb.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    if verb.__doc__ is not None:  # None under python -OO
        text = inspect.cleandoc(verb.__doc__)  # as Python 3.13 compiles it
        head, mark, rest = text.partition("    **fields:")
        line, _, tail = rest.partition("\n")
        verb.__doc__ = "\n".join([f"{head}{mark}{line}", *map(_field_line, more), tail]) if mark else text
    return verb


def _field_line(name: str) -> str:
    """The line on a recipe's field in the docstrings of the verbs."""
    indent = " " * 8
    text = f"{name}: {OPTIONS[name].doc}"
    return textwrap.fill(text, 116, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False)


def recipe_for(verb: Callable[..., object], recipe: Recipe | str | None, fields: Mapping[str, object]) -> Recipe:
    """The recipe that a verb was given, as one or by its ``fields`` as keywords; a level of None was not given.

    Raises UnknownKeyword for what is no field of a recipe; its hint knows the parameters of ``verb`` too.
    """
    given = {name: value for name, value in fields.items() if name != "level" or value is not None}
    return recipe_of(recipe, given, inspect.signature(verb).parameters if given.keys() - OPTIONS.keys() else ())
