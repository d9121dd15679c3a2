"""The rewrites by name, each with its class, read from rewrites.toml; and what a user's words ask for.

chosen(())                       # the names of class exact
chosen(("all", "no-norm"))       # all but one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from ..core.errors import AmpError, nearest
from .files import own_file

CLASSES = ("none", "exact", "all")
"""Each holds what those before it hold."""

WITHOUT = "no-"


@cache
def classes() -> Mapping[str, str]:
    """The class (exact, fold ...) of each rewrite, by its name."""
    return {name: str(entry["class"]) for name, entry in own_file("rewrites.toml").data.items()}


def chosen(words: Iterable[str]) -> frozenset[str]:
    """The rewrites that words ask for: a class, by default ``exact``, then names that are added or taken away.

    Raises AmpError AMP301 for an unknown word."""
    known = classes()
    level, added, taken = "exact", set[str](), set[str]()
    for word in words:
        name = word.removeprefix(WITHOUT)
        if word in CLASSES:
            level = word
        elif name not in known:
            words_known = [*CLASSES, *known]
            hint = nearest(name, words_known) or f"{', '.join(CLASSES)}, or a name: {', '.join(known)}; no-NAME without"
            raise AmpError("AMP301", f"unknown rewrite '{word}'", hint=hint)
        else:
            (added if name == word else taken).add(name)
    held = {name for name, cls in known.items() if CLASSES.index(cls) <= CLASSES.index(level)}
    return frozenset((held | added) - taken)
