"""Builds the Dataflow of an ONNX model: one walk over its graphs, bodies and calls included. A value has a *container*
(sequence, optional; "" for a tensor), and one that is float32 a *unit*: what its type is decided by."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ...core.dataflow import BRANCHES, FLOAT32, HELD, KEPT, MARKED, NONE, Dataflow, Op, Scope
from ...core.graph import LOW
from .faults import refuse_multiplied
from .operators import BODIES, Environment, OnnxOperators, OnnxValues, body_types
from .origins import Origins, layer_of
from .schemas import ONNX_DOMAINS, allowed, first_opset_admitting, opset_of_ir, schema
from .shapes import OnnxShapes
from .types import DTYPES, declared_type
from .weights import OnnxWeights

LOOP_TIMES = 16  # how often a loop body is taken to run

Formal = tuple[str, str, int]  # container, element type, unit of an input of a body


@dataclass(frozen=True)
class Caller:
    """An ONNX operator with bodies or call of a function, its node, its scope, and what names mean there."""

    op: Op
    node: ir.Node
    scope: Scope
    env: Environment


UNKNOWN = NONE - 1  # in the place of a value's id: the name was not met yet


def read_dataflow(model: ir.Model, low: str, low_io: frozenset[str]) -> Dataflow:
    """Reads an ONNX model, as it is now, into a dataflow; edits of the model make it out of date. ``low``: the type
    that given casts are compared with; ``low_io``: names of inputs and outputs that are to be low. Raises AmpError
    AMP203 for functions that call themselves, or are too large once they are expanded."""
    refuse_multiplied(model)
    shapes = OnnxShapes(model)
    flow = Dataflow(OnnxWeights(), lambda op, name: None, layer_of, shapes)
    reader = OnnxReader(model, flow, low, low_io)
    flow.attribute, flow.later_version = reader.plain_attribute, first_opset_admitting
    flow.origin, flow.certain_shape, flow.sized = Origins(), shapes.certain, shapes.sized
    flow.newest = onnx.defs.onnx_opset_version()
    reader.read()
    foreign = (op for op in flow.ops if op.scope == 0 and op.native.domain not in ONNX_DOMAINS)
    results = (flow.values[v] for op in foreign for v in op.outputs if v != NONE)
    shapes.typed = {value.name: value.dtype for value in results if value.dtype in DTYPES and not value.container}
    _hold_without_cast(reader, low)
    return flow


def _hold_without_cast(values: OnnxValues, low: str) -> None:
    """Keeps units of an ONNX dataflow float32 where the opset has no Cast to the low type, as operators of other
    domains may admit it; a boundary that the user wants low stays. Functions have opsets of their own, and what goes in
    and comes out of one is cast in it: there the older opset counts."""
    flow, since = values.flow, first_opset_admitting("Cast", "T2", 0, low)
    main = flow.opset or opset_of_ir(values.model.ir_version or 0)
    versions = [env.opsets.get("", env.opsets.get("ai.onnx", main)) for env in values.environments]
    if min(versions, default=since) >= since:
        return
    opsets = {unit.id: versions[flow.ops[unit.op].scope if unit.op != NONE else 0] for unit in flow.units}
    for scope in flow.scopes:
        uses = (use for value in scope.outputs for use in flow.uses[value] if use.op == NONE and use.scope == scope.id)
        crossing = (*(flow.values[value].unit for value in scope.inputs), *(use.unit for use in uses))
        opsets |= {unit: min(opsets[unit], versions[scope.id]) for unit in crossing if unit != NONE}
    for unit in flow.units:
        version = opsets[unit.id]
        if version < since and low in unit.admits and not unit.fixed_low:
            unit.admits = frozenset() if unit.fixed else unit.admits
            unit.freed_at, unit.fixed = since, f"opset {version} has no Cast to {low}; opset {since} does"


class OnnxReader(OnnxOperators):
    """Reads an ONNX model into its dataflow, once, node by node, bodies and functions where they are called. A unit
    that *crosses* a boundary (a loop's state, a function's input) is one type on both sides."""

    def read(self) -> None:
        """Reads the main graph of the ONNX model, with the bodies and the functions as called, into the dataflow."""
        graph, env = self.model.graph, Environment(dict(self.model.opset_imports), {})
        self.flow.opset = env.opsets.get("", env.opsets.get("ai.onnx", 0))
        scope = self.enter("", NONE, NONE, "main", 1, graph, env)
        for native in graph.inputs:
            self.add_input(native, scope, env)
        self.add_initializers(graph, scope, env)
        self._read_nodes(graph, scope, env)
        for index, native in enumerate(graph.outputs):
            self.add_output(native, index, scope, env)

    def _read_nodes(self, graph: ir.Graph | ir.Function, scope: Scope, env: Environment) -> None:
        """Adds an operator for each node of one ONNX graph, in file order; its bodies and functions behind it."""
        table, forms, marked = env.table, env.forms, MARKED in self.model.graph.meta
        for index, node in enumerate(graph):
            inputs = [NONE if native is None else table.get(native, UNKNOWN) for native in node.inputs]
            if UNKNOWN in inputs:
                inputs = [NONE if native is None else self.lookup(native, scope, env).id for native in node.inputs]
            key = node.domain, node.op_type, len(inputs), len(node.outputs)
            form = forms.get(key) or self.form(*key, env)
            op = self.add_op(form.kind, scope.id, index, node.name or "", inputs, node)
            if marked:
                marks = node.meta
                op.held, op.kept, op.adds_branches = marks.get(HELD, ""), marks.get(KEPT, ""), BRANCHES in marks
            if form.control and self._read_control(Caller(op, node, scope, env)):
                continue
            if self.read_operator(op, node, form, scope, env):
                self._read_opaque_bodies(op, node, scope, env)

    def _read_control(self, at: Caller) -> bool:
        """Reads the call of an ONNX function, an If, a Loop or a Scan; False for any other operator."""
        if (at.node.domain, at.node.op_type, at.node.overload) in self.model.functions:
            self._read_call(at)
        elif at.op.kind == "If":
            self._read_if(at)
        elif at.op.kind in ("Loop", "Scan"):
            self._read_loop(at)
        else:
            return False
        return True

    def _read_opaque_bodies(self, op: Op, node: ir.Node, scope: Scope, env: Environment) -> None:
        """Reads bodies of an ONNX operator that is no If, Loop or Scan: float32 inputs and outputs stay so."""
        why = body_types(op)
        for name, attribute in node.attributes.items():
            if attribute.is_ref() or attribute.type not in BODIES:
                continue
            graphs = [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value
            for number, graph in enumerate(graphs):
                formals: list[Formal] = []
                for native in graph.inputs:
                    container, dtype = declared_type(native)
                    held = self.fixed_unit("body", why, op.id) if dtype == FLOAT32 else NONE
                    formals.append((container, dtype, held))
                label = name if len(graphs) == 1 else f"{name}[{number}]"
                body = self._read_body(Caller(op, node, scope, env), label, graph, 1, formals)
                for index, value in enumerate(body.outputs):
                    held = NONE
                    if self.flow.values[value].dtype == FLOAT32:
                        held = self.fixed_unit("body", why, op.id)
                    self.add_use(self.flow.values[value], NONE, index, held, body.id)

    # -- operators with bodies --------------------------------------------------------------------------------------

    def _read_if(self, at: Caller) -> None:
        """Reads an ONNX If and its branches: an output has one unit with those of both branches."""
        self._add_reads(at, {})
        branches = [
            self._read_body(at, name, at.node.attributes[name].as_graph(), 1, [])
            for name in ("then_branch", "else_branch")
        ]
        for position, native in enumerate(at.node.outputs):
            results = [self.flow.values[b.outputs[position]] for b in branches]
            typed = next((v for v in results if v.dtype), results[0])
            unit = self._crossing_unit(at.op, f"out{position}", typed.dtype, typed.container)
            self._add_output(at, native, typed.dtype, typed.container, unit)
            for body, value in zip(branches, results, strict=True):
                self._add_body_output(body, position, value.id, unit)
                self.flow.passed.append((value.id, at.op.outputs[position]))

    def _read_loop(self, at: Caller) -> None:
        """Reads an ONNX Loop or Scan: a state has one unit all through, a scanned tensor one with its slices."""
        control: list[Formal] = [("", "int64", NONE), ("", "bool", NONE)]  # a Loop's iteration and condition
        skip, scanned = len(control), 0
        if at.op.kind == "Scan":
            control, skip = [], 1 if at.env.opsets.get("", 9) < 9 else 0  # Scan-8 takes sequence lengths first
            scanned = int(self.attribute(at.op, "num_scan_inputs") or 0)
        inputs, formals, units = at.op.inputs[skip:], list[Formal](), list[int]()
        for position, source in enumerate(inputs):
            item = self.flow.values[source]
            name = f"state{position}" if position < len(inputs) - scanned else f"scan{position}"
            units.append(self._crossing_unit(at.op, name, item.dtype, item.container))
            formals.append((item.container, item.dtype, units[-1]))
        self._add_reads(at, dict(enumerate(units, skip)))
        body = self._read_body(at, "body", at.node.attributes["body"].as_graph(), LOOP_TIMES, [*control, *formals])
        states, first = units[: len(inputs) - scanned], 0
        if control:  # a Loop's body gives its condition first
            self._add_body_output(body, 0, body.outputs[0], NONE)
            first = 1
        self._add_loop_results(at, body, first, states)
        self.flow.passed += zip(at.op.inputs[skip - len(control) :], body.inputs, strict=False)
        self.flow.passed += zip(body.outputs[first : first + len(states)], body.inputs[len(control) :], strict=False)

    def _read_call(self, at: Caller) -> None:
        """Reads the call of an ONNX function, with the function as a scope of its own, so that each call can be decided
        by itself. Attributes that the call does not give have the function's defaults."""
        function = self.model.functions[at.node.domain, at.node.op_type, at.node.overload]
        attributes = {name: a for name, a in function.attributes.items() if a.value is not None}
        attributes |= {name: at.env.resolve(a) for name, a in at.node.attributes.items()}
        env = Environment(dict(function.opset_imports), attributes)
        path = f"{at.scope.path}/{at.op.index}:{at.op.kind}()"
        body = self.enter(path, at.scope.id, at.op.id, "function", at.scope.times, function, env)
        for position, native in enumerate(function.inputs):
            self._add_argument(at, body, env, position, native)
        self._read_nodes(function, body, env)
        for position, native in enumerate(function.outputs):
            result = self.lookup(native, body, env)
            body.outputs.append(result.id)
            unit = self._crossing_unit(at.op, f"out{position}", result.dtype, result.container)
            self.add_use(result, NONE, position, unit, body.id)
            if position < len(at.node.outputs):
                self._add_output(at, at.node.outputs[position], result.dtype, result.container, unit)
                self.flow.passed.append((result.id, at.op.outputs[position]))
                if result.container and unit != NONE:
                    self.flow.merge((unit, result.unit))

    def _add_argument(self, at: Caller, body: Scope, env: Environment, position: int, native: ir.Value) -> None:
        """Adds an ONNX function's input ``native``, in the scope ``body``, with one unit with the argument that the
        call gives at ``position``; of unknown type where it gives none. ``env``: what names mean in the function."""
        given = at.op.inputs[position] if position < len(at.op.inputs) else NONE
        actual = self.flow.values[given] if given != NONE else None
        container, dtype = (actual.container, actual.dtype) if actual else ("", "")
        unit = self._crossing_unit(at.op, f"in{position}", dtype, container)
        if actual:
            self.add_use(actual, at.op.id, position, unit, at.scope.id)
        formal = self.make(native, body.id, env, dtype, container, unit=unit)
        body.inputs.append(formal.id)
        if actual:
            self.flow.passed.append((given, formal.id))

    # -- boundaries ----------------------------------------------------------------------------------------------------

    def _crossing_unit(self, op: Op, slot: str, dtype: str, container: str) -> int:
        """Makes the unit of a value of this type that crosses a boundary of an ONNX operator's bodies or function, as
        the operator's ``slot``; NONE for what is not float32. It admits what the schema says, for a call both types."""
        if dtype != FLOAT32:
            return NONE
        admits, version = frozenset(LOW), 0
        if op.kind in ("If", "Loop", "Scan"):
            env = self.environments[op.scope]
            found = schema("", op.kind, env.opsets.get("", self.flow.opset or 1))
            admits = frozenset()
            if found is not None:
                variable = "V" if "V" in found.constraints else next(iter(found.constraints))
                types = allowed(found.constraints[variable])
                admits = frozenset(low for low in LOW if (container, low) in types)
                version = found.since_version
        unit = op.slots[slot] = self.flow.new_unit(op.id, slot, admits, version=version, crosses=True)
        return unit

    def _read_body(self, at: Caller, name: str, graph: ir.Graph, times: int, formals: list[Formal]) -> Scope:
        """Reads the body ``name`` of an ONNX operator, which runs so many ``times`` each time that the operator does.
        ``formals``: type and unit of its inputs; those beyond have the type that the file declares, and no unit."""
        path = f"{at.scope.path}/{at.op.index}:{at.op.kind}.{name}"
        body = self.enter(path, at.scope.id, at.op.id, "body", at.scope.times * times, graph, at.env)
        for position, native in enumerate(graph.inputs):
            container, dtype, unit = formals[position] if position < len(formals) else (*declared_type(native), NONE)
            body.inputs.append(self.make(native, body.id, at.env, dtype, container, unit=unit).id)
        self.add_initializers(graph, body, at.env)
        self._read_nodes(graph, body, at.env)
        for native in graph.outputs:
            body.outputs.append(self.lookup(native, body, at.env).id)
        return body

    def _add_loop_results(self, at: Caller, body: Scope, first_output: int, states: list[int]) -> None:
        """Adds the outputs of an ONNX Loop or Scan: the final states, then what its body gives out at each turn,
        stacked. ``first_output``: of the body, behind a Loop's condition; ``states``: units of the states."""
        for position, result in enumerate(body.outputs[first_output:]):
            value = self.flow.values[result]
            container = value.container
            if position < len(states):
                unit = states[position]
                dtype = FLOAT32 if unit != NONE else value.dtype
            else:
                unit = self._crossing_unit(at.op, f"stacked{position}", value.dtype, container)
                dtype = value.dtype
            self._add_body_output(body, position + first_output, result, unit)
            if position < len(at.node.outputs):
                self._add_output(at, at.node.outputs[position], dtype, container, unit)
                self.flow.passed.append((result, at.op.outputs[position]))

    def _add_reads(self, at: Caller, units: dict[int, int]) -> None:
        """Adds the reads of an ONNX operator with bodies. ``units``: position of an input -> unit that reads it."""
        for position, source in enumerate(at.op.inputs):
            if source != NONE:
                value = self.flow.values[source]
                self.add_use(value, at.op.id, position, units.get(position, NONE), at.scope.id)

    def _add_body_output(self, body: Scope, index: int, value: int, unit: int) -> None:
        """Adds the read of ``value`` by an ONNX body's output, by the operator's ``unit`` if it is float32."""
        item = self.flow.values[value]
        self.add_use(item, NONE, index, unit if item.dtype == FLOAT32 else NONE, body.id)

    def _add_output(self, at: Caller, native: ir.Value, dtype: str, container: str, unit: int) -> None:
        """Adds the next output of an ONNX operator with bodies or of a call, as a value of this type and unit."""
        value = self.make(native, at.scope.id, at.env, dtype, container, at.op.id, unit)
        at.op.outputs.append(value.id)
