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
    """Functions of which one is called, each with the number of arguments that it was given already."""

    targets: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Written:
    """A parameter that the model writes: every Load of it is a value of its own."""

    tensor: Message


@dataclass(frozen=True)
class OperandPlace:
    """Where an operand stands: an input of a node, or output ``position`` of the graph when ``node`` is None.

    ``via``: where the result of ``node`` is read, when ``node`` is a MakeTuple or Depend that is read through.
    """

    node: Message
    position: int
    via: OperandPlace | None = None


@dataclass(eq=False)
class MindirOp:
    """The native side of an Op. For each operand of the dataflow ``places`` says where it stands, None where nothing
    can be put, and ``slots`` its slot."""

    node: Message
    operator: Operator | None = None  # its entry in the table of operators, None when there is none
    places: list[OperandPlace | None] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)


@dataclass
class MindirScope:
    """The native side of a Scope."""

    graph: Message
    names: dict[int, str] = field(default_factory=dict)  # value id -> the first name that stands for it here
    ordered: set[str] = field(default_factory=set)  # names that are read through a Depend, which keeps an order
    held: dict[int, tuple[Message, int]] = field(default_factory=dict)  # value id -> what shows its type, where
    outputs: list[OperandPlace | None] = field(default_factory=list)


def shown(name: str) -> str:
    """A name in a .mindir file as messages show it."""
    return name if len(name) <= 120 else f"{name[:60]}...{name[-57:]}"


def graphs(model: Message) -> list[Message]:
    """The main graph and the functions."""
    return [model.graph, *model.functions]


def all_names(model: Message) -> set[str]:
    """Every name that a model uses."""
    names = {primitive.name for primitive in model.primitives}
    for graph in graphs(model):
        names.add(graph.name)
        names.update(item.name for item in (*graph.parameter, *graph.input, *graph.output))
        for node in graph.node:
            names.add(node.name)
            names.update(node.output)
    return names


def primitives(model: Message) -> dict[str, Message]:
    """Primitives by the name that nodes refer to."""
    return {primitive.name: primitive for primitive in model.primitives}


def primitive(model: Message, kind: str, fresh: FreshNames) -> str:
    """How nodes refer to the primitive of an operator, which is added where the file has none."""
    found = next((item.name for item in model.primitives if item.op_type == kind), "")
    if not found:
        found = fresh(f"{kind}:amp")
        model.primitives.add(name=found, op_type=kind, prim_type=schema.PRIMITIVE_FUNCTION)
    return f"REF::{found}"


def add_type(node: Message, dtype: int, dims: Iterable[int]) -> None:
    """Writes type and dimensions of the one tensor that a new node makes."""
    tensor = node.attribute.add(name="shape", type=schema.TENSORS).tensors.add(data_type=dtype)
    tensor.dims.extend(dims)


def reference(node: Message) -> str:
    """The primitive, function or function value that a node refers to, or its plain operator."""
    return str(node.op_type).removeprefix("REF::")


def kind_of(node: Message, known: dict[str, Message]) -> str:
    """The operator of a node, by the primitives of its model; ``call`` for a function or a function value."""
    name = reference(node)
    if name in known:
        return str(known[name].op_type)
    return CALL if node.op_type.startswith("REF::") else name


def attribute(node: Message, name: str) -> Message | None:
    """An attribute of a node or a primitive by name, or None."""
    return next((item for item in node.attribute if item.name == name), None)


def elements(abstract: Message) -> Iterator[Message | None]:
    """The Tensor messages of an abstract, tuples flattened; None for anything but a tensor."""
    if abstract is None:
        yield None
    elif abstract.type in SEQUENCES:
        for item in abstract.values:
            yield from elements(item)
    elif abstract.type in (schema.TENSORS, schema.TENSOR) and abstract.tensors:
        yield from abstract.tensors
    else:
        yield None


def nested(abstract: Message, made: Iterator[Item]) -> Item:
    """Of a MindIR tuple: items, one for each of `elements`, in the shape of an abstract."""
    if abstract is not None and abstract.type in SEQUENCES:
        return tuple(nested(item, made) for item in abstract.values)
    if abstract is not None and abstract.type in (schema.TENSORS, schema.TENSOR) and len(abstract.tensors) > 1:
        return tuple(next(made, None) for _ in abstract.tensors)
    return next(made, None)


def flat(item: Item) -> Iterator[Item]:
    """What a MindIR value stands for, with its tuples opened."""
    if isinstance(item, tuple):
        for part in item:
            yield from flat(part)
    else:
        yield item


def dtype_of(tensor: Message) -> str:
    """The element type of a Tensor message, or an empty string."""
    return schema.ELEMENT_TYPES.get(tensor.data_type, "") if tensor is not None else ""


def shape_of(tensor: Message) -> tuple[int | None, ...] | None:
    """Dimensions of a Tensor message; an unknown one (-1) is None, an unknown rank (-2) None in all."""
    if tensor is None or any(dim == -2 for dim in tensor.dims):
        return None
    return tuple(int(dim) if dim >= 0 else None for dim in tensor.dims)


def number(item: Message | None) -> Plain:
    """The Python value of a Constant that is not a tensor: a number, a text, None, or a list of these."""
    if item is None or item.type == schema.NONE_TYPE:
        return None
    if item.type in SEQUENCES:
        return [number(value) for value in item.values] if item.values else list(item.ints)
    if item.type == schema.BOOL:
        return bool(_element_integer(item))
    if item.type == schema.STRING:
        return str(item.s, "utf-8", "replace")
    if item.type in (schema.FLOAT, 11):
        return float(item.f if item.HasField("f") else item.d)
    return _element_integer(item)


def _element_integer(item: Message) -> int:
    """The whole number in an attribute: elements of a tuple have theirs in ``ints``, others in ``i``."""
    return int(item.i) if item.HasField("i") or not item.ints else int(item.ints[0])


def plain_array(value: Plain) -> Array | None:
    """The numbers of a MindIR constant as an array, None for anything else."""
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        return None
    return array if array.dtype.kind in "ifb" else None


def cells(domain: str) -> list[tuple[str, str]]:
    """(attribute, class) of the cells around a node: ``Default/seq-SequentialCell/0-Dense/MatMul-op0``.

    ``Default`` or ``Gradients`` in front is no cell. Behind ``Gradients``, ``Default`` stays as ("Default", ""): a
    backward has other cells than its forward; `layer`, which names both alike, leaves it out.
    """
    parts = domain.split("/")[:-1]
    found = []
    for part in parts[1:] if parts[:1] in (["Default"], ["Gradients"]) else parts:
        name, _, kind = part.rpartition("-")
        found.append((name, kind) if name else (part, ""))
    return found


def layer(domain: str) -> str:
    """The cells around a node, dot separated: ``seq.0``."""
    return ".".join(name for name, _ in cells(domain) if name != "Default")
