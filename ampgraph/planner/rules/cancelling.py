"""Sums of products that cancel: a small result of two large ones, each of which the low type would round.

A variance is the mean of squares less the square of a mean, whatever takes the mean: a pool, a product with a window, a
sum with weights; a covariance likewise. A squared distance is |x|^2 - 2 x y + |y|^2, whose middle is a product, and so
may its ends be where each feature has a weight of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cached_property

from ...core.dataflow import NONE, Op
from ...oplists.traits import Traits
from ..facts.facts import Facts
from ..regions import Regions
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
    ops, dtype = sight.of(Cancelling).behind(op), sight.facts.options.dtype
    text = f"{op.kind} takes a small result of large sums of products, which {dtype} would round"
    return (text, ops) if ops else None


class Cancelling:
    """Looks for such sums, from the operator that adds or subtracts."""

    def __init__(self, sight: Sight) -> None:
        facts = self.facts = sight.facts
        self.regions = sight.regions
        self.flow, self.traits = facts.flow, facts.traits
        self.keeping = self.traits.operators("reshapes") | self.traits.operators("conversions")
        self.squares = {op: v for op, v in facts.squares.items() if self._is_free(op)}

    def behind(self, op: Op) -> list[Op]:
        """All that must be float32 for a difference that cancels; empty where none is known to."""
        if not self._is_free(op.id):
            return []
        return self._spread(op) or self._distance(op) or _remainder(self.facts, self.regions, self.squares, op)

    # -- E[x y] - E[x] E[y] -------------------------------------------------------------------------------------------

    def _spread(self, op: Op) -> list[Op]:
        """A variance or a covariance."""
        inputs = [v for v in op.inputs if v != NONE]
        if len(inputs) != 2 or self._multiplied.isdisjoint(inputs):
            return []
        for mean, square in (inputs, inputs[::-1]):
            product = self._writer(square)
            if product is None or not self._multiplies(product):
                continue
            ways = [self._linear(v) for v in self._factors(product)]
            found = self._mean_of_products(mean, product, ways)
            if found:
                return [op, product, *found]
        return []

    def _mean_of_products(self, mean: int, square: Op, ways: list[dict[int, Path]]) -> list[Op]:
        """What makes ``mean`` of products of values that the factors of ``square`` are the means of."""
        for value, path in self._linear(mean).items():
            op = self._writer(value)
            if op is None or op.id == square.id or not self._multiplies(op) or not _adds_up(self.traits, path):
                continue
            own = [self._origin(v) for v in self._factors(op)]
            for first, second in (own, own[::-1]):
                one, two = ways[0].get(first), ways[1].get(second)
                if one is not None and two is not None and _adds_up(self.traits, one) and _adds_up(self.traits, two):
                    between = {**path, **one, **two, op.id: op}
                    return list({**between, **self._weights(between)}.values())
        return []

    @cached_property
    def _multiplied(self) -> set[int]:
        """Products of two computed values, and what is made of those by what may only move, convert or scale it."""
        making = {self.flow.ops[op].role for op in self.squares} | self.traits.operators("multiplies")
        found = set[int]()
        for op in self.flow.with_roles(making | self.keeping | self.traits.operators("scalings")):
            if self._multiplies(op) or not found.isdisjoint(op.inputs):
                found.update(op.outputs)
        return found

    def _weights(self, path: Path) -> Path:
        """What makes the weights of a mean: rounded, they do not add up to one."""
        makers = [self._writer(v) for op in path.values() for v in op.inputs if self.traits.has(op.role, "scalings")]
        return {op.id: op for op in makers if op is not None and self.traits.has(op.role, "softmaxes")}

    def _multiplies(self, op: Op) -> bool:
        """Whether an operator multiplies two computed values, of which neither is stored."""
        if op.id in self.squares:
            return not self.traits.has(op.role, "sums_squares")
        return self._is_free(op.id) and self.traits.has(op.role, "multiplies") and not _is_scaled(self.facts, op)

    def _factors(self, op: Op) -> list[int]:
        squared = self.squares.get(op.id)
        return [v for v in op.inputs if v != NONE] if squared is None else [squared, squared]

    def _linear(self, value: int) -> dict[int, Path]:
        """What a value is a sum of multiples of, with the operators between."""
        start = self._origin(value)
        found: dict[int, Path] = {start: self._moved(value)}
        work = [(start, STEPS)]
        while work:
            value, left = work.pop()
            op = self.flow.writer(value)
            if op is None or not left or not self._is_linear(op):
                continue
            for before in (v for v in op.inputs if v != NONE and not self.flow.values[v].weight):
                origin = self._origin(before)
                if origin not in found:
                    found[origin] = {**found[value], op.id: op, **self._moved(before)}
                    work.append((origin, left - 1))
        return found

    def _is_linear(self, op: Op) -> bool:
        known = any(self.traits.has(op.role, t) for t in ("sums", "products", "scalings"))
        return known and op.id not in self.squares and self._is_free(op.id)

    # -- |x|^2 - 2 x y + |y|^2 ----------------------------------------------------------------------------------------

    def _distance(self, op: Op) -> list[Op]:
        """A sum that has a product and the squares of one of its operands."""
        if self._powers.isdisjoint(op.inputs):
            return []
        terms = list(self._terms(op))
        products = [t for t in terms if self._is_product(t)]
        squares = [t for t in terms if t.id in self.squares]
        weighed = [w for t in products for v in t.inputs if (w := self._writer(v)) is not None and w.id in self.squares]
        squared = {self._origin(self.squares[s.id]) for s in (*squares, *weighed)}
        moved = [self._moved(v) for t in products for v in t.inputs if v != NONE and self._origin(v) in squared]
        between = {op.id: op for path in moved for op in path.values()}
        return [*terms, *weighed, *between.values()] if moved else []

    def _is_product(self, op: Op) -> bool:
        return op.id not in self.squares and self.traits.has(op.role, "products")

    def _terms(self, op: Op) -> Iterator[Op]:
        """What is added up in a sum: through sums, multiples and moves to products and squares, with these."""
        seen, work = {op.id}, [op]
        while work and len(seen) < TERMS:
            op = work.pop()
            yield op
            if op.id in self.squares or self.traits.has(op.role, "products"):
                continue
            for value in op.inputs:
                writer = self._writer(value, exact=True)
                if writer is not None and writer.id not in seen and self._adds(writer):
                    seen.add(writer.id)
                    work.append(writer)

    def _adds(self, op: Op) -> bool:
        """Whether an operator may be part of a sum of products."""
        if op.id in self.squares or (self.traits.has(op.role, "products") and self._is_free(op.id)):
            return True
        kept = any(self.traits.has(op.role, t) for t in ("cancels", "conversions", "moves", "negates", "sums"))
        return self._is_free(op.id) and (kept or (self.traits.has(op.role, "scalings") and _is_scaled(self.facts, op)))

    @cached_property
    def _powers(self) -> set[int]:
        """Values that are sums of squares and of what else is added to them."""
        found = set[int]()
        for op in self.flow.ops if self.squares else ():
            carries = any(v in found for v in op.inputs) and self._adds(op)
            if op.id in self.squares or (carries and (not self._is_product(op) or _is_scaled(self.facts, op))):
                found.update(op.outputs)
        return found

    # -- small things -------------------------------------------------------------------------------------------------

    def _is_free(self, op: int) -> bool:
        """Whether an operator is part of no norm."""
        return op not in self.regions.inside and bool(self.flow.ops[op].slots)

    def _writer(self, value: int, exact: bool = False) -> Op | None:
        return self.flow.writer(value if exact or value == NONE else self._origin(value)) if value != NONE else None

    def _origin(self, value: int) -> int:
        """A value before what only reshapes or converts it, or multiplies it by a number."""
        while (step := self._mover(value)) is not None:
            value = step[1]
        return value

    def _moved(self, value: int) -> Path:
        found: dict[int, Op] = {}
        while (step := self._mover(value)) is not None:
            found[step[0].id] = step[0]
            value = step[1]
        return found

    def _mover(self, value: int) -> tuple[Op, int] | None:
        """What makes a multiple of a value, or the value in another shape or type, with that value."""
        op = self.flow.writer(value)
        if op is None or not op.inputs or not self._is_free(op.id):
            return None
        if op.role in self.keeping:
            return op, op.inputs[0]
        if op.id in self.squares or not self.traits.has(op.role, "scalings"):
            return None
        plain = [v for v in op.inputs if v != NONE and self.flow.scalar(v) is None]
        over = self.traits.positions(op.role, "divides")
        return None if len(plain) != 1 or plain[0] in [op.inputs[place] for place in over] else (op, plain[0])


def _is_scaled(facts: Facts, op: Op) -> bool:
    return not facts.stored.isdisjoint(op.inputs)


def _adds_up(traits: Traits, path: Path) -> bool:
    return any(traits.has(op.role, "sums") or traits.has(op.role, "products") for op in path.values())


# -- what is left of a number from which a sum of products is taken that comes close to it -----------------------------


def _remainder(facts: Facts, regions: Regions, squares: Mapping[int, int], op: Op) -> list[Op]:
    """What must be float32 where one less a cosine similarity is the distance of near twins, or a prior's variance less
    a quadratic form of covariances is almost nothing; empty where an operator takes no such thing."""
    flow, places = facts.flow, facts.traits.positions(op.role, "subtracts")
    if not places and not regions.inside:
        return []
    for writer in (flow.writer(v) for v in op.inputs if v != NONE):
        if writer is None:
            continue
        if _ends_cosine(facts, regions, squares, writer) and any(flow.scalar(v) is not None for v in op.inputs):
            return [op, writer]
        taken = [op.inputs[place] for place in places]
        form = _quadratic_form(facts, squares, writer) if taken == writer.outputs else []
        if form:
            return [op, writer, *form]
    return []


def _quadratic_form(facts: Facts, squares: Mapping[int, int], total: Op) -> list[Op]:
    """What makes a sum of k times (K k), with a stored matrix K, and k; empty where it is none."""
    flow, traits = facts.flow, facts.traits
    form = flow.writer(total.inputs[0]) if traits.has(total.role, "sums") and total.inputs[0] != NONE else None
    if form is None or form.id not in squares or not traits.has(form.role, "multiplies"):
        return []
    makers = [w for v in form.inputs if v != NONE and (w := flow.writer(v)) is not None]
    return [form, *makers] if any(traits.has(w.role, "products") for w in makers) else []


def _ends_cosine(facts: Facts, regions: Regions, squares: Container[int], op: Op) -> bool:
    """Whether an operator ends a norm that divides a sum of products of two values. ``squares``: products of one."""
    flow, traits = facts.flow, facts.traits
    if op.id not in regions.inside:
        return False
    for total in (flow.writer(v) for v in op.inputs if v != NONE):
        if total is None or not traits.has(total.role, "sums") or total.id not in regions.of_op:
            continue
        product = flow.writer(total.inputs[0])
        if product is not None and traits.has(product.role, "multiplies") and product.id not in squares:
            return len({v for v in product.inputs if v != NONE}) == 2
    return False
