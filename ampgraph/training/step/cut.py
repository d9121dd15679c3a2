"""A step in two graphs: the gradients of a batch, and the update by them; what may come between is added or reduced.

Both are cut from the one graph, node for node, so any saved step can be cut. The update is what `joint_graph` adds
behind the gradients, each of which has an Identity of its own there. The check for inf and NaN belongs to the update:
it sees the sum of all gradients that came in between, and decides once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from ...core.errors import AmpError
from ...core.names import FreshNames
from ...formats.onnx import io as onnx_io
from ...formats.onnx.walk import bodies
from ...oplists.traits import has
from ..forward.read import infer
from .kept_together import choose_apart
from .running_state import move_apart
from .session_model import session_model
from .state_tensors import RUNNING
from .training_step import StepLayout, TrainingStep

UPDATE = "step/"  # how the names of nodes begin that a `StateBuilder` adds


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
    """Both graphs of a step. Raises AmpError AMP206 for one whose update cannot be told from its gradients."""
    model = _read(step)
    other = model.clone()
    frontier = _Frontier(model.graph, step.layout)
    summed = {name: shape for name, shape in frontier.shapes().items() if name not in frontier.moved.values()}
    gradients = _gradients(model, step.layout, [*summed, *frontier.moved.values()])
    update, loss = _update(other, step.layout, [*summed, *frontier.moved.values()])
    return CutStep(gradients, update, summed, frontier.moved, loss)


def _read(step: TrainingStep) -> ir.Model:
    """The step without its state, and without nodes that nothing reads, which belong to neither side."""
    proto, folder = session_model(step)
    model = onnx_io.deserialize(proto, Path(folder) if folder else None)
    choose_apart(model.graph)
    running = {entry.name for entry in step.layout.of(RUNNING)}
    move_apart(model.graph, {value.name: value for value in model.graph.inputs if value.name in running})
    common.RemoveUnusedNodesPass()(model)
    infer(model)
    return model


class _Frontier:
    """The values that go from the gradients to the update."""

    def __init__(self, graph: ir.Graph, layout: StepLayout) -> None:
        self.graph, self.layout = graph, layout
        self.after = _update_nodes(graph, layout.loss)
        fed = _fed(graph, layout.inputs)
        crossing = {
            value: None
            for node in graph
            if node in self.after
            for value in node.inputs
            if value is not None and value in fed and value.producer() not in self.after
        }
        self.values = list(dict.fromkeys(low for value in crossing for low in self._lowered(value)))
        outputs = {value.name: value for value in graph.outputs}
        running = {entry.name: self._risen(outputs[entry.output]) for entry in layout.of(RUNNING) if entry.output}
        known = set(self.values)
        self.moved = {name: value.name or "" for name, value in running.items() if value in known}
        if any(value in fed and value not in known for value in running.values()):
            raise _uncut("its running statistics are computed in the update")

    def _lowered(self, value: ir.Value) -> list[ir.Value]:
        """Behind the Identity that each gradient has of its own, and the Cast to float32 behind that, which low ones
        that are put together share."""
        readers = [node for node in value.consumers() if node in self.after]
        if not all(node.op_type == "Identity" for node in readers):
            raise _uncut(f"'{value.name}' is read by the update, and is no gradient")
        return [self._passed(node.outputs[0]) for node in readers]

    def _passed(self, value: ir.Value) -> ir.Value:
        readers = list(value.consumers())
        while len(readers) == 1 and _goes_on(value, readers[0]) and not readers[0].outputs[0].is_graph_output():
            value = readers[0].outputs[0]
            readers = list(value.consumers())
        return value

    def _risen(self, output: ir.Value) -> ir.Value:
        """The new value of a running statistic before the update chooses between it and the old one."""
        value, known, place = output, set(self.values), 0
        while value not in known and (node := value.producer()) is not None:
            if node.op_type == "Split":
                place = list(node.outputs).index(value)
            above = _above(node, place) if node in self.after else None
            if above is None:
                break
            value = above
        return value

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """By name. Raises AmpError AMP206 for what is no float32 tensor of a known shape."""
        found = {}
        for value in self.values:
            dims = None if value.shape is None else list(value.shape)
            if value.dtype != ir.DataType.FLOAT or dims is None or not all(isinstance(dim, int) for dim in dims):
                raise _uncut(f"gradient '{value.name}' is {value.dtype} {dims}")
            found[value.name or ""] = tuple(int(str(dim)) for dim in dims)
        return found


def _passes(node: ir.Node) -> bool:
    """Whether a node gives on what it is given, in another type at most."""
    return node.op_type == "Identity" or has(node.op_type, "casts")


def _above(node: ir.Node, place: int) -> ir.Value | None:
    """What a node of the update that commits state takes for new; ``place``: among what is put together."""
    if node.op_type == "Where":
        return node.inputs[1]
    if node.op_type == "Concat":
        return node.inputs[place]
    return node.inputs[0] if node.op_type == "Split" or _passes(node) else None


def _goes_on(value: ir.Value, node: ir.Node) -> bool:
    """Whether the gradient that enters the update is behind a node: a low one may be put together with others first."""
    gathers = has(node.op_type, "reshapes") or node.op_type == "Concat"
    return _passes(node) or (gathers and value.dtype != ir.DataType.FLOAT)


def _update_nodes(graph: ir.Graph, loss: str) -> set[ir.Node]:
    """Nodes that the update added: by name, and because nothing but state and other such nodes reads them."""
    found: set[ir.Node] = set()
    for node in reversed(graph):
        outputs, readers = node.outputs, [reader for value in node.outputs for reader in value.consumers()]
        wanted = bool(readers) or any(value.is_graph_output() for value in outputs)
        named = (node.name or "").startswith(UPDATE) and all(value.name != loss for value in outputs)
        if wanted and named and all(reader in found for reader in readers):
            found.add(node)
    return found


def _fed(graph: ir.Graph, inputs: Iterable[str]) -> set[ir.Value]:
    """All values that depend on the batch."""
    names = set(inputs)
    found = {value for value in graph.inputs if value.name in names}
    for node in graph:
        if any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _gradients(model: ir.Model, layout: StepLayout, names: list[str]) -> TrainingStep:
    graph = model.graph
    made = {value.name: value for node in graph for value in node.outputs}
    loss = next(value for value in graph.outputs if value.name == layout.loss)
    graph.outputs.clear()
    graph.outputs.extend([loss, *(made[name] for name in names)])
    drop_unread(model)
    have = {value.name for value in graph.inputs}
    states = tuple(replace(entry, output="") for entry in layout.states if entry.name in have)
    return TrainingStep(model, replace(layout, states=states, finite="", norm="", parts=()))


def _update(model: ir.Model, layout: StepLayout, names: list[str]) -> tuple[TrainingStep, str]:
    graph = model.graph
    fresh = FreshNames([value.name for node in graph for value in node.outputs])
    made = {value.name: value for node in graph for value in node.outputs}
    for name in names:
        _as_input(graph, made[name], fresh)
    number = next(index for index, value in enumerate(graph.outputs) if value.name == layout.loss)
    old, given = graph.outputs[number], ir.Value(name=fresh("step/loss_given"))
    given.type, given.shape = old.type, old.shape
    graph.inputs.append(given)
    old.name = fresh("cut/loss")
    passed = ir.Node("", "Identity", [given], name=fresh("step/loss_taken"))
    [loss] = passed.outputs
    loss.name, loss.type, loss.shape = layout.loss, given.type, given.shape
    graph.append(passed)
    graph.outputs[number] = loss
    parts = {output for _, output in layout.parts}
    for value in [value for value in graph.outputs if value.name in parts]:
        graph.outputs.remove(value)
    states = {entry.name for entry in layout.states}
    drop_unread(model, states)
    read = [value.name for value in graph.inputs if value.name in layout.inputs]
    if read:
        raise _uncut(f"its update reads input '{read[0]}'")
    inputs = (*names, given.name or "")
    told = replace(layout, inputs=inputs, labels="", classes=0, class_inputs=(), parts=())
    return TrainingStep(model, told), inputs[-1]


def _as_input(graph: ir.Graph, made: ir.Value, fresh: FreshNames) -> None:
    """An input takes the name and the readers of a value."""
    given = ir.Value(name=made.name, type=made.type, shape=made.shape)
    made.name = fresh(f"cut/{made.name}")
    for node, index in list(made.uses()):
        node.replace_input_with(index, given)
    graph.inputs.append(given)


def drop_unread(model: ir.Model, kept: Iterable[str] = ()) -> None:
    """Nodes, initializers and inputs that nothing reads, but for some inputs."""
    for node in reversed(list(model.graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            _read_nothing(node)
            model.graph.remove(node, safe=True)
    common.RemoveUnusedNodesPass()(model)
    names = set(kept)
    for value in list(model.graph.inputs):
        if not value.uses() and not value.is_graph_output() and value.name not in names:
            model.graph.inputs.remove(value)


def _read_nothing(node: ir.Node) -> None:
    """The bodies of a node that goes: what they read counts as read else, and so stays."""
    for inner in (one for body in bodies(node) for one in body):
        for place in range(len(inner.inputs)):
            inner.replace_input_with(place, None)
        _read_nothing(inner)
    for body in bodies(node):
        body.outputs.clear()


def _uncut(why: str) -> AmpError:
    hint = "build it again with ampgraph build-step, from a graph in which no node's name begins with step/"
    return AmpError("AMP206", f"cannot be cut into gradients and update: {why}", hint=hint)
