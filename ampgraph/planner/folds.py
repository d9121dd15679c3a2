"""Constants behind a convolution that go into its weights and its bias: fewer roundings, and fewer kernels."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..core.arrays import Array
from ..core.dataflow import NONE, Dataflow, Op
from ..core.plan import FOLDS, Rewrite
from ..oplists.traits import Traits
from .options import Options
from .selection import touched

SMALLEST = 2.0**-8  # of the largest weight of a channel: below it float16 has fewer digits for the others


@dataclass(frozen=True)
class Fold:
    """A product, the operators behind it that go into it, in their order, and the identities that fall away with them.
    ``name``: the rewrite that does most of it."""

    product: Op
    chain: tuple[Op, ...]
    idle: tuple[Op, ...]
    name: str

    def rewrite(self, flow: Dataflow) -> Rewrite:
        """The same for a plan."""
        result = self.chain[-1]
        nodes = sorted(op.index for op in (self.product, *self.chain[:-1], *self.idle))
        inputs = tuple(flow.values[v].name for v in self.product.inputs if v != NONE)
        kind, path = self.product.kind, flow.scopes[result.scope].path
        return Rewrite(path, kind, (*nodes, result.index), inputs, 0, 0.0, self.name)


def find_folds(flow: Dataflow, options: Options, names: Collection[str]) -> list[Fold]:
    """What could go into products by rewrites of these names, whatever their types will be."""
    finder = _Chains(flow, options, names)
    biased = flow.with_roles(finder.traits.operators("biased"))
    found = (finder.fold(op) for op in biased if finder.traits.positions(op.role, "biased") and op.slots)
    return [fold for fold in found if fold is not None]


class _Chains:
    def __init__(self, flow: Dataflow, options: Options, names: Collection[str]) -> None:
        self.flow, self.options, self.names = flow, options, names
        self.traits: Traits = options.lists.traits
        self.named = touched(flow, options.named)  # the user speaks of these nodes: they stay

    def fold(self, op: Op) -> Fold | None:
        """What may go into one product."""
        flow, (place,) = self.flow, self.traits.positions(op.role, "biased")
        if op.id in self.named or flow.scopes[op.scope].kind == "function":
            return None
        if not all(self._weight(v) is not None for v in op.inputs[1:] if v != NONE):
            return None
        biased = len(op.inputs) > place and op.inputs[place] != NONE
        chain: list[Op] = []
        idle: list[Op] = []
        most = -1
        while (found := self._next(op, chain[-1] if chain else op)) is not None:
            after, constant = found
            name = self._name(op, after, constant, biased, bool(most > 0))
            if name not in self.names:
                break
            most = max(most, FOLDS.index(name))
            biased |= not self.traits.has(after.role, "scalings")
            chain.append(after)
            idle += self._idle(op, constant)
        if not chain:
            return None
        if most:
            idle += [one for v in op.inputs[1:] if v != NONE for one in self._idle(op, v)]
        return Fold(op, tuple(chain), tuple(idle), FOLDS[most])

    def _next(self, product: Op, op: Op) -> tuple[Op, int] | None:
        """The one reader of an operator's result, with the constant by which it scales or shifts each channel."""
        flow, value = self.flow, op.outputs[0]
        uses = flow.uses[value]
        if len(uses) != 1 or uses[0].op == NONE or uses[0].scope != op.scope:
            return None
        after, place = flow.ops[uses[0].op], uses[0].index
        if after.id in self.named or not self.traits.has(after.role, "affine") or len(after.inputs) != 2:
            return None
        constant = after.inputs[1 - place]
        commutes = self.traits.has(after.role, "additions") or self.traits.has(after.role, "multiplies")
        if constant == NONE or not (commutes or place == 0) or not self._by_channel(constant, product):
            return None
        return after, constant

    def _name(self, op: Op, after: Op, constant: int, biased: bool, scaled: bool) -> str:
        """The rewrite that one step is, nothing where there is none or it is not asked for."""
        if not self.traits.has(after.role, "scalings"):
            return "scale" if biased or scaled else "bias"
        array = self._array(constant)
        private = all(self._private(v) for v in op.inputs[1:] if v != NONE)
        if array is None or not private or not self.traits.has(op.role, "channels_by_rows"):
            return ""
        halves = math.frexp(float(array.reshape(-1)[0]))[0] if array.size == 1 else 0.0
        name = "power" if abs(halves) == 0.5 else "scale"
        divides = self.traits.has(after.role, "divides")
        return name if name in self.names and self._keeps_digits(op, array, divides) else ""

    def _by_channel(self, constant: int, product: Op) -> bool:
        """Whether a constant is one number, or one for each channel of what a product makes."""
        array, root = self._array(constant), self._weight(product.inputs[1])
        shape = None if root is None else self.flow.shape(root)
        if array is None or shape is None or array.dtype.kind != "f" or len(shape) < max(array.ndim, 3):
            return False
        group = self.flow.integers(product, "group") or [1]
        by_rows = self.traits.has(product.role, "channels_by_rows")
        rows, columns = (size if isinstance(size, int) else 0 for size in shape[:2])
        channels = rows if by_rows else columns * group[0]
        each = array.ndim >= len(shape) - 1 and array.shape[1 - len(shape)] == channels
        return array.size == 1 or (each and array.size == channels)

    def _keeps_digits(self, op: Op, factor: Array, divides: bool) -> bool:
        """Whether the weights of every channel times their factor are finite, and as many digits as before."""
        import numpy as np

        root = self._weight(op.inputs[1])
        weights = None if root is None else self.flow.weights.array(self.flow.values[root], limit=1 << 24)
        if weights is None or not np.isfinite(factor).all() or not factor.all():
            return False
        flat = np.abs(factor.reshape(-1).astype(np.float64))
        before = np.abs(weights).reshape(weights.shape[0], -1).max(axis=1).astype(np.float64)
        after = before / flat if divides else before * flat
        small = (after < SMALLEST) & (after < before) & (before > 0)
        return bool((after <= self.options.largest).all()) and (self.options.dtype != "float16" or not small.any())

    def _array(self, value: int) -> Array | None:
        root = self._weight(value)
        return None if root is None else self.flow.weights.array(self.flow.values[root])

    def _weight(self, value: int) -> int | None:
        """The stored tensor that a value is, by way of identities."""
        ops = self._through(value)
        root = ops[-1].inputs[0] if ops else value
        return root if self.flow.values[root].weight else None

    def _through(self, value: int) -> list[Op]:
        found = []
        while (op := self.flow.writer(value)) is not None and self.traits.has(op.role, "nothing_in_inference"):
            found.append(op)
            value = op.inputs[0]
        return found

    def _private(self, value: int) -> bool:
        """Whether one operator alone reads a stored tensor."""
        ops = self._through(value)
        values = [value, *(op.inputs[0] for op in ops)]
        return all(len(self.flow.uses[v]) == 1 for v in values)

    def _idle(self, product: Op, value: int) -> Iterator[Op]:
        """Identities in front of a stored tensor, beside a product, that nothing reads once their reader is gone."""
        for op in self._through(value):
            if len(self.flow.uses[op.outputs[0]]) != 1 or op.scope != product.scope:
                return
            yield op
