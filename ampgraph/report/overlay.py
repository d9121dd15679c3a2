"""Model Explorer's node data of a model: each node's precision as a colour over the graph that it draws."""

from __future__ import annotations

from ..core.errors import AmpError
from ..core.graph import LOW
from ..core.json_types import JsonObject
from ..formats import adapters
from ..oplists.traits import has
from .inspect import precision

COLOURS = {"float16": "#7cb8ff", "bfloat16": "#8fd6a6", "float32": "#ffcf8a", "float64": "#ff9a8a"}
CAST_COLOUR = "#d9a6ff"


def overlay(model: object) -> JsonObject:
    """The nodes of the main graph by name, as Model Explorer's "load node data" takes them, keyed by the graph's name.

    A node without a name is known there by its number. Raises AmpError AMP304 for a format that is not drawn there."""
    graph, _ = adapters.load(model)
    if graph.format != "ONNX":
        raise AmpError("AMP304", f"Model Explorer cannot draw {graph.format}", hint="give an ONNX model")
    graph.prepare()
    flow = graph.dataflow()
    results: JsonObject = {}
    for op in flow.ops:
        found = precision(flow, op)
        if op.scope != 0 or found not in COLOURS:
            continue
        cast = has(op.role, "casts") and any(flow.values[v].dtype in LOW for v in (*op.inputs, *op.outputs))
        value = f"Cast to {flow.values[op.outputs[0]].dtype}" if cast else found
        results[op.name or f"<node_{op.index}>"] = {"value": value, "bgColor": CAST_COLOUR if cast else COLOURS[found]}
    name: str = getattr(flow.scopes[0].native, "name", None) or "<main>"
    return {name: {"results": results}}
