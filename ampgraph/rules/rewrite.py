"""What a rewrite is: where it applies, whether it pays, and how it is written, in one class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.dataflow import NONE, Dataflow, Op, Value
from ..core.graph import NodeEditor
from ..core.pass_ import plan_mismatch
from ..core.rewrites import Rewrite
from .known import IsLow, Known


class RewriteRule(Rewrite):
    """A rewrite with its finder. Subclasses are frozen dataclasses; their fields are all that a plan says of one."""

    @classmethod
    def find(cls, known: Known) -> Iterable[RewriteRule]:
        """The rewrites that are possible in a model, whatever types are decided later and whatever is asked for."""
        raise NotImplementedError

    def supposes(self, known: Known) -> frozenset[str]:
        """Kinds of operators for which a trial plan supposes a low kernel; none, unless a rewrite says so."""
        return frozenset()

    def pays(self, known: Known, is_low: IsLow) -> bool:
        """Whether the rewrite is worth doing, given a trial plan: ``is_low`` tells which slots that makes low."""
        return True

    def rescaled(self, flow: Dataflow, exponents: Mapping[int, int]) -> RewriteRule | None:
        """This rewrite where values that it reads are held as 2^-e of themselves (``exponents``: value -> e); None
        where that changes nothing, or is not known."""
        return None

    # -- what finders share -----------------------------------------------------------------------------------------

    @classmethod
    def place(cls, flow: Dataflow, *ops: Op) -> tuple[str, tuple[int, ...]]:
        """For a rewrite: (path of the scope, indices) of operators, of which the last one makes the result."""
        return flow.scopes[ops[-1].scope].path, tuple(op.index for op in ops)

    def ops(self, flow: Dataflow) -> list[Op]:
        """The operators that the rewrite names, in their order."""
        return [flow.at(self.scope, index) for index in self.nodes]

    # -- what writing shares ----------------------------------------------------------------------------------------

    def edited(self, editor: NodeEditor) -> list[Op]:
        """The operators that the plan names, which are to be written anew. Raises AmpError AMP402 where the model has
        none there."""
        ops = [editor.op(self.scope, index) for index in self.nodes]
        found = [op for op in ops if op is not None]
        if len(found) < len(ops):
            raise plan_mismatch(f"rewrites nodes {list(self.nodes)} of scope '{self.scope}'")
        return found

    def operands(self, editor: NodeEditor, flow: Dataflow) -> list[Value]:
        """The values that `reads` names, among what the nodes read. Raises AmpError AMP402 for one that they do not
        read."""
        read = {flow.values[v].name: flow.values[v] for op in self.edited(editor) for v in op.inputs if v != NONE}
        for name in self.reads:
            if name not in read:
                raise plan_mismatch(f"makes {self.writes} read '{name}'", "does not read there")
        return [read[name] for name in self.reads]

    def refuse(self, holds: bool) -> None:
        """Raises AmpError AMP402 unless what a plan's rewrite takes for granted of its nodes ``holds``."""
        if not holds:
            raise plan_mismatch(f"writes nodes {list(self.nodes)} of scope '{self.scope}' as {self.what}")


@dataclass(frozen=True)
class Idle(RewriteRule):
    """Takes nodes that do nothing away: what the first one reads, ``source`` by name, is read instead."""

    source: str

    reading = ("source",)

    @property
    def removed_nodes(self) -> tuple[int, ...]:
        """All nodes of a rewrite of idle ones: none is left when it is written."""
        return self.nodes

    @property
    def result(self) -> str:
        """What is read instead of idle nodes."""
        return self.source

    @property
    def explanation(self) -> str:
        """What the rewrite did to a node, as `explain` says it."""
        return f"a {self.what} did nothing and is taken away: what it read is read instead"


def all_low(ops: Iterable[Op], is_low: IsLow) -> bool:
    """For a rewrite: whether all slots of the operators are low in the trial plan."""
    return all(is_low(unit) for op in ops for unit in op.slots.values())


def is_inside(flow: Dataflow, op: Op) -> bool:
    """For a rewrite: whether an operator stands in no function, and what it reads first and makes are tensors; its
    result is read, but is no output of a graph or body."""
    if not op.inputs or op.inputs[0] == NONE or not op.outputs or in_function(flow, op):
        return False
    values, uses = (flow.values[op.inputs[0]], flow.values[op.outputs[0]]), flow.uses[op.outputs[0]]
    return bool(uses) and not any(use.op == NONE for use in uses) and not any(value.container for value in values)


def in_function(flow: Dataflow, op: Op) -> bool:
    """Whether an operator that a rewrite would change stands in a function, whose calls share it."""
    return flow.scopes[op.scope].kind == "function"
