"""Sums of products that cancel: a small result of two large ones, each of which the low type would round.

A variance is the mean of squares less the square of a mean, whatever takes the mean: a pool, a product with a window, a
sum with weights; a covariance likewise. A squared distance is |x|^2 - 2 x y + |y|^2, whose middle is a product, and so
may its ends be where each feature has a weight of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import islice

from ...core.dataflow import NONE, Dataflow, Op
from ...core.walk import carried_values, operators_above, upstream
from ...oplists.traits import Trait
from .rule import Sight, Spoilt, looks

STEPS = 8  # operators looked back for a mean
TERMS = 64  # operators of a sum of products that are looked at, itself among them
Path = Mapping[int, Op]
"""Operators by number."""


@looks(
    "cancelling",
    "cancels",
    trigger="a variance, a covariance, a squared distance or a quadratic form taken as a difference of large sums of "
    "products",
    action="float32 for the sums and the difference",
)
def small_difference(sight: Sight, op: Op) -> Spoilt:
    """The sums and their difference, where the low type would round both to more than what is left."""
    ops, dtype = sight.compute_once(Cancelling).behind(op), sight.facts.options.dtype
    text = f"{op.kind} takes a small result of large sums of products, which {dtype} would round"
    return (text, ops) if ops else None


class Cancelling:
    """Looks for sums of products that cancel, from the operator that adds or subtracts. ``squares``: id of an operator
    that squares -> the value that it squares; ``keeping``: kinds that keep a value's numbers."""

    def __init__(self, sight: Sight) -> None:
        facts = self.facts = sight.facts
        self.regions = sight.regions
        self.flow, self.traits = facts.flow, facts.traits
        self.keeping = self.traits.operators("reshapes", "conversions")
        self.squares = {op: v for op, v in facts.squares.items() if self._is_free(op)}

    def behind(self, op: Op) -> list[Op]:
        """All operators that must be float32 where ``op`` takes a difference that cancels; empty where it does not."""
        if not self._is_free(op.id):
            return []
        return self._variance(op) or self._squared_distance(op) or self._remainder(op)

    # -- E[x y] - E[x] E[y] -------------------------------------------------------------------------------------------

    def _variance(self, op: Op) -> list[Op]:
        """What must be float32 where an operator computes a variance or a covariance as a mean of products less a
        product of means; empty for any other."""
        inputs = [v for v in op.inputs if v != NONE]
        if len(inputs) != 2 or self._computed_products.isdisjoint(inputs):
            return []
        for mean, square in (inputs, inputs[::-1]):
            product = self.flow.writer(self._origin_and_path(square)[0])
            if product is not None and self._multiplies(product):
                parts = [self._linear_parts(v) for v in self._factors(product)]
                found = self._mean_of_products(mean, product, parts)
                if found:
                    return [op, product, *found]
        return []

    def _mean_of_products(self, mean: int, square: Op, parts: list[dict[int, Path]]) -> list[Op]:
        """The operators that make ``mean`` out of products of values that the factors of ``square`` are the means of;
        empty where none do. ``parts``: of each of the two factors, as `_linear_parts` returns them."""

        def adds_up(path: Path) -> bool:
            return any(self._has(op, "sums", "products") for op in path.values())

        for value, path in self._linear_parts(mean).items():
            op = self.flow.writer(self._origin_and_path(value)[0])
            if op is None or op.id == square.id or not self._multiplies(op) or not adds_up(path):
                continue
            own = [self._origin_and_path(v)[0] for v in self._factors(op)]
            for first, second in (own, own[::-1]):
                one, two = parts[0].get(first), parts[1].get(second)
                if one is not None and two is not None and adds_up(one) and adds_up(two):
                    between = {**path, **one, **two, op.id: op}
                    return list({**between, **self._weights(between)}.values())
        return []

    @cached_property
    def _computed_products(self) -> set[int]:
        """For a difference that cancels: products of two computed values, and what may be made of such by moves."""
        making = {self.flow.ops[op].role for op in self.squares} | self.traits.operators("multiplies")
        ops = self.flow.with_roles(making | self.keeping | self.traits.operators("scalings"))
        return carried_values(ops, self._multiplies, lambda op: True)

    def _weights(self, path: Path) -> Path:
        """For a difference that cancels: each Softmax that computes weights by which operators of ``path`` multiply;
        rounded, these would no longer add up to one."""
        read = [v for op in path.values() for v in op.inputs if v != NONE and self._has(op, "scalings")]
        makers = [self.flow.writer(self._origin_and_path(v)[0]) for v in read]
        return {op.id: op for op in makers if op is not None and self._has(op, "softmaxes")}

    def _multiplies(self, op: Op) -> bool:
        """For a difference that cancels: whether an operator multiplies two values, of which neither is stored."""
        if op.id in self.squares:
            return not self._has(op, "sums_squares")
        return self._is_free(op.id) and self._has(op, "multiplies") and self.facts.stored.isdisjoint(op.inputs)

    def _factors(self, op: Op) -> list[int]:
        """For a difference that cancels: what an operator multiplies; a square multiplies the same value twice."""
        squared = self.squares.get(op.id)
        return [v for v in op.inputs if v != NONE] if squared is None else [squared, squared]

    def _linear_parts(self, value: int) -> dict[int, Path]:
        """For a difference that cancels: of what ``value`` is a sum of multiples: part -> the operators in between."""
        start, moved = self._origin_and_path(value)
        found, work = {start: moved}, [(start, STEPS)]
        while work:
            value, left = work.pop()
            op = self.flow.writer(value)
            if op is None or not left or op.id in self.squares or not self._is_free(op.id):
                continue
            if self._has(op, "sums", "products", "scalings"):
                for before in (v for v in op.inputs if v != NONE and not self.flow.values[v].weight):
                    origin, moved = self._origin_and_path(before)
                    if origin not in found:
                        found[origin] = {**found[value], op.id: op, **moved}
                        work.append((origin, left - 1))
        return found

    # -- |x|^2 - 2 x y + |y|^2 ----------------------------------------------------------------------------------------

    def _squared_distance(self, op: Op) -> list[Op]:
        """What must be float32 where a sum has a product and the squares of one of its operands, as a squared distance
        has: the terms of the sum, squares with a weight for each feature, and what only scales or reshapes an operand
        before it is multiplied; empty for any other."""
        if self._sums_of_squares.isdisjoint(op.inputs):
            return []
        terms = self._terms(op)
        squares = [term for term in terms if term.id in self.squares]
        products = [term for term in terms if term.id not in self.squares and self._has(term, "products")]
        read = {v: self._origin_and_path(v) for product in products for v in product.inputs if v != NONE}
        makers = [self.flow.writer(origin) for origin, _ in read.values()]
        # a square with a weight for each feature is no term by itself: a product reads it
        weighed = [maker for maker in makers if maker is not None and maker.id in self.squares]
        squared = {self._origin_and_path(self.squares[square.id])[0] for square in (*squares, *weighed)}
        paths = [path for origin, path in read.values() if origin in squared]  # from what is squared to the products
        between = {op.id: op for path in paths for op in path.values()}
        return [*terms, *weighed, *between.values()] if paths else []

    def _terms(self, op: Op) -> list[Op]:
        """For a difference that cancels: the sum ``op``, and what makes its terms: sums, multiples and moves, back to
        products and squares, with these. Of the first `TERMS` operators that a walk back from ``op`` meets."""

        def further(before: Op) -> list[int]:
            if before.id in self.squares or self._has(before, "products"):
                return []
            return before.inputs if before is op or self._adds(before) else []

        found = islice(upstream(self.flow, op.outputs, further), TERMS)
        return [before for before in found if before is op or self._adds(before)]

    def _adds(self, op: Op) -> bool:
        """For a difference that cancels: whether an operator may be part of a sum of products."""
        if op.id in self.squares:
            return True
        if not self._is_free(op.id):
            return False
        scales_by_stored = self._has(op, "scalings") and not self.facts.stored.isdisjoint(op.inputs)
        return scales_by_stored or self._has(op, "products", "cancels", "conversions", "moves", "negates", "sums")

    @cached_property
    def _sums_of_squares(self) -> set[int]:
        """For a difference that cancels: values that are squares, or sums with squares among their terms."""

        def carries(op: Op) -> bool:
            of_computed = self._has(op, "products") and self.facts.stored.isdisjoint(op.inputs)
            return not of_computed and self._adds(op)

        return carried_values(self.flow.ops if self.squares else (), lambda op: op.id in self.squares, carries)

    # -- a number less a quadratic form --------------------------------------------------------------------------------

    def _remainder(self, op: Op) -> list[Op]:
        """What must be float32 where a sum of k times (K k) is subtracted from a number and almost nothing is left, as
        of a prior's variance in a Gaussian process; empty where an operator does no such thing."""
        subtracted = [op.inputs[place] for place in self.traits.positions(op.role, "subtracts")]
        for total in _makers(self.flow, op):
            for form in _makers(self.flow, total) if total.outputs == subtracted and self._has(total, "sums") else ():
                makers = _makers(self.flow, form)
                is_form = form.id in self.squares and self._has(form, "multiplies")
                if is_form and any(self._has(maker, "products") for maker in makers):
                    return [op, total, form, *makers]
        return []

    # -- small things -------------------------------------------------------------------------------------------------

    def _has(self, op: Op, *traits: Trait) -> bool:
        """For a difference that cancels: whether an operator has one of some traits."""
        return op.role in self.traits.operators(*traits)

    def _is_free(self, op: int) -> bool:
        """For a difference that cancels: whether an operator (its id) has a type to decide and is in no norm."""
        return op not in self.regions.inside and bool(self.flow.ops[op].slots)

    def _origin_and_path(self, value: int) -> tuple[int, Path]:
        """For a difference that cancels: the value that another is made of by reshapes, conversions and multiplication
        by a number alone, and these operators, nearest first."""
        found = {op.id: op for op in operators_above(self.flow, value, self._value_before)}
        return (self._value_before([*found.values()][-1]) if found else value), found

    def _value_before(self, op: Op) -> int:
        """For a difference that cancels: the value that an operator reshapes, converts, or multiplies or divides by a
        number; NONE where it does something else."""
        if not op.inputs or not self._is_free(op.id):
            return NONE
        if op.role in self.keeping:
            return op.inputs[0]
        if op.id in self.squares or not self._has(op, "scalings"):
            return NONE
        others = [v for v in op.inputs if v != NONE and self.flow.scalar(v) is None]
        divisors = [op.inputs[place] for place in self.traits.positions(op.role, "divides")]
        return others[0] if len(others) == 1 and others[0] not in divisors else NONE


def _makers(flow: Dataflow, op: Op) -> list[Op]:
    """The operators that make the operands of one."""
    writers = [flow.writer(v) for v in op.inputs if v != NONE]
    return [writer for writer in writers if writer is not None]
