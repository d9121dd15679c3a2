"""What rules may ask of a model. The planner answers; a plan is applied without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from ..core.arrays import Array
from ..core.dataflow import Dataflow, Op
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


class AddedMasks(Protocol):
    """What is put upon scores before a Softmax."""

    def is_shifted(self, value: int) -> bool:
        """Whether a value is a mask less its own largest number in each row."""
        ...

    def hidden_by(self, value: int) -> float:
        """The largest number behind a mask that float16 cannot add to scores; 0 for none."""
        ...

    def broken_number(self, op: Op) -> str:
        """Why the target's runtime fails to read the number by which an operator makes a mask; or an empty string."""
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
    def reach(self) -> Mapping[int, float]: ...  # the largest magnitude that values were measured to have
    @property
    def numbers(self) -> NumbersOfFile: ...  # numbers that follow from the file alone
    @property
    def masks(self) -> AddedMasks: ...  # what is put upon scores before a Softmax


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
