"""Outputs that are too small for float16: noise or nothing is left of them, which the measure's floor calls right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from .agreement import FLOOR, Agreement
from .roles import LOGARITHMS, PROBABILITIES

LIKELY = (PROBABILITIES, LOGARITHMS)  # one at most, and as near to zero as they like
LOST = 0.1  # of the size of an output below the floor


def vanishing(outputs: Iterable[Agreement], roles: Mapping[str, str]) -> str:
    """The output that float16 has none of, in words; empty if there is none.

    It is below the measure's floor in every sample, and half of the samples lose a tenth of it or more. ``roles``: what
    `roles_of` says of the outputs; probabilities may be that small.
    """
    for output in outputs:
        largest = max((size for _, size in output.sizes), default=FLOOR)
        if largest >= FLOOR or roles.get(output.name) in LIKELY:
            continue
        lost = median(off / size for off, size in output.sizes)
        if lost >= LOST:
            share = "all" if lost >= 1 else f"{lost:.0%}"
            return f"'{output.name}' vanishes in float16: {share} of it is lost, which is {largest:.2g} at most"
    return ""
