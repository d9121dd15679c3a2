"""Writes decomposed norms as their standard operator, which keeps float32 inside on low data and needs no cast; Clips
without a kernel as Max and Min; masks less their largest number in each row; constants behind a convolution into its
weights and bias; products in the order that the target's runtime makes one kernel of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ..core.errors import AmpError
from ..core.graph import Attribute, Graph, NodeEditor
from ..core.pass_ import Change, foreign
from ..core.plan import (
    BY_SQUARES,
    FOLDS,
    GELU,
    GELU_BY_TANH,
    HALF_FIRST,
    HALF_LAST,
    MAX_AND_MIN,
    NUMBER,
    NUMBER_FIRST,
    QUOTIENT,
    SAME_RESULT,
    Rewrite,
)


@dataclass(frozen=True)
class RewriteRegions:
    """The rewrites of a plan, which names nodes by their places in the file.

    A graph keeps in mind that they were done, so a second run changes nothing. Raises AmpError AMP402 for nodes that
    the model does not have, AMP403 for a format that needs no rewrites."""

    rewrites: tuple[Rewrite, ...] = ()
    low: str = "float16"

    def __repr__(self) -> str:
        kinds = Counter(item.what for item in self.rewrites)
        return f"RewriteRegions({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})"

    def __call__(self, graph: Graph) -> Change:
        if not self.rewrites or graph.remembers(self):
            return Change(0)
        flow = graph.dataflow(self.low)
        with graph.editor(flow) as editor:
            if not isinstance(editor, NodeEditor):
                hint = "make a plan for this model, or take its rewrites out"
                kind = self.rewrites[0].kind
                raise AmpError("AMP403", f"the plan writes a {kind}, which no {graph.format} model needs", hint=hint)
            # first what only changes who reads what: operators in the place of others make values of their own
            for item in sorted(self.rewrites, key=lambda one: one.kind not in SAME_RESULT):
                _check(item, editor, flow)
                _WRITE.get(item.name, _WRITE.get(item.kind, _write))(item, editor, flow)
        graph.remember(self)
        return Change(len(self.rewrites))


def _write(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    name = "clip" if item.kind == MAX_AND_MIN else item.name
    if name in ("clip", "cast", "mask", *FOLDS):
        if not editor.write_anew(name, item.scope, item.nodes):
            raise foreign(f"writes nodes {list(item.nodes)} of scope '{item.scope}' as {item.what}")
        return
    _write_norm(item, editor, flow)


def _write_norm(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    """A norm over the last axis becomes its operator, whose scale and bias are rows; over another one, the same between
    Transposes."""
    attributes: dict[str, Attribute] = {"axis": -1, "epsilon": float(item.epsilon), "stash_type": 1}
    ops = [op for index in item.nodes if (op := editor.op(item.scope, index)) is not None]
    read = {flow.values[v].name: flow.values[v] for op in ops for v in op.inputs if v != NONE}
    by_name = {name: _as_row(read[name], ops, editor, flow) for name in dict.fromkeys(item.inputs[1:])}
    rows = [by_name[name] for name in item.inputs[1:]]
    if item.axis == -1:
        editor.replace(item.scope, item.nodes, item.kind, (item.inputs[0], *(row.name for row in rows)), attributes)
        return
    data = read[item.inputs[0]]
    places = range(len(flow.shape(data.id) or ()))
    order = sorted(places, key=lambda place: place == len(places) + item.axis)
    (moved,) = editor.add("Transpose", [data], [FLOAT32], {"perm": order}, scope=ops[-1].scope)
    (normal,) = editor.add(item.kind, [moved, *rows], [FLOAT32], attributes, scope=ops[-1].scope)
    editor.give(normal, [(item.scope, item.nodes[-1], 0)])
    back = {"perm": [order.index(place) for place in places]}
    editor.replace(item.scope, item.nodes, "Transpose", (normal.name,), back)


def _as_row(value: Value, readers: Sequence[Op], editor: NodeEditor, flow: Dataflow) -> Value:
    """A stored tensor without its dimensions of one number, which these operators read in its place."""
    if len(flow.shape(value.id) or ()) == 1:
        return value
    (row,) = editor.add("Squeeze", [value], [FLOAT32], scope=readers[-1].scope, behind=readers[0])
    path = flow.scopes[readers[-1].scope].path
    uses = [(path, op.index, place) for op in readers for place, v in enumerate(op.inputs) if v == value.id]
    editor.give(row, uses)
    return row


def _drop(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    """An operator with one operand of data: whoever reads its result reads that."""
    for index in item.nodes:
        op = editor.op(item.scope, index)
        if op is not None and not editor.bypass(op):
            raise foreign(f"takes node {index} of scope '{item.scope}' away")


def _write_quotient(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    editor.replace(item.scope, item.nodes, item.kind, item.inputs, {})


def _write_number(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    op = editor.op(item.scope, item.nodes[-1])
    dtype = np.dtype(flow.values[op.outputs[0]].dtype if op is not None else FLOAT32)
    number = np.full((1,) * item.axis, item.epsilon, dtype)
    editor.replace(item.scope, item.nodes, item.kind, (), {"value": number})


def _write_gelu(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    approximate = "tanh" if item.kind == GELU_BY_TANH else "none"
    editor.replace(item.scope, item.nodes, GELU, item.inputs, {"approximate": approximate})


def _exchange(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    """The inner product reads what the outer one read, and the other way round."""
    reads = [_operand(editor.op(item.scope, index), name, flow) for index, name in _pairs(item)]
    for (index, _), (place, _), (_, value) in zip(_pairs(item), reads, reversed(reads), strict=True):
        editor.give(flow.values[value], [(item.scope, index, place)])
    inner = editor.op(item.scope, item.nodes[0])
    if inner is not None:
        # whoever compares values by name compares what they hold
        editor.rename(flow.values[inner.outputs[0]], "doubled" if item.kind == HALF_LAST else "halved")


def _number_first(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    (index,) = item.nodes
    read = [_operand(editor.op(item.scope, index), name, flow)[1] for name in item.inputs]
    for place, value in enumerate(read):
        editor.give(flow.values[value], [(item.scope, index, place)])


def _write_squares(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    """x * half * (1 + tanh(x * factor * (1 + x * cubic * x))), by new operators but for the last one."""
    ops = [op for index in item.nodes if (op := editor.op(item.scope, index)) is not None]
    read = {flow.values[v].name: flow.values[v] for op in ops for v in op.inputs if v != NONE}
    x, cubic, factor, one, half = (read[name] for name in item.inputs)

    def made(kind: str, *given: Value) -> Value:
        (result,) = editor.add(kind, given, [FLOAT32], scope=ops[-1].scope, name=f"{x.name}_{kind}")
        return result

    cube = made("Mul", made("Mul", x, factor), made("Add", made("Mul", made("Mul", x, cubic), x), one))
    sides = made("Mul", x, half), made("Add", made("Tanh", cube), one)
    for place, value in enumerate(sides):
        editor.give(value, [(item.scope, item.nodes[-1], place)])
    for op in reversed(ops[:-1]):
        editor.remove(op)


def _pairs(item: Rewrite) -> list[tuple[int, str]]:
    return list(zip(item.nodes, item.inputs, strict=True))


def _operand(op: Op | None, name: str, flow: Dataflow) -> tuple[int, int]:
    """(place, value) of an operand."""
    inputs = op.inputs if op is not None else ()
    return next((place, v) for place, v in enumerate(inputs) if v != NONE and flow.values[v].name == name)


_WRITE: Mapping[str, Callable[[Rewrite, NodeEditor, Dataflow], None]] = {
    NUMBER: _write_number,
    NUMBER_FIRST: _number_first,
    QUOTIENT: _write_quotient,
    HALF_LAST: _exchange,
    HALF_FIRST: _exchange,
    BY_SQUARES: _write_squares,
    "pad": _drop,
    GELU: _write_gelu,
    GELU_BY_TANH: _write_gelu,
}


def _check(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    ops = [op for index in item.nodes if (op := editor.op(item.scope, index)) is not None]
    if not ops or len(ops) < len(item.nodes):
        raise foreign(f"rewrites nodes {list(item.nodes)} of scope '{item.scope}'")
    known = {flow.values[i].name for op in ops for i in op.inputs if i != NONE}
    for name in item.inputs:
        if name not in known:
            raise foreign(f"makes {item.kind} read '{name}'", "does not read there")
