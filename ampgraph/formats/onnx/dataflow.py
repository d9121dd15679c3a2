"""Builds the Dataflow of an ONNX model: one walk over its graphs, in order."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ...core.dataflow import BRANCHES, HELD, KEPT, MARKED, NONE, Dataflow, Scope
from ...core.errors import AmpError
from .control_flow import ControlFlow
from .layers import layer_of
from .operators import OnnxOperators
from .origins import Origins
from .schemas import ONNX_DOMAINS, first_opset_admitting, opset_of_ir
from .shapes import OnnxShapes
from .types import DTYPES
from .values import Environment, OnnxValues
from .weights import OnnxWeights

UNKNOWN = NONE - 1
MAX_OPS = 4_000_000  # functions called from functions multiply


def read_dataflow(model: ir.Model, low: str, low_io: frozenset[str]) -> Dataflow:
    """A snapshot. ``low``: the type that given casts are compared with; ``low_io``: borders that are to be low."""
    shapes = OnnxShapes(model)
    flow = Dataflow(OnnxWeights(), lambda op, name: None, layer_of, shapes)
    values = OnnxValues(model, flow, low, low_io)
    flow.attribute, flow.later_version = values.plain_attribute, first_opset_admitting
    flow.origin, flow.certain_shape = Origins(), shapes.certain
    flow.newest = onnx.defs.onnx_opset_version()
    _OnnxReader(values).read(model.graph)
    named = (op for op in flow.ops if "::" in op.kind and op.scope == 0)
    foreign = (op for op in named if op.native.domain not in ONNX_DOMAINS)
    results = (flow.values[v] for op in foreign for v in op.outputs if v != NONE)
    shapes.typed = {value.name: value.dtype for value in results if value.dtype in DTYPES and not value.container}
    _refuse_without_cast(values, low)
    return flow


def _refuse_without_cast(values: OnnxValues, low: str) -> None:
    """Before a Cast to the low type came, nothing can be low, whatever operators of other domains take.

    Functions have opsets of their own: what goes in and comes out of one is cast in it."""
    flow, since = values.flow, first_opset_admitting("Cast", "T2", 0, low)
    main = flow.opset or opset_of_ir(values.model.ir_version or 0)
    versions = [env.opsets.get("", env.opsets.get("ai.onnx", main)) for env in values.environments]
    if min(versions, default=since) >= since:
        return
    where = {unit.id: versions[flow.ops[unit.op].scope if unit.op != NONE else 0] for unit in flow.units}
    for scope in flow.scopes:
        uses = (use for value in scope.outputs for use in flow.uses[value] if use.op == NONE and use.scope == scope.id)
        border = (*(flow.values[value].unit for value in scope.inputs), *(use.unit for use in uses))
        where |= {unit: min(where[unit], versions[scope.id]) for unit in border if unit != NONE}
    for unit in flow.units:
        version = where[unit.id]
        if version < since and low in unit.admits and not (unit.fixed or unit.fixed_low):
            unit.freed_at, unit.fixed = since, f"opset {version} has no Cast to {low}; opset {since} does"


class _OnnxReader:
    """Reads graphs by their nodes; control flow reads bodies by it."""

    def __init__(self, values: OnnxValues) -> None:
        self._values, self._operators = values, OnnxOperators(values)
        self._control = ControlFlow(values, self._nodes)
        self._marked = MARKED in values.model.graph.meta

    def read(self, graph: ir.Graph) -> None:
        """Reads the main graph."""
        values, opsets = self._values, dict(self._values.model.opset_imports)
        env = Environment(opsets, {})
        values.flow.opset = opsets.get("", opsets.get("ai.onnx", 0))
        scope = values.enter("", NONE, NONE, "main", 1, graph, env)
        for native in graph.inputs:
            values.arriving(native, scope, env)
        values.initializers(graph, scope, env)
        self._nodes(graph, scope, env)
        for index, native in enumerate(graph.outputs):
            values.leaving(native, index, scope, env)

    def _nodes(self, graph: ir.Graph | ir.Function, scope: Scope, env: Environment) -> None:
        values, table, forms, ops = self._values, env.table, env.forms, self._values.flow.ops
        control, operators = self._control, self._operators
        for index, node in enumerate(graph):
            inputs = [NONE if native is None else table.get(native, UNKNOWN) for native in node.inputs]
            if UNKNOWN in inputs:
                for native in node.inputs:
                    if native is not None and native not in table:
                        values.lookup(native, scope, env)
                inputs = [NONE if native is None else table[native] for native in node.inputs]
            key = node.domain, node.op_type, len(inputs), len(node.outputs)
            form = forms.get(key) or operators.form(*key, env)
            op = values.op(form.kind, scope.id, index, node.name or "", inputs, node)
            if self._marked:
                marks = node.meta
                op.held, op.kept, op.adds_branches = marks.get(HELD, ""), marks.get(KEPT, ""), BRANCHES in marks
            if form.control and control.read(op, node, scope, env):
                continue
            if operators.read(op, node, form, scope, env):
                control.opaque_bodies(op, node, scope, env)
        if len(ops) > MAX_OPS:
            problem = f"more than {MAX_OPS:,} nodes once functions are expanded"
            hint = "functions that call functions multiply: flatten or simplify the model first"
            raise AmpError("AMP203", problem, hint=hint)
