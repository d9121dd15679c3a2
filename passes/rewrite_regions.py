"""Writes decomposed norms as their standard operator, which keeps float32 inside on low data and needs no cast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dataflow import Dataflow
from ..plans import Rewrite
from .base import Change


@dataclass(frozen=True)
class RewriteRegions:
    """The rewrites of a plan. A standard operator is no region, so a second run finds nothing."""

    rewrites: tuple[Rewrite, ...] = ()

    def __call__(self, graph: Any, flow: Dataflow) -> Change:
        if self.rewrites:
            editor = graph.editor(flow, {})
            for item in self.rewrites:
                attributes: dict[str, int | float] = {
                    "axis": item.axis,
                    "epsilon": float(item.epsilon),
                    "stash_type": 1,
                }
                editor.replace(item.scope, item.nodes, item.kind, item.inputs, attributes)
        return Change(len(self.rewrites))
