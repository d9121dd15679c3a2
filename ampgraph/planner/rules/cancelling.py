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
TERMS = 64  # operators of a sum of products that are looked at
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
    ops, dtype = sight.of(Cancelling).behind(op), sight.facts.options.dtype
    text = f"{op.kind} takes a small result of large sums of products, which {dtype} would round"
    return (text, ops) if ops else None


class Cancelling:
    """Looks for sums of products that cancel, from the operator that adds or subtracts."""

    def __init__(self, sight: Sight) -> None:
        facts = self.facts = sight.facts
        self.regions = sight.regions
        self.flow, self.traits = facts.flow, facts.traits
        self.keeping = self.traits.operators("reshapes", "conversions")
        self.squares = {op: v for op, v in facts.squares.items() if self._is_free(op)}

    def behind(self, op: Op) -> list[Op]:
        """All that must be float32 for a difference that cancels; empty where none is known to."""
        if not self._is_free(op.id):
            return []
        return self._variance(op) or self._squared_distance(op) or self._remainder(op)

    # -- E[x y] - E[x] E[y] -------------------------------------------------------------------------------------------

    def _variance(self, op: Op) -> list[Op]:
        """What must be float32 where an operator computes a variance or a covariance as a mean of products less a
        product of means; empty for any other."""
        inputs = [v for v in op.inputs if v != NONE]
        if len(inputs) != 2 or self._multiplied.isdisjoint(inputs):
            return []
        for mean, square in (inputs, inputs[::-1]):
            product = self.flow.writer(self._origin_and_path(square)[0])
            if product is not None and self._multiplies(product):
                ways = [self._linear_parts(v) for v in self._factors(product)]
                if found := self._mean_of_products(mean, product, ways):
                    return [op, product, *found]
        return []

    def _mean_of_products(self, mean: int, square: Op, ways: list[dict[int, Path]]) -> list[Op]:
        """The operators that make ``mean`` out of products of values that the factors of ``square`` are the means of;
        empty where none do."""

        def adds_up(path: Path) -> bool:
            return any(self._has(op, "sums", "products") for op in path.values())

        for value, path in self._linear_parts(mean).items():
            op = self.flow.writer(self._origin_and_path(value)[0])
            if op is None or op.id == square.id or not self._multiplies(op) or not adds_up(path):
                continue
            own = [self._origin_and_path(v)[0] for v in self._factors(op)]
            for first, second in (own, own[::-1]):
                one, two = ways[0].get(first), ways[1].get(second)
                if one is not None and two is not None and adds_up(one) and adds_up(two):
                    between = {**path, **one, **two, op.id: op}
                    return list({**between, **self._weights(between)}.values())
        return []

    @cached_property
    def _multiplied(self) -> set[int]:
        """Values that are products of two computed values, or made of those by what may only move, convert or scale
        them."""
        making = {self.flow.ops[op].role for op in self.squares} | self.traits.operators("multiplies")
        ops = self.flow.with_roles(making | self.keeping | self.traits.operators("scalings"))
        return carried_values(ops, self._multiplies, lambda op: True)

    def _weights(self, path: Path) -> Path:
        """The operators that compute a mean's weights, which would no longer add up to one if they were rounded."""
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
        """For a difference that cancels: value -> the operators through which ``value`` is a sum of multiples of it."""
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
        has; empty for any other."""
        if self._powers.isdisjoint(op.inputs):
            return []
        terms = self._terms(op)
        squares = [t for t in terms if t.id in self.squares]
        read = {
            v: self._origin_and_path(v)
            for t in terms
            if t.id not in self.squares and self._has(t, "products")
            for v in t.inputs
            if v != NONE
        }
        makers = [self.flow.writer(origin) for origin, _ in read.values()]
        weighed = [w for w in makers if w is not None and w.id in self.squares]
        squared = {self._origin_and_path(self.squares[s.id])[0] for s in (*squares, *weighed)}
        moved = [path for origin, path in read.values() if origin in squared]
        between = {op.id: op for path in moved for op in path.values()}
        return [*terms, *weighed, *between.values()] if moved else []

    def _terms(self, op: Op) -> list[Op]:
        """The operators that make what is added up in a sum: through sums, multiples and moves to products and squares,
        with these."""

        def further(one: Op) -> list[int]:
            ends = one.id in self.squares or self._has(one, "products") or not (one is op or self._adds(one))
            return [] if ends else one.inputs

        before = islice(upstream(self.flow, op.outputs, further), TERMS)
        return [one for one in before if one is op or self._adds(one)]

    def _adds(self, op: Op) -> bool:
        """For a difference that cancels: whether an operator may be part of a sum of products."""
        if op.id in self.squares:
            return True
        kept = self._has(op, "products", "cancels", "conversions", "moves", "negates", "sums")
        return self._is_free(op.id) and (
            kept or (self._has(op, "scalings") and not self.facts.stored.isdisjoint(op.inputs))
        )

    @cached_property
    def _powers(self) -> set[int]:
        """Values that are sums of squares and of what else is added to them."""

        def carries(op: Op) -> bool:
            known = not self._has(op, "products") or not self.facts.stored.isdisjoint(op.inputs)
            return known and self._adds(op)

        return carried_values(self.flow.ops if self.squares else (), lambda op: op.id in self.squares, carries)

    # -- a number less a quadratic form --------------------------------------------------------------------------------

    def _remainder(self, op: Op) -> list[Op]:
        """What must be float32 where a number is taken less a sum of k times (K k), of which almost nothing is left, as
        of a prior's variance in a Gaussian process; empty where an operator takes no such thing."""
        taken = [op.inputs[place] for place in self.traits.positions(op.role, "subtracts")]
        totals = (w for w in _makers(self.flow, op) if w.outputs == taken and self._has(w, "sums"))
        for total, form in ((one, made) for one in totals for made in _makers(self.flow, one)):
            if form.id in self.squares and self._has(form, "multiplies"):
                makers = _makers(self.flow, form)
                if any(self._has(w, "products") for w in makers):
                    return [op, total, form, *makers]
        return []

    # -- small things -------------------------------------------------------------------------------------------------

    def _has(self, op: Op, *traits: Trait) -> bool:
        """Whether the operator has one of the traits."""
        return op.role in self.traits.operators(*traits)

    def _is_free(self, op: int) -> bool:
        """Whether an operator has a type to decide, and is part of no norm."""
        return op not in self.regions.inside and bool(self.flow.ops[op].slots)

    def _origin_and_path(self, value: int) -> tuple[int, Path]:
        """What a value was before reshapes, conversions and multiplication by a number, and the operators that these
        are."""
        found = {op.id: op for op in operators_above(self.flow, value, self._scaled)}
        return self._scaled([*found.values()][-1]) if found else value, found

    def _scaled(self, op: Op) -> int:
        """What an operator reshapes, converts or multiplies by a number; NONE where it does something else."""
        if not op.inputs or not self._is_free(op.id):
            return NONE
        if op.role in self.keeping:
            return op.inputs[0]
        if op.id in self.squares or not self._has(op, "scalings"):
            return NONE
        plain = [v for v in op.inputs if v != NONE and self.flow.scalar(v) is None]
        over = [op.inputs[place] for place in self.traits.positions(op.role, "divides")]
        return plain[0] if len(plain) == 1 and plain[0] not in over else NONE


def _makers(flow: Dataflow, op: Op) -> list[Op]:
    """The operators that make what one reads."""
    return [w for v in op.inputs if v != NONE and (w := flow.writer(v)) is not None]
