"""Faults of a model that no runtime forgives, found before anything is planned: values that nothing defines, or that
two nodes write, nodes that read in a circle, and nodes that contradict the schema of their operator, as onnx has it.
Operators of other domains are left alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from ...core.errors import AmpError
from .nodes import place_of
from .proto import Holder, Kind
from .walk import all_graphs, bodies, captured, is_sorted

HINT = "export it again; onnx.checker.check_model tells the same fault"
NEWEST = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": onnx.defs.onnx_ml_opset_version()}
"""Domain -> the newest opset that the installed onnx knows."""
SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
MOST_NODES = 1_000_000  # with every call of a function expanded: some 3 GB
DEEPEST_CALL = 64  # functions that call functions


def refuse_nodes(proto: ModelProto, held: Iterable[Holder], where: str) -> None:
    """Raises AmpError AMP204 for an ONNX node with other inputs, outputs or types of attributes than its operator has;
    calls of functions and operators without a schema are not looked at. ``held``: the model's `holders`."""
    local = {(function.domain, function.name) for function in proto.functions}
    for holder in held:
        seen: set[tuple[Kind, int, int]] = set()  # (kind, number of inputs, of outputs): nodes alike are looked at once
        for inputs, outputs, name, kind in holder.nodes():
            key = kind, len(inputs), len(outputs)
            if key in seen and b"" not in inputs:
                continue
            seen.add(key)
            node = kind.proto
            domain = "" if node.domain == "ai.onnx" else node.domain
            version = holder.opsets.get(domain, 0)
            if (node.domain, node.op_type) in local or not 0 < version <= NEWEST.get(domain, 0):
                continue
            problem = _contradiction(node, domain, version, inputs, len(outputs))
            if problem:
                raise AmpError("AMP204", f"{_node_in_message(name, outputs, kind)} {problem}", where=where, hint=HINT)


def _node_in_message(name: bytes, outputs: Sequence[bytes], kind: Kind) -> str:
    """How messages name an ONNX node that was taken apart: by its name, or its first output, and its operator."""
    who = f"node '{name.decode()}'" if name else f"the node that writes '{b''.join(outputs[:1]).decode()}'"
    return f"{who} ({kind.op_type})"


def refuse_written_twice(held: Iterable[Holder], where: str) -> None:
    """Raises AmpError AMP204 for an ONNX node that writes what is an input, stored or written; ``held``: `holders`."""
    for holder in held:
        graph = holder.graph
        inputs = graph.input if isinstance(graph, FunctionProto) else (value.name for value in graph.input)
        taken = {name.encode(): "is an input" for name in inputs}  # name -> what it is, for the message
        if not isinstance(graph, FunctionProto):
            taken |= {tensor.name.encode(): "is stored" for tensor in graph.initializer}
        for _, outputs, name, kind in holder.nodes():
            who = _node_in_message(name, outputs, kind)
            for value in filter(None, outputs):
                if value in taken:
                    message = f"{who} writes '{value.decode()}', which {taken[value]}"
                    raise AmpError("AMP204", message, where=where, hint=HINT)
                taken[value] = f"{who} writes too"


def _contradiction(node: NodeProto, domain: str, version: int, inputs: Sequence[bytes], outputs: int) -> str:
    """How an ONNX node contradicts the schema of its operator, in words; "" where it agrees, or no schema is known.
    ``version``: the opset of ``domain``; ``inputs``: names, b"" for one that is left out; ``outputs``: how many."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return ""
    counts = (len(inputs), schema.min_input, schema.max_input, "input"), (outputs, 0, schema.max_output, "output")
    for found, least, most, what in counts:
        if not least <= found <= most:
            limit = f"at least {least}" if found < least else f"at most {most}"
            wanted = f"{most}" if least == most else limit
            return f"has {found} {what}{'s' * (found != 1)}, and its operator has {wanted}"
    attributes, held = schema.attributes, {attribute.name for attribute in node.attribute}
    for needed, known in attributes.items():
        if known.required and needed not in held:
            return f"has no attribute '{needed}', which its operator needs"
    for place, (name, formal) in enumerate(zip(inputs, schema.inputs, strict=False)):
        if not name and formal.option == SINGLE:
            return f"leaves out input {place} ('{formal.name}'), which its operator needs"
    for attribute in node.attribute:
        if attribute.name not in attributes or attribute.ref_attr_name or not attribute.type:
            continue
        given = AttributeProto.AttributeType.Name(attribute.type)
        wanted = str(attributes[attribute.name].type).rpartition(".")[2]
        if given != wanted:
            return f"has an attribute '{attribute.name}' of type {given}, and its operator takes {wanted}"
    return ""


def _is_undefined(value: ir.Value) -> bool:
    """Whether nothing in the ONNX file defines a value: no node, no graph input, no initializer."""
    return value.producer() is None and not value.is_graph_input() and not value.is_initializer()


def refuse_undefined(model: ir.Model, where: str) -> None:
    """Raises AmpError AMP204 for a value that an ONNX node reads, or the model gives out, and nothing defines."""
    for graph in all_graphs(model):
        for node in graph:
            for value in node.inputs:
                if value is not None and _is_undefined(value):
                    message = f"{place_of(node)} ({node.op_type}) reads '{value.name}', which nothing defines"
                    raise AmpError("AMP204", message, where=where, hint=HINT)
    for value in model.graph.outputs:  # those of a body may be values from outside of it
        if _is_undefined(value):
            raise AmpError("AMP204", f"nothing defines the output '{value.name}'", where=where, hint=HINT)


def refuse_cycles(model: ir.Model, where: str) -> None:
    """Raises AmpError AMP204 for nodes of an ONNX graph that read each other's results in a circle."""
    for graph in all_graphs(model):
        if is_sorted(graph):
            continue
        producers = {node: [value.producer() for value in (*node.inputs, *captured(node)) if value] for node in graph}
        order = TopologicalSorter({node: [one for one in read if one in producers] for node, read in producers.items()})
        try:
            order.prepare()
        except CycleError as error:
            names = [f"'{node.name or node.outputs[0].name}' ({node.op_type})" for node in error.args[1]]
            shown = names if len(names) <= 5 else [*names[:4], "..."]
            raise AmpError("AMP204", f"nodes read in a circle: {' -> '.join(shown)}", where=where, hint=HINT) from None


def refuse_multiplied(model: ir.Model) -> None:
    """Raises AmpError AMP203 for ONNX functions that call themselves, or make more than `MOST_NODES` nodes expanded."""
    counts: dict[tuple[str, str, str], int] = {}  # function -> its nodes, expanded

    def count(graph: Iterable[ir.Node], depth: int) -> int:
        """How many nodes a graph has with its calls expanded and its bodies; ``depth``: of calls around it."""
        total = 0
        for node in graph:
            key = node.domain, node.op_type, node.overload
            if key in model.functions and key not in counts:
                if depth > DEEPEST_CALL:
                    hint = "ONNX functions may not recurse"
                    raise AmpError("AMP203", f"function {node.op_type} is called recursively", hint=hint)
                counts[key] = count(model.functions[key], depth + 1)
            total += 1 + counts.get(key, 0) + sum(count(body, depth) for body in bodies(node))
        return total

    found = count(model.graph, 0) if model.functions else 0
    if found > MOST_NODES:
        problem = f"{found:,} nodes once functions are expanded, and {MOST_NODES:,} are the most"
        hint = "functions that call functions multiply: flatten or simplify the model first"
        raise AmpError("AMP203", problem, hint=hint)


def unknown_versions(proto: ModelProto) -> list[str]:
    """A sentence for each opset and IR version of an ONNX model that the installed onnx does not know."""
    said = []
    if proto.ir_version > onnx.IR_VERSION:
        said.append(f"IR version {proto.ir_version} is unknown: read as {onnx.IR_VERSION}, the newest known here")
    for entry in proto.opset_import:
        newest = NEWEST.get("" if entry.domain == "ai.onnx" else entry.domain)
        if newest is not None and not 0 < entry.version <= newest:
            of = f" of {entry.domain}" if entry.domain else ""
            read = f"read as {newest}, the newest known here" if entry.version > 0 else "no operator of it is known"
            said.append(f"opset {entry.version}{of} is unknown: {read}")
    return said
