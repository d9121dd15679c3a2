"""Parameters and gradients as one vector, and a vector as tensors, by a node for all of them in each direction where
that is cheaper than one for each. Those of one low type are put together first, and cast once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import onnx_ir as ir

from ...oplists.traits import has
from ..gradients.builder import FLOAT, LOW, Builder
from .state_tensors import StateBuilder

Value = ir.Value
LAUNCH = 1 << 20  # bytes that are moved in the time of a kernel's start, as the planner has it
VIEW = LAUNCH // 4  # a node without a kernel takes the host's time all the same


def joined(b: Builder, values: Sequence[Value]) -> Value:
    """Parameters or gradients side by side as one float32 vector; a single one in float32 in its own shape."""
    return b.joined(pieces_of(b, values))


def pieces_of(b: Builder, values: Sequence[Value]) -> list[Value]:
    """Float32 vectors that side by side hold all numbers of parameters or gradients, neighbours of one low type cast
    together; a single value in float32 in its own shape."""
    if len(values) == 1:
        return [raised(b, values[0])]
    groups = [(dtype, list(alike)) for dtype, alike in groupby(values, key=_vector_type)]
    pieces = []
    for dtype, alike in groups:
        width = _row_width(alike) if dtype != FLOAT or len(groups) == 1 else 0
        parts = [_as_rows(b, value, width) if width else _flat(b, value) for value in alike]
        if not width and dtype == FLOAT:
            pieces += parts
            continue
        whole = b.cast(b.joined(parts), FLOAT) if dtype != FLOAT else b.joined(parts)
        whole = b.op("Reshape", whole, b.ints(-1)) if width else whole
        pieces.append(b.typed(whole, FLOAT, sum(map(size, alike))))
    return pieces


def split_as(b: Builder, vector: Value, values: Sequence[Value]) -> list[Value]:
    """Splits a vector, as `joined` makes it of parameters ``values``, into vectors as long as these and of their types:
    the inverse of `joined` but for the shapes."""
    alike = [(dtype, list(map(size, group))) for dtype, group in groupby(values, key=_vector_type)]
    found = []
    for piece, (dtype, sizes) in zip(split(b, vector, [sum(sizes) for _, sizes in alike]), alike, strict=True):
        found += split(b, piece if dtype == FLOAT else b.cast(piece, dtype), sizes)
    return found


def hold_as_vectors(states: StateBuilder, parameters: Sequence[Value]) -> Value | None:
    """Makes parameters vectors of the graph, which is given their shapes by Reshapes; those that it casts to a low type
    are cast by one node (with the others, where these are few). Returns all of them side by side as one vector where
    that Cast reads them so, else None."""
    b = states.builder
    b.scope = ""
    shapes = {parameter: dims(parameter) for parameter in parameters}
    lowered = {}
    for dtype in LOW:
        casts = {parameter: found for parameter in parameters if (found := _cast_nodes(b, parameter, dtype))}
        if len(casts) > 1:
            lowered[dtype] = casts
    for node in [node for casts in lowered.values() for found in casts.values() for node in found]:
        node.replace_input_with(0, None)
    for parameter in parameters:
        states.flatten(parameter)
    whole = None
    for dtype, casts in lowered.items():
        low, rest = _total_size(casts), _total_size(parameters) - _total_size(casts)
        # else the float32 ones among them are put side by side once more
        every = all(value.dtype == FLOAT for value in parameters) and 10 * rest <= LAUNCH + 8 * low
        taken = list(parameters) if every else list(casts)
        whole = b.joined(parameters) if every and whole is None else whole
        vector = b.cast(whole if every and whole is not None else b.joined(taken), dtype)
        read = _vector_to_tensors(b, vector, {one: shapes[one] if one in casts else dims(one) for one in taken})
        for parameter, found in casts.items():
            value = b.typed(read[parameter], dtype, *shapes[parameter])
            for node in found:
                ir.convenience.replace_all_uses_with(node.outputs[0], value)
                b.graph.remove(node, safe=True)
    return whole


def by_width(parameters: Sequence[Value]) -> list[bool]:
    """For each of some parameters, whether it is a matrix of the commonest width and is best held with the others of
    that width as rows of one matrix."""
    widths = Counter(dims(one)[1] for one in parameters if len(dims(one)) == 2)
    width = max(widths, key=widths.__getitem__, default=0)
    found = [len(dims(one)) == 2 and dims(one)[1] == width for one in parameters]
    chosen = [one for one, alike in zip(parameters, found, strict=True) if alike]
    return found if _rows_pay(len(chosen), _total_size(chosen)) else [False] * len(found)


def _vector_to_tensors(b: Builder, vector: Value, shapes: Mapping[Value, tuple[int, ...]]) -> dict[Value, Value]:
    """Splits a vector of parameters into tensors of these ``shapes`` (whose keys name them, in their order): matrices
    of one width as rows of one matrix where that pays, others by a Reshape each."""
    names, sizes = list(shapes), [math.prod(shape) for shape in shapes.values()]
    start, end = _equal_width_run(list(shapes.values()))
    if start == end:
        pieces = split(b, vector, sizes)
        return {name: _in_shape(b, piece, shapes[name]) for name, piece in zip(names, pieces, strict=True)}
    pieces = split(b, vector, [*sizes[:start], sum(sizes[start:end]), *sizes[end:]])
    alike = names[start:end]
    rows = b.op("Reshape", pieces.pop(start), b.ints(-1, shapes[alike[0]][1]))
    matrices = b.ops("Split", len(alike), rows, b.ints(*(shapes[name][0] for name in alike)), axis=0)
    rest = zip([*names[:start], *names[end:]], pieces, strict=True)
    return {name: _in_shape(b, piece, shapes[name]) for name, piece in rest} | dict(zip(alike, matrices, strict=True))


def _equal_width_run(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Parameters side by side: the first range (start, end) of neighbours that are matrices of one width, and so many
    that reading them as rows of one matrix pays; (0, 0) for none."""
    place = 0
    for width, alike in groupby(shapes, key=lambda shape: shape[1] if len(shape) == 2 else None):
        found = list(alike)
        if width is not None and _rows_pay(len(found), sum(map(math.prod, found))):
            return place, place + len(found)
        place += len(found)
    return 0, 0


def _rows_pay(matrices: int, numbers: int) -> bool:
    """Whether reading so many ``matrices`` (parameters with ``numbers`` elements in all) as rows of one matrix, which
    moves them once more in two bytes, saves more."""
    return (matrices - 1) * VIEW >= LAUNCH + 4 * numbers


def _in_shape(b: Builder, vector: Value, shape: tuple[int, ...]) -> Value:
    """A piece of a vector of parameters in the shape of its parameter."""
    return vector if len(shape) == 1 else b.op("Reshape", vector, b.ints(*shape))


def _flat(b: Builder, value: Value) -> Value:
    """A parameter or gradient as a vector; no node where it is one."""
    if len(dims(value)) == 1:
        return value
    return b.typed(b.op("Reshape", value, b.ints(-1)), value.dtype or FLOAT, size(value))


def _row_width(values: Sequence[Value]) -> int:
    """The width at which gradients are put side by side as rows by fewer nodes than as vectors; 0 for none. A matrix of
    that width needs no Reshape, and one that a Reshape made is taken from before it."""
    views = sum(len(dims(value)) != 1 for value in values)
    best = 0
    for width in sorted({dims(value)[1] for value in values if len(dims(value)) == 2}):
        if width and all(size(value) % width == 0 for value in values):
            needed = 1 + sum(dims(value)[1:] != (width,) and _private_view(value) is None for value in values)
            views, best = (needed, width) if needed < views else (views, best)
    return best


def _as_rows(b: Builder, value: Value, width: int) -> Value:
    """Gradients side by side: one as rows [n, width]; where a view that nothing else reads made it, the view is removed
    and what it read is taken."""
    if dims(value)[1:] == (width,):
        return value
    view, maker = _private_view(value), value.producer()
    if view is not None and maker is not None and (source := view.inputs[0]) is not None:
        maker.replace_input_with(0, source)
        b.typed(value, source)
        if view.graph is not None:
            view.graph.remove(view, safe=True)
    return b.op("Reshape", value, b.ints(-1, width))


def _private_view(value: Value) -> ir.Node | None:
    """The node that made a gradient, through the Identity that each output is, by only giving a tensor another shape;
    None if there is no such node, something else reads on the way, or the tensor's shape is not known (then it could
    not be handed over where a step is cut)."""
    copy = value.producer()
    if copy is None or copy.op_type != "Identity" or len(value.uses()) > 1:
        return None
    source = copy.inputs[0]
    if source is None or len(source.uses()) > 1 or source.is_graph_output():
        return None
    view = source.producer()
    if view is None or view.graph is None or has(view.op_type, "casts") or not has(view.op_type, "keeps_order"):
        return None
    given = view.inputs[0]
    return view if given is not None and given.shape is not None and given.shape.is_static() else None


def low_source(gradient: Value) -> Value:
    """The low value that a gradient without readers is cast from, whose Cast is removed; the gradient itself where it
    is no such Cast's result, or something else reads the low value."""
    cast = gradient.producer()
    if cast is None or cast.op_type != "Cast" or cast.graph is None or gradient.uses():
        return gradient
    low = cast.inputs[0]
    if low is None or low.dtype not in LOW or len(low.uses()) != 1:
        return gradient
    cast.graph.remove(cast, safe=True)
    return low


def raised(b: Builder, value: Value) -> Value:
    """A parameter or gradient in float32, by a Cast where it is low."""
    return b.cast(value, FLOAT) if value.dtype in LOW else value


def split(b: Builder, vector: Value, sizes: Sequence[int]) -> list[Value]:
    """Splits a vector of parameters or gradients into pieces of these sizes; one piece is itself."""
    return [vector] if len(sizes) == 1 else b.ops("Split", len(sizes), vector, b.ints(*sizes), axis=0)


def dims(value: Value) -> tuple[int, ...]:
    """The sizes of a parameter or gradient, which must all be known; () for a value without a shape."""
    return tuple(value.shape.numpy()) if value.shape is not None else ()


def size(value: Value) -> int:
    """How many numbers a parameter or gradient holds."""
    return math.prod(dims(value))


def _total_size(values: Iterable[Value]) -> int:
    """How many numbers several parameters or gradients hold."""
    return sum(map(size, values))


def _cast_nodes(b: Builder, value: Value, dtype: ir.DataType) -> list[ir.Node]:
    """Parameters as vectors: the Casts of one to a type, without those in bodies and those that are outputs."""
    readers = value.consumers() if value.dtype == FLOAT else ()
    kept = [node for node in readers if node.op_type == "Cast" and node.graph is b.graph]
    return [node for node in kept if node.outputs[0].dtype == dtype and not node.outputs[0].is_graph_output()]


def _vector_type(value: Value) -> ir.DataType:
    """The type in which parameters are put together: a low one, or float32."""
    return value.dtype if value.dtype in LOW else FLOAT
