"""Powers whose small ones count: before a logarithm, or below a quotient.

A transform adds large numbers up to small ones, so that its inputs' rounding is a floor under every power, far above
the floor that models set (log(p + 1e-10)). A logarithm makes small powers as large as the others, and that floor with
them; what divides by a power does the same. Float32 must then begin where the powers come from.
"""

from __future__ import annotations

from functools import cached_property

from ...core.dataflow import NONE, Op
from ...core.walk import carried_values, upstream
from ..facts.values import constants
from .rule import Sight, Spoilt, looks

NARROW = 4  # elements: a sum of so few squares, as of a real and an imaginary part, is a power; one of many is a norm


@looks(
    "spectrum",
    "logarithms",
    "divides",
    "powers",
    trigger="powers of a transform before a logarithm or below a quotient",
    action="float32 from the product that they come from",
)
def small_powers(sight: Sight, op: Op) -> Spoilt:
    """Holds the logarithm of a power, or a quotient by one (a Pow below 0 too), and all from where the powers come: the
    small ones count as much as the large ones."""
    facts, traits = sight.facts, sight.facts.traits
    exponents = [facts.flow.scalar(op.inputs[place]) for place in traits.positions(op.role, "powers")]
    if any(exponent is None or exponent >= 0 for exponent in exponents):
        return None
    divisors = traits.positions(op.role, "divides")
    value = op.inputs[divisors[0]] if divisors else op.inputs[0]
    divides = bool(divisors) or bool(exponents)
    ops = sight.compute_once(Spectra).behind(op, value, narrow=divides)
    verb = "divides by powers" if divides else "magnifies small powers"
    return (f"{op.kind} {verb}: {facts.options.dtype} rounds large ones by as much", ops) if ops else None


class Spectra:
    """Rule on spectra: looks for powers in a model: where they are made, what sums and scales them, and what they are
    made of. ``squares``: ids of operators that square, outside of regions."""

    def __init__(self, sight: Sight) -> None:
        facts = self.facts = sight.facts
        self.regions = sight.regions
        self.flow, self.traits, self.crossings = facts.flow, facts.traits, facts.crossings
        self.squares = {op for op in facts.squares if op not in self.regions.inside}
        self._constant = constants(self.flow, self.traits)

    def behind(self, sink: Op, value: int, narrow: bool) -> list[Op]:
        """All operators that must be float32 for the powers in a value that ``sink`` reads, with this; empty where
        there are none. ``narrow``: only for powers of single coefficients of a transform of the model's own inputs."""

        def is_power(op: Op) -> bool:
            if narrow and (self._is_product(op) or self._adds_many(op)):
                return False
            return not self._powers.isdisjoint(op.outputs)

        def further(op: Op) -> list[int]:
            return op.inputs if is_power(op) and op.id not in self.squares else []

        before = list(filter(is_power, upstream(self.flow, [value], further, self.crossings.origins)))
        squares = [op for op in before if op.id in self.squares]
        origins = self._origins(squares, narrow) if squares else []
        if not squares or (narrow and not any(self._is_raw(op) and self._is_product(op) for op in origins)):
            return []
        return [sink, *before, *origins]

    def _origins(self, squares: list[Op], narrow: bool) -> list[Op]:
        """Rule on spectra: the operators that squares are made of, back to the first products, and on where nothing but
        sums and products of the model's own inputs comes before these. ``narrow``: as of `behind`."""

        def is_origin(op: Op) -> bool:
            if not op.slots or op.id in self.regions.inside or (narrow and self._adds_many(op)):
                return False
            return self._is_constant(op) or self.traits.has(op.role, "spectral")

        def further(op: Op) -> list[int]:
            goes_on = self._is_constant(op) or self._is_raw(op) or not self._is_product(op)
            return [v for v in op.inputs if v != NONE] if goes_on and is_origin(op) else []

        read = [v for op in squares for v in op.inputs if v != NONE]
        return [op for op in upstream(self.flow, read, further, self.crossings.origins) if is_origin(op)]

    def _is_product(self, op: Op) -> bool:
        """Rule on spectra: whether an operator is a transform, or a product, which may be one written out."""
        return self.traits.has(op.role, "transforms")

    def _adds_many(self, op: Op) -> bool:
        """Rule on spectra: whether an operator sums more than `NARROW` elements, which is a norm, no single power."""
        sums = self.traits.has(op.role, "sums") or self.traits.has(op.role, "sums_squares")
        return sums and self.facts.sizes.guessed(op) > NARROW

    # -- seen forwards ------------------------------------------------------------------------------------------------

    @cached_property
    def _powers(self) -> set[int]:
        """Rule on spectra: values that are squares, or made of squares by sums, scalings and moves."""
        return carried_values(self.flow.ops, lambda op: op.id in self.squares, self._carries, self.crossings.copies)

    def _carries(self, op: Op) -> bool:
        """Rule on spectra: whether an operator makes powers of powers; a product only by stored numbers, no bias."""
        if op.id in self.regions.inside or not self.traits.has(op.role, "spectral"):
            return False
        return not self._is_product(op) or (len(op.inputs) == 2 and not self._constant.isdisjoint(op.inputs))

    def _is_constant(self, op: Op) -> bool:
        """Rule on spectra: whether everything an operator writes is stored or follows from what is."""
        return bool(op.outputs) and self._constant.issuperset(op.outputs)

    def _is_linear(self, op: Op) -> bool:
        """Rule on spectra: whether an operator only sums, scales or moves floats, or reads constants alone."""
        return self._is_constant(op) or not op.slots or self.traits.has(op.role, "spectral")

    @cached_property
    def _values_of_network(self) -> set[int]:
        """Rule on spectra: values that more than sums and products separate from the model's inputs."""
        return carried_values(self.flow.ops, lambda op: not self._is_linear(op), lambda op: True, self.crossings.copies)

    def _is_raw(self, op: Op) -> bool:
        """Rule on spectra: whether an operator is part of a transform of the model's inputs."""
        return self._is_linear(op) and self._values_of_network.isdisjoint(op.inputs)
