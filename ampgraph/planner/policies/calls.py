"""Calls of a framework: the nodes that one operator of the framework was exported as, with its place in a list.

A file of torch.onnx.export(dynamo=True) says which call a node came from. In other files a call is a node, a product
with its bias, or the nodes of a decomposed norm, softmax or activation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...core.dataflow import NONE, Dataflow, Op, Origin, Value
from ...oplists.operators import Listing, OpLists
from ...oplists.patterns import find_biases, find_regions
from ..decisions import Decisions


@dataclass
class OperatorCall:
    """One call: its nodes in order, and its entry in the list (None: it is in none).

    ``operands``: the values with a float type that enter it, in order. ``at``: what becomes of it at the level.
    """

    listing: Listing | None
    named: bool
    ops: list[Op] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    at: str = ""


def find_calls(flow: Dataflow, lists: OpLists, given: Decisions) -> list[OperatorCall]:
    """The call of every operator, by its number. ``given``: what is decided before any rule is asked."""
    calls: dict[object, OperatorCall] = {}
    unnamed = _unnamed(flow, lists)
    found = []
    for op in flow.ops:
        origin = flow.origin(op) if lists.own else None
        key: object = _place(flow, lists, op, origin) if origin else unnamed.get(op.id, (op.id,))
        if key not in calls:
            listing = lists.listing(flow, op) if origin or op.id not in unnamed else lists.of(unnamed[op.id][1])
            calls[key] = OperatorCall(listing, origin is not None)
        calls[key].ops.append(op)
        found.append(calls[key])
    for call in calls.values():
        call.operands = list(_operands(flow, call.ops, given))
    return found


def _place(flow: Dataflow, lists: OpLists, op: Op, origin: Origin) -> object:
    """The call of a node: that of the outermost module that a list names, and in it what hangs together; else its own.

    A module that is called twice is two calls, as nothing leads from one to the other.
    """
    module = next((depth for depth, name in enumerate(origin.names[:-1]) if lists.of(name)), None)
    if module is None:
        return op.scope, origin.group
    scope, seen, todo = origin.scopes[module], {op.id}, [op]
    while todo:
        here = todo.pop()
        made = [reader for value in here.outputs for reader in flow.readers(value)]
        for other in (*made, *(w for v in here.inputs if v != NONE and (w := flow.writer(v)) is not None)):
            known = flow.origin(other) if other.id not in seen and other.scope == op.scope else None
            if known is not None and scope in known.scopes[:-1]:
                seen.add(other.id)
                todo.append(other)
    return op.scope, scope, min(seen)


def _unnamed(flow: Dataflow, lists: OpLists) -> dict[int, tuple[int, str]]:
    """Operators of regions in a file that names no calls -> (region, the operator that it stands for)."""
    if any(flow.origin(op) for op in flow.ops):
        return {}
    low = {kind for kind, listing in lists.items() if lists.framework.classes[listing.cls].at == "low"}
    found: dict[int, tuple[int, str]] = {}
    products = [(region, region.ops[0].role) for region in find_biases(flow, low)]
    for number, (region, kind) in enumerate([*((r, r.kind) for r in find_regions(flow)), *products]):
        if not any(op.id in found for op in region.ops):
            found.update(dict.fromkeys((op.id for op in region.ops), (number, kind)))
    return found


def _operands(flow: Dataflow, ops: Iterable[Op], given: Decisions) -> Iterable[Value]:
    """What enters a call from outside and has a type to decide, each value once: no sizes and scales of a schema."""
    ids = {op.id for op in ops}
    seen = set()
    for op in ops:
        for source in op.inputs:
            if source == NONE or source in seen or flow.values[source].producer in ids:
                continue
            if any(use.op == op.id and use.unit != NONE and not _settled(given, use.unit) for use in flow.uses[source]):
                seen.add(source)
                yield flow.values[source]


def _settled(given: Decisions, unit: int) -> bool:
    """Whether a slot is float32 in every call of its operator."""
    why = given.why(unit)
    return given.is_high(unit) and why is not None and why.rule in ("slot", "schema")
