"""Nodes of onnx_ir as lists, messages and rules read them: kind, place, attributes, operands."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from . import schemas


def kind_of(node: ir.Node) -> str:
    """An onnx_ir node's operator as lists name it: ``Add``; of another domain ``com.microsoft::Gelu``."""
    return schemas.kind_of(node.domain, node.op_type)


def place_of(node: ir.Node) -> str:
    """How an error names an onnx_ir node: by its name, or, where it has none, by the first value that it writes."""
    written = next((value.name for value in node.outputs if value.name), "")
    return f"node '{node.name}'" if node.name else f"the node that writes '{written}'"


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an onnx_ir node's attribute; ``default`` where the node has none of this name."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def operand(node: ir.Node, index: int = 0) -> ir.Value:
    """The value that an onnx_ir node reads as input ``index``, which no node of its operator may leave out."""
    value = node.inputs[index]
    assert value is not None
    return value
