"""A product behind a Transpose in a form that ONNX Runtime opens.

Its CPU takes a Transpose that makes the first dimension the last but one past the Cast to float32 that follows, as if
to take it into the product, and crashes where it does not know that both operands have as many dimensions:
docs/upstream/transpose_cast_matmul.md. Where the other operand is one matrix the product comes first if the Transpose
moves only dimensions that it spreads, else the matrix gets as many dimensions. Where a number of dimensions is not
known, as of a Reshape to computed sizes before opset 14, the file says those that follow from a Transpose's perm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...core.graph import Attribute, NodeEditor
from ...core.walk import sole_readers
from ..known import IsLow, Known, named_ops
from ..rewrite import RewriteRule, all_low, in_function

RANKS = range(3, 65)  # of what is transposed: with fewer it opens, and a plan may not say more
MATRIX = (1, 2)  # dimensions of a vector, and of one matrix
AXES_READ_SINCE = 13  # the opset: axes of Unsqueeze and Squeeze are an operand, before an attribute


@dataclass(frozen=True)
class TransposeLast(RewriteRule):
    """Nodes: a Transpose that reads ``source``, the product that alone reads it, and products and additions of a vector
    that follow. The Transpose goes behind them all."""

    source: str

    names = ("transpose",)
    counted = ("node", "written as {} each")
    reading = ("source",)
    writes = "product and Transpose"

    @classmethod
    def find(cls, known: Known) -> Iterator[TransposeLast]:
        """Yields the products that ONNX Runtime's CPU would crash with, and behind which the Transpose can go."""
        for crash in _find_crashes(known):
            chain = _chain_to_move_behind(known, crash)
            if chain:
                source = known.flow.values[chain[0].inputs[0]].name
                yield cls("transpose", *cls.place(known.flow, *chain), source)

    @property
    def explanation(self) -> str:
        """What the rewrite did to a node, as `explain` says it."""
        return "stands in front of a Transpose that it stood behind, with which ONNX Runtime's CPU crashes"

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Whether the Transpose is low: a Cast to float32 follows then, and ONNX Runtime moves it."""
        return all_low(self.ops(known.flow)[:1], is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Runs the chain on what the Transpose read, and transposes its result."""
        transpose, *chain = self.edited(editor)
        (value,) = self.operands(editor, flow)
        perm = flow.integers(transpose, "perm")
        self.refuse(perm is not None)
        for before, op in zip([transpose, *chain], chain, strict=False):
            read = [value if v == before.outputs[0] else flow.values[v] for v in op.inputs]
            (value,) = editor.add(
                op.kind, read, [FLOAT32], scope=op.scope, name=flow.values[op.outputs[0]].name, metadata_of=op
            )
        editor.rewire(value, [(self.scope, self.nodes[-1], 0)])
        editor.replace(self.scope, self.nodes, transpose.kind, (value.name,), {"perm": perm or ()})


@dataclass(frozen=True)
class SameRank(RewriteRule):
    """A product of which the operand ``other``, by name, a matrix or vector, gets dimensions of one, so that it has
    ``rank`` as the one behind ``transposes`` (their indices), with which ONNX Runtime's CPU would crash."""

    other: str
    rank: int
    transposes: tuple[int, ...]

    names = ("ranks",)
    counted = ("product", "of operands with as many dimensions, without which ONNX Runtime's CPU crashes")
    reading = ("other",)
    writes = "product of operands with as many dimensions"
    rewires = exchanges = True

    @classmethod
    def find(cls, known: Known) -> Iterator[SameRank]:
        """Yields the products that would crash ONNX Runtime's CPU and are not for `TransposeLast`, or that is off."""
        flow = known.flow
        for crash in _find_crashes(known):
            moves = "transpose" in known.options.rewrites and _chain_to_move_behind(known, crash)
            if crash.other_rank in MATRIX and not moves:
                other = flow.values[crash.product.inputs[1 - crash.place]].name
                nodes = tuple(op.index for op in crash.transposes)
                yield cls("ranks", *cls.place(flow, crash.product), other, crash.rank, nodes)

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Whether all Transposes in front of the product are low: only then does it crash."""
        scope = self.ops(known.flow)[0].scope
        return all_low((op for op in known.flow.ops if op.scope == scope and op.index in self.transposes), is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Has the product read a view of the operand; that of a vector goes on as the operand of a Squeeze."""
        (product,), (other,) = self.edited(editor), self.operands(editor, flow)
        place, shape = product.inputs.index(other.id), flow.shape(other.id)
        self.refuse(len(product.inputs) == 2 and self.rank in RANKS and shape is not None and len(shape) in MATRIX)
        vector = len(shape or ()) == 1
        new = [axis for axis in range(self.rank) if axis < self.rank - 2 or (vector and axis == self.rank - 2 + place)]
        inputs, attributes = _with_axes(editor, flow, other, new, product)
        (view,) = editor.add("Unsqueeze", inputs, [FLOAT32], attributes, scope=product.scope)
        if not vector:
            editor.rewire(view, [(self.scope, self.nodes[-1], place)])
            return
        read = [view if v == other.id else flow.values[v] for v in product.inputs]
        (whole,) = editor.add(product.kind, read, [FLOAT32], scope=product.scope, metadata_of=product)
        inputs, attributes = _with_axes(editor, flow, whole, [place - 2], product)
        for slot, value in enumerate(inputs):
            editor.rewire(value, [(self.scope, self.nodes[-1], slot)])
        editor.replace(self.scope, self.nodes, "Squeeze", [value.name for value in inputs], attributes)


@dataclass(frozen=True)
class SaidRank(RewriteRule):
    """A Transpose whose operand ``source`` has as many dimensions as its perm, though no shape says so: the file does
    then, and its nodes stay as they are."""

    source: str

    names = ("rank",)
    counted = ("value", "with a known number of dimensions, without which ONNX Runtime's CPU crashes")
    reading = ("source",)
    writes = "Transpose of a known number of dimensions"
    rewires = exchanges = annotates = True

    @classmethod
    def find(cls, known: Known) -> Iterator[SaidRank]:
        """Yields the Transposes of values of unknown shape in scopes with a product that may crash."""
        flow = known.flow
        scopes = {crash.product.scope for crash in _find_crashes(known) if crash.other_rank not in MATRIX}
        for op in flow.with_roles(known.traits.operators("permutes")) if scopes else ():
            has_rank = flow.integers(op, "perm") and flow.writer(op.inputs[0]) is not None
            if has_rank and op.scope in scopes and op.slots and flow.shape(op.inputs[0]) is None:
                yield cls("rank", *cls.place(flow, op), flow.values[op.inputs[0]].name)

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Whether the Transpose is low: only then may the product behind it crash."""
        return all_low(self.ops(known.flow), is_low)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Writes into the file that the operand has as many dimensions as the Transpose's perm."""
        (op,), (source,) = self.edited(editor), self.operands(editor, flow)
        perm = flow.integers(op, "perm")
        self.refuse(bool(perm))
        editor.set_rank(source, len(perm or ()))


@dataclass(frozen=True)
class _Crash:
    """A product that would crash ONNX Runtime's CPU. ``place``: of the operand behind ``transposes`` (nearest first),
    which has ``rank`` dimensions; the other operand has ``other_rank``, 0 where nothing says it."""

    product: Op
    place: int
    transposes: tuple[Op, ...]
    rank: int
    other_rank: int


def _find_crashes(known: Known) -> Iterator[_Crash]:
    """Yields, by operand, the products that would crash ONNX Runtime's CPU if the Transposes before them were low: not
    both operands are known to have as many dimensions. Without those that the user's patterns name."""
    flow, named = known.flow, named_ops(known)
    permuting = flow.with_roles(known.traits.operators("permutes"))
    if not any(len(flow.integers(op, "perm") or ()) in RANKS for op in permuting):
        return
    for op in flow.with_roles(known.traits.operators("multiplies_matrices")):
        if not op.slots or op.id in named or in_function(flow, op) or len(op.inputs) != 2:
            continue
        for place, value in enumerate(op.inputs):
            transposes = _transposes_before(known, value, op.scope)
            if not transposes:
                continue
            own, other = (len(flow.shape(v) or ()) for v in (value, op.inputs[1 - place]))
            if not own or own != other:
                rank = len(flow.integers(transposes[0], "perm") or ())
                yield _Crash(op, place, tuple(transposes), rank, other)


def _transposes_before(known: Known, value: int, scope: int) -> list[Op]:
    """The Transposes before a value, nearest first, that together make the first dimension the last but one, or last,
    which ONNX Runtime takes past a Cast; empty where there are none."""
    flow, found, order = known.flow, list[Op](), list[int]()
    while value != NONE:
        op = flow.writer(value)
        if op is None or op.scope != scope:
            return []
        if known.traits.has(op.role, "permutes"):
            perm = flow.integers(op, "perm") or []
            if len(perm) not in RANKS or len(order or perm) != len(perm):
                return []
            order = [perm[axis] for axis in order] if order else perm
            found.append(op)
            if order in ([*range(1, len(order) - 1), 0, len(order) - 1], [*range(1, len(order)), 0]):
                return found
        elif not _lets_transpose_pass(known, op):
            return []
        value = op.inputs[0]
    return []


def _lets_transpose_pass(known: Known, op: Op) -> bool:
    """For Transposes before a product: whether ONNX Runtime moves one past an operator, or removes that."""
    flow, has = known.flow, known.traits.has
    if not op.inputs or op.inputs[0] == NONE:
        return False
    if has(op.role, "scalings"):
        passes = any(flow.scalar(v) is not None for v in op.inputs[1:])
    else:
        passes = has(op.role, "nothing_in_inference") or (has(op.role, "views") and not has(op.role, "reshapes"))
    if not passes:
        return False  # before shapes are asked for, which is dear
    before, after = flow.shape(op.inputs[0]), flow.shape(op.outputs[0])
    return before is not None and after is not None and len(before) == len(after)


def _chain_to_move_behind(known: Known, crash: _Crash) -> list[Op]:
    """A Transpose before a product, the product, and the row-wise operators behind that it may go behind as well; empty
    where it has other readers, or moves what is summed over."""
    flow, op, transpose = known.flow, crash.product, crash.transposes[0]
    alone = len(crash.transposes) == 1 and transpose.outputs[0] == op.inputs[0] and len(flow.uses[op.inputs[0]]) == 1
    perm = flow.integers(transpose, "perm") or []
    if not alone or crash.other_rank != 2 or perm[-1] != crash.rank - 1:
        return []
    if not transpose.slots or transpose.id in named_ops(known):
        return []
    behind = takewhile(lambda read: _is_row_wise(known, *read), sole_readers(flow, op, op.scope))
    return [transpose, op, *(reader for _, reader in behind)]


def _is_row_wise(known: Known, value: int, op: Op) -> bool:
    """Whether an operator computes each row of an operand ``value`` by itself, all alike, so that a Transpose of rows
    may go behind it: a product with a matrix, or the addition of a vector. Not where the user's patterns name it."""
    if op.id in named_ops(known) or len(op.inputs) != 2:
        return False
    place = op.inputs.index(value)
    other = known.flow.shape(op.inputs[1 - place])
    if other is None:
        return False
    if known.traits.has(op.role, "multiplies_matrices"):
        return place == 0 and len(other) == 2
    return known.traits.has(op.role, "additions") and len(other) < 2


def _with_axes(
    editor: NodeEditor, flow: Dataflow, value: Value, axes: list[int], product: Op
) -> tuple[list[Value], dict[str, Attribute]]:
    """Rewrite `ranks`: what an Unsqueeze or Squeeze of a value by ``axes`` reads, and its attributes."""
    if flow.opset < AXES_READ_SINCE:
        return [value], {"axes": tuple(axes)}
    return [value, editor.store(np.array(axes), f"{value.name}_axes", product.scope)], {}
