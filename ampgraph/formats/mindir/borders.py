"""What arrives at a graph of a MindIR model: values, parameters, tuples."""

from __future__ import annotations

from ...core.dataflow import FLOAT32, NONE, Scope, Value
from ..flow_builder import LOW_TYPES
from . import view
from .schema import Message
from .values import MindirValues
from .view import Item

INPUT, OUTPUT = "a graph input keeps its type", "a graph output keeps its type"


def arriving(values: MindirValues, info: Message, scope: Scope, name: str) -> Item:
    """What an input of a graph stands for: a value, a parameter, a tuple."""
    abstract = info.attr_info if info.HasField("attr_info") else None
    tensors = list(info.tensor) or list(view.elements(abstract))
    found: list[Item] = []
    for number, tensor in enumerate(tensors):
        if tensor is None:
            found.append(None)
        elif tensor.ref_key and tensor.ref_key in values.parameters:
            found.append(values.parameters[tensor.ref_key])
            values.compare(found[-1], [tensor], info.name)
        else:
            value = values.tensor(name if len(tensors) == 1 else f"{name}[{number}]", scope, tensor)
            found.append(value.id)
            scope.native.held[value.id] = info, number
            if len(tensors) == 1:
                scope.native.names[value.id] = info.name
            _give_unit(values, value, scope)
            scope.inputs.append(value.id)
    return view.nested(abstract, iter(found)) if not info.tensor else found[0] if len(found) == 1 else tuple(found)


def _give_unit(values: MindirValues, value: Value, scope: Scope) -> None:
    if value.dtype == FLOAT32 and scope.kind == "main":
        value.unit = values.border_unit(f"input {len(scope.inputs)}", value.name in values.low_io, INPUT)
    elif value.dtype == FLOAT32:
        slot = f"{scope.path} input {value.name}"
        value.unit = values.flow.new_unit(NONE, slot, LOW_TYPES, border=True)
