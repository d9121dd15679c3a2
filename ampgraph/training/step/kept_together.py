"""What a step that does not hold leaves as it was: parameters, slots and statistics chosen by one node.

Where(holds, new, old) for each of some vectors is one Where of all of them side by side. Old ones are put together by
one Concat, of which the arithmetic takes its part, and one Split makes all next values. What is paid is bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients.builder import Builder
from .vectors import LAUNCH, size

Value = ir.Value
FLOAT = ir.DataType.FLOAT
SCOPE = "kept"
PLACE = f"step/{SCOPE}"  # what the names of its nodes begin with


@dataclass(frozen=True)
class _Choice:
    """``olds``: state, one behind the other in what is chosen, and its next values ``after``. ``joined``: the old
    numbers where a Concat makes them; ``nodes``: what is not needed when it is chosen with others."""

    new: Value
    olds: tuple[Value, ...]
    after: tuple[Value, ...]
    joined: Value | None
    nodes: tuple[ir.Node, ...]

    @property
    def numbers(self) -> int:
        return sum(map(size, self.olds))


def choose_together(b: Builder, holds: Value) -> None:
    """Rewrites the choices by ``holds`` of a graph whose state is committed, where the launches that this saves are
    worth more than the bytes that it moves. The numbers are the same to the bit."""
    found = [choice for node in b.graph if (choice := _choice(node, holds)) is not None]
    found.sort(key=lambda one: one.joined is None)
    if len(found) < 2 or not _pays(found):
        return
    b.scope = SCOPE
    old = b.op("Concat", *(state for one in found for state in one.olds), axis=0)
    joined = [one for one in found if one.joined is not None]
    sizes = [one.numbers for one in joined]
    rest = sum(one.numbers for one in found) - sum(sizes)
    for one, piece in zip(joined, _split(b, old, [*sizes, rest] if rest else sizes), strict=False):
        assert one.joined is not None
        one.joined.replace_all_uses_with(b.typed(piece, FLOAT, one.numbers))
    new = b.op("Concat", *(one.new for one in found), axis=0)
    chosen = b.op("Where", holds, new, old)
    states = [state for one in found for state in one.olds]
    after = [value for one in found for value in one.after]
    _take_places(after, _split(b, chosen, list(map(size, states))))
    b.graph.remove([node for one in found for node in one.nodes], safe=True)
    b.drop_unused_constants(set())


def choose_apart(graph: ir.Graph) -> None:
    """Undoes `choose_together`, for who reads a step vector by vector."""
    chosen = next((node for node in graph if (node.name or "").startswith(f"{PLACE}/Where")), None)
    if chosen is None:
        return
    holds, new, old = (_given(value) for value in chosen.inputs)
    [ends], ahead = chosen.outputs[0].consumers(), [node for node in old.consumers() if node is not chosen]
    pieces, news = [value for node in ahead for value in node.outputs], list(map(_given, _maker(new).inputs))
    states, after = list(map(_given, _maker(old).inputs)), list(ends.outputs)
    b = Builder(graph, "step")
    b.scope = "apart"
    for place, value in enumerate(news):
        joined = place < len(pieces) - (len(news) > len(pieces))
        count = _count(states, size(pieces[place])) if joined else 1
        olds, found = states[:count], after[:count]
        del states[:count], after[:count]
        whole = b.typed(b.op("Concat", *olds, axis=0), FLOAT, sum(map(size, olds))) if count > 1 else olds[0]
        if joined:
            pieces[place].replace_all_uses_with(whole)
        kept = b.op("Where", holds, value, whole)
        _take_places(found, [kept] if count == 1 else _split(b, kept, list(map(size, olds))))
    graph.remove([ends, chosen, *ahead, _maker(new), _maker(old)], safe=True)
    graph.sort()


def _given(value: Value | None) -> Value:
    assert value is not None
    return value


def _maker(value: Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _count(states: Sequence[Value], numbers: int) -> int:
    """How many of them, from the first on, have so many numbers."""
    count = 1
    while sum(map(size, states[:count])) < numbers:
        count += 1
    return count


def _choice(node: ir.Node, holds: Value) -> _Choice | None:
    """None for what is not chosen as a float32 vector of state."""
    if node.op_type != "Where" or node.inputs[0] is not holds:
        return None
    new, old, chosen = node.inputs[1], node.inputs[2], node.outputs[0]
    if new is None or old is None:
        return None
    maker, ends = old.producer(), [reader for reader in chosen.consumers() if reader.op_type == "Split"]
    if maker is None and _is_vector(old) and not chosen.uses():
        return _Choice(new, (old,), (chosen,), None, (node,))
    olds = (
        tuple(value for value in maker.inputs if value is not None and _is_vector(value)) if maker is not None else ()
    )
    if maker is None or maker.op_type != "Concat" or len(olds) < len(maker.inputs) or len(ends) != 1:
        return None
    after = tuple(ends[0].outputs)
    alone = len(chosen.uses()) == 1 and not chosen.is_graph_output() and len(after) == len(olds)
    return _Choice(new, olds, after, old, (ends[0], node, maker)) if alone else None


def _pays(found: Sequence[_Choice]) -> bool:
    """Side by side and apart again: those of a Concat once, others twice, and all of them before they are chosen."""
    joined = [one for one in found if one.joined is not None]
    saved = len(found) + 2 * len(joined) - (5 if joined else 4)
    every = sum(one.numbers for one in found)
    alone = every - sum(one.numbers for one in joined)
    return saved * LAUNCH >= 8 * every * (2 if joined else 1) + 16 * alone


def _is_vector(value: Value) -> bool:
    return value.is_graph_input() and value.dtype == FLOAT and value.shape is not None and len(value.shape) == 1


def _split(b: Builder, vector: Value, sizes: Sequence[int]) -> list[Value]:
    """One piece too: the names of all nodes are alike."""
    return b.ops("Split", len(sizes), vector, b.ints(*sizes), axis=0)


def _take_places(olds: Sequence[Value], news: Sequence[Value]) -> None:
    """Outputs of the graph are made by other nodes, under their names."""
    for old, new in zip(olds, news, strict=True):
        name, kind, shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = new.name
        new.name, new.type, new.shape = name, kind, shape
