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
from dataclasses import dataclass, replace

import onnx_ir as ir

from ..forward.batch_norm import Average
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
    b: Builder,
    averages: Sequence[Average],
    others: Sequence[tuple[Value, Value]],
    skips: bool,
    told: Collection[Value] = (),
) -> list[RunningMove]:
    """What the gradients make of ``averages``, and of ``others``, state and its next value. ``skips``: whether a step
    may leave it as it is. ``told``: statistics of a batch that are finite if the gradients are."""
    rows, together = list(others), []
    if _move_as_one(averages):
        old, batch = (joined(b, [getattr(one, name) for one in averages]) for name in ("old", "batch"))
        new = replace(averages[0], batch=batch).next(b, old)
        known = all(one.batch in told for one in averages)
        together.append(_vector_move(b, [one.old for one in averages], new, old, known))
    else:
        after: dict[Value, Value] = {}
        for one in averages:
            after[one.old] = b.typed(one.next(b, after.get(one.old, one.old)), one.old)
        rows = [*after.items(), *others]
    found = {old: new for old, new in rows if skips and old.dtype == FLOAT and len(dims(old)) == 1}
    if len(found) > 1:
        together.append(_vector_move(b, list(found), joined(b, list(found.values()))))
        rows = [(old, new) for old, new in rows if old not in found]
    return [RunningMove((old,), new, unchecked=old.dtype != FLOAT) for old, new in rows] + together


def _move_as_one(averages: Sequence[Average]) -> bool:
    """Whether statistics can be moved as one vector: several, each read by itself, with one rate."""
    olds = {one.old for one in averages if one.old.dtype == FLOAT}
    return 1 < len(olds) == len(averages) and len({one.rate for one in averages}) == 1


def _vector_move(
    b: Builder, olds: Sequence[Value], new: Value, old: Value | None = None, known: bool = False
) -> RunningMove:
    """What some statistics become: ``new`` is their next numbers as one float32 vector, ``old`` the present ones."""
    return RunningMove(tuple(olds), b.typed(new, FLOAT, sum(map(size, olds))), old, known)


def covered_by_gradients(graph: ir.Graph, trained: Collection[Value]) -> set[Value]:
    """Means and variances of a batch that, from here on, are finite if the gradients of ``trained`` are."""
    found: set[Value] = set()
    for node in graph:
        if BATCH in node.meta and node.inputs[1] in trained:
            mean, variance = node.inputs[3], node.inputs[4]
            squares = None if variance is None or (maker := variance.producer()) is None else maker.inputs[0]
            if variance is not None and mean is not None and squares is not None and _shows_in_gradients(variance):
                found |= {mean, *(value for reader in squares.consumers() for value in reader.outputs)}
    return found


def _shows_in_gradients(variance: Value) -> bool:
    """Whether a non-finite variance shows in the gradients: they are multiplied by sqrt(a) / a."""
    roots = _results_of_kind(_results_of_kind([variance], "Add"), "Sqrt")
    inverses = [made.producer() for made in _results_of_kind(roots, "Reciprocal")]
    for node in inverses:
        root = None if node is None else node.inputs[0]
        maker = None if root is None else root.producer()
        assert node is not None and maker is not None
        node.op_type = "Div"
        node.resize_inputs(2)
        node.replace_input_with(1, maker.inputs[0])
    return bool(inverses)


def _results_of_kind(values: Collection[Value], kind: str) -> list[Value]:
    """What nodes of a kind make of some values."""
    return [node.outputs[0] for value in values for node in value.consumers() if node.op_type == kind]
