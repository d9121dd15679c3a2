"""Overflow checks of a training step that ask Ascend's status register become ones that every device has."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.graph import Graph, StepGraph
from ..core.pass_ import Change


@dataclass(frozen=True)
class PortableChecks:
    """The pass that has a MindIR training step look for overflow in its gradients themselves, instead of asking the
    register of an Ascend device; nothing to do for other models, and where no register is asked."""

    def __call__(self, graph: Graph) -> Change:
        """Edits the graph; counts the gradients looked at. Raises AmpError AMP205 for a check of unknown form."""
        return Change(graph.check_gradients() if isinstance(graph, StepGraph) else 0)
