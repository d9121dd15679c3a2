"""Tensors as one vector, and a vector as tensors: a node for all of them in each direction, and not one for each.

Those of one low type are put together first, and their type is changed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import onnx_ir as ir

from ..gradients.builder import Builder
from .state_tensors import StateBuilder

Value = ir.Value
FLOAT = ir.DataType.FLOAT
LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
LAUNCH = 1 << 20  # bytes: what a kernel start is worth, as for the planner


def joined(b: Builder, values: Sequence[Value]) -> Value:
    """One float32 vector of all numbers; a single value as it is."""
    if len(values) == 1:
        return _wide(b, values[0], _type(values[0]))
    pieces = []
    for dtype, alike in groupby(values, key=_type):
        parts = [value if len(dims(value)) == 1 else b.op("Reshape", value, b.ints(-1)) for value in alike]
        pieces += parts if dtype == FLOAT else [b.cast(_together(b, parts), FLOAT)]
    return _together(b, pieces)


def apart(b: Builder, vector: Value, values: Sequence[Value]) -> list[Value]:
    """The vectors that `joined` would make ``vector`` of: as long as ``values``, and of their types."""
    alike = [(dtype, list(map(size, group))) for dtype, group in groupby(values, key=_type)]
    found = []
    for piece, (dtype, sizes) in zip(split(b, vector, [sum(sizes) for _, sizes in alike]), alike, strict=True):
        found += split(b, piece if dtype == FLOAT else b.cast(piece, dtype), sizes)
    return found


def hold_as_vectors(states: StateBuilder, parameters: Sequence[Value]) -> Value:
    """Parameters become vectors, which are read in their shapes; those that are read low are cast by one node, with the
    few that are not. Gives all of them side by side."""
    b = states.builder
    b.scope = ""
    shapes = {parameter: dims(parameter) for parameter in parameters}
    lowered = {}
    for dtype in LOW:
        casts = {parameter: found for parameter in parameters if (found := _casts(b, parameter, dtype))}
        if len(casts) > 1:
            lowered[dtype] = casts
    for node in [node for casts in lowered.values() for found in casts.values() for node in found]:
        node.replace_input_with(0, None)
    for parameter in parameters:
        states.flatten(parameter)
    whole = joined(b, parameters)
    for dtype, casts in lowered.items():
        together = all(value.dtype == FLOAT for value in parameters) and _pays(_sum(casts), _sum(parameters))
        taken = list(parameters) if together else list(casts)
        low = b.cast(whole if together else _together(b, taken), dtype)
        for piece, parameter in zip(split(b, low, list(map(size, taken))), taken, strict=True):
            shape = shapes[parameter]
            if parameter in casts:
                read = piece if len(shape) == 1 else b.op("Reshape", piece, b.ints(*shape))
                _put_in_place(b.typed(read, dtype, *shape), casts[parameter])
    return whole


def low_source(gradient: Value) -> Value:
    """What a float32 value, which nobody reads, is cast from, if nobody else reads that: its Cast goes."""
    cast = gradient.producer()
    low = cast.inputs[0] if cast is not None and cast.op_type == "Cast" and not gradient.uses() else None
    if cast is None or cast.graph is None or low is None or low.dtype not in LOW or len(low.uses()) != 1:
        return gradient
    cast.graph.remove(cast, safe=True)
    return low


def split(b: Builder, vector: Value, sizes: Sequence[int]) -> list[Value]:
    """Its pieces, one behind the other."""
    return [vector] if len(sizes) == 1 else b.ops("Split", len(sizes), vector, b.ints(*sizes), axis=0)


def dims(value: Value) -> tuple[int, ...]:
    """The sizes of a value, which are known."""
    return tuple(value.shape.numpy()) if value.shape is not None else ()


def size(value: Value) -> int:
    """How many numbers it holds."""
    return math.prod(dims(value))


def _pays(low: int, numbers: int) -> bool:
    """Whether the others are cast and taken apart with the low ones: else these are put side by side once more."""
    return 10 * (numbers - low) <= LAUNCH + 8 * low


def _sum(values: Iterable[Value]) -> int:
    return sum(map(size, values))


def _casts(b: Builder, value: Value, dtype: ir.DataType) -> list[ir.Node]:
    """Nodes of the graph itself that cast a float32 value to a type."""
    readers = value.consumers() if value.dtype == FLOAT else ()
    kept = [node for node in readers if node.op_type == "Cast" and node.graph is b.graph]
    return [node for node in kept if node.outputs[0].dtype == dtype and not node.outputs[0].is_graph_output()]


def _put_in_place(value: Value, nodes: Sequence[ir.Node]) -> None:
    """A value is read where the result of some nodes was, which go."""
    for node in nodes:
        ir.convenience.replace_all_uses_with(node.outputs[0], value)
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _wide(b: Builder, value: Value, dtype: ir.DataType | None) -> Value:
    return value if dtype == FLOAT else b.cast(value, FLOAT)


def _type(value: Value) -> ir.DataType:
    return value.dtype if value.dtype in LOW else FLOAT


def _together(b: Builder, vectors: Sequence[Value]) -> Value:
    return vectors[0] if len(vectors) == 1 else b.op("Concat", *vectors, axis=0)
