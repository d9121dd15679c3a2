"""If, Loop, Scan and calls in the dataflow: which values must have one type across the border of a body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ...core.dataflow import FLOAT32, NONE, Op, Scope
from ...core.errors import AmpError

if TYPE_CHECKING:
    from .dataflow import DataflowBuilder

LOOP_TIMES = 16  # how often a loop body is taken to run
DEEPEST_CALL = 64  # functions that call functions: beyond this they call themselves


def _if(builder: DataflowBuilder, op: Op, node: ir.Node, scope: Scope, env: Any) -> None:
    """Matching outputs of the branches and the If share a type; the branches themselves decide freely."""
    _reads(builder, op, scope, {})
    branches = [
        builder._body(op, name, node.attributes[name].value, scope, env, 1, [])
        for name in ("then_branch", "else_branch")
    ]
    for position, native in enumerate(node.outputs):
        inner = [builder.flow.values[b.outputs[position]] for b in branches]
        first = next((v for v in inner if v.dtype), inner[0])
        unit = builder.interface_unit(op, f"out{position}", first.dtype, first.container)
        _writes(builder, op, native, scope, env, first.dtype, first.container, unit)
        for body, value in zip(branches, inner, strict=True):
            _leaves(builder, body, position, value.id, unit)
            builder.flow.passed.append((value.id, op.outputs[position]))


def _loop(builder: DataflowBuilder, op: Op, node: ir.Node, scope: Scope, env: Any) -> None:
    """A state has one type on entry, in the body and on exit."""
    values = builder.flow.values
    states = op.inputs[2:]
    formals: list[tuple[str, str, int]] = [("", "int64", NONE), ("", "bool", NONE)]
    units: dict[int, int] = {}
    for position, state in enumerate(states):
        item = values[state]
        units[position + 2] = builder.interface_unit(op, f"state{position}", item.dtype, item.container)
        formals.append((item.container, item.dtype, units[position + 2]))
    _reads(builder, op, scope, units)
    body = builder._body(op, "body", node.attributes["body"].value, scope, env, LOOP_TIMES, formals)
    _leaves(builder, body, 0, body.outputs[0], NONE)
    _results(builder, op, node, scope, env, body, first_output=1, states=[units[i + 2] for i in range(len(states))])
    builder.flow.passed += zip(op.inputs, body.inputs, strict=False)
    builder.flow.passed += zip(body.outputs[1 : len(states) + 1], body.inputs[2:], strict=False)


def _scan(builder: DataflowBuilder, op: Op, node: ir.Node, scope: Scope, env: Any) -> None:
    """States as in Loop; a scanned tensor has the type of its slices."""
    values = builder.flow.values
    skip = 1 if env.opsets.get("", 9) < 9 else 0  # Scan-8 takes sequence lengths first
    scanned = int(builder.attribute(op, "num_scan_inputs") or 0)
    inputs = op.inputs[skip:]
    units: dict[int, int] = {}
    formals = []
    for position, source in enumerate(inputs):
        item = values[source]
        name = f"state{position}" if position < len(inputs) - scanned else f"scan{position}"
        units[position + skip] = builder.interface_unit(op, name, item.dtype, item.container)
        formals.append((item.container, item.dtype, units[position + skip]))
    _reads(builder, op, scope, units)
    body = builder._body(op, "body", node.attributes["body"].value, scope, env, LOOP_TIMES, formals)
    states = [units[i + skip] for i in range(len(inputs) - scanned)]
    _results(builder, op, node, scope, env, body, first_output=0, states=states)
    builder.flow.passed += zip(inputs, body.inputs, strict=False)
    builder.flow.passed += zip(body.outputs[: len(states)], body.inputs, strict=False)


def call(builder: DataflowBuilder, op: Op, node: ir.Node, scope: Scope, env: Any) -> None:
    """A model-local function, as called here: its own scope, so that every call can be decided by itself."""
    function = builder.model.functions[node.domain, node.op_type, node.overload]
    if scope.path.count("()") > DEEPEST_CALL:
        raise AmpError("AMP203", f"function {op.kind} is called recursively", hint="ONNX functions may not recurse")
    attributes = {name: a for name, a in function.attributes.items() if a.value is not None}
    attributes |= {name: builder._resolve(a, env) for name, a in node.attributes.items()}
    inner = type(env)(dict(function.opset_imports), attributes)
    path = f"{scope.path}/{op.index}:{op.kind}()"
    body = builder._scope(path, scope.id, op.id, "function", scope.times, function, inner)
    for position, native in enumerate(function.inputs):
        given = op.inputs[position] if position < len(op.inputs) else NONE
        actual = builder.flow.values[given] if given != NONE else None
        container, dtype = (actual.container, actual.dtype) if actual else ("", "")
        unit = builder.interface_unit(op, f"in{position}", dtype, container)
        if actual:
            builder._use(actual, op.id, position, unit, scope.id)
        body.inputs.append(builder._value(native, body.id, inner, dtype, container=container, unit=unit).id)
        if actual:
            builder.flow.passed.append((given, body.inputs[-1]))
    builder._nodes(function, body, inner)
    for position, native in enumerate(function.outputs):
        result = builder._lookup(native, body, inner)
        body.outputs.append(result.id)
        unit = builder.interface_unit(op, f"out{position}", result.dtype, result.container)
        builder._use(result, NONE, position, unit, body.id)
        if position < len(node.outputs):
            _writes(builder, op, node.outputs[position], scope, env, result.dtype, result.container, unit)
            builder.flow.passed.append((result.id, op.outputs[position]))
            if result.container and unit != NONE:
                builder.flow.merge((unit, result.unit))


def _results(
    builder: DataflowBuilder,
    op: Op,
    node: ir.Node,
    scope: Scope,
    env: Any,
    body: Scope,
    *,
    first_output: int,
    states: list[int],
) -> None:
    """Outputs of a loop: the final states, then what was stacked."""
    for position, inner in enumerate(body.outputs[first_output:]):
        value = builder.flow.values[inner]
        container = value.container
        if position < len(states):
            unit = states[position]
            dtype = FLOAT32 if unit != NONE else value.dtype
        else:
            unit = builder.interface_unit(op, f"stacked{position}", value.dtype, container)
            dtype = value.dtype
        _leaves(builder, body, position + first_output, inner, unit)
        if position < len(node.outputs):
            _writes(builder, op, node.outputs[position], scope, env, dtype, container, unit)
            builder.flow.passed.append((inner, op.outputs[position]))


def _reads(builder: DataflowBuilder, op: Op, scope: Scope, units: dict[int, int]) -> None:
    for position, source in enumerate(op.inputs):
        if source != NONE:
            builder._use(builder.flow.values[source], op.id, position, units.get(position, NONE), scope.id)


def _leaves(builder: DataflowBuilder, body: Scope, index: int, value: int, unit: int) -> None:
    item = builder.flow.values[value]
    builder._use(item, NONE, index, unit if item.dtype == FLOAT32 else NONE, body.id)


def _writes(
    builder: DataflowBuilder, op: Op, native: ir.Value, scope: Scope, env: Any, dtype: str, container: str, unit: int
) -> None:
    value = builder._value(native, scope.id, env, dtype, container=container, producer=op.id, unit=unit)
    op.outputs.append(value.id)


CONTROL = {"If": _if, "Loop": _loop, "Scan": _scan}
