"""A MindIR model as text, a line per node, to read and to compare: ``python -m formats.mindir.text FILE.mindir``.

    graph main(x: f32[2,3,4])
      parameter seq.1.weight: f32[16,12]
      %3: f16[2,16] = MatMul(%1, Cast#2, false, true)  Default/seq-SequentialCell/1-Dense/MatMul-op0
      return %9

Values are numbered in file order of the nodes that compute; constants stand where they are used, and nodes that only
keep order (UpdateState, Load, Depend) are left out unless ``everything`` is asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ampgraph.formats.mindir import schema, view

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int64": "i64", "int32": "i32"}
ORDER_ONLY = ("UpdateState", "Load", "Depend")
TYPE_NAMES = {42: "f16", 43: "f32", 44: "f64", 45: "bf16"}


def element(tensor: Any) -> str:
    kind = schema.ELEMENT_TYPES.get(tensor.data_type, str(tensor.data_type))
    return SHORT.get(kind, kind)


def tensor_type(tensor: Any) -> str:
    return f"{element(tensor)}[{','.join(map(str, tensor.dims))}]"


def abstract(item: Any) -> str:
    """The text of a ``shape`` attribute: a tensor, a tuple of them, a state, a function."""
    if item is None:
        return "?"
    if item.type in (schema.TUPLE, schema.LIST):
        return f"({', '.join(abstract(value) for value in item.values)})"
    if item.type in (schema.TENSORS, schema.TENSOR):
        return ", ".join(tensor_type(tensor) for tensor in item.tensors)
    if item.type in (schema.UMONAD, schema.IOMONAD):
        return "state"
    if item.type in (schema.FUNCTION, schema.FUNCTIONS):
        return "function"
    return "scalar" if item.type == schema.SCALAR else f"type{item.type}"


def constant(item: Any) -> str:
    """The text of a Constant's ``value``."""
    if item is None:
        return "?"
    if item.type in (schema.TUPLE, schema.LIST):
        if item.values:
            return f"({', '.join(constant(value) for value in item.values)})"
        return f"({', '.join(map(str, item.ints))})"
    if item.type in (schema.TENSORS, schema.TENSOR):
        return ", ".join(_tensor(tensor) for tensor in item.tensors)
    if item.type == schema.BOOL:
        return str(bool(item.i)).lower()
    if item.type == schema.FLOAT:
        return repr(item.f) if item.HasField("f") else str(list(item.floats))
    if item.type == schema.STRING:
        return repr(item.s.decode(errors="replace"))
    if item.type in (schema.UMONAD, schema.IOMONAD):
        return "state"
    if item.type == schema.NONE_TYPE:
        return "none"
    if item.HasField("i"):
        return str(item.i)
    return str(list(item.ints)) if item.ints else f"type{item.type}"


def _tensor(tensor: Any) -> str:
    kinds = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
    short = element(tensor)
    if short in kinds and len(tensor.raw_data) == np.prod(tensor.dims) * np.dtype(kinds[short]).itemsize <= 32:
        return f"{tensor_type(tensor)}{np.frombuffer(tensor.raw_data, kinds[short]).tolist()}"
    return f"{tensor_type(tensor)}{{...}}"


class _Names:
    """Short names for the values of one graph."""

    def __init__(self, graph: Any, shared: dict[str, str]):
        self.shown = dict(shared)
        for value in graph.input:
            self.shown[value.name] = value.name.rpartition(":")[2]
        for parameter in graph.parameter:
            self.shown[parameter.name] = parameter.ref_key or parameter.name
        self.count = 0

    def add(self, name: str, text: str | None = None) -> str:
        if text is None:
            self.count += 1
            text = f"%{self.count}"
        self.shown[name] = text
        return text

    def __getitem__(self, name: str) -> str:
        return self.shown.get(name, name)


def constants(model: Any) -> dict[str, str]:
    """The text of every constant: a function may use one that stands in another graph."""
    graphs = [model.graph, *model.functions]
    nodes = [node for graph in graphs for node in graph.node if node.op_type == "Constant"]
    return {node.output[0]: constant(view.attribute(node, "value")) for node in nodes}


def lines(model: Any, graph: Any, everything: bool = False) -> list[str]:
    names, known = _Names(graph, constants(model)), view.primitives(model)
    given = [f"{names[value.name]}: {_input(value)}" for value in graph.input]
    text = [f"graph {graph.name}({', '.join(given)})"]
    text += [f"  parameter {names[item.name]}: {tensor_type(item)}" for item in graph.parameter]
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        kind = view.kind_of(node, known)
        if kind in ORDER_ONLY and not everything:
            names.add(node.output[0], names[node.input[0]])
            continue
        arguments = [names[name] for name in node.input]
        if kind == "Cast":
            arguments[1:] = [TYPE_NAMES.get(int(word), word) if word.isdigit() else word for word in arguments[1:]]
        if kind == view.CALL:
            kind = f"call {names[view.reference(node)]}"
        result = abstract(view.attribute(node, "shape"))
        text.append(f"  {names.add(node.output[0])}: {result} = {kind}({', '.join(arguments)})  {node.domain}")
    text.append(f"  return {', '.join(names[value.name] for value in graph.output)}")
    return text


def _input(value: Any) -> str:
    return ", ".join(map(tensor_type, value.tensor)) if value.tensor else abstract(value.attr_info)


def dump(model: Any, everything: bool = False) -> str:
    """The main graph, then the functions."""
    graphs = [model.graph, *model.functions]
    return "\n".join(line for graph in graphs for line in lines(model, graph, everything)) + "\n"


def load(file: Path | str) -> Any:
    return schema.Model.FromString(Path(file).read_bytes())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if not argument.startswith("-"):
            print(dump(load(argument), "--all" in sys.argv), end="")
