"""The rewrites by name, read from rewrites.toml; and what a user's words ask for.

chosen(())                          # all of them
chosen(("no-norm",))                # all but one
chosen(("none", "clip"))            # one alone
"""

from __future__ import annotations

from collections.abc import Iterable

from ..core.errors import AmpError, nearest
from .files import own_file

NONE, EXACT, ALL = "none", "exact", "all"
"""Words for no rewrite, and for every one; ``all`` did more in 0.3."""

WITHOUT = "no-"


def rewrite_names() -> list[str]:
    """All rewrites by name, of op_lists/rewrites.toml, in the order in which they are looked for."""
    return list(own_file("rewrites.toml").data)


def chosen(words: Iterable[str]) -> frozenset[str]:
    """Of op_lists' rewrites those that words ask for: all or none, by default all, then names added or taken away.

    Raises AmpError AMP301 for an unknown word."""
    known = rewrite_names()
    held, added, taken = set(known), set[str](), set[str]()
    for word in words:
        name = word.removeprefix(WITHOUT)
        if word in (NONE, EXACT, ALL):
            held = set() if word == NONE else set(known)
        elif name not in known:
            there = f"{NONE}, {EXACT}, or a name: {', '.join(known)}; no-NAME without"
            hint = nearest(name, [NONE, EXACT, *known]) or there
            raise AmpError("AMP301", f"unknown rewrite '{word}'", hint=hint)
        else:
            (added if name == word else taken).add(name)
    return frozenset((held | added) - taken)
