"""A constant that is added to a convolution becomes its bias: one rounding less, and one operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.dataflow import NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ...core.walk import first_operand_of, operators_above, sole_reader, value_above
from ...oplists.traits import Traits, traits
from ..known import IsLow, Known, named_ops
from ..rewrite import RewriteRule, all_low, in_function

MOST = 1 << 16  # elements of a bias


@dataclass(frozen=True)
class Bias(RewriteRule):
    """Makes a constant the bias of a product. Nodes: the product, of kind ``operator``, identities in front of the
    constant that nobody reads any more, and last its addition or subtraction. ``read``: names of what the product reads
    before, by which a plan of another model is refused."""

    operator: str
    read: tuple[str, ...]

    names = ("bias",)

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return self.operator

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of what the product reads, for plans of format 1, which list them."""
        return self.read

    @classmethod
    def find(cls, known: Known) -> Iterator[Bias]:
        """Yields every product with a constant added behind it that can become its bias."""
        flow, named = known.flow, named_ops(known)
        for op in flow.with_roles(known.traits.operators("biased")):
            after = _constant_addition(flow, known.traits, op) if op.slots and not in_function(flow, op) else None
            if after is not None and named.isdisjoint((op.id, after.id)):
                before = [op, *_identities_before_constant(flow, known.traits, op, after)]
                ops = [*sorted(before, key=lambda node: node.index), after]
                read = tuple(flow.values[v].name for v in op.inputs if v != NONE)
                yield cls("bias", *cls.place(flow, *ops), op.kind, read)

    @classmethod
    def from_old(cls, name: str, scope: str, nodes: tuple[int, ...], row: Mapping[str, Any]) -> Bias:
        """The rewrite that a row of plan format 1 means."""
        return cls(name, scope, nodes, row["kind"], tuple(row["inputs"]))

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Whether product and addition are low."""
        ops = self.ops(known.flow)
        return all_low((ops[-1], next(op for op in ops if known.traits.positions(op.role, "biased"))), is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Moves the product to the addition's place, where it reads the constant (negated for a subtraction) as one
        number a channel; addition, identities and tensors that nobody reads any more are removed."""
        ops, known = self.edited(editor), traits()
        product, last = next((op for op in ops if known.positions(op.role, "biased")), None), ops[-1]
        self.refuse(product is not None and _constant_addition(flow, known, product) is last)
        assert product is not None
        names = tuple(flow.values[v].name for v in product.inputs if v != NONE)
        idle = [op for op in ops if op not in (product, last)]
        self.refuse((self.operator, self.read) == (product.kind, names))
        self.refuse(all(known.has(op.role, "nothing_in_inference") for op in idle))
        read = dict.fromkeys(v for op in ops for v in op.inputs if v != NONE)
        constant = flow.weights.array(flow.values[_before_identities(flow, known, _constant(product, last))], MOST)
        assert constant is not None
        numbers = constant.reshape(-1) if known.has(last.role, "additions") else -constant.reshape(-1)
        numbers = np.broadcast_to(numbers.astype(np.float32), (_channels(flow, known, product),))
        name = f"{product.name or flow.values[product.outputs[0]].name}_bias"
        value = editor.store(np.ascontiguousarray(numbers), name, product.scope)
        editor.rewire(value, [(self.scope, product.index, known.positions(product.role, "biased")[0])])
        editor.supersede(flow.values[product.outputs[0]], flow.values[last.outputs[0]])
        editor.move(product, last)
        for op in reversed([*idle, last]):
            self.refuse(editor.remove(op))
        for v in read:
            editor.drop_unread(flow.values[v])


def _constant_addition(flow: Dataflow, known: Traits, product: Op) -> Op | None:
    """Rewrite `bias`: the one reader of a product without a bias that adds to it, or subtracts from it, a stored number
    for each channel, or one for all; None where there is no such reader."""
    places, weights = known.positions(product.role, "biased"), product.inputs[1:]
    if not places or (len(product.inputs) > places[0] and product.inputs[places[0]] != NONE):
        return None
    after = sole_reader(flow, product.outputs[0], product.scope)
    if after is None:
        return None
    shifts = known.has(after.role, "affine") and not known.has(after.role, "scalings") and len(after.inputs) == 2
    if not shifts or not (known.has(after.role, "additions") or after.inputs[0] == product.outputs[0]):
        return None
    roots = [_before_identities(flow, known, v) for v in (*weights, _constant(product, after)) if v != NONE]
    stored = NONE not in roots and all(flow.values[root].weight for root in roots)
    return after if stored and _fits_channels(flow, known, roots[-1], product) else None


def _constant(product: Op, after: Op) -> int:
    """Rewrite `bias`: the operand of an addition beside the product's result; NONE where it has no other."""
    return next((v for v in after.inputs if v != product.outputs[0]), NONE)


def _before_identities(flow: Dataflow, known: Traits, value: int) -> int:
    """Rewrite `bias`: a value before identities."""
    return value_above(flow, value, first_operand_of(known.operators("nothing_in_inference")))


def _channels(flow: Dataflow, known: Traits, product: Op) -> int:
    """Rewrite `bias`: how many channels a product makes, by the shape of its weights; 0 where that is not known."""
    shape = flow.shape(_before_identities(flow, known, product.inputs[1]))
    rows, columns = (size if isinstance(size, int) else 0 for size in (shape or (0, 0))[:2])
    group = flow.integers(product, "group") or [1]
    return rows if known.has(product.role, "channels_by_rows") else columns * group[0]


def _fits_channels(flow: Dataflow, known: Traits, constant: int, product: Op) -> bool:
    """Rewrite `bias`: whether a stored tensor is one number, or has one for each channel of a product."""
    array = flow.weights.array(flow.values[constant], MOST)
    shape = flow.shape(_before_identities(flow, known, product.inputs[1]))
    if array is None or shape is None or array.dtype.kind != "f" or len(shape) < max(array.ndim, 3):
        return False
    channels = _channels(flow, known, product)
    each = array.ndim >= len(shape) - 1 and array.shape[1 - len(shape)] == channels
    return array.size == 1 or (each and array.size == channels)


def _identities_before_constant(flow: Dataflow, known: Traits, product: Op, after: Op) -> Iterator[Op]:
    """Rewrite `bias`: identities in front of the constant, beside the product, that nothing will read."""
    idle = first_operand_of(known.operators("nothing_in_inference"))
    for op in operators_above(flow, _constant(product, after), idle):
        if len(flow.uses[op.outputs[0]]) != 1 or op.scope != product.scope:
            return
        yield op
