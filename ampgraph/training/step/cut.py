"""Cuts a written training step into two graphs again: the gradients of a batch, and the update by them.

A step says which values its gradients hand to its update (`StepLayout.runs`, `StepLayout.moved`): what computes them is
one graph, what is computed from them the other. The check for inf and NaN belongs to the update: it sees the sum of the
gradients of all micro-batches, and decides once for all of them.

`rounded_once` leaves the gradients of micro-batches unrounded before they are added, so that their sum is rounded once,
as in one whole batch. In a step the gradient of a low product is rounded to its type and raised to float32 again. With
micro-batches each part would be rounded, and AdamW makes whole steps of what that leaves of the smallest gradients. So
the product becomes float32, from the same low operands, and the rounding moves to the front of the update, behind the
sum. That is for devices whose kernels compute in float32 anyway: it costs them nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from ...core.errors import AmpError
from ...formats.onnx import io as onnx_io
from ...formats.onnx.walk import bodies
from ...oplists.traits import has
from ..forward.read import infer
from ..gradients.builder import FLOAT, LOW, Builder
from .training_step import StepLayout, TrainingStep, session_model

Value = ir.Value


@dataclass(frozen=True)
class CutStep:
    """A training step as two graphs. ``gradients`` reads state and the batch, and writes the loss, the scaled float32
    gradients and the next running states. ``update`` reads these (by the same names) and all state, and writes the next
    state. Neither holds state itself."""

    gradients: TrainingStep
    update: TrainingStep
    summed: Mapping[str, tuple[int, ...]]  # gradient -> its shape
    moved: Mapping[str, str]  # running state -> its next value
    loss: str  # the update's input of the loss, which only hands it on as its output


def cut(step: TrainingStep) -> CutStep:
    """Cuts a training step, which stays as it is, into gradients and update. Raises AmpError AMP206 for a step that
    does not say what its gradients are, or whose update reads the batch."""
    proto, folder = session_model(step)
    model = onnx_io.deserialize(proto, Path(folder) if folder else None)
    infer(model)
    other, handed = model.clone(), [name for run in step.layout.runs for name in run.gradients]
    gradients, update = _StepSide(model.graph), _StepSide(other.graph)
    summed = {name: _known_shape(gradients.value(name)) for name in handed}
    if not summed:
        raise _not_cuttable("nothing says what its gradients are")
    moved = {
        state: made
        for name, states in step.layout.moved
        for state, made in gradients.split_running_states(name, states)
    }
    of_gradients = _gradients_step(model, gradients, step.layout, [*summed, *moved.values()])
    of_update, loss = _update_step(other, update, step.layout, list(summed), moved)
    return CutStep(of_gradients, of_update, summed, moved, loss)


class _StepSide:
    """Step cut in two: a copy of the whole step, from which one of its two graphs is made."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.b = graph, Builder(graph, "cut")
        self._made = {value.name: value for node in graph for value in node.outputs}

    def value(self, name: str) -> Value:
        """Step cut in two: the value ``name`` that a node of the step makes. Raises AmpError AMP206 where none does."""
        if name not in self._made:
            raise _not_cuttable(f"no node makes '{name}'")
        return self._made[name]

    def split_running_states(self, name: str, states: tuple[str, ...]) -> list[tuple[str, str]]:
        """Step cut in two: running states and the names of their next values. Where ``name`` is the next value of
        several ``states`` side by side, which are vectors then (`running_moves`), a Split is added to the graph."""
        if len(states) == 1:
            return [(states[0], name)]
        inputs = {value.name: value for value in self.graph.inputs}
        sizes = [_known_shape(inputs[state])[0] for state in states]
        pieces = self.b.ops("Split", len(sizes), self.value(name), self.b.ints(*sizes), axis=0)
        for state, piece, count in zip(states, pieces, sizes, strict=True):
            self.b.typed(piece, FLOAT, count).name = made = self.b.fresh(f"cut/next/{state}")
            self._made[made] = piece
        return [(state, piece.name or "") for state, piece in zip(states, pieces, strict=True)]

    def replace_by_inputs(self, name: str, pieces: Mapping[str, str]) -> None:
        """Step cut in two: replaces the value ``name``, which the gradients compute, by an input of the update; where
        it is the next value of several running states, by one for each (``pieces``: state -> name of the input)."""
        value = self.value(name)
        inputs = {one.name: one for one in self.graph.inputs}
        if len(pieces) < 2:
            given = self.b.typed(Value(name=name), value)
            value.name, parts = self.b.fresh(f"cut/{name}"), [given]
        else:
            parts = [self.b.typed(Value(name=made), inputs[state]) for state, made in pieces.items()]
            given = self.b.typed(self.b.op("Concat", *parts, axis=0), value)
        value.replace_all_uses_with(given)
        self.graph.inputs.extend(parts)


def _gradients_step(model: ir.Model, side: _StepSide, layout: StepLayout, names: list[str]) -> TrainingStep:
    """Step cut in two: the gradients. The loss and the values ``names`` are the outputs, whatever does not compute them
    is dropped, and state is only read. What the layout says of an update is blank. `drop_unread` runs before
    `_split_state_reads`, which so looks at no node of the update, and again after it, since only then nothing reads the
    vectors of state that it takes apart."""
    graph = model.graph
    loss = next(value for value in graph.outputs if value.name == layout.loss)
    made = [side.value(name) for name in names]
    graph.outputs.clear()
    graph.outputs.extend([loss, *made])
    drop_unread(model)
    _split_state_reads(side.b)
    drop_unread(model)
    graph.sort()
    have = {value.name for value in graph.inputs}
    states = tuple(replace(entry, output="") for entry in layout.states if entry.name in have)
    told = replace(layout, states=states, finite="", norm="", parts=(), runs=(), moved=())
    return TrainingStep(model, told)


def _split_state_reads(b: Builder) -> None:
    """Step cut in two: where the gradients split a Concat of states, makes each piece a Concat of the states that it
    holds alone, so that they do not read the others, which only the update needs."""
    inputs = set(b.graph.inputs)
    for node in [node for node in b.graph if node.op_type == "Split"]:
        source, sizes = node.inputs[0], b.known_numbers(node.inputs[1]) if len(node.inputs) > 1 else None
        whole = None if source is None else source.producer()
        if sizes is None or whole is None or whole.op_type != "Concat" or not inputs.issuperset(whole.inputs):
            continue
        sources = [value for value in whole.inputs if value is not None and value.shape is not None]
        ends = list(accumulate(math.prod(value.shape.numpy()) for value in sources if value.shape is not None))
        start = 0
        for piece, end in zip(node.outputs, accumulate(sizes.tolist()), strict=True):
            parts = [value for value, place in zip(sources, ends, strict=True) if start < place <= end]
            if end in ends and parts:
                piece.replace_all_uses_with(b.typed(b.op("Concat", *parts, axis=0), piece))
            start = end


def _update_step(
    model: ir.Model, side: _StepSide, layout: StepLayout, summed: Iterable[str], moved: Mapping[str, str]
) -> tuple[TrainingStep, str]:
    """Step cut in two: the update, whose inputs are what the gradients compute (gradients ``summed``, next running
    states by ``moved``, the loss) and all state; and the name of the loss's input. Raises AmpError AMP206 where it
    reads the batch."""
    graph = model.graph
    for name in summed:
        side.replace_by_inputs(name, {})
    for name, states in layout.moved:
        side.replace_by_inputs(name, {state: moved[state] for state in states})
    number = next(index for index, value in enumerate(graph.outputs) if value.name == layout.loss)
    old, given = graph.outputs[number], Value(name=side.b.fresh("step/loss_given"))
    graph.inputs.append(side.b.typed(given, old))
    old.name = side.b.fresh("cut/loss")
    graph.outputs[number] = loss = side.b.copy(given)
    loss.name = layout.loss
    parts = {output for _, output in layout.parts}
    for value in [value for value in graph.outputs if value.name in parts]:
        graph.outputs.remove(value)
    drop_unread(model, {entry.name for entry in layout.states})
    graph.sort()
    read = [value.name for value in graph.inputs if value.name in layout.inputs]
    if read:
        raise _not_cuttable(f"its update reads input '{read[0]}'")
    inputs = (*summed, *moved.values(), given.name or "")
    told = replace(layout, inputs=inputs, labels="", classes=0, class_inputs=(), parts=())
    return TrainingStep(model, told), inputs[-1]


def _known_shape(value: Value) -> tuple[int, ...]:
    """Step cut in two: a value's shape. Raises AmpError AMP206 for what is no float32 tensor of a known shape."""
    dims = None if value.shape is None else list(value.shape)
    if value.dtype != FLOAT or dims is None or not all(isinstance(dim, int) for dim in dims):
        raise _not_cuttable(f"'{value.name}' is {value.dtype} {dims}")
    return tuple(int(str(dim)) for dim in dims)


def drop_unread(model: ir.Model, kept: Iterable[str] = ()) -> None:
    """Step cut in two: removes the nodes, initializers and inputs that no output depends on, but the inputs
    ``kept``."""
    for node in reversed(list(model.graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            _disconnect_bodies(node)
            model.graph.remove(node, safe=True)
    common.RemoveUnusedNodesPass()(model)
    names = set(kept)
    for value in list(model.graph.inputs):
        if not value.uses() and not value.is_graph_output() and value.name not in names:
            model.graph.inputs.remove(value)


def _disconnect_bodies(node: ir.Node) -> None:
    """Step cut in two: disconnects the bodies of a node that is to be removed from the values around, which they would
    count as reading."""
    for inner in (one for body in bodies(node) for one in body):
        for place in range(len(inner.inputs)):
            inner.replace_input_with(place, None)
        _disconnect_bodies(inner)
    for body in bodies(node):
        body.outputs.clear()


def _not_cuttable(why: str) -> AmpError:
    """The AmpError AMP206 for a step that was not built to be cut in two, or by an older version."""
    hint = "build it again with ampgraph build-step"
    return AmpError("AMP206", f"cannot be cut into gradients and update: {why}", hint=hint)


def rounded_once(made: CutStep) -> CutStep:
    """Changes both models of a cut step so that gradients that were rounded to a low type leave the first in float32
    without that, and the second rounds them after their sum; returns the step."""
    copies = _UnroundedCopies(made.gradients.model.graph)
    low = {name: dtype for name in made.summed if (dtype := copies.unround_output(name)) is not None}
    drop_unread(made.gradients.model)
    made.gradients.model.graph.sort()
    _round_inputs(made.update, low)
    return made


class _UnroundedCopies:
    """Step cut in two: adds float32 copies of low values, as they are before their rounding."""

    def __init__(self, graph: ir.Graph) -> None:
        self.b = Builder(graph, "wide")
        self.outputs = {value.name: value for value in graph.outputs}
        self.made: dict[ir.Value, ir.Value] = {}  # low value -> its copy

    def unround_output(self, name: str) -> ir.DataType | None:
        """Step cut in two: makes a gradient, an output, what it would be without the rounding to a low type on its way,
        and returns this type; None where there is no such rounding, or something else reads a value on the way."""
        value = self.outputs[name]
        while (node := value.producer()) is not None and node.inputs and node.inputs[0] is not None:
            source = node.inputs[0]
            only = len(value.uses()) + value.is_graph_output() == 1
            if not only or not (has(node.op_type, "casts") or has(node.op_type, "keeps_all")):
                break
            if has(node.op_type, "casts") and source.dtype in LOW:
                node.replace_input_with(0, self._float32_copy(source))
                return source.dtype
            value = source
        return None

    def _float32_copy(self, value: ir.Value) -> ir.Value:
        """Step cut in two: the unrounded float32 copy of a low value, made once."""
        if value not in self.made:
            self.made[value] = self._copy(value)
        return self.made[value]

    def _copy(self, value: ir.Value) -> ir.Value:
        """Step cut in two: adds the unrounded float32 copy of a low value: an operator that only moves numbers moves
        unrounded ones, any other computes in float32 from the rounded ones. Where the node cannot be repeated in
        float32, the copy is a Cast of the rounded value."""
        node = value.producer()
        if node is None or len(node.outputs) > 1 or bodies(node):
            return self.b.cast(value, FLOAT)
        if has(node.op_type, "casts") and node.inputs[0] is not None:
            source = node.inputs[0]
            return self._float32_copy(source) if source.dtype in LOW else self.b.cast(source, FLOAT)
        if not node.attributes.keys().isdisjoint(("dtype", "to", "value")):
            return self.b.cast(value, FLOAT)
        moved = has(node.op_type, "exact")
        inputs = [self._operand(source, moved) for source in node.inputs]
        result = self.b.repeat_with(node, inputs)
        result.type, result.shape = ir.TensorType(FLOAT), value.shape
        return result

    def _operand(self, source: ir.Value | None, moved: bool) -> ir.Value | None:
        """Step cut in two: an operand of a repeated node in float32: of a low one the unrounded copy if its numbers are
        only ``moved``, else a Cast; any other as it is."""
        if source is None or source.dtype not in LOW:
            return source
        return self._float32_copy(source) if moved else self.b.cast(source, FLOAT)


def _round_inputs(update: TrainingStep, low: dict[str, ir.DataType]) -> None:
    """Step cut in two: rounds the update's inputs that come unrounded (``low``: name -> low type)."""
    graph = update.model.graph
    b = Builder(graph, "step")
    for value in [value for value in graph.inputs if value.name in low]:
        readers = list(value.uses())
        rounded = b.cast(b.cast(value, low[value.name or ""]), FLOAT)
        for node, index in readers:
            node.replace_input_with(index, rounded)
    graph.sort()
