"""Writes element types into the abstracts of a MindIR model, from the values that were retyped to all that follow them."""

from __future__ import annotations

from typing import Any

from ..dataflow import Dataflow, Value
from . import mindir_schema as schema
from . import mindir_view as view

Types = Any
"""Element type of a name: text, a list for a tuple, or None for what is no tensor."""


def retype_abstracts(flow: Dataflow, types: dict[int, str], known: dict[str, Any]) -> None:
    """Values in ``types`` (by id) have a new element type: every abstract that shows one of them is written anew."""
    main = flow.scopes[0].native.graph
    model_types: dict[str, Types] = {}
    parameters: dict[str, str] = {}
    for tensor in main.parameter:
        model_types[tensor.name] = view.dtype_of(tensor)
        parameters[tensor.ref_key or tensor.name] = view.dtype_of(tensor)
    made = _made(flow, types)
    for scope in flow.scopes:
        names = dict(model_types)
        graph = scope.native.graph
        for info in graph.input:
            _formal(info, made, parameters, names)
        for node in graph.node:
            names[node.output[0]] = _node(node, made, names, known) if node.output else None
            if node.op_type == "Constant":
                model_types[node.output[0]] = names[node.output[0]]
        for info in graph.output:
            _write(info.attr_info if info.HasField("attr_info") else None, names.get(info.name))
            if info.tensor and isinstance(names.get(info.name), str):
                _set(info.tensor[0], names[info.name])


def _made(flow: Dataflow, types: dict[int, str]) -> dict[str, dict[int, str]]:
    """By name of what makes or holds them: position among the outputs -> new type."""
    found: dict[str, dict[int, str]] = {}
    for number, dtype in types.items():
        value: Value = flow.values[number]
        if value.weight:
            continue
        name, position = value.name, 0
        if value.producer >= 0:
            op = flow.ops[value.producer]
            name, position = op.native.node.output[0], _position(flow, op.outputs, value)
        elif value.id in flow.scopes[value.scope].native.names:
            name = flow.scopes[value.scope].native.names[value.id]
        elif name.endswith("]"):
            name, _, index = name[:-1].rpartition("[")
            position = int(index)
        found.setdefault(name, {})[position] = dtype
    return found


def _position(flow: Dataflow, outputs: list[int], value: Value) -> int:
    if len(outputs) == 1 and not value.name.endswith("]"):
        return 0
    return int(value.name[:-1].rpartition("[")[2])


def _formal(info: Any, made: dict[str, dict[int, str]], parameters: dict[str, str], names: dict[str, Types]) -> None:
    new = made.get(info.name, {})
    for position, tensor in enumerate(info.tensor):
        if tensor.ref_key in parameters:
            _set(tensor, parameters[tensor.ref_key])
        elif position in new:
            _set(tensor, new[position])
    nested = info.attr_info if info.HasField("attr_info") else None
    if nested is not None and nested.type in view.SEQUENCES:
        for position, tensor in enumerate(view.elements(nested)):
            if tensor is not None and position in new:
                _set(tensor, new[position])
        names[info.name] = _types(nested)
    else:
        names[info.name] = view.dtype_of(info.tensor[0]) if info.tensor else None


def _node(node: Any, made: dict[str, dict[int, str]], names: dict[str, Types], known: dict[str, Any]) -> Types:
    """The type of what a node makes, written into its abstract."""
    if node.op_type == "Constant":
        return _types(view.attribute(node, "value"))
    abstract = view.attribute(node, "shape")
    kind = view.kind_of(node, known)
    if kind in view.TUPLES:
        _write(abstract, [names.get(name) for name in node.input])
    elif kind in ("Load", "Depend"):
        _write(abstract, names.get(node.input[0]))
    elif kind == "TupleGetItem":
        _write(abstract, _element(node, names))
    else:
        new = made.get(node.output[0], {})
        for position, tensor in enumerate(view.elements(abstract)):
            if tensor is not None and position in new:
                _set(tensor, new[position])
    return _types(abstract)


def _element(node: Any, names: dict[str, Types]) -> Types:
    whole, index = names.get(node.input[0]), names.get(node.input[1])
    return whole[index] if isinstance(whole, list) and isinstance(index, int) and index < len(whole) else None


def _types(abstract: Any) -> Types:
    if abstract is None:
        return None
    if abstract.type in view.SEQUENCES:
        return [_types(item) for item in abstract.values]
    if abstract.type in (schema.TENSORS, schema.TENSOR):
        return view.dtype_of(abstract.tensors[0]) if abstract.tensors else None
    return int(abstract.i) if abstract.type == schema.INT64 else None


def _write(abstract: Any, types: Types) -> None:
    if abstract is None or types is None:
        return
    if abstract.type in view.SEQUENCES:
        if isinstance(types, list):
            for item, inner in zip(abstract.values, types, strict=False):
                _write(item, inner)
    elif isinstance(types, str) and abstract.tensors:
        _set(abstract.tensors[0], types)


def _set(tensor: Any, dtype: str) -> None:
    """Only between the types that ampgraph decides on."""
    if view.dtype_of(tensor) in schema.ELEMENT_NUMBERS and dtype in schema.ELEMENT_NUMBERS:
        tensor.data_type = schema.ELEMENT_NUMBERS[dtype]
