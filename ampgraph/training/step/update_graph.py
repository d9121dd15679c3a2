"""A step's update as a graph of its own: it reads state and what the gradients hand over, and writes the next state.

A step that is skipped ("does not hold") leaves its state as it was: Where(holds, new, old). For several vectors that is
one Where of all of them side by side: one Concat puts the old ones together, of which the arithmetic takes its parts,
and one Split makes all next values. The cost is bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients.builder import FLOAT, Builder
from .state_tensors import StateBuilder
from .vectors import LAUNCH, size, split_as

Value = ir.Value
SCOPE = "kept"


@dataclass(frozen=True)
class NextState:
    """In an update's graph: the states ``olds`` and their next numbers ``new``, side by side, as ``old`` has the
    present ones. ``alone``: it must not be chosen together with others."""

    olds: tuple[Value, ...]
    old: Value
    new: Value
    alone: bool = False

    @property
    def numbers(self) -> int:
        """In an update's graph: how many numbers these states have together."""
        return sum(map(size, self.olds))

    @property
    def gathered(self) -> bool:
        """In an update's graph: whether these are several states side by side."""
        return len(self.olds) > 1

    @property
    def of_vectors(self) -> bool:
        """In an update's graph: whether these states may be chosen together with others: all are float32 vectors."""
        return not self.alone and all(one.dtype == FLOAT and len(one.shape or ()) == 1 for one in self.olds)


class UpdateGraph:
    """A step's update while it is built, apart from the gradients until `join`: `read` what comes from their graph, add
    nodes by `builder`, `choose` or commit next values by `states`; then `commit_choices`, then `join`."""

    def __init__(self, gradients: ir.Graph, states: StateBuilder) -> None:
        """``gradients``: their graph, whose opsets the update has; ``states``: the step's state so far, which it goes
        on with."""
        self.graph = ir.Graph([], [], nodes=[], opset_imports=dict(gradients.opset_imports), name="update")
        self.builder = Builder(self.graph, "step")
        self.builder.fresh = states.builder.fresh
        self.states = states.on(self.builder)
        self._inputs: dict[Value, Value] = {}  # value of the gradients' graph -> the update's input for it
        self._alike: list[tuple[Value, Value]] = []  # the gradients' value and the update's of the same numbers
        self._choices: list[NextState] = []

    def read(self, value: Value) -> Value:
        """The update's input for a value or state of the gradients' graph, made once."""
        if value not in self._inputs:
            given = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.graph.inputs.append(given)
            self._inputs[value] = given
        return self._inputs[value]

    def same(self, outer: Value | None, inner: Value) -> None:
        """Notes that the gradients' value ``outer`` has the numbers of the update's ``inner``, so that `join` keeps one
        of the two; nothing for None."""
        if outer is not None:
            self._alike.append((outer, inner))

    def choose(self, olds: Sequence[Value], old: Value, new: Value, alone: bool = False) -> None:
        """Notes that an update makes the numbers ``new`` of the states ``olds``, unless the step is skipped; arguments
        as in `NextState`. Nothing is added to the graph before `commit_choices`."""
        self._choices.append(NextState(tuple(olds), old, new, alone))

    def commit_choices(self, holds: Value | None) -> None:
        """Commits what an update has chosen so far: the new numbers, or the old ones where the truth value ``holds`` is
        false (None: always new). That is one node for all where the launches saved are worth more than the bytes that
        it moves; the numbers are the same to the bit."""
        found = sorted((one for one in self._choices if one.of_vectors), key=lambda one: not one.gathered)
        if holds is None or len(found) < 2 or not _pays(found):
            found = []
        for one in self._choices:
            if one.gathered and one not in found:
                chosen = one.new if holds is None else self.builder.op("Where", holds, one.new, one.old)
                self.states.commit(dict(zip(one.olds, split_as(self.builder, chosen, one.olds), strict=True)))
            elif one not in found:
                self.states.commit({one.old: one.new}, when=holds)
        if holds is not None and found:
            self._commit_together(found, holds)

    def _commit_together(self, found: Sequence[NextState], holds: Value) -> None:
        """In an update's graph: chooses between new and old by one Where for all of these states, and commits its
        pieces; readers of what was side by side read parts of the common Concat."""
        b = self.builder
        b.scope = SCOPE
        states = [state for one in found for state in one.olds]
        old = b.op("Concat", *states, axis=0)
        gathered = [one for one in found if one.gathered]
        sizes = [one.numbers for one in gathered]
        rest = sum(one.numbers for one in found) - sum(sizes)
        for one, piece in zip(gathered, _split_vector(b, old, [*sizes, rest] if rest else sizes), strict=False):
            self._replace(one.old, b.typed(piece, FLOAT, one.numbers))
        new = b.op("Concat", *(one.new for one in found), axis=0)
        chosen = b.op("Where", holds, new, old)
        self.states.commit(dict(zip(states, _split_vector(b, chosen, list(map(size, states))), strict=True)))

    def _replace(self, old: Value, new: Value) -> None:
        """In an update's graph: makes readers of ``old`` read ``new``, and removes the node that made ``old``."""
        maker = old.producer()
        old.replace_all_uses_with(new)
        if maker is not None:
            self.graph.remove(maker, safe=True)
        self._alike = [(outer, new if inner is old else inner) for outer, inner in self._alike]

    def join(self, graph: ir.Graph) -> None:
        """Moves the whole update behind the gradients in their ``graph``; it is empty then. Of a value that both
        compute (`same`) the update's is kept: its readers may stand before it until the caller sorts the graph."""
        for outer, given in self._inputs.items():
            self.graph.inputs.remove(given)
            given.replace_all_uses_with(outer)
        nodes, outputs, inputs = list(self.graph), list(self.graph.outputs), list(self.graph.inputs)
        stored = dict(self.graph.initializers)
        for held in (self.graph.outputs, self.graph.inputs, self.graph.initializers):
            held.clear()
        self.graph.remove(nodes)
        graph.extend(nodes)
        graph.inputs.extend(inputs)
        graph.initializers.update(stored)
        graph.outputs.extend(outputs)
        for outer, inner in self._alike:
            maker = outer.producer()
            outer.replace_all_uses_with(inner)
            if maker is not None:
                graph.remove(maker, safe=True)


def _pays(found: Sequence[NextState]) -> bool:
    """In an update's graph: whether the launches that one choice for all saves are worth its Concat and Split."""
    gathered = [one for one in found if one.gathered]
    saved = len(found) + 2 * len(gathered) - (5 if gathered else 4)
    every = sum(one.numbers for one in found)
    alone = every - sum(one.numbers for one in gathered)
    return saved * LAUNCH >= 8 * every * (2 if gathered else 1) + 16 * alone


def _split_vector(b: Builder, vector: Value, sizes: Sequence[int]) -> list[Value]:
    """In an update's graph: a vector split by a node, also into one piece, so that names stay."""
    return b.ops("Split", len(sizes), vector, b.ints(*sizes), axis=0)
