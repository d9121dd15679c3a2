"""Where a model squares: one notion, however a square is written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...core.dataflow import NONE, Dataflow, Op
from ...core.matching import View
from ...core.walk import first_operand_of, value_above
from ...oplists.pattern_files import conventions
from ...oplists.patterns import region_patterns
from ...oplists.traits import Trait, Traits

SQUARING: tuple[Trait, ...] = ("squares", "sums_squares", "powers", "multiplies")
"""Traits of the operators that may square."""


class Squares:
    """Squares and sums of squares of a model: Pow by 2, x * x, two computations of one value multiplied, operators that
    square by themselves, and quadratic forms."""

    def __init__(self, flow: Dataflow, traits: Traits) -> None:
        self.flow, self.traits = flow, traits
        self._has_sums = bool(flow.with_roles(traits.operators("sums")))

    @cached_property
    def of_op(self) -> Mapping[int, int]:
        """Id of an operator that squares -> the value that it squares."""
        may = self.traits.operators(*SQUARING)
        squared = {op.id: self._squared_value(op) for op in self.flow.with_roles(may) if op.slots}
        return {op: value for op, value in squared.items() if value != NONE}

    def _squared_value(self, op: Op) -> int:
        """The value that an operator squares, or of whose quadratic form it is the last product; NONE for none."""
        traits = self.traits
        if traits.has(op.role, "squares") or traits.has(op.role, "sums_squares"):
            return op.inputs[0]
        if traits.has(op.role, "powers"):
            return op.inputs[0] if self.flow.scalar(op.inputs[traits.positions(op.role, "powers")[0]]) == 2 else NONE
        if not traits.has(op.role, "multiplies") or len(op.inputs) != 2 or NONE in op.inputs:
            return NONE
        one, two = op.inputs
        if self.flow.values[one].weight or self.flow.values[two].weight:
            return NONE
        if one == two or self._view.same_computation(self._origin(one), self._origin(two)) is not None:
            return one  # computed alike
        readers = list(self.flow.readers(op.outputs[0])) if self._has_sums else []
        if not readers or not all(traits.has(reader.role, "sums") for reader in readers):
            return NONE
        if self._is_form(one, two):
            return one
        return two if self._is_form(two, one) else NONE

    def _is_form(self, one: int, two: int) -> bool:
        """Whether the second value is the first one times a stored matrix, so that their product, summed, is a
        quadratic form (as in a Mahalanobis distance)."""
        product, traits = self.flow.writer(self._uncast(two)), self.traits
        if product is None or not traits.has(product.role, "products"):
            return False
        if self._uncast(one) not in {self._uncast(v) for v in product.inputs if v != NONE}:
            return False
        return any(v != NONE and self.flow.values[v].weight for v in product.inputs)

    def _uncast(self, value: int) -> int:
        """For squares: the value before Casts of any type."""
        return value_above(self.flow, value, first_operand_of(self.traits.operators("conversions")))

    def _origin(self, value: int) -> int:
        """For squares: the value before Casts that change nothing, and before one in the file that widens it."""
        value = self._view.look_through(value)[0]
        low = self.flow.values[value].low_source
        return value if low == NONE else low

    @cached_property
    def _view(self) -> View:
        """For squares: the dataflow as patterns read it."""
        return View(self.flow, conventions(), region_patterns().roles)
