"""Removes casts that do nothing: to the type that a value has already, and back from low where nobody reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.dataflow import FLOAT32, Dataflow, Op
from ..core.graph import Editor, Graph
from ..core.pass_ import Change


@dataclass(frozen=True)
class FuseCasts:
    """``low``: the type whose casts are looked at. A rounding in the file (float32 to low to float32) stays."""

    low: str = "float16"

    def __call__(self, graph: Graph) -> Change:
        flow = graph.dataflow(self.low)
        casts = [op for op in flow.ops if op.role == "Cast" and op.inputs and op.outputs]
        idle = [op for op in casts if self._types(flow, op) == (self.low, self.low)]
        wide = [op for op in casts if self._types(flow, op) == (self.low, FLOAT32)]
        if not idle and not any(_unread(flow, op) for op in wide):
            return Change(0)
        with graph.editor(flow) as editor:
            count = sum(editor.bypass(op) for op in idle if editor.edits(op.scope))
            count += sum(editor.remove(op) for op in wide if editor.edits(op.scope))
        return Change(count)
