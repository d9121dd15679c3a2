"""Constants behind a convolution go into its weights and its bias: fewer roundings, and fewer kernels.

y = s * (W x + b) + c becomes (s W) x + (s b + c).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays import Array
from ...core.dataflow import NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ...oplists.traits import Traits, traits
from ..known import IsLow, Known, named_ops
from ..rewrite import RewriteRule, in_function

NAMES = ("bias", "power", "scale")
"""Each computes more anew than those before it."""
SMALLEST = 2.0**-8  # of the largest weight of a channel: below it float16 has fewer digits for the others
MOST = 1 << 24  # elements of weights that are multiplied


@dataclass(frozen=True)
class Fold(RewriteRule):
    """Nodes: a product, ``operator``, the operators behind it, and identities in front of constants that nobody reads
    any more. ``read``: what the product reads."""

    operator: str
    read: tuple[str, ...]

    names = NAMES
    tried = True

    @property
    def writes(self) -> str:
        return self.operator

    @property
    def reads(self) -> tuple[str, ...]:
        """What the product reads: its operands before constants were folded in."""
        return self.read

    @classmethod
    def find(cls, known: Known) -> Iterator[Fold]:
        """Products with a bias, each with the constants behind it that go into its weights."""
        finder, flow = _Chains(known), known.flow
        for op in flow.with_roles(finder.traits.operators("biased")):
            found = finder.fold(op) if finder.traits.positions(op.role, "biased") and op.slots else None
            if found is not None:
                name, ops = found
                read = tuple(flow.values[v].name for v in op.inputs if v != NONE)
                yield cls(name, *cls.place(flow, *ops), op.kind, read)

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Fold:
        """From a row of plan format 1."""
        return cls(name, scope, nodes, row["kind"], tuple(row["inputs"]))

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Where all of it is low; identities have no slot to be decided."""
        chain = _chain(known.flow, self.ops(known.flow))
        return bool(chain) and all(is_low(unit) for op in chain for unit in op.slots.values())

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """The product moves to the last one's place and reads new tensors, computed in float64 and rounded to float32
        once, where they change."""
        ops = self.edited(editor)
        chain = _chain(flow, ops)
        self.refuse(len(chain) > 1)
        product, last = chain[0], chain[-1]
        names = tuple(flow.values[v].name for v in product.inputs if v != NONE)
        self.refuse((self.operator, self.read) == (product.kind, names))
        stored, known = _Stored(flow, traits()), traits()
        (place,) = known.positions(product.role, "biased")
        read = dict.fromkeys(v for op in ops for v in op.inputs if v != NONE)
        given = product.inputs[place] if len(product.inputs) > place else NONE
        factor, bias = _together(stored, chain, None if given == NONE else stored.numbers(given))
        if factor is not None:
            weights = stored.array(product.inputs[1], MOST)
            assert weights is not None
            rows = np.broadcast_to(factor, (len(weights),)).reshape(-1, *[1] * (weights.ndim - 1))
            _store(editor, flow, product, 1, weights * rows)
        if bias is not None:
            _store(editor, flow, product, place, np.broadcast_to(bias, (stored.channels(product),)))
        result = flow.values[product.outputs[0]]
        editor.stand_in(result, flow.values[last.outputs[0]])
        editor.move(product, last)
        for op in reversed([op for op in ops if op is not product]):
            self.refuse(editor.remove(op))
        for value in read:
            editor.drop(flow.values[value])


def _store(editor: NodeEditor, flow: Dataflow, product: Op, place: int, numbers: Array) -> None:
    """Stores a new operand of the product, named after the one before, or after the product where there was none."""
    old = product.inputs[place] if len(product.inputs) > place else NONE
    name = flow.values[old].name if old != NONE else f"{product.name or flow.values[product.outputs[0]].name}_bias"
    value = editor.store(np.ascontiguousarray(numbers, np.float32), name, product.scope)
    editor.give(value, [(flow.scopes[product.scope].path, product.index, place)])


def _chain(flow: Dataflow, ops: Sequence[Op]) -> list[Op]:
    """A product and the operators behind it, in order, up to the last of ``ops``; empty where they are no chain."""
    product = next((op for op in ops if traits().positions(op.role, "biased")), None)
    found, inside = [] if product is None else [product], {op.id for op in ops}
    while found and found[-1] is not ops[-1]:
        uses = flow.uses[found[-1].outputs[0]]
        reader = flow.ops[uses[0].op] if len(uses) == 1 and uses[0].op in inside else None
        if reader is None or len(reader.inputs) != 2 or not traits().has(reader.role, "affine"):
            return []
        constant = reader.inputs[1 - uses[0].index]
        if constant == NONE or _Stored(flow, traits()).root(constant) is None:
            return []
        found.append(reader)
    others = [op for op in ops if op not in found]
    return found if all(traits().has(op.role, "nothing_in_inference") for op in others) else []


def _together(stored: _Stored, chain: Sequence[Op], bias: Array | None) -> tuple[Array | None, Array | None]:
    """The factor and the term by channel that a chain of scalings and shifts amounts to; None for the one that it does
    not have."""
    factor: Array | None = None
    for before, op in zip(chain, chain[1:], strict=False):
        constant = stored.numbers(next(v for v in op.inputs if v != before.outputs[0]))
        if stored.traits.has(op.role, "scalings"):
            by = constant if stored.traits.has(op.role, "multiplies") else 1 / constant
            factor = by if factor is None else factor * by
            bias = None if bias is None else bias * by
        else:
            shift = constant if stored.traits.has(op.role, "additions") else -constant
            bias = shift if bias is None else bias + shift
    return factor, bias


class _Stored:
    """Stored tensors, be they read by way of identities."""

    def __init__(self, flow: Dataflow, traits: Traits) -> None:
        self.flow, self.traits = flow, traits

    def root(self, value: int) -> int | None:
        """The stored tensor behind a value, seen through identities; None for a computed one."""
        ops = self.through(value)
        root = ops[-1].inputs[0] if ops else value
        return root if self.flow.values[root].weight else None

    def through(self, value: int) -> list[Op]:
        """The identities in front of a value."""
        found = []
        while (op := self.flow.writer(value)) is not None and self.traits.has(op.role, "nothing_in_inference"):
            found.append(op)
            value = op.inputs[0]
        return found

    def array(self, value: int, limit: int = 1 << 16) -> Array | None:
        """Its elements, None for what is not stored or has more than ``limit`` of them."""
        root = self.root(value)
        return None if root is None else self.flow.weights.array(self.flow.values[root], limit)

    def numbers(self, value: int) -> Array:
        """A stored constant, in float64 and one dimension."""
        array = self.array(value, MOST)
        assert array is not None
        return array.reshape(-1).astype(np.float64)

    def private(self, value: int) -> bool:
        """Whether one operator alone reads a stored tensor."""
        values = [value, *(op.inputs[0] for op in self.through(value))]
        return all(len(self.flow.uses[v]) == 1 for v in values)

    def channels(self, product: Op) -> int:
        """How many channels a product makes; 0 where that is not known."""
        root = self.root(product.inputs[1])
        shape = None if root is None else self.flow.shape(root)
        rows, columns = (size if isinstance(size, int) else 0 for size in (shape or (0, 0))[:2])
        group = self.flow.integers(product, "group") or [1]
        return rows if self.traits.has(product.role, "channels_by_rows") else columns * group[0]


class _Chains(_Stored):
    """What could go into products, whatever their types will be."""

    def __init__(self, known: Known) -> None:
        super().__init__(known.flow, known.traits)
        self.options, self.named = known.options, named_ops(known)

    def fold(self, op: Op) -> tuple[str, list[Op]] | None:
        """Of all rewrites possible at one product, the name and the operators of the one that folds most."""
        (place,) = self.traits.positions(op.role, "biased")
        if op.id in self.named or in_function(self.flow, op):
            return None
        if not all(self.root(v) is not None for v in op.inputs[1:] if v != NONE):
            return None
        biased = len(op.inputs) > place and op.inputs[place] != NONE
        chain: list[Op] = []
        idle: list[Op] = []
        most = -1
        while (found := self._next(op, chain[-1] if chain else op)) is not None:
            after, constant = found
            name = self._name(op, after, constant, biased, most > 0)
            if name not in self.options.rewrites:
                break
            most = max(most, NAMES.index(name))
            biased |= not self.traits.has(after.role, "scalings")
            chain.append(after)
            idle += self._idle(op, constant)
        if not chain:
            return None
        if most:
            idle += [one for v in op.inputs[1:] if v != NONE for one in self._idle(op, v)]
        return NAMES[most], [*sorted((op, *chain[:-1], *idle), key=lambda one: one.index), chain[-1]]

    def _next(self, product: Op, op: Op) -> tuple[Op, int] | None:
        """The only reader of an operator's result, if it scales or shifts each channel by a constant; with that
        constant."""
        uses = self.flow.uses[op.outputs[0]]
        if len(uses) != 1 or uses[0].op == NONE or uses[0].scope != op.scope:
            return None
        after, place = self.flow.ops[uses[0].op], uses[0].index
        if after.id in self.named or not self.traits.has(after.role, "affine") or len(after.inputs) != 2:
            return None
        constant = after.inputs[1 - place]
        commutes = self.traits.has(after.role, "additions") or self.traits.has(after.role, "multiplies")
        if constant == NONE or not (commutes or place == 0) or not self._by_channel(constant, product):
            return None
        return after, constant

    def _name(self, op: Op, after: Op, constant: int, biased: bool, scaled: bool) -> str:
        """The rewrite that folding one more operator is: "" where there is none, or it is not asked for."""
        if not self.traits.has(after.role, "scalings"):
            return "scale" if biased or scaled else "bias"
        array = self.array(constant)
        private = all(self.private(v) for v in op.inputs[1:] if v != NONE)
        if array is None or not private or not self.traits.has(op.role, "channels_by_rows"):
            return ""
        halves = math.frexp(float(array.reshape(-1)[0]))[0] if array.size == 1 else 0.0
        name = "power" if abs(halves) == 0.5 else "scale"
        divides = self.traits.has(after.role, "divides")
        return name if name in self.options.rewrites and self._keeps_digits(op, array, divides) else ""

    def _by_channel(self, constant: int, product: Op) -> bool:
        """Whether a constant is one number, or one for each channel of what a product makes."""
        array, root = self.array(constant), self.root(product.inputs[1])
        shape = None if root is None else self.flow.shape(root)
        if array is None or shape is None or array.dtype.kind != "f" or len(shape) < max(array.ndim, 3):
            return False
        channels = self.channels(product)
        each = array.ndim >= len(shape) - 1 and array.shape[1 - len(shape)] == channels
        return array.size == 1 or (each and array.size == channels)

    def _keeps_digits(self, op: Op, factor: Array, divides: bool) -> bool:
        """Whether the weights of every channel times their factor are finite, and as many digits as before."""
        weights = self.array(op.inputs[1], MOST)
        if weights is None or not np.isfinite(factor).all() or not factor.all():
            return False
        flat = np.abs(factor.reshape(-1).astype(np.float64))
        before = np.abs(weights).reshape(weights.shape[0], -1).max(axis=1).astype(np.float64)
        after = before / flat if divides else before * flat
        small = (after < SMALLEST) & (after < before) & (before > 0)
        return bool((after <= self.options.largest).all()) and (self.options.dtype != "float16" or not small.any())

    def _idle(self, product: Op, value: int) -> Iterator[Op]:
        """Identities in front of a stored tensor, beside a product, that nothing reads once their reader is gone."""
        for op in self.through(value):
            if len(self.flow.uses[op.outputs[0]]) != 1 or op.scope != product.scope:
                return
            yield op
