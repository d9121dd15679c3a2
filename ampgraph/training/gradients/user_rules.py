"""`ampgraph.gradient`: the built-in rules are declared first, so that a rule of the user replaces one of them."""

from __future__ import annotations

from . import rules  # noqa: F401
from .registry import gradient

__all__ = ["gradient"]
