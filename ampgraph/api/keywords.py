"""How the verbs take a recipe: as ``recipe=``, and its fields as keywords, of which each replaces the recipe's own."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..core.recipe import DEFAULTS, OPTIONS, Recipe, RecipeFields, recipe_of

Verb = TypeVar("Verb", bound=Callable[..., object])


def takes_recipe(verb: Verb) -> Verb:
    """A decorator of verbs that take a recipe's fields as ``**fields``: puts each field that is no parameter of its own
    into the verb's signature, for `help` and editors, and its line into the docstring, behind the line ``**fields:``.
    The verb itself is called as before."""
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
    """The text on a recipe's field in the docstrings of the verbs, wrapped and indented as an entry of ``Args:``."""
    indent = " " * 8
    text = f"{name}: {OPTIONS[name].doc}"
    return textwrap.fill(text, 116, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False)


def recipe_for(verb: Callable[..., object], recipe: Recipe | str | None, fields: Mapping[str, object]) -> Recipe:
    """The recipe that a verb was given, with its ``fields``, given as keywords, in place of the recipe's own; a level
    of None is not given.

    Raises UnknownKeyword for a field that recipes do not have; its "did you mean" knows the parameters of ``verb`` too.
    """
    given = {name: value for name, value in fields.items() if name != "level" or value is not None}
    unknown = given.keys() - OPTIONS.keys()
    return recipe_of(recipe, given, inspect.signature(verb).parameters if unknown else ())
