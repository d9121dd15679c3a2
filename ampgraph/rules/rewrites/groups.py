"""Heads that share a value: the product repeats it, not a node before it. TensorRT starts a kernel for what is
repeated, and may compute the rows behind in another order and bring them back, where an attention is not one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.dataflow import FLOAT32, Dataflow, Op, Value
from ...core.graph import NodeEditor
from ...core.walk import sole_reader
from ..fusions import scores_before
from ..known import Known, named_ops
from ..rewrite import RewriteRule, is_inside

OPEN = -1  # in a Reshape: what is left; 0 is what stands in the same place before


@dataclass(frozen=True)
class SharedHeads(RewriteRule):
    """Has a product broadcast the value ``shared``, [batch, heads / group, 1, length, width]. Nodes: the one that
    repeats it for each head of a group, the one that makes [batch, heads, length, width] of that, and the product of
    weights [batch, heads, rows, length] with the result."""

    shared: str

    names = ("groups",)
    reading = ("shared",)

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return "product that groups of heads share"

    @classmethod
    def find(cls, known: Known) -> Iterator[SharedHeads]:
        """Yields the products of a Softmax with repeated values, where no scores could be one kernel with them."""
        flow, forms = known.flow, known.options.kernels.attention
        for softmax in flow.with_roles({kind for kind, form in forms.items() if known.options.dtype in form.groups}):
            product = sole_reader(flow, softmax.outputs[0], softmax.scope)
            joins = flow.writer(product.inputs[-1]) if product is not None else None
            repeats = flow.writer(joins.inputs[0]) if joins is not None and joins.inputs else None
            if product is None or joins is None or repeats is None or scores_before(known, softmax):
                continue
            if product.inputs[0] == softmax.outputs[0] and _can_share(known, repeats, joins, product):
                yield cls("groups", *cls.place(flow, repeats, joins, product), flow.values[repeats.inputs[0]].name)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes the product in five dimensions, between Reshapes that split heads by groups and join them again."""
        repeats, joins, product = self.edited(editor)
        (shared,) = self.operands(editor, flow)
        weights, made = flow.values[product.inputs[0]], flow.values[product.outputs[0]]
        views = _split_shapes(flow, shared.id, product)
        self.refuse(bool(views))

        def reshaped(data: Value, sizes: Sequence[int], name: str) -> Value:
            shape = editor.constant(np.array(sizes), f"{name}_shape", data)
            return editor.add("Reshape", [data, shape], [FLOAT32], scope=product.scope, name=name, metadata_of=product)[
                0
            ]

        split = reshaped(weights, views[0], f"{weights.name}_groups")
        name = f"{made.name}_groups"
        (each,) = editor.add(
            product.kind, [split, shared], [FLOAT32], scope=product.scope, name=name, metadata_of=product
        )
        editor.supersede(reshaped(each, views[1], f"{made.name}_heads"), made)
        self.refuse(all(editor.remove(op) for op in (product, joins, repeats)))


def _can_share(known: Known, repeats: Op, joins: Op, product: Op) -> bool:
    """Rewrite `groups`: whether two nodes, for a product alone, repeat one head for each of a group and join all heads,
    and no pattern of the user's names one of the three."""
    flow, traits, ops = known.flow, known.traits, (repeats, joins, product)
    if any(op.scope != product.scope or not op.slots or not is_inside(flow, op) for op in ops):
        return False
    alone = all(len(flow.uses[op.outputs[0]]) == 1 for op in (repeats, joins))
    kinds = traits.has(repeats.role, "moves") and traits.has(joins.role, "keeps_order")
    two = traits.has(product.role, "multiplies_matrices") and flow.values[repeats.inputs[0]].dtype == FLOAT32
    if not (alone and kinds and two) or not named_ops(known).isdisjoint(op.id for op in ops):
        return False
    before, after, all_heads = (flow.shape(v) or () for v in (repeats.inputs[0], repeats.outputs[0], joins.outputs[0]))
    views = _split_shapes(flow, repeats.inputs[0], product)
    if not views:
        return False
    (_, few, group, *_), (_, heads, *_) = views
    return after == (before[0], few, group, *before[3:]) and all_heads == (before[0], heads, *before[3:])


def _split_shapes(flow: Dataflow, shared: int, product: Op) -> list[list[int]]:
    """Rewrite `groups`: the shapes, as Reshapes read them, of a product's weights with their heads split by groups, and
    of its result with all heads; empty where sizes are not known."""
    few, weights, made = (flow.shape(v) or () for v in (shared, product.inputs[0], product.outputs[0]))
    if len(few) != 5 or few[2] != 1 or len(weights) != 4 or len(made) != 4:
        return []
    heads, groups, width = weights[1], few[1], made[3]
    sizes = [size if isinstance(size, int) else OPEN for size in weights[2:]]
    if not (isinstance(heads, int) and isinstance(groups, int) and isinstance(width, int)) or heads % groups:
        return []
    return [[0, groups, heads // groups, *sizes], [0, heads, OPEN, width]] if sizes.count(OPEN) < 2 else []
