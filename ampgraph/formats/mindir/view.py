"""How the parts of a MindIR file are read: constants, abstracts, scopes, and where an operand stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ...core.arrays import Array
from ...core.names import FreshNames
from ...oplists.mindspore_schemas import Operator
from . import schema
from .schema import Message

SEQUENCES = (schema.TUPLE, schema.LIST)
MONADS = (schema.UMONAD, schema.IOMONAD)
TUPLES = ("MakeTuple", "MakeList", "make_list", "make_tuple")  # nodes that put values together
OTHER = "it meets another type in the file, which MindSpore promotes"
CALL = "call"  # the kind of a node that calls a function or a function value

Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"
"""A constant that is not a tensor, as a Python value."""

Item: TypeAlias = "int | tuple[Item, ...] | Closure | Written | None"
"""What a name stands for: a value's id, a tuple of items, a Closure, a Written, or None (a state, nothing)."""


@dataclass(frozen=True)
class Closure:
    """What a name of a MindIR function value stands for: the functions that it may be."""

    targets: frozenset[tuple[str, int]]  # (function's name, how many arguments it was given already by a Partial)


@dataclass(frozen=True)
class Written:
    """What a name of a MindIR parameter that the model writes stands for: no value, as every Load of it is one."""

    tensor: Message


@dataclass(frozen=True)
class OperandPlace:
    """Where an operand stands in a .mindir graph: input ``position`` of a node, or output ``position`` of the graph
    when ``node`` is None. ``via``: where the result of ``node`` is read, when ``node`` is a MakeTuple or Depend that is
    read through; None for the node of an operator."""

    node: Message
    position: int
    via: OperandPlace | None = None


@dataclass(eq=False)
class MindirOp:
    """The native side of an Op in a MindIR dataflow."""

    node: Message
    operator: Operator | None = None  # its entry in the table of operators, None when there is none
    places: list[OperandPlace | None] = field(default_factory=list)  # by operand; None where no Cast can stand
    slots: list[str] = field(default_factory=list)  # by operand


@dataclass
class MindirScope:
    """The native side of a Scope in a MindIR dataflow."""

    graph: Message
    names: dict[int, str] = field(default_factory=dict)  # value id -> the first name that stands for it here
    ordered: set[str] = field(default_factory=set)  # names that are read through a Depend, which keeps an order
    held: dict[int, tuple[Message, int]] = field(default_factory=dict)
    """Value id -> (the node or input's message that says its type, which of the Tensor messages there)."""
    outputs: list[OperandPlace | None] = field(default_factory=list)  # by output; None where no Cast can stand


def short_name(name: str) -> str:
    """A name in a .mindir file as messages show it: one of more than 120 characters without its middle."""
    return name if len(name) <= 120 else f"{name[:60]}...{name[-57:]}"


def graphs(model: Message) -> list[Message]:
    """The main graph of a MindIR model, then its functions."""
    return [model.graph, *model.functions]


def all_names(model: Message) -> set[str]:
    """Every name that a MindIR model uses: of primitives, graphs, inputs, outputs, parameters, nodes and results."""
    names = {primitive.name for primitive in model.primitives}
    for graph in graphs(model):
        names.add(graph.name)
        names.update(item.name for item in (*graph.parameter, *graph.input, *graph.output))
        for node in graph.node:
            names.add(node.name)
            names.update(node.output)
    return names


def primitives(model: Message) -> dict[str, Message]:
    """The primitives of a MindIR model by the name that nodes refer to, without ``REF::``."""
    return {primitive.name: primitive for primitive in model.primitives}


def primitive(model: Message, kind: str, fresh: FreshNames) -> str:
    """The ``op_type`` by which MindIR nodes refer to the primitive of operator ``kind``; one is added to the model,
    under a name by ``fresh``, where it has none."""
    found = next((item.name for item in model.primitives if item.op_type == kind), "")
    if not found:
        found = fresh(f"{kind}:amp")
        model.primitives.add(name=found, op_type=kind, prim_type=schema.PRIMITIVE_FUNCTION)
    return f"REF::{found}"


def add_type(node: Message, dtype: int, dims: Iterable[int]) -> None:
    """Writes the abstract of a new MindIR node that makes one tensor. ``dtype``: the number of its element type;
    ``dims``: -1 for an unknown size, [-2] for an unknown rank."""
    tensor = node.attribute.add(name="shape", type=schema.TENSORS).tensors.add(data_type=dtype)
    tensor.dims.extend(dims)


def reference(node: Message) -> str:
    """The name of the primitive or function that a MindIR node refers to; its operator if none, as for a Constant."""
    return str(node.op_type).removeprefix("REF::")


def kind_of(node: Message, known: dict[str, Message]) -> str:
    """The operator of a MindIR node, as ``MatMul``; ``call`` for that of a function. ``known``: the `primitives`."""
    name = reference(node)
    if name in known:
        return str(known[name].op_type)
    return CALL if node.op_type.startswith("REF::") else name


def attribute(node: Message, name: str) -> Message | None:
    """An attribute of a MindIR node or primitive by name; None where it has none of this name."""
    return next((item for item in node.attribute if item.name == name), None)


def elements(abstract: Message) -> Iterator[Message | None]:
    """The Tensor messages of a MindIR abstract, tuples flattened; None for what is no tensor, and for no abstract."""
    if abstract is None:
        yield None
    elif abstract.type in SEQUENCES:
        for item in abstract.values:
            yield from elements(item)
    elif abstract.type in (schema.TENSORS, schema.TENSOR) and abstract.tensors:
        yield from abstract.tensors
    else:
        yield None


def nested_item(abstract: Message | None, made: Iterator[Item]) -> Item:
    """The item that a MindIR abstract describes: tuples nested as in it, of the items ``made``, one for each of its
    `elements`; an item by itself where it is no tuple."""
    if abstract is not None and abstract.type in SEQUENCES:
        return tuple(nested_item(item, made) for item in abstract.values)
    if abstract is not None and abstract.type in (schema.TENSORS, schema.TENSOR) and len(abstract.tensors) > 1:
        return tuple(next(made, None) for _ in abstract.tensors)
    return next(made, None)


def flat_items(item: Item) -> Iterator[Item]:
    """The items of a MindIR item in one row: its elements, those of tuples inside too; itself if it is no tuple."""
    if isinstance(item, tuple):
        for part in item:
            yield from flat_items(part)
    else:
        yield item


def dtype_of(tensor: Message) -> str:
    """The element type of a .mindir Tensor message; "" for an unknown number, and for None."""
    return schema.ELEMENT_TYPES.get(tensor.data_type, "") if tensor is not None else ""


def shape_of(tensor: Message) -> tuple[int | None, ...] | None:
    """The dimensions of a .mindir Tensor message, None for an unknown one; None for an unknown rank, or no message."""
    if tensor is None or any(dim == -2 for dim in tensor.dims):
        return None
    return tuple(int(dim) if dim >= 0 else None for dim in tensor.dims)


def number(item: Message | None) -> Plain:
    """The Python value of a MindIR attribute that holds no tensor, of a Constant or primitive: a number, a text, None,
    or a list of these; an unknown type is read as a whole number, None as None."""
    if item is None or item.type == schema.NONE_TYPE:
        return None
    if item.type in SEQUENCES:
        return [number(value) for value in item.values] if item.values else list(item.ints)
    if item.type == schema.BOOL:
        return bool(_integer(item))
    if item.type == schema.STRING:
        return str(item.s, "utf-8", "replace")
    if item.type in (schema.FLOAT, schema.DOUBLE):
        return float(item.f if item.HasField("f") else item.d)
    return _integer(item)


def _integer(item: Message) -> int:
    """The whole number in a MindIR attribute: elements of a tuple have theirs in ``ints``, others in ``i``; else 0."""
    return int(item.i) if item.HasField("i") or not item.ints else int(item.ints[0])


def plain_array(value: Plain) -> Array | None:
    """A MindIR constant that holds numbers or truth values as an array; None for text, None and uneven lists."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        return None
    return array if array.dtype.kind in "ifb" else None


def cells(domain: str) -> list[tuple[str, str]]:
    """(attribute, class) of the cells around a MindIR node, outermost first: ("seq", "SequentialCell"), ("0", "Dense")
    for ``Default/seq-SequentialCell/0-Dense/MatMul-op0``; the class is "" where the scope names none. ``Default`` or
    ``Gradients`` in front is no cell. Behind ``Gradients``, ``Default`` stays as ("Default", ""): a backward has other
    cells than its forward; `layer`, which names both alike, leaves it out."""
    parts = domain.split("/")[:-1]
    found = []
    for part in parts[1:] if parts[:1] in (["Default"], ["Gradients"]) else parts:
        name, _, kind = part.rpartition("-")
        found.append((name, kind) if name else (part, ""))
    return found


def layer(domain: str) -> str:
    """The attributes of the cells around a MindIR node, dot separated: ``seq.0``; "" outside of any cell."""
    return ".".join(name for name, _ in cells(domain) if name != "Default")
