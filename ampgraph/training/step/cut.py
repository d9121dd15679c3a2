"""A step that was written, in two graphs again: the gradients of a batch, and the update by them.

A step says which values its gradients hand to its update (`StepLayout.runs`, `StepLayout.moved`): what makes them is
one graph, what is made of them the other. The check for inf and NaN belongs to the update: it sees the sum of all
gradients that came in between, and decides once for all of them.

Parts of a gradient may be left unrounded before they are added up (`rounded_once`): their sum is rounded once, as in
one whole batch. A low product's gradient is rounded to its type and raised to float32 again. Where the batch is shared,
each share is rounded, and AdamW makes whole steps of what that leaves of the smallest gradients. So the product is made
float32, from the same low operands, and the rounding moves to the front of the update, behind the sum. For devices
whose kernels compute in float32 anyway: it costs them nothing.
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
    """``gradients``: a graph that reads state and the batch, and writes the loss, the scaled float32 gradients and new
    running statistics. ``update``: reads these and all state, and writes the next state. Neither holds state itself.

    ``summed``: the shapes of the gradients by name. ``moved``: names of new running statistics by those of the old.
    """

    gradients: TrainingStep
    update: TrainingStep
    summed: Mapping[str, tuple[int, ...]]
    moved: Mapping[str, str]
    loss: str  # the loss where it enters the update


def cut(step: TrainingStep) -> CutStep:
    """The two graphs of a step, gradients and update. Raises AmpError AMP206 for a step that does not say what its
    gradients are."""
    proto, folder = session_model(step)
    model = onnx_io.deserialize(proto, Path(folder) if folder else None)
    infer(model)
    other, handed = model.clone(), [name for run in step.layout.runs for name in run.gradients]
    gradients, update = _StepSide(model.graph), _StepSide(other.graph)
    summed = {name: _known_shape(gradients.value(name)) for name in handed}
    if not summed:
        raise _not_cuttable("nothing says what its gradients are")
    moved = {state: made for name, states in step.layout.moved for state, made in gradients.given_out(name, states)}
    of_gradients = _gradients(model, gradients, step.layout, [*summed, *moved.values()])
    of_update, loss = _update(other, update, step.layout, list(summed), moved)
    return CutStep(of_gradients, of_update, summed, moved, loss)


class _StepSide:
    """A copy of the whole step, from which one of its two graphs is made."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.b = graph, Builder(graph, "cut")
        self._made = {value.name: value for node in graph for value in node.outputs}

    def value(self, name: str) -> Value:
        """A value of the step by name. Raises AmpError AMP206 where no node makes it."""
        if name not in self._made:
            raise _not_cuttable(f"no node makes '{name}'")
        return self._made[name]

    def given_out(self, name: str, states: tuple[str, ...]) -> list[tuple[str, str]]:
        """Running statistics with their next values, taken out of the vector that holds several."""
        if len(states) == 1:
            return [(states[0], name)]
        inputs = {value.name: value for value in self.graph.inputs}
        sizes = [_known_shape(inputs[state])[0] for state in states]
        pieces = self.b.ops("Split", len(sizes), self.value(name), self.b.ints(*sizes), axis=0)
        for state, piece, count in zip(states, pieces, sizes, strict=True):
            self.b.typed(piece, FLOAT, count).name = name = self.b.fresh(f"cut/next/{state}")
            self._made[name] = piece
        return [(state, piece.name or "") for state, piece in zip(states, pieces, strict=True)]

    def replaced_by_inputs(self, name: str, pieces: Mapping[str, str]) -> None:
        """Makes inputs of a value that the other side computes; several running statistics get one each."""
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


def _gradients(model: ir.Model, side: _StepSide, layout: StepLayout, names: list[str]) -> TrainingStep:
    """The step reduced to its gradients: the loss and the values ``names`` are its outputs, what makes no part of them
    is dropped, and state is only read. All that the layout says of an update is blank: there is none here.

    It is dropped before `_split_reads`, which then looks at no node of the update, and after it, since the vectors of
    state that it takes apart are unread only then.
    """
    graph = model.graph
    loss = next(value for value in graph.outputs if value.name == layout.loss)
    made = [side.value(name) for name in names]
    graph.outputs.clear()
    graph.outputs.extend([loss, *made])
    drop_unread(model)
    _split_reads(side.b)
    drop_unread(model)
    graph.sort()
    have = {value.name for value in graph.inputs}
    states = tuple(replace(entry, output="") for entry in layout.states if entry.name in have)
    told = replace(layout, states=states, finite="", norm="", parts=(), runs=(), moved=())
    return TrainingStep(model, told)


def _split_reads(b: Builder) -> None:
    """Step cut in two: splits what the gradients read of vectors of state, so that they do not read the rest."""
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


def _update(
    model: ir.Model, side: _StepSide, layout: StepLayout, summed: Iterable[str], moved: Mapping[str, str]
) -> tuple[TrainingStep, str]:
    """The step reduced to its update: what the gradients' graph makes comes in; also the name of the loss there."""
    graph = model.graph
    for name in summed:
        side.replaced_by_inputs(name, {})
    for name, states in layout.moved:
        side.replaced_by_inputs(name, {state: moved[state] for state in states})
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
    """In a step cut in two: a value's shape. Raises AmpError AMP206 for what is no float32 tensor of a known shape."""
    dims = None if value.shape is None else list(value.shape)
    if value.dtype != FLOAT or dims is None or not all(isinstance(dim, int) for dim in dims):
        raise _not_cuttable(f"'{value.name}' is {value.dtype} {dims}")
    return tuple(int(str(dim)) for dim in dims)


def drop_unread(model: ir.Model, kept: Iterable[str] = ()) -> None:
    """Step cut in two: removes nodes, initializers and inputs that nothing reads, but for some inputs."""
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
    """Step cut in two: disconnects the bodies of a node that is removed, so that what they read does not count."""
    for inner in (one for body in bodies(node) for one in body):
        for place in range(len(inner.inputs)):
            inner.replace_input_with(place, None)
        _disconnect_bodies(inner)
    for body in bodies(node):
        body.outputs.clear()


def _not_cuttable(why: str) -> AmpError:
    """The error for a step that was not built to be cut in two."""
    hint = "build it again with ampgraph build-step"
    return AmpError("AMP206", f"cannot be cut into gradients and update: {why}", hint=hint)


def rounded_once(made: CutStep) -> CutStep:
    """The cut step, its models changed: low gradients leave the first graph in float32, and the second rounds them."""
    wide = _UnroundedCopies(made.gradients.model.graph)
    low = {name: dtype for name in made.summed if (dtype := wide.output(name)) is not None}
    drop_unread(made.gradients.model)
    made.gradients.model.graph.sort()
    _round_inputs(made.update, low)
    return made


class _UnroundedCopies:
    """Step cut in two: makes float32 copies of low values that are not rounded where they are made."""

    def __init__(self, graph: ir.Graph) -> None:
        self.b = Builder(graph, "wide")
        self.outputs = {value.name: value for value in graph.outputs}
        self.made: dict[ir.Value, ir.Value] = {}

    def output(self, name: str) -> ir.DataType | None:
        """Makes a gradient output read what it was before a Cast rounded it, computed in float32; returns the low type,
        or None where nothing changes: no low value comes before, or others read it on the way."""
        value = self.outputs[name]
        while (node := value.producer()) is not None and node.inputs and node.inputs[0] is not None:
            source = node.inputs[0]
            only = len(value.uses()) + value.is_graph_output() == 1
            if not only or not (has(node.op_type, "casts") or has(node.op_type, "keeps_all")):
                break
            if has(node.op_type, "casts") and source.dtype in LOW:
                node.replace_input_with(0, self._raised(source))
                return source.dtype
            value = source
        return None

    def _raised(self, value: ir.Value) -> ir.Value:
        """Step cut in two: the float32 copy of a low value, made once."""
        if value not in self.made:
            self.made[value] = self._copy(value)
        return self.made[value]

    def _copy(self, value: ir.Value) -> ir.Value:
        """Step cut in two: a low value computed in float32: moves of numbers move unrounded ones, any other operator
        computes from rounded ones."""
        node = value.producer()
        if node is None or len(node.outputs) > 1 or bodies(node):
            return self.b.cast(value, FLOAT)
        if has(node.op_type, "casts") and node.inputs[0] is not None:
            source = node.inputs[0]
            return self._raised(source) if source.dtype in LOW else self.b.cast(source, FLOAT)
        if not node.attributes.keys().isdisjoint(("dtype", "to", "value")):
            return self.b.cast(value, FLOAT)
        moved = has(node.op_type, "exact")
        inputs = [self._operand(source, moved) for source in node.inputs]
        result = self.b.repeat_with(node, inputs)
        result.type, result.shape = ir.TensorType(FLOAT), value.shape
        return result

    def _operand(self, source: ir.Value | None, moved: bool) -> ir.Value | None:
        """Step cut in two: a node's operand in float32: the unrounded copy of what was computed low if ``moved``, else
        a Cast; others as they are."""
        if source is None or source.dtype not in LOW:
            return source
        return self._raised(source) if moved else self.b.cast(source, FLOAT)


def _round_inputs(update: TrainingStep, low: dict[str, ir.DataType]) -> None:
    """Rounds the inputs of the update that come unrounded, to their types in ``low``."""
    graph = update.model.graph
    b = Builder(graph, "step")
    for value in [value for value in graph.inputs if value.name in low]:
        readers = list(value.uses())
        rounded = b.cast(b.cast(value, low[value.name or ""]), FLOAT)
        for node, index in readers:
            node.replace_input_with(index, rounded)
    graph.sort()
