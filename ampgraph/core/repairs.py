"""Repairs: options of `convert` that were tried before they are printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .json_types import JsonObject

SHOWN = 8  # options on a line; --json has all


@dataclass(frozen=True)
class Repair:
    """Options with which a model was converted again and run on the same samples.

    Attributes:
        options: ``--fp32 PATTERN``, quoted as a shell reads them.
        error: what is left of the error, measured as before.
        recipe: what it was converted with beside, as the short text of a recipe.
    """

    options: tuple[str, ...]
    error: float
    recipe: str = ""

    def to_dict(self) -> JsonObject:
        """Plain data for JSON."""
        error = self.error if math.isfinite(self.error) else None
        return {"options": list(self.options), "error": error, "recipe": self.recipe}


@dataclass(frozen=True)
class Mended:
    """What became of a search: a repair, or ``none``, why there is none; ``tried``: how many conversions."""

    repair: Repair | None
    none: str = ""
    tried: int = 0


def listed(options: tuple[str, ...]) -> str:
    """The first of some options, and how many more there are."""
    more = f" and {len(options) - SHOWN} more, see --json" if len(options) > SHOWN else ""
    return f"{' '.join(options[:SHOWN])}{more}"
