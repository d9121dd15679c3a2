"""Casts of an ONNX model: those that are there already, and new ones."""

from __future__ import annotations

import onnx_ir as ir

from ...core.dataflow import NONE, Value
from .handles import Handles
from .placing import Placing
from .types import DTYPES

LAYER_KEYS = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace")
"""Metadata in which exporters say which layer a node belongs to."""


class Casts:
    """Finds or makes what reads a value as another type."""

    def __init__(self, handles: Handles, placing: Placing) -> None:
        self._handles, self._placing = handles, placing
        self.made: list[tuple[ir.Node, str]] = []  # with the type that they cast to

    def of(self, value: Value, to: str) -> ir.Value:
        """``value`` as ``to``, through a given Cast or a new one."""
        return self._given(value, to) or self.new(value, self._handles.value(value), to)

    def _given(self, value: Value, to: str) -> ir.Value | None:
        flow = self._handles.flow
        if value.low_source != NONE:
            return self._handles.value(flow.values[value.low_source])
        for use in self._handles.uses(value):
            if use.given_cast and use.scope == value.scope and flow.values[flow.ops[use.op].outputs[0]].dtype == to:
                given = self._handles.node(flow.ops[use.op])
                anchor = self._handles.value(value).producer()
                self._placing.behind(value.scope, anchor, given)  # other readers may come before it
                return given.outputs[0]
        return None

    def new(self, value: Value, source: ir.Value, to: str) -> ir.Value:
        """A Cast of ``source``, which is ``value`` or what is made of it, right behind what makes it."""
        attribute = type_attribute("to", to, self._handles.flow.opset)
        name = self._handles.fresh(f"{value.name}_to_{to}")
        node = ir.Node("", "Cast", [source], [attribute], num_outputs=1, name=name)
        result = node.outputs[0]
        result.name = self._handles.fresh(f"{value.name}_{to}")
        result.type, result.shape = ir.TensorType(DTYPES[to]), source.shape
        producer = source.producer()
        if producer is not None:
            copy_layer(producer, node)
        self._placing.behind(value.scope, producer, node)
        self.made.append((node, to))
        return result


def copy_layer(source: ir.Node, target: ir.Node) -> None:
    """A new node belongs to the layer of the one that it serves."""
    for key in LAYER_KEYS:
        if key in source.metadata_props:
            target.metadata_props[key] = source.metadata_props[key]


def type_attribute(name: str, dtype: str, opset: int) -> ir.Attr:
    """The attribute that names a type: a word before opset 6, a number since."""
    kind = DTYPES[dtype]
    return ir.AttrString(name, kind.name) if 0 < opset < 6 else ir.AttrInt64(name, kind.value)
