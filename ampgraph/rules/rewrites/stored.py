"""Stored tensors that are moved and then added to scores, stored as they are added: TensorRT makes no attention one
kernel into which a Reshape and a Transpose of a stored tensor lead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.arrays import Array
from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ...core.walk import operators_above, value_above
from ..known import Known, named_ops
from ..rewrite import Idle, is_inside


@dataclass(frozen=True)
class StoredMoves(Idle):
    """Stores a tensor as it is after moves. Nodes: those that reshape and transpose the stored tensor ``source``, which
    nobody else reads, up to an addition."""

    names = ("stored",)
    counted = ("stored tensor", "stored as added to scores, no moves between")
    writes = "stored tensor"

    @classmethod
    def find(cls, known: Known) -> Iterator[StoredMoves]:
        """Yields the chains of moves of a stored tensor that end at an addition in front of the target's attention."""
        flow, low = known.flow, known.options.dtype
        forms = known.options.kernels.attention
        for op in flow.with_roles({kind for kind, form in forms.items() if low in form.stored}):
            added = flow.writer(op.inputs[0])
            if added is None or not known.traits.has(added.role, "additions"):
                continue
            for value in added.inputs:
                chain = _moves_of_stored(known, value)
                if chain:
                    yield cls("stored", *cls.place(flow, *chain), flow.values[chain[0].inputs[0]].name)

    @property
    def explanation(self) -> str:
        """What the rewrite did to a node, as `explain` says it."""
        return "a stored tensor is not moved any more, but stored as it is added"

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Stores the tensor as the moves leave it, and takes them away."""
        ops = self.edited(editor)
        (source,) = self.operands(editor, flow)
        array = flow.weights.array(source) if source.weight else None
        self.refuse(array is not None)
        assert array is not None
        for op in ops:
            array = _move(flow, op, array)
        editor.set_numbers(source, array)
        for op in ops:
            self.refuse(editor.bypass(op))


def _moves_of_stored(known: Known, value: int) -> list[Op]:
    """Rewrite of stored tensors: the operators, in their order, that make a value of one by moves, for it alone; empty
    where it is not made so, or the user's patterns name one of them."""
    flow, named = known.flow, named_ops(known)

    def moved_value(op: Op) -> int:
        has_sizes = all(isinstance(size, int) for size in flow.shape(op.outputs[0]) or ("",))
        moves = known.traits.has(op.role, "reshapes") and has_sizes and is_inside(flow, op) and op.id not in named
        return op.inputs[0] if moves and len(flow.uses[op.outputs[0]]) == 1 else NONE

    found, stored = list(operators_above(flow, value, moved_value)), flow.values[value_above(flow, value, moved_value)]
    alone = stored.weight and stored.dtype == FLOAT32 and len(flow.uses[stored.id]) == 1
    return found[::-1] if alone and all(op.scope == stored.scope for op in found) else []


def _move(flow: Dataflow, op: Op, array: Array) -> Array:
    """Rewrite of stored tensors: the numbers as a Transpose or Reshape leaves them."""
    perm = flow.integers(op, "perm")
    if perm is None and op.kind == "Transpose":
        perm = [*range(array.ndim)][::-1]
    shape = [size for size in flow.shape(op.outputs[0]) or () if isinstance(size, int)]
    return array.transpose(perm) if perm is not None else array.reshape(shape)
