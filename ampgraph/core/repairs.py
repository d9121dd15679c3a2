"""Repairs: options of `convert` that were tried before they are printed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from .json_types import JsonObject

SHOWN = 8  # options on a line; --json has all


@dataclass(frozen=True)
class Repair:
    """Options with which a model was converted again and run on the same samples.

    Attributes:
        patterns: what is pinned to float32, as ``fp32`` takes it.
        error: what is left of the error, measured as before.
        recipe: what it was converted with beside, as the short text of a recipe.
    """

    patterns: tuple[str, ...]
    error: float
    recipe: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """The repair as options of the command line."""
        return fp32_options(self.patterns)

    def to_dict(self) -> JsonObject:
        """The repair as plain data for JSON."""
        error = self.error if math.isfinite(self.error) else None
        return {"options": list(self.options), "error": error, "recipe": self.recipe}


@dataclass(frozen=True)
class RepairOutcome:
    """What became of a search: a repair, or in ``none`` why nothing repairs it; ``tried``: how many conversions."""

    repair: Repair | None
    none: str = ""
    tried: int = 0


def fp32_options(patterns: Iterable[str]) -> tuple[str, ...]:
    """A `Repair` as options: ``--fp32 PATTERN`` for each, quoted as a shell reads them."""
    return tuple(f"--fp32 {shlex.quote(pattern)}" for pattern in patterns)


def options_text(options: tuple[str, ...]) -> str:
    """Of a `Repair`: the first of some options, and how many more there are."""
    more = f" and {len(options) - SHOWN} more, see --json" if len(options) > SHOWN else ""
    return f"{' '.join(options[:SHOWN])}{more}"
