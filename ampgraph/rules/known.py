"""What rules may ask of a model. The planner answers; a plan is applied without it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from ..core.arrays import Array
from ..core.dataflow import Dataflow
from ..oplists.kernels import Kernels
from ..oplists.levels import Level
from ..oplists.operators import OpLists
from ..oplists.traits import Traits


class Asked(Protocol):
    """What is asked for, resolved: the lists, level and kernels that words name."""

    @property
    def level(self) -> Level: ...
    @property
    def lists(self) -> OpLists: ...
    @property
    def kernels(self) -> Kernels: ...
    @property
    def dtype(self) -> str: ...
    @property
    def largest(self) -> float: ...  # the largest finite number of the low type
    @property
    def range_margin(self) -> float: ...  # a value passes the limit when it would overflow this many times over
    @property
    def fp32(self) -> tuple[str, ...]: ...  # patterns of nodes that stay float32
    @property
    def pinned(self) -> tuple[str, ...]: ...  # the same of an earlier conversion
    @property
    def named(self) -> tuple[str, ...]: ...  # patterns of nodes that somebody speaks of
    @property
    def rewrites(self) -> frozenset[str]: ...  # names of the rewrites that are asked for
    def touched(self, flow: Dataflow, patterns: tuple[str, ...]) -> set[int]:
        """The operators that some pattern of the user's names."""
        ...


class NumbersOfFile(Protocol):
    """Numbers that follow from the file alone."""

    def row(self, value: int) -> Array | None:
        """The numbers of a tensor of few in their order; NaN for a size that is open."""
        ...

    def number(self, value: int) -> float | None:
        """The number in a tensor of one element, None where it is not known."""
        ...


class Known(Protocol):
    """A model, what is asked for, and what follows from both."""

    @property
    def flow(self) -> Dataflow: ...
    @property
    def options(self) -> Asked: ...
    @property
    def traits(self) -> Traits: ...  # what operators are: as shipped, with the user's lists
    @property
    def passing(self) -> Collection[int]: ...  # values that were measured to leave the low range
    @property
    def numbers(self) -> NumbersOfFile: ...  # numbers that follow from the file alone


IsLow = Callable[[int], bool]
"""Whether a unit is low in a trial plan."""


def named(known: Known) -> set[int]:
    """Operators that the user speaks of, or an earlier conversion: they stay."""
    return touched(known, known.options.named)


def touched(known: Known, patterns: tuple[str, ...]) -> set[int]:
    """The operators that some pattern names, looked for once."""
    memo = known.flow.memo
    if patterns not in memo:
        memo[patterns] = known.options.touched(known.flow, patterns)
    found: set[int] = memo[patterns]
    return found
