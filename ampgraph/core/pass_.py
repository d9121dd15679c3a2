"""A pass is a frozen dataclass: its fields are its options, valid graph in and out, a second run changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import AmpError


@dataclass(frozen=True)
class Change:
    """How much a pass changed, and what the user should hear of it."""

    count: int
    notes: tuple[str, ...] = field(default=())


def foreign(text: str, verb: str = "does not have") -> AmpError:
    """A plan that speaks of something else than this model: AMP402."""
    hint = "a plan fits the model it was made for: make it again"
    return AmpError("AMP402", f"the plan {text}, which this model {verb}", hint=hint)
