"""Answers what rules ask of a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from ..core.arrays import Array
from ..core.dataflow import Dataflow, Op
from ..oplists.patterns import Region, find_regions
from ..oplists.traits import Traits
from .computed_numbers import ComputedNumbers
from .context import Context
from .guards.coarse_masks import hidden_by, is_shifted
from .guards.masks import broken_number
from .guards.measured import passing
from .options import Options
from .selection import touched


@dataclass(frozen=True)
class KnownModel:
    """`rules.known.Known` of a planner's context."""

    context: Context

    @property
    def flow(self) -> Dataflow:
        return self.context.flow

    @property
    def options(self) -> Options:
        return self.context.options

    @property
    def traits(self) -> Traits:
        return self.context.traits

    @cached_property
    def regions(self) -> list[Region]:
        """Every region but for products with their bias."""
        return list(find_regions(self.flow))

    @cached_property
    def named(self) -> set[int]:
        """Operators that the user speaks of, or an earlier conversion."""
        return touched(self.flow, self.options.named)

    @cached_property
    def wide(self) -> Collection[int]:
        """Values that somebody wants in float32, or that were measured to leave the low range."""
        ops = touched(self.flow, (*self.options.fp32, *self.options.pinned))
        return {*passing(self.context), *(value for op in ops for value in self.flow.ops[op].outputs)}

    @cached_property
    def _numbers(self) -> ComputedNumbers:
        return ComputedNumbers(self.flow, self.traits)

    def row(self, value: int) -> Array | None:
        """The numbers of a tensor of few, as far as they follow from the file alone."""
        return self._numbers.row(value)

    def number(self, value: int) -> float | None:
        """The number in a tensor of one element, None where it does not follow from the file."""
        return self._numbers.number(value)

    def hides_rows(self, value: int) -> bool:
        """Whether a value is a mask of numbers that float16 cannot add to scores, and not less its largest yet."""
        return not is_shifted(self.context, value) and hidden_by(self.context, value) > 0

    def misread(self, op: Op) -> bool:
        """Whether the target's runtime fails to read the number by which an operator makes a mask."""
        return bool(broken_number(self.context, op))
