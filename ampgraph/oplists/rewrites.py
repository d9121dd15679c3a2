"""The rewrites by name, read from rewrites.toml; and what a user's words ask for.

choose_rewrites(())                  # all of them
choose_rewrites(("no-norm",))        # all but one
choose_rewrites(("none", "clip"))    # one alone
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


def choose_rewrites(words: Iterable[str]) -> frozenset[str]:
    """Of op_lists' rewrites those that ``words`` ask for: all, or none behind the word `none`; a name adds one, no-NAME
    takes one away. Raises AmpError AMP301 for an unknown word."""
    known = rewrite_names()
    start, added, removed = set(known), set[str](), set[str]()
    for word in words:
        name = word.removeprefix(WITHOUT)
        if word in (NONE, EXACT, ALL):
            start = set() if word == NONE else set(known)
        elif name not in known:
            words_known = f"{NONE}, {EXACT}, or a name: {', '.join(known)}; no-NAME without"
            hint = nearest(name, [NONE, EXACT, *known]) or words_known
            raise AmpError("AMP301", f"unknown rewrite '{word}'", hint=hint)
        elif name == word:
            added.add(name)
        else:
            removed.add(name)
    return frozenset((start | added) - removed)
