"""What rules may ask of a model. The planner answers; a plan is applied without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from ..core.arrays import Array
from ..core.dataflow import Dataflow
from ..core.selection import matched_op_ids
from ..oplists.options import Options
from ..oplists.traits import Traits


class KnownValues(Protocol):
    """Numbers that follow from the file alone."""

    def row(self, value: int) -> Array | None:
        """What a rewrite may know of a value: the numbers of a tensor of few elements in order, NaN for a size that is
        open; None where they are not known."""
        ...

    def number(self, value: int) -> float | None:
        """What a rewrite may know of a value: the number in a tensor of one element, None where it is not known."""
        ...


class Measured(Protocol):
    """What a rewrite may ask of measured ranges: the largest magnitude by value."""

    @property
    def reach(self) -> Mapping[int, float]: ...


class Known(Protocol):
    """What a rewrite may ask: a model, what is wanted of it, and what follows from both."""

    @property
    def flow(self) -> Dataflow: ...
    @property
    def options(self) -> Options: ...
    @property
    def traits(self) -> Traits: ...  # what operators are: as shipped, with the user's lists
    @property
    def passing(self) -> Collection[int]: ...  # values that were measured to leave the low range
    @property
    def measured(self) -> Measured: ...  # what values were measured to reach
    @property
    def values(self) -> KnownValues: ...  # numbers that follow from the file alone


IsLow = Callable[[int], bool]
"""Whether a unit is low in a trial plan."""


def named_ops(known: Known) -> set[int]:
    """The ids of operators that the user's patterns or an earlier conversion name: rewrites leave them as they are."""
    return matched_op_ids(known.flow, known.options.named_patterns)
