"""Carries out the rewrites of a plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..core.errors import AmpError
from ..core.graph import Graph, NodeEditor
from ..core.pass_ import Change
from ..core.rewrites import Rewrite


@dataclass(frozen=True)
class RewriteRegions:
    """The pass that carries out a plan's rewrites, once: they name nodes by their places in the file before. ``low``:
    of the dataflow. Raises AmpError AMP402 for missing nodes, AMP403 for a format without rewrites."""

    rewrites: tuple[Rewrite, ...] = ()
    low: str = "float16"

    def __repr__(self) -> str:
        kinds = Counter(item.what for item in self.rewrites)
        return f"RewriteRegions({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})"

    def __call__(self, graph: Graph) -> Change:
        """Edits the graph; counts the rewrites. Those that keep their last node (`rewires`) come first."""
        if not self.rewrites:
            return Change(0)
        flow = graph.dataflow(self.low)
        with graph.editor(flow) as editor:
            if not isinstance(editor, NodeEditor):
                hint = "make a plan for this model, or take its rewrites out"
                writes = self.rewrites[0].writes
                raise AmpError("AMP403", f"the plan writes a {writes}, which no {graph.format} model needs", hint=hint)
            for item in sorted(self.rewrites, key=lambda one: not one.rewires):
                item.write(editor, flow)
            for item in self.rewrites:
                item.finish(editor, flow)
        return Change(len(self.rewrites))
