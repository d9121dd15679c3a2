"""Types by calls, as PyTorch promotes them: what torch.autocast and Apex's O1 have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Origin, Use, Value
from ...core.plan import Note
from ...core.walk import reachable
from ...oplists.framework_lists import FOLLOWS, INSIDE, Listing
from ...oplists.operators import OpLists
from ...oplists.options import Options
from ...oplists.patterns import find_biases, find_regions
from ..decisions import Decisions, describe
from .forward import PARITY, ForwardTypes


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
    unnamed = _regions_without_calls(flow, lists)
    found = []
    for op in flow.ops:
        origin = flow.origin(op) if lists.own else None
        key: object = _call_of_node(flow, lists, op, origin) if origin else unnamed.get(op.id, (op.id,))
        if key not in calls:
            listing = lists.listing(flow, op) if origin or op.id not in unnamed else lists.of(unnamed[op.id][1])
            calls[key] = OperatorCall(listing, origin is not None)
        calls[key].ops.append(op)
        found.append(calls[key])
    for call in calls.values():
        call.operands = list(_operands_of_call(flow, call.ops, given))
    return found


def _call_of_node(flow: Dataflow, lists: OpLists, op: Op, origin: Origin) -> object:
    """The framework's call that a node is of: that of the outermost module that a list names, and in it what hangs
    together; else its own.

    A module that is called twice is two calls, as nothing leads from one to the other.
    """
    module = next((depth for depth, name in enumerate(origin.names[:-1]) if lists.of(name)), None)
    if module is None:
        return op.scope, origin.group
    scope = origin.scopes[module]

    def beside(number: int) -> Iterator[int]:
        here = flow.ops[number]
        made = (reader for value in here.outputs for reader in flow.readers(value))
        for other in (*made, *(w for v in here.inputs if v != NONE and (w := flow.writer(v)) is not None)):
            known = flow.origin(other) if other.scope == op.scope else None
            if known is not None and scope in known.scopes[:-1]:
                yield other.id

    return op.scope, scope, min(reachable([op.id], beside))


def _regions_without_calls(flow: Dataflow, lists: OpLists) -> dict[int, tuple[int, str]]:
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


def _operands_of_call(flow: Dataflow, ops: Iterable[Op], given: Decisions) -> Iterable[Value]:
    """What enters a call from outside and has a type to decide, each value once: no sizes and scales of a schema."""
    ids = {op.id for op in ops}
    seen = set()
    for op in ops:
        for source in op.inputs:
            if source == NONE or source in seen or flow.values[source].producer in ids:
                continue
            if any(
                use.op == op.id and use.unit != NONE and not _is_float32_by_schema(given, use.unit)
                for use in flow.uses[source]
            ):
                seen.add(source)
                yield flow.values[source]


def _is_float32_by_schema(given: Decisions, unit: int) -> bool:
    """Whether validity makes a slot float32 in every call, so that it is no operand to decide."""
    why = given.why(unit)
    return given.is_high(unit) and why is not None and why.rule in ("slot", "schema")


BOTH = "both"
"""The class of operators in which the framework computes in two types, and ONNX in one."""


class PromotedTypes(ForwardTypes):
    """Types as PyTorch promotes them, call by call: one that no list speaks of takes the widest type of its
    operands."""

    framework = "PyTorch"

    def __init__(self, flow: Dataflow, options: Options, given: Decisions) -> None:
        super().__init__(flow, options, given)
        self.calls = find_calls(flow, options.lists, given)
        for call in self.calls:
            call.at = self._at(call)

    def _at(self, call: OperatorCall) -> str:
        """What becomes of a call. A norm whose slots must share one type computes in float32 inside, which is what a
        kernel does that takes float32 statistics beside low data."""
        if call.listing is None:
            return ""
        at = self.options.lists.framework.classes[call.listing.cls].of(self.options.level.name)
        return INSIDE if at == FOLLOWS and any(self._shares(op) for op in call.ops) else at

    def _shares(self, op: Op) -> bool:
        """Whether an operator with stored statistics has one type for them and its data."""
        one = len({self.flow.find(unit) for unit in op.slots.values()}) == 1
        return one and self.options.lists.traits.has(op.role, "stored_statistics")

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a call makes this slot float32: its list, what it computes inside, or an operand that is."""
        call = self.calls[op.id]
        if call.at == "low" or self.flow.units[unit].crosses:
            return ""
        if call.listing and call.at == "float32":
            about = self.options.lists.framework.classes[call.listing.cls].about
            return f"{self.spelled(op)}: {call.listing.source}: {about}"
        if call.at == INSIDE:
            return "computes in float32 inside"
        if call.at == FOLLOWS:
            return self._of_data(op, call, unit)
        return self.float32_among(op, self.strong(op, call.operands))

    def _settle_boundaries(self) -> bool:
        """What enters and leaves bodies has one type: float32 where one of its values is."""
        changed = super()._settle_boundaries()
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                crosses = use.unit != NONE and self.flow.units[use.unit].crosses and self.is_low(use.unit)
                if crosses and not self.comes_low(value, use.op):
                    changed |= self.make_float32(use.unit, f"'{value.name}' comes as float32")
        return changed

    def spelled(self, op: Op) -> str:
        """The operator of the framework that a node belongs to, else what the file calls it."""
        origin = self.flow.origin(op)
        return origin.names[-1] if origin else op.kind

    def strong(self, op: Op, operands: Sequence[Value]) -> list[Value]:
        """By a framework's promotion: the operands that decide where types differ: tensors with dimensions before those
        without, numbers last."""
        ranked: dict[int, list[Value]] = {}
        for value in operands:
            ranked.setdefault(self.rank(op, value), []).append(value)
        return ranked[max(ranked)] if ranked else []

    def rank(self, op: Op, value: Value) -> int:
        """By a framework's promotion: 2 for a tensor with dimensions, 1 for one without, 0 for a number."""
        if self.is_number(op, value):
            return 0
        return 1 if self.flow.shape(value.id) == () else 2

    def is_number(self, op: Op, value: Value) -> bool:
        """For a framework's promotion: whether a stored tensor is what the exporter made of a number: no parameter,
        buffer or tensor of the call.

        In a file that names no calls: one without dimensions, or of one element and without the path of a parameter.
        """
        if not value.weight or self.flow.weights.size(value) != 1:
            return False
        origin = self.flow.origin(op)
        if origin is None:
            return self.flow.shape(value.id) == () or "." not in value.name
        return value.name.replace(".", "_") not in origin.reads

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader low; what a call gives that is float32 inside alone comes in the type of its
        first operand."""
        call = self.calls[value.producer] if value.dtype == FLOAT32 and value.producer != NONE else None
        if call is None or call.at != INSIDE or (reader != NONE and self.calls[reader] is call):
            return super().comes_low(value, reader)
        return all(self.comes_low(operand, call.ops[0].id) for operand in call.operands[:1])

    def _is_rounded(self, value: Value, use: Use) -> bool:
        """Whether a float32 reader gets the result of a call that is float32 inside alone (a norm on low data), which
        rounds it to low in between."""
        if value.producer == NONE or self.calls[value.producer].at != INSIDE:
            return False
        outside = use.op == NONE or self.calls[use.op] is not self.calls[value.producer]
        return outside and self.comes_low(value, use.op)

    def _of_data(self, op: Op, call: OperatorCall, unit: int) -> str:
        """The type of what the call reads first; statistics, scale and shift in slots of their own are float32."""
        first = call.operands[:1]
        holds = self.operands(op, unit)
        if len(op.slots) > 1 and not any(value.id == op.inputs[0] for value in holds):
            makes = any(self.flow.values[v].unit == unit for v in op.outputs[:1])
            return "" if makes and not holds else "scale, shift and statistics stay float32"
        return self.float32_among(op, first)

    # -- notes ---------------------------------------------------------------------------------------------------------

    def refused(self) -> dict[int, str]:
        """Units that the framework would make low and that validity keeps in float32."""
        found: dict[int, str] = {}
        assert self.given is not None
        for op in self.flow.ops:
            for slot, unit in op.slots.items():
                uses = (use for v in op.inputs[:1] if v != NONE for use in self.flow.uses[v] if use.op == op.id)
                data = any(use.unit == unit for use in uses)  # what it reads first, no sizes or scales
                if data and self.given.is_held(unit) and not self._float32_for(op, slot, unit):
                    found[unit] = slot
        return found

    def notes(self) -> Iterator[Note]:
        """What a reader must know of how the decisions came about."""
        decided = [op for op in self.flow.ops if op.slots]
        named = sum(self.calls[op.id].named for op in decided)
        if decided:
            rest = len(decided) - named
            text = f"{named} nodes by the PyTorch operators that the exporter names, {rest} by the file's own"
            yield Note("origin", "", text)
        for op in decided:
            if self._two_types(op):
                text = f"{self.framework} computes a part of it low; {op.kind} has one type"
                yield Note(PARITY, describe(self.flow, op), text)

    def _two_types(self, op: Op) -> bool:
        """Whether an operator that the framework computes in two types has both of them here."""
        call = self.calls[op.id]
        if call.listing is None or call.listing.cls != BOTH or call.ops[-1] is not op:
            return False
        return any(self.comes_low(value, op.id) for value in call.operands[:1])
