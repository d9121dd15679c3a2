"""The update as a graph of its own: it reads state and what the gradients hand over, and writes the next state.

What a step that does not hold leaves as it was is chosen by one node: Where(holds, new, old) for each of some vectors
is one Where of all of them side by side. Old ones are put together by one Concat, of which the arithmetic takes its
part, and one Split makes all next values. What is paid is bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients.builder import FLOAT, Builder
from .state_tensors import StateBuilder
from .vectors import LAUNCH, apart, size

Value = ir.Value
SCOPE = "kept"


@dataclass(frozen=True)
class NextState:
    """``olds``: state whose next numbers are ``new``, side by side as the old ones are in ``old``. ``alone``: it is no
    part of another choice."""

    olds: tuple[Value, ...]
    old: Value
    new: Value
    alone: bool = False

    @property
    def numbers(self) -> int:
        """How many numbers all states have that are chosen by this one choice."""
        return sum(map(size, self.olds))

    @property
    def gathered(self) -> bool:
        """Whether several states are chosen side by side."""
        return len(self.olds) > 1

    @property
    def of_vectors(self) -> bool:
        """Whether all its states are float32 vectors, so that it may be chosen together with others."""
        return not self.alone and all(one.dtype == FLOAT and len(one.shape or ()) == 1 for one in self.olds)


class UpdateGraph:
    """``states``: adds to the graph and commits its state. Until `join` no node of it is one of the gradients'."""

    def __init__(self, gradients: ir.Graph, states: StateBuilder) -> None:
        """``gradients``: the graph whose opsets it has, ``states`` its state so far."""
        self.graph = ir.Graph([], [], nodes=[], opset_imports=dict(gradients.opset_imports), name="update")
        self.builder = Builder(self.graph, "step")
        self.builder.fresh = states.builder.fresh
        self.states = states.on(self.builder)
        self._inputs: dict[Value, Value] = {}
        self._alike: list[tuple[Value, Value]] = []
        self._choices: list[NextState] = []

    def read(self, value: Value) -> Value:
        """The update's input for a value, or state, of the gradients' graph; made once."""
        if value not in self._inputs:
            given = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.graph.inputs.append(given)
            self._inputs[value] = given
        return self._inputs[value]

    def same(self, outer: Value | None, inner: Value) -> None:
        """Says that the gradients compute ``inner`` too, as ``outer``: one of the two is enough behind `join`."""
        if outer is not None:
            self._alike.append((outer, inner))

    def choose(self, olds: Sequence[Value], old: Value, new: Value, alone: bool = False) -> None:
        """Notes that state ``olds`` becomes ``new``, unless the step does not hold (gradients overflowed)."""
        self._choices.append(NextState(tuple(olds), old, new, alone))

    def commit_choices(self, holds: Value | None) -> None:
        """Commits new numbers, or the old ones where ``holds`` is false: together, where the launches that this saves
        are worth more than the bytes that it moves. The numbers are the same to the bit."""
        found = sorted((one for one in self._choices if one.of_vectors), key=lambda one: not one.gathered)
        if holds is None or len(found) < 2 or not _pays(found):
            found = []
        for one in self._choices:
            if one.gathered and one not in found:
                chosen = one.new if holds is None else self.builder.op("Where", holds, one.new, one.old)
                self.states.commit(dict(zip(one.olds, apart(self.builder, chosen, one.olds), strict=True)))
            elif one not in found:
                self.states.commit({one.old: one.new}, when=holds)
        if holds is not None and found:
            self._commit_together(found, holds)

    def _commit_together(self, found: Sequence[NextState], holds: Value) -> None:
        """Chooses between new and old by one Where for all of these states, and commits the pieces."""
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
        """Has readers of ``old`` read ``new``, and removes what made ``old``."""
        maker = old.producer()
        old.replace_all_uses_with(new)
        if maker is not None:
            self.graph.remove(maker, safe=True)
        self._alike = [(outer, new if inner is old else inner) for outer, inner in self._alike]

    def join(self, graph: ir.Graph) -> None:
        """Moves the whole update behind the gradients in their ``graph``; it is empty then. Of a value that both
        compute (`_alike`) the update's is kept: readers of it stand before it until the graph is sorted."""
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
    """In an update's graph: whether one choice for all is worth the bytes that Concat and Split move."""
    gathered = [one for one in found if one.gathered]
    saved = len(found) + 2 * len(gathered) - (5 if gathered else 4)
    every = sum(one.numbers for one in found)
    alone = every - sum(one.numbers for one in gathered)
    return saved * LAUNCH >= 8 * every * (2 if gathered else 1) + 16 * alone


def _split_vector(b: Builder, vector: Value, sizes: Sequence[int]) -> list[Value]:
    """The pieces of a vector by a Split, for one piece too: the names of all nodes are alike."""
    return b.ops("Split", len(sizes), vector, b.ints(*sizes), axis=0)
