"""The rewriting behind a strict run: low values become float32, each rounded by a pair of Casts where it is made."""

from __future__ import annotations

from ...core.dataflow import NONE, Dataflow, Op, Scope, Value
from ...core.graph import LOW
from ...core.runnable import RunnableGraph, StrictEditor
from ...oplists.traits import has

# Constants up to this many bytes are upcast in the file, larger ones by a Cast: a model near 2 GB must not outgrow it.
INLINE_LIMIT = 1 << 20
LOW_BYTES = 2  # of an element


def rewrite(graph: RunnableGraph, *, keep_border: bool) -> None:
    """Rewrites a model without functions, in place; unless the border is kept, it becomes float32 as well."""
    flow = graph.dataflow()
    ops: list[list[Op]] = [[] for _ in flow.scopes]
    weights: list[list[Value]] = [[] for _ in flow.scopes]
    for op in flow.ops:
        ops[op.scope].append(op)
    for value in flow.values:
        if value.weight and value.producer == NONE and _low(value):
            weights[value.scope].append(value)
    given_out = {i for scope in flow.scopes for i in scope.outputs}
    with graph.strict_editor(flow) as edit:
        for scope in flow.scopes:
            kept = {*scope.inputs, *scope.outputs} if keep_border and scope.id == 0 else set()
            writer = _Writer(flow, edit, kept)
            writer.inputs(scope)
            for value in weights[scope.id]:
                writer.weight(value, outside=graph.outside(value), given_out=value.id in given_out)
            for op in ops[scope.id]:
                writer.op(op)
            writer.border(scope)
            edit.forget_annotations(scope)


def _low(value: Value) -> bool:
    """Whether it is a low tensor."""
    return value.dtype in LOW and not value.container


class _Writer:
    """One graph of a model. ``kept``: its inputs and outputs that stay as they are."""

    def __init__(self, flow: Dataflow, edit: StrictEditor, kept: set[int]) -> None:
        self._flow, self._edit, self._kept = flow, edit, kept

    def inputs(self, scope: Scope) -> None:
        """What is fed to the graph."""
        for value in (self._flow.values[i] for i in scope.inputs):
            if value.id not in self._kept:
                self._edit.store_wide(value)  # the default of an input turns float32 with it
            elif _low(value):
                self._edit.read_wide(value)

    def weight(self, value: Value, *, outside: bool, given_out: bool) -> None:
        """A low tensor that is stored; ``outside``: in a file; ``given_out``: a graph gives it out as it is."""
        large = outside or LOW_BYTES * self._flow.weights.size(value) > INLINE_LIMIT
        if value.id in self._kept or (large and not given_out):
            self._edit.read_wide(value)
        else:
            self._edit.store_wide(value)

    def op(self, op: Op) -> None:
        """One operator, and what it makes."""
        made = [self._flow.values[i] for i in op.outputs]
        low = [value for value in made if value.name and _low(value)]
        if op.kind == "BitCast":  # its meaning is the bits: it reads, and makes, the low type itself
            for position, source in enumerate(op.inputs):
                if source != NONE and _low(self._flow.values[source]):
                    self._edit.read_low(op, position, self._flow.values[source].dtype)
        if has(op.kind, "converts"):
            for value in low:
                self._edit.name_type(op, value.dtype)
                self._edit.read_wide(value, stays_low=value.id in self._kept)
            return
        self._edit.compute_wide(op)
        exact = has(op.kind, "exact")
        for value in low:
            kept = value.id in self._kept
            if kept or not exact:
                self._edit.round_all(value, stays_low=kept)

    def border(self, scope: Scope) -> None:
        """The border says what it is, as before or in float32."""
        for value in (self._flow.values[i] for i in {*scope.inputs, *scope.outputs}):
            if value.container or value.id not in self._kept:
                self._edit.declare_wide(value)
