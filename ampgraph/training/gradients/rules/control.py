"""Gradients of If, Loop and Scan: a node whose bodies compute their forward again, and then the gradients.

The gradient of an If is an If on the same condition. Loop and Scan are made to output the states that each step starts
from, and their gradient is a Scan over these from the last step: it carries the gradients of the states, and the sums
of those of the values that the body reads from around. Nothing but these states is kept.
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
"""Values, each with its gradient."""
DifferentiateBody = Callable[[ir.Graph, Pairs, Sequence[Value], FreshNames], list["Value | None"]]
"""Adds gradients to a body: its graph, some of its values with their gradients, the wanted values, a supply of names ->
the gradients of the wanted ones, None where nothing flows back."""

SUMMED = "the sum over all steps of what they bring to one value"


def through_bodies(
    b: Builder,
    node: ir.Node,
    gradients: Sequence[Value | None],
    active: Collection[Value],
    differentiate_body: DifferentiateBody,
) -> Pairs:
    """The values around an If, Loop or Scan that it, or a body of it, reads, with the gradients that it brings them.
    ``gradients``: of its outputs; ``active``: the values that need gradients. Raises AmpError AMP210 for another node
    with bodies, and for bodies that cannot be computed again; Unsupported for a form that has no gradient here."""
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
    return kinds[kind_of(node)](_ControlFlowNode(b, node, gradients, active, around, differentiate_body))


def _refused(node: ir.Node, message: str) -> AmpError:
    """The AmpError AMP210 for a body whose gradient cannot be written, with ways to export it otherwise."""
    hint = "move it out of the body, compute both branches and choose by torch.where, or unroll the loop"
    return AmpError("AMP210", message, where=place_of(node), hint=hint)


@dataclass(frozen=True)
class _ControlFlowNode:
    """An If, Loop or Scan whose gradients are written, as `through_bodies` was given it. ``around``: the active values
    that its bodies read from the graph around it."""

    b: Builder
    node: ir.Node
    gradients: Sequence[Value | None]
    active: Collection[Value]
    around: list[Value]
    differentiate_body: DifferentiateBody

    def copy(self, body: ir.Graph) -> ir.Graph:
        """Gradient of an If, Loop or Scan: a copy of a body under new names."""
        graph = body.clone(allow_outer_scope_values=True)
        _rename(graph, self.b.fresh)
        return graph


def _rename(graph: ir.Graph, fresh: FreshNames) -> None:
    """Gradient of an If, Loop or Scan: new names for all values and nodes of a copied body, as ONNX wants."""
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
    """Gradient of an If, Loop or Scan: makes the gradient ``found`` of a value ``like`` an output of the body that
    ``b`` builds; zeros for None, where nothing flows back."""
    b.graph.outputs.append(b.typed(b.op("Identity", b.zeros(like) if found is None else found), like))


def _through_if(flow: _ControlFlowNode) -> Pairs:
    """The gradients of an If: another If, whose branches compute the forward again and then the gradients."""
    made: dict[str, ir.Graph] = {}
    for name in ("then_branch", "else_branch"):
        graph = flow.copy(flow.node.attributes[name].as_graph())
        seeds = [(end, g) for end, g in zip(graph.outputs, flow.gradients, strict=True) if g is not None]
        found = flow.differentiate_body(graph, seeds, flow.around, flow.b.fresh)
        graph.outputs.clear()
        builder = flow.b.body_builder(graph=graph)
        for slope, value in zip(found, flow.around, strict=True):
            _gradient_output(builder, slope, value)
        made[name] = graph
    results = flow.b.ops("If", len(flow.around), flow.node.inputs[0], **made)
    return [(value, flow.b.typed(result, value)) for value, result in zip(flow.around, results, strict=True)]


@dataclass(frozen=True)
class _LoopSteps:
    """What the gradients of a Loop and of a Scan need to know of it, alike for both."""

    body: ir.Graph
    states: list[Value]  # the initial values of what it carries, of the graph around
    rows: list[Value]  # what it goes through, along the first axis, of the graph around; none for a Loop
    skipped: int  # how many inputs of the body precede the states: 2 for a Loop, the step's number and a condition
    first: int  # the output of the body that is the first next state: 1 for a Loop, behind its condition


def _through_scan(flow: _ControlFlowNode) -> Pairs:
    """The gradients of a Scan. Raises Unsupported for one that does not go along first axes in forward direction."""
    node = flow.node
    names = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
    if any(any(attribute(node, name, ())) for name in names):
        raise Unsupported("Scan has a gradient here where all axes are the first and all directions forward")
    count = len(node.inputs) - int(attribute(node, "num_scan_inputs"))
    given = [value for value in node.inputs if value is not None]
    body = node.attributes["body"].as_graph()
    return _backward_scan(flow, _LoopSteps(body, given[:count], given[count:], 0, 0))


def _through_loop(flow: _ControlFlowNode) -> Pairs:
    """The gradients of a Loop. Raises Unsupported for one that carries nothing."""
    states = [value for value in flow.node.inputs[2:] if value is not None]
    if not states:
        raise Unsupported("Loop has a gradient here where it carries a value")
    return _backward_scan(flow, _LoopSteps(flow.node.attributes["body"].as_graph(), states, [], 2, 1))


def _backward_scan(flow: _ControlFlowNode, steps: _LoopSteps) -> Pairs:
    """The gradients of a Loop or Scan: a Scan from the last step to the first. Each step computes its forward again
    from the states that it started from; it carries the gradients of the float states and the sums of those of the
    values around, and gives out the gradients of its rows."""
    b, graph, carries = flow.b, flow.copy(steps.body), len(steps.states)
    saved = _output_states(flow, steps)
    builder, given = b.body_builder(graph=graph), list(graph.inputs)
    olds, rows = given[steps.skipped : steps.skipped + carries], given[steps.skipped + carries :]
    ends = list(graph.outputs)[steps.first :]
    graph.inputs.clear()
    graph.outputs.clear()
    floats = [n for n in range(carries) if steps.states[n].dtype in FLOATS]
    carried = [builder.input(olds[n]) for n in floats]
    sums = [builder.input(value) for value in flow.around]
    graph.inputs.extend([*olds, *rows])
    through = [*saved, *steps.rows]
    if steps.skipped:
        count = b.op("Gather", b.op("Shape", saved[0]), b.int64(0))
        through.append(b.arange(count))  # the numbers of the steps that were run
        graph.inputs.append(given[0])
        given[1].replace_all_uses_with(builder.constant(np.array(True)))
    outs = [(end, g) for end, g in zip(ends[carries:], flow.gradients[carries:], strict=False) if g is not None]
    seeds = [(ends[n], slope) for n, slope in zip(floats, carried, strict=True)]
    seeds += [(end, builder.input(end)) for end, _ in outs]
    through += [g for _, g in outs]
    active = [n for n, row in enumerate(steps.rows) if row in flow.active]
    wanted = [*(olds[n] for n in floats), *flow.around, *(rows[n] for n in active)]
    found = flow.differentiate_body(graph, seeds, wanted, b.fresh)
    for number, (slope, value) in enumerate(zip(found, wanted, strict=True)):
        at = number - len(floats)
        if 0 <= at < len(sums):
            with builder.float32(SUMMED):
                slope = sums[at] if slope is None else builder.op("Add", sums[at], slope)
        _gradient_output(builder, slope, value)
    last = [b.zeros(steps.states[n]) if flow.gradients[n] is None else flow.gradients[n] for n in floats]
    made = b.ops(
        "Scan",
        len(wanted),
        *last,
        *(b.zeros(value) for value in flow.around),
        *through,
        body=graph,
        num_scan_inputs=len(through),
        scan_input_directions=[1] * len(through),
        scan_output_directions=[1] * len(active) or None,
    )
    targets = [*(steps.states[n] for n in floats), *flow.around, *(steps.rows[n] for n in active)]
    pairs = [(value, b.typed(result, value)) for value, result in zip(targets, made, strict=True)]
    return [(value, slope) for value, slope in pairs if value in flow.active]


def _output_states(flow: _ControlFlowNode, steps: _LoopSteps) -> list[Value]:
    """Gradient of a Loop or Scan: makes the forward node output the states that each step starts from, stacked."""
    builder, node = flow.b.body_builder(graph=steps.body), flow.node
    saved = []
    for number, state in enumerate(steps.states):
        old = steps.body.inputs[steps.skipped + number]
        if old.dtype is None:
            old.type, old.shape = state.type, state.shape
        steps.body.outputs.append(builder.copy(old))
        node.resize_outputs(len(node.outputs) + 1)
        made = node.outputs[-1]
        made.name, made.type = flow.b.fresh(f"{flow.b.prefix}/states"), old.type
        made.shape = None if old.shape is None else ir.Shape([None, *old.shape])
        saved.append(made)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in node.attributes:
            given = [*node.attributes[name].as_ints(), *[0] * len(saved)]
            node.attributes[name] = ir.AttrInt64s(name, given)
    return saved
