"""Removes casts that do nothing: to the type that a value has already, and back from low where nobody reads it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from ..core.dataflow import FLOAT32, Dataflow, Op
from ..core.graph import Graph
from ..core.pass_ import Change
from ..oplists.traits import traits


@dataclass(frozen=True)
class FuseCasts:
    """The pass that removes Casts from the low type to itself, and Casts from it to float32 that nothing reads. A
    rounding in the file, a Cast to low and one back, stays. ``keep``: Casts that are left alone, by `_marks`: the file
    had them so before anything was edited (`idle_casts`). ``given``: whether the file had any; if not, all that there
    are do what a plan wants, and nothing is looked at."""

    low: str = "float16"
    keep: frozenset[Hashable] = frozenset()
    given: bool = True

    def __repr__(self) -> str:
        return f"FuseCasts({self.low}{f', {len(self.keep) // 2} kept' if self.keep else ''})"

    def __call__(self, graph: Graph) -> Change:
        """Edits the graph; counts the Casts that are gone."""
        if not self.given:
            return Change(0)
        flow = graph.dataflow(self.low)
        casts = _casts(flow)
        same = _in_every_call([op for op in casts if _types(flow, op) == (self.low, self.low)], casts)
        same = [op for op in same if self._may_go(flow, op)]
        wide = [op for op in casts if _types(flow, op) == (self.low, FLOAT32) and self._may_go(flow, op)]
        if not same and all(flow.uses[op.outputs[0]] for op in wide):
            return Change(0)
        with graph.editor(flow) as editor:
            count = sum(editor.bypass(op) for op in same if editor.edits(op.scope))
            count += sum(editor.remove(op) for op in wide if editor.edits(op.scope))
        return Change(count)

    def _may_go(self, flow: Dataflow, op: Op) -> bool:
        """Pass `FuseCasts`: whether a Cast is none of those that are to be kept."""
        return not self.keep or self.keep.isdisjoint(_marks(flow, op))


def has_casts(flow: Dataflow) -> bool:
    """For pass `FuseCasts`: whether a model has any Casts."""
    return bool(_casts(flow))


def idle_casts(flow: Dataflow) -> frozenset[Hashable]:
    """For pass `FuseCasts`, which keeps them: marks of a file's Casts that nothing reads, or that change no type."""
    idle = [op for op in _casts(flow) if not flow.uses[op.outputs[0]] or len(set(_types(flow, op))) == 1]
    return frozenset(mark for op in idle for mark in _marks(flow, op))


def _casts(flow: Dataflow) -> list[Op]:
    """Pass `FuseCasts`: all Casts of a model, in order; in a function once for each call."""
    return [op for op in flow.with_roles(traits().operators("casts")) if op.inputs and op.outputs]


def _in_every_call(some: list[Op], casts: list[Op]) -> list[Op]:
    """Pass `FuseCasts`: those of ``some`` that are among them in each call of the function that they stand in, as all
    calls share the node. ``casts``: all of the model."""
    calls = Counter(id(op.native) for op in casts)
    found = Counter(id(op.native) for op in some)
    return [op for op in some if found[id(op.native)] == calls[id(op.native)]]


def _marks(flow: Dataflow, op: Op) -> tuple[Hashable, Hashable]:
    """Pass `FuseCasts`: two marks by which a Cast is known after edits: its node, and, for one in a function's copy,
    its scope's path without indices with the name of its result."""
    return op.native, (re.sub(r"/\d+:", "/", flow.scopes[op.scope].path), flow.values[op.outputs[0]].name)


def _types(flow: Dataflow, op: Op) -> tuple[str, str]:
    """Pass `FuseCasts`: (type that a Cast reads, type that it makes)."""
    return flow.values[op.inputs[0]].dtype, flow.values[op.outputs[0]].dtype
