"""Writes decomposed norms as their standard operator, which keeps float32 inside on low data and needs no cast; and
Clips without a kernel as Max and Min."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.dataflow import NONE, Dataflow
from ..core.pass_ import Change, foreign
from ..core.plan import MAX_AND_MIN, Rewrite


@dataclass(frozen=True)
class RewriteRegions:
    """The rewrites of a plan. A standard operator is no region, so a second run finds nothing."""

    rewrites: tuple[Rewrite, ...] = ()

    def __call__(self, graph: Any, flow: Dataflow) -> Change:
        if self.rewrites:
            editor = graph.editor(flow, {})
            for item in self.rewrites:
                _check(item, editor, flow)
                if item.kind == MAX_AND_MIN:
                    editor.write_bounds(item.scope, item.nodes[0])
                    continue
                attributes: dict[str, int | float] = {
                    "axis": item.axis,
                    "epsilon": float(item.epsilon),
                    "stash_type": 1,
                }
                editor.replace(item.scope, item.nodes, item.kind, item.inputs, attributes)
        return Change(len(self.rewrites))


def _check(item: Rewrite, editor: Any, flow: Dataflow) -> None:
    ops = [editor.op(item.scope, index) for index in item.nodes]
    if not ops or None in ops:
        raise foreign(f"rewrites nodes {list(item.nodes)} of scope '{item.scope}'")
    known = {flow.values[i].name for op in ops for i in op.inputs if i != NONE}
    for name in item.inputs:
        if name not in known:
            raise foreign(f"makes {item.kind} read '{name}'", "does not read there")
