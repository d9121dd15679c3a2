"""Constants and parameters of a MindIR model in its dataflow, and which parameters the model writes."""

from __future__ import annotations

from ...core.dataflow import Scope
from ...oplists.mindspore_schemas import NO_SLOT, operator
from . import view
from .functions import CALLS
from .schema import Message
from .values import NUMBER, MindirValues
from .view import Item, Written

Keys = frozenset[str]  # of parameters


def read_constants(values: MindirValues, main: Scope) -> None:
    """Constants have one name in all graphs. A tensor is a weight, a number a value without a float type."""
    for graph in view.graphs(values.model):
        for node in graph.node:
            if node.op_type == "Constant":
                given = view.attribute(node, "value")
                values.constants[node.output[0]] = _constant(values, node, node.output[0], given, main)


def _constant(values: MindirValues, node: Message, name: str, given: Message | None, main: Scope) -> Item:
    if given is None or given.type in view.MONADS:
        return None
    found = [tensor for tensor in view.elements(given) if tensor is not None]
    if not found:
        return values.stored(name, main, None, given, NUMBER).id
    if given.type in view.SEQUENCES:
        inner = enumerate(given.values)
        return tuple(_constant(values, node, f"{name}[{number}]", item, main) for number, item in inner)
    value = values.stored(name, main, found[0], found[0])
    main.native.held[value.id] = node, 0
    main.native.names[value.id] = name
    return value.id


def read_parameters(values: MindirValues, main: Scope) -> None:
    """A parameter is one value; of one that the model writes, every Load is another."""
    written = _written(values)
    for tensor in values.model.graph.parameter:
        key = tensor.ref_key or tensor.name
        if key in written:
            values.parameters[key] = Written(tensor)
        else:
            value = values.stored(key, main, tensor, tensor)
            value.parameter = True
            values.parameters[key] = value.id


def _written(values: MindirValues) -> set[str]:
    """Parameters that an operator with a side effect, or one that nothing is known of, is given directly."""
    found: set[str] = set()
    for graph in view.graphs(values.model):
        keys: dict[str, Keys] = {t.name: frozenset([t.ref_key or t.name]) for t in graph.parameter}
        keys |= {i.name: frozenset([i.tensor[0].ref_key]) for i in graph.input if i.tensor and i.tensor[0].ref_key}
        loaded: dict[str, Keys] = {}
        for node in graph.node:
            found |= _written_by(node, values.kind(node), keys, loaded)
    return found


def _written_by(node: Message, kind: str, keys: dict[str, Keys], loaded: dict[str, Keys]) -> Keys:
    """Parameters that a node writes. ``keys``: those behind a name; ``loaded``: those that a name holds the data of."""
    entry, nothing = operator(kind), Keys()
    given = nothing.union(*(keys.get(name, nothing) for name in node.input))
    first = loaded.get(node.input[0], nothing) if node.input else nothing
    if kind == "Load":
        loaded[node.output[0]] = given
    elif kind in view.TUPLES or kind in ("Depend", "TupleGetItem") or (entry is not None and entry.view):
        keys[node.output[0]] = given
        loaded[node.output[0]] = first
    elif kind not in CALLS and (entry is None or entry.effect or entry.in_place):
        writes_first = entry is not None and (entry.in_place or entry.slot_of_input(0) == NO_SLOT)
        return given | first if writes_first else given
    return nothing
