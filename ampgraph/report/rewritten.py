"""What the summary says of rewrites."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.plan import HALF_LAST, INVERSE, MAX_AND_MIN, QUOTIENT
from .lines import plural

_SAID = {
    MAX_AND_MIN: "{nodes} written as {kind} each",
    INVERSE: "{nodes} written as {kind} each: the target would fuse them into a kernel of one type, and refuse it",
    QUOTIENT: "{groups} of nodes written as one {kind} each: the form that the target fuses",
    HALF_LAST: "{groups} of nodes written as {kind}: the form that the target fuses",
}
"""Kind of a rewrite -> what is said of it, where it is not a norm."""
_NORM = "{groups} of nodes written as one {kind} each"


def rewritten_rows(rewrites: Mapping[str, int]) -> list[tuple[str, str]]:
    """A row for each kind, with its count."""
    return [
        (
            "rewrites",
            _SAID.get(kind, _NORM).format(groups=plural(count, "group"), nodes=plural(count, "node"), kind=kind),
        )
        for kind, count in rewrites.items()
    ]
