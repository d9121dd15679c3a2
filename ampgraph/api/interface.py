"""What a recipe says of a model's inputs, outputs and dimensions, held against the model."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from ..core.errors import AmpError, nearest
from ..core.graph import Graph


def low_interface(graph: Graph, io: Iterable[str]) -> frozenset[str]:
    """The graph inputs and outputs that are to be low. Raises AmpError AMP305 for a word that means none."""
    words = list(io)
    if not words:
        return frozenset()
    names = graph.interface()
    chosen: set[str] = set()
    for word in words:
        pattern, _, kind = word.partition("=")
        if word == "low":
            chosen |= set(names)
            continue
        matched = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if kind not in ("low", "keep") or not matched:
            problem = f"'{word}' matches no input or output" if not matched else f"'{word}' does not say =low or =keep"
            raise AmpError("AMP305", problem, hint=nearest(pattern, names) or f"there are: {', '.join(names[:8])}")
        chosen = chosen | set(matched) if kind == "low" else chosen - set(matched)
    return frozenset(chosen)


def check_dims(graph: Graph, names: Iterable[str]) -> None:
    """Raises AmpError AMP310 for a dimension that the model does not have."""
    wanted = list(names)
    known = graph.dimensions() if wanted else set()
    for name in wanted:
        if name not in known:
            there = f"there are: {', '.join(sorted(known)[:8])}" if known else "all its dimensions are numbers"
            hint = nearest(name, sorted(known)) or there
            raise AmpError("AMP310", f"--dim {name}: the model has no dimension of that name", hint=hint)
