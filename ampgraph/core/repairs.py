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
        """The repair as options of the command line, ``--fp32 PATTERN`` each."""
        return fp32_options(self.patterns)

    def to_dict(self) -> JsonObject:
        """The repair as plain data for JSON; null for an infinite error."""
        error = self.error if math.isfinite(self.error) else None
        return {"options": list(self.options), "error": error, "recipe": self.recipe}


@dataclass(frozen=True)
class RepairOutcome:
    """What a search for a repair found: a repair, or in ``none`` why none; ``tried``: how many conversions."""

    repair: Repair | None
    none: str = ""
    tried: int = 0


def fp32_options(patterns: Iterable[str]) -> tuple[str, ...]:
    """A `Repair`'s patterns as options, ``--fp32 PATTERN`` each, quoted for a shell."""
    return tuple(f"--fp32 {shlex.quote(pattern)}" for pattern in patterns)


def options_text(options: tuple[str, ...]) -> str:
    """Options of a `Repair` on one line: the first `SHOWN` of them, and how many more there are."""
    more = f" and {len(options) - SHOWN} more, see --json" if len(options) > SHOWN else ""
    return f"{' '.join(options[:SHOWN])}{more}"
