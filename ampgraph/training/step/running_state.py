"""State that the gradients make anew beside what is trained, as running statistics: moved and handed on as one vector.

new = old + (batch - old) rate, of all statistics with one rate side by side

Statistics of a BatchNormalization whose scale is trained need no check of their own. If its mean is not finite, then
neither is its variance a, nor if the sum of squares is not, from which the next value is made. Where steps are skipped,
its gradient is multiplied by sqrt(a) / a, and not by 1 / sqrt(a), which is the same number but NaN for infinity: so the
gradient of the scale is NaN, whatever arrives. But something must: a norm that the loss is not differentiated through
may share its scale with one that it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..gradients.builder import FLOAT, Builder
from ..gradients.rules.norms import BATCH
from .vectors import dims, joined, size

Value = ir.Value


@dataclass(frozen=True)
class RunningMove:
    """``new`` follows on state; of several, which are vectors, side by side. ``old``: those that it was computed from
    side by side. ``unchecked``: float32 numbers that are known to be finite if the gradients are, or no float32."""

    olds: tuple[Value, ...]
    new: Value
    old: Value | None = None
    unchecked: bool = False


def running_moves(
    b: Builder, running: Sequence[tuple[Value, Value]], skips: bool, told: Collection[Value] = ()
) -> list[RunningMove]:
    """What the gradients make of ``running``, state and its next value. ``skips``: whether a step may leave it as it
    is. ``told``: statistics of a batch that are finite if the gradients are."""
    found = {old: new for old, new in running if old.dtype == FLOAT and len(dims(old)) == 1}
    averages = [_Average.of(old, new) for old, new in found.items()]
    moved = _moved(b, [average for average in averages if average is not None]) if None not in averages else None
    if len(found) < 2 or not (skips or moved is not None):
        found = {}
    moves = [RunningMove((old,), new, unchecked=old.dtype != FLOAT) for old, new in running if old not in found]
    if found:
        known = moved is not None and all(average is not None and average.batch in told for average in averages)
        old, new = moved or (None, joined(b, list(found.values())))
        new = b.typed(new, FLOAT, sum(map(size, found)))
        moves.append(RunningMove(tuple(found), new, old, known))
    return moves


@dataclass(frozen=True)
class _Average:
    """One that is moved towards ``batch`` by three nodes, the last one first, whose results nobody else reads."""

    old: Value
    batch: Value
    rate: Value
    nodes: tuple[ir.Node, ...]

    @staticmethod
    def of(old: Value, new: Value) -> _Average | None:
        """None for a next value of another form."""
        nodes: list[ir.Node] = []
        value: Value | None = new
        while value is not None and (node := value.producer()) is not None and node.op_type == "Identity":
            nodes.append(node)
            value = node.inputs[0]
        inputs: list[Value | None] = []
        for kind, place in (("Add", 1), ("Mul", 0), ("Sub", 0)):
            made = None if value is None else value.producer()
            if made is None or made.op_type != kind or len(made.inputs) != 2:
                return None
            nodes.append(made)
            inputs.append(made.inputs[1 - place])
            value = made.inputs[place]
        start, rate, subtracted = inputs
        alone = all(len(one.outputs[0].uses()) == (number > 0) for number, one in enumerate(nodes))
        outside = any(one.outputs[0].is_graph_output() for one in nodes)
        if start is not old or subtracted is not old or not alone or outside or value is None or rate is None:
            return None
        alike = value.shape == old.shape and rate.is_initializer() and rate.shape == ir.Shape([])
        return _Average(old, value, rate, tuple(nodes)) if alike else None


def told_by_gradients(graph: ir.Graph, trained: Collection[Value]) -> set[Value]:
    """Means and variances of a batch that, from here on, are finite if the gradients of ``trained`` are."""
    found: set[Value] = set()
    for node in graph:
        if BATCH in node.meta and node.inputs[1] in trained:
            mean, variance = node.inputs[3], node.inputs[4]
            squares = None if variance is None or (maker := variance.producer()) is None else maker.inputs[0]
            if variance is not None and mean is not None and squares is not None and _tells(variance):
                found |= {mean, *(value for reader in squares.consumers() for value in reader.outputs)}
    return found


def _tells(variance: Value) -> bool:
    """Whether gradients are multiplied by 1 / sqrt(a) for a variance, which becomes sqrt(a) / a."""
    roots = _readers(_readers([variance], "Add"), "Sqrt")
    inverses = [made.producer() for made in _readers(roots, "Reciprocal")]
    for node in inverses:
        root = None if node is None else node.inputs[0]
        maker = None if root is None else root.producer()
        assert node is not None and maker is not None
        node.op_type = "Div"
        node.resize_inputs(2)
        node.replace_input_with(1, maker.inputs[0])
    return bool(inverses)


def _readers(values: Collection[Value], kind: str) -> list[Value]:
    """What nodes of a kind make of some values."""
    return [node.outputs[0] for value in values for node in value.consumers() if node.op_type == kind]


def _moved(b: Builder, averages: Sequence[_Average]) -> tuple[Value, Value] | None:
    """The old vector and the new one; None for fewer than two, or for several rates."""
    if len(averages) < 2 or len({average.rate for average in averages}) > 1:
        return None
    for average in averages:
        for node in average.nodes:
            b.graph.remove(node, safe=True)
    old, batch = (joined(b, [getattr(average, name) for average in averages]) for name in ("old", "batch"))
    step = b.op("Mul", b.op("Sub", batch, old), averages[0].rate)
    return old, b.op("Add", old, step)
