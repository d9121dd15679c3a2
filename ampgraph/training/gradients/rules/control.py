"""If, Loop and Scan backwards: a node of the same kind whose bodies compute their forward again, and then go back.

The gradient of an If is an If on the same condition. Loop and Scan give out the states that each step found, and their
gradient is a Scan over these from the end: it carries the gradients of the states, and sums of those of values that
the body reads from around. Nothing but these states is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ....core.errors import AmpError
from ....core.names import FreshNames
from ....formats.onnx.nodes import attribute, kind_of, place_of
from ....formats.onnx.walk import bodies, captured
from ....oplists.traits import has
from ..builder import FLOATS, Builder
from ..registry import Unsupported

Value = ir.Value
Pairs = list[tuple[Value, Value]]
Inside = Callable[[ir.Graph, Pairs, Sequence[Value], FreshNames], list["Value | None"]]
"""Differentiates a body: its graph, outputs and their gradients, what is wanted; None where nothing flows back."""

SUMMED = "the sum over all steps of what they bring to one value"


def through_bodies(
    b: Builder, node: ir.Node, gradients: Sequence[Value | None], active: Collection[Value], inside: Inside
) -> Pairs:
    """Values of this graph that an If, a Loop or a Scan reads, and the gradients that it brings them. Raises AmpError
    AMP210 for another node with bodies, and for bodies that cannot be computed again; Unsupported for a form that has
    no gradient here."""
    around = [value for value in captured(node) if value in active]
    if not around and not any(value in active for value in node.inputs if value is not None):
        return []
    kinds = {"If": _through_if, "Loop": _through_loop, "Scan": _through_scan}
    if kind_of(node) not in kinds:
        raise _refused(node, f"nothing flows back through the body of {kind_of(node)}")
    for inner in (deep for body in bodies(node) for deep in body.all_nodes()):
        if inner.op_type == "Dropout" or has(kind_of(inner), "random"):
            raise _refused(node, f"{inner.op_type} inside of {node.op_type} would draw other numbers on the way back")
        if inner.op_type == "BatchNormalization":
            raise _refused(node, f"{inner.op_type} inside of {node.op_type} has no batch of its own to train by")
    return kinds[kind_of(node)](_ControlFlowNode(b, node, gradients, active, around, inside))


def _refused(node: ir.Node, message: str) -> AmpError:
    """The error for a body that cannot be differentiated, with ways to export it otherwise."""
    hint = "move it out of the body, compute both branches and choose by torch.where, or unroll the loop"
    return AmpError("AMP210", message, where=place_of(node), hint=hint)


@dataclass(frozen=True)
class _ControlFlowNode:
    """One node on the way back. ``around``: the active values that its bodies read from this graph."""

    b: Builder
    node: ir.Node
    gradients: Sequence[Value | None]
    active: Collection[Value]
    around: list[Value]
    inside: Inside

    def copy(self, body: ir.Graph) -> ir.Graph:
        """Gradient of a loop: the body once more, under new names."""
        graph = body.clone(allow_outer_scope_values=True)
        _rename(graph, self.b.fresh)
        return graph


def _rename(graph: ir.Graph, fresh: FreshNames) -> None:
    """Gradient of a loop: gives all values and nodes of a copied body new names, in place: ONNX wants them unique in
    the whole model."""
    for name, value in list(graph.initializers.items()):
        graph.initializers.pop(name)
        value.name = fresh(name)
        graph.initializers[value.name] = value
    for value in graph.inputs:
        value.name = fresh(value.name or "row")
    for node in graph:
        node.name = fresh(node.name or node.op_type)
        for value in node.outputs:
            value.name = fresh(value.name) if value.name else value.name
        for body in bodies(node):
            _rename(body, fresh)


def _gradient_output(b: Builder, found: Value | None, like: Value) -> None:
    """Makes a gradient an output of the body; zeros where nothing flows back."""
    b.graph.outputs.append(b.typed(b.op("Identity", b.zeros(like) if found is None else found), like))


def _through_if(way: _ControlFlowNode) -> Pairs:
    """The gradient of an If: another If on the same condition, whose branches compute the forward again and go back."""
    made: dict[str, ir.Graph] = {}
    for name in ("then_branch", "else_branch"):
        graph = way.copy(way.node.attributes[name].as_graph())
        seeds = [(end, g) for end, g in zip(graph.outputs, way.gradients, strict=True) if g is not None]
        found = way.inside(graph, seeds, way.around, way.b.fresh)
        graph.outputs.clear()
        inner = way.b.body_builder(graph=graph)
        for slope, value in zip(found, way.around, strict=True):
            _gradient_output(inner, slope, value)
        made[name] = graph
    results = way.b.ops("If", len(way.around), way.node.inputs[0], **made)
    return [(value, way.b.typed(result, value)) for value, result in zip(way.around, results, strict=True)]


@dataclass(frozen=True)
class _LoopSteps:
    """A Loop or a Scan: its body, values that it carries and goes through, by place among its inputs and outputs."""

    body: ir.Graph
    states: list[Value]  # the first ones, of the graph around
    rows: list[Value]  # of the graph around
    skipped: int  # inputs of the body in front of the states: Loop's number and condition
    first: int  # output of the body that is the first next state: behind Loop's condition


def _through_scan(way: _ControlFlowNode) -> Pairs:
    """The gradient of a Scan along first axes in forward direction; others are refused."""
    node = way.node
    names = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
    if any(any(attribute(node, name, ())) for name in names):
        raise Unsupported("Scan has a gradient here where all axes are the first and all directions forward")
    count = len(node.inputs) - int(attribute(node, "num_scan_inputs"))
    given = [value for value in node.inputs if value is not None]
    body = node.attributes["body"].as_graph()
    return _backward_scan(way, _LoopSteps(body, given[:count], given[count:], 0, 0))


def _through_loop(way: _ControlFlowNode) -> Pairs:
    """The gradient of a Loop; one that carries nothing is refused."""
    states = [value for value in way.node.inputs[2:] if value is not None]
    if not states:
        raise Unsupported("Loop has a gradient here where it carries a value")
    return _backward_scan(way, _LoopSteps(way.node.attributes["body"].as_graph(), states, [], 2, 1))


def _backward_scan(way: _ControlFlowNode, steps: _LoopSteps) -> Pairs:
    """The Scan from the last step to the first: each gives the gradients of the carried values and of rows, and sums up
    those of what the body reads from around."""
    b, graph, carries = way.b, way.copy(steps.body), len(steps.states)
    saved = _keep_states(way, steps)
    inner, given = b.body_builder(graph=graph), list(graph.inputs)
    olds, rows = given[steps.skipped : steps.skipped + carries], given[steps.skipped + carries :]
    ends = list(graph.outputs)[steps.first :]
    graph.inputs.clear()
    graph.outputs.clear()
    floats = [n for n in range(carries) if steps.states[n].dtype in FLOATS]
    carried = [inner.input(olds[n]) for n in floats]
    sums = [inner.input(value) for value in way.around]
    graph.inputs.extend([*olds, *rows])
    through = [*saved, *steps.rows]
    if steps.skipped:
        count = b.op("Gather", b.op("Shape", saved[0]), b.int64(0))
        through.append(b.arange(count))  # the numbers of the steps that there were
        graph.inputs.append(given[0])
        given[1].replace_all_uses_with(inner.constant(np.array(True)))
    outs = [(end, g) for end, g in zip(ends[carries:], way.gradients[carries:], strict=False) if g is not None]
    seeds = [(ends[n], slope) for n, slope in zip(floats, carried, strict=True)]
    seeds += [(end, inner.input(end)) for end, _ in outs]
    through += [g for _, g in outs]
    active = [n for n, row in enumerate(steps.rows) if row in way.active]
    wanted = [*(olds[n] for n in floats), *way.around, *(rows[n] for n in active)]
    found = way.inside(graph, seeds, wanted, b.fresh)
    for number, (slope, value) in enumerate(zip(found, wanted, strict=True)):
        at = number - len(floats)
        if 0 <= at < len(sums):
            with inner.float32(SUMMED):
                slope = sums[at] if slope is None else inner.op("Add", sums[at], slope)
        _gradient_output(inner, slope, value)
    last = [b.zeros(steps.states[n]) if way.gradients[n] is None else way.gradients[n] for n in floats]
    made = b.ops(
        "Scan",
        len(wanted),
        *last,
        *(b.zeros(value) for value in way.around),
        *through,
        body=graph,
        num_scan_inputs=len(through),
        scan_input_directions=[1] * len(through),
        scan_output_directions=[1] * len(active) or None,
    )
    targets = [*(steps.states[n] for n in floats), *way.around, *(steps.rows[n] for n in active)]
    pairs = [(value, b.typed(result, value)) for value, result in zip(targets, made, strict=True)]
    return [(value, slope) for value, slope in pairs if value in way.active]


def _keep_states(way: _ControlFlowNode, steps: _LoopSteps) -> list[Value]:
    """The states as each step found them, stacked, as further outputs of the forward node."""
    inner, node = way.b.body_builder(graph=steps.body), way.node
    saved = []
    for number, state in enumerate(steps.states):
        old = steps.body.inputs[steps.skipped + number]
        if old.dtype is None:
            old.type, old.shape = state.type, state.shape
        steps.body.outputs.append(inner.copy(old))
        node.resize_outputs(len(node.outputs) + 1)
        made = node.outputs[-1]
        made.name, made.type = way.b.fresh(f"{way.b.prefix}/states"), old.type
        made.shape = None if old.shape is None else ir.Shape([None, *old.shape])
        saved.append(made)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in node.attributes:
            given = [*node.attributes[name].as_ints(), *[0] * len(saved)]
            node.attributes[name] = ir.AttrInt64s(name, given)
    return saved
