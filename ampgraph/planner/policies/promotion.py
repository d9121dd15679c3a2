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
    """One call of a framework's operator: its nodes in order, and its entry in the list (None: it is in none).
    ``named``: whether the file says of which call the nodes are. ``operands``: the values with a type to decide that
    enter it, in order. ``at``: what becomes of it at the level, as `ListClass.at_level`; empty where it is in no
    list."""

    listing: Listing | None
    named: bool
    ops: list[Op] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    at: str = ""


def find_calls(flow: Dataflow, lists: OpLists, given: Decisions) -> list[OperatorCall]:
    """The framework's call of every operator, by its id; nodes of one call share the object."""
    calls: dict[object, OperatorCall] = {}
    unnamed = _regions_without_calls(flow, lists)
    found = []
    for op in flow.ops:
        origin = flow.origin(op) if lists.own else None
        in_region = origin is None and op.id in unnamed
        key: object = unnamed[op.id] if in_region else (op.id,)
        if origin is not None:
            key = _call_key(flow, lists, op, origin)
        if key not in calls:
            listing = lists.entry(unnamed[op.id][1]) if in_region else lists.listing(flow, op)
            calls[key] = OperatorCall(listing, origin is not None)
        calls[key].ops.append(op)
        found.append(calls[key])
    for call in calls.values():
        call.operands = list(_operands_of_call(flow, call.ops, given))
    return found


def _call_key(flow: Dataflow, lists: OpLists, op: Op, origin: Origin) -> object:
    """A key that nodes of one framework's call share: of the call of the outermost module that a list names, by the
    lowest id of the nodes of that module which are joined to this one; else of the call that ``origin`` names. A module
    that is called twice is two calls, as nothing inside it joins the nodes of one to those of the other."""
    module = next((depth for depth, name in enumerate(origin.names[:-1]) if lists.entry(name)), None)
    if module is None:
        return op.scope, origin.group
    scope = origin.scopes[module]

    def neighbours(number: int) -> Iterator[int]:
        """The ids of the operators of the same module that read what an operator makes, or make what it reads."""
        here = flow.ops[number]
        readers = [reader for value in here.outputs for reader in flow.readers(value)]
        writers = [flow.writer(value) for value in here.inputs if value != NONE]
        for other in (*readers, *writers):
            known = flow.origin(other) if other is not None and other.scope == op.scope else None
            if other is not None and known is not None and scope in known.scopes[:-1]:
                yield other.id

    return op.scope, scope, min(reachable([op.id], neighbours))


def _regions_without_calls(flow: Dataflow, lists: OpLists) -> dict[int, tuple[int, str]]:
    """In a file that names no calls: operators of regions, which a framework calls as one, by id: (number of the
    region, the operator that it stands for). Empty in a file that names some. A bias belongs to the low product."""
    if any(flow.origin(op) for op in flow.ops):
        return {}
    low = {kind for kind, listing in lists.items() if lists.framework.classes[listing.cls].at == "low"}
    regions = [(region, region.kind) for region in find_regions(flow)]
    regions += [(region, region.ops[0].role) for region in find_biases(flow, low)]
    found: dict[int, tuple[int, str]] = {}
    for number, (region, kind) in enumerate(regions):
        if not any(op.id in found for op in region.ops):
            found.update((op.id, (number, kind)) for op in region.ops)
    return found


def _operands_of_call(flow: Dataflow, ops: Iterable[Op], given: Decisions) -> Iterable[Value]:
    """Yields what enters a framework's call and has a type to decide, once: nothing that a schema wants in float32."""
    ids = {op.id for op in ops}
    seen = set()
    for op in ops:
        for source in op.inputs:
            if source == NONE or source in seen or flow.values[source].producer in ids:
                continue
            units = [use.unit for use in flow.uses[source] if use.op == op.id and use.unit != NONE]
            if not all(_is_float32_by_schema(given, unit) for unit in units):
                seen.add(source)
                yield flow.values[source]


def _is_float32_by_schema(given: Decisions, unit: int) -> bool:
    """Whether validity makes a slot float32 in every call, so that it is no operand to decide."""
    why = given.why(unit)
    return given.is_high(unit) and why is not None and why.rule in ("slot", "schema")


BOTH = "both"
"""The class of operators in which the framework computes in two types, and ONNX in one."""


class PromotedTypes(ForwardTypes):
    """Types as PyTorch promotes them, call by call: one that no list speaks of takes the widest type of its operands.
    ``calls``: the call of every operator, by its id; ``framework``: whose name notes say."""

    framework = "PyTorch"

    def __init__(self, flow: Dataflow, options: Options, given: Decisions) -> None:
        super().__init__(flow, options, given)
        self.calls = find_calls(flow, options.lists, given)
        for call in self.calls:
            call.at = self._at_level(call)

    def _at_level(self, call: OperatorCall) -> str:
        """What becomes of a framework's call, as `ListClass.at_level`; "" where it is in no list. A norm that follows
        data of one type with its statistics is `INSIDE`, as kernels with float32 statistics beside low data."""
        if call.listing is None:
            return ""
        at = self.options.lists.framework.classes[call.listing.cls].at_level(self.options.level.name)
        return INSIDE if at == FOLLOWS and any(self._shares_statistics_type(op) for op in call.ops) else at

    def _shares_statistics_type(self, op: Op) -> bool:
        """For promotion: whether an operator with stored statistics has one type for them and its data."""
        one = len({self.flow.find(unit) for unit in op.slots.values()}) == 1
        return one and self.options.lists.traits.has(op.role, "stored_statistics")

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32 by promotion: its call's list, what it computes inside, or an operand that is float32;
        "" where it stays low. What crosses a boundary only follows (`_settle_boundaries`)."""
        call = self.calls[op.id]
        if call.at == "low" or self.flow.units[unit].crosses:
            return ""
        if call.listing and call.at == "float32":
            about = self.options.lists.framework.classes[call.listing.cls].about
            return f"{self.framework_name(op)}: {call.listing.source}: {about}"
        if call.at == INSIDE:
            return "computes in float32 inside"
        if call.at == FOLLOWS:
            return self._float32_for_data(op, call, unit)
        return self.float32_among(op, self.strong(op, call.operands))

    def _settle_boundaries(self) -> bool:
        """Makes float32 what crosses a boundary where a value comes so; True when a unit changed."""
        changed = super()._settle_boundaries()
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                crosses = use.unit != NONE and self.flow.units[use.unit].crosses and self.is_low(use.unit)
                if crosses and not self.comes_low(value, use.op):
                    changed |= self.make_float32(use.unit, f"'{value.name}' comes as float32")
        return changed

    def framework_name(self, op: Op) -> str:
        """What a reason calls an operator: the framework's name of its call, else the file's."""
        origin = self.flow.origin(op)
        return origin.names[-1] if origin else op.kind

    def strong(self, op: Op, operands: Sequence[Value]) -> list[Value]:
        """By a framework's promotion: the operands of the highest `priority`, which alone decide where types differ."""
        by_priority: dict[int, list[Value]] = {}
        for value in operands:
            by_priority.setdefault(self.priority(op, value), []).append(value)
        return by_priority[max(by_priority)] if by_priority else []

    def priority(self, op: Op, value: Value) -> int:
        """How much an operand counts where types differ: 2 for a tensor with dimensions or of unknown shape, 1 for one
        without dimensions, 0 for a number. No operand decides beside one of a higher priority."""
        if self.is_number(op, value):
            return 0
        return 1 if self.flow.shape(value.id) == () else 2

    def is_number(self, op: Op, value: Value) -> bool:
        """For a framework's promotion: whether a value is a stored tensor of one element that the exporter made of a
        number: no parameter, buffer or tensor was handed to the call by that name. In a file that names no calls: one
        without dimensions, or without the dotted name of a parameter."""
        if not value.weight or self.flow.weights.size(value) != 1:
            return False
        origin = self.flow.origin(op)
        if origin is None:
            return self.flow.shape(value.id) == () or "." not in value.name
        return value.name.replace(".", "_") not in origin.reads

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader (an operator's id, `NONE` for a boundary) low. Outside of a call that is
        float32 inside alone, its result comes in the type of the call's first operand."""
        call = self.calls[value.producer] if value.dtype == FLOAT32 and value.producer != NONE else None
        if call is None or call.at != INSIDE or (reader != NONE and self.calls[reader] is call):
            return super().comes_low(value, reader)
        return all(self.comes_low(operand, call.ops[0].id) for operand in call.operands[:1])

    def _is_rounded(self, value: Value, use: Use) -> bool:
        """Whether a float32 reader gets the result of a call that is `INSIDE`, a norm on low data, which rounds it."""
        if value.producer == NONE or self.calls[value.producer].at != INSIDE:
            return False
        outside = use.op == NONE or self.calls[use.op] is not self.calls[value.producer]
        return outside and self.comes_low(value, use.op)

    def _float32_for_data(self, op: Op, call: OperatorCall, unit: int) -> str:
        """By promotion: why a slot of a call that follows its data is float32: what the call reads first is; "" where
        that is low. Statistics, scale and shift in slots of their own always are; the result in one never is."""
        read = self.operands(op, unit)
        if len(op.slots) > 1 and not any(value.id == op.inputs[0] for value in read):
            is_result = not read and any(self.flow.values[made].unit == unit for made in op.outputs[:1])
            return "" if is_result else "scale, shift and statistics stay float32"
        return self.float32_among(op, call.operands[:1])

    # -- notes ---------------------------------------------------------------------------------------------------------

    def refused(self) -> dict[int, str]:
        """Unit -> slot, of first operands that the framework would make low and that validity keeps in float32."""
        found: dict[int, str] = {}
        assert self.given is not None
        for op in self.flow.ops:
            first = op.inputs[0] if op.inputs else NONE
            data = {use.unit for use in self.flow.uses[first] if use.op == op.id} if first != NONE else set()
            for slot, unit in op.slots.items():
                if unit in data and self.given.is_held(unit) and not self._float32_for(op, slot, unit):
                    found[unit] = slot
        return found

    def notes(self) -> Iterator[Note]:
        """Notes of a framework that promotes: how many nodes go by the framework's own names, and each operator that
        the framework computes in two types and this file in one."""
        decided = [op for op in self.flow.ops if op.slots]
        named = sum(self.calls[op.id].named for op in decided)
        if decided:
            rest = len(decided) - named
            text = f"{named} nodes by the PyTorch operators that the exporter names, {rest} by the file's own"
            yield Note("origin", "", text)
        for op in decided:
            if self._loses_low_part(op):
                text = f"{self.framework} computes a part of it low; {op.kind} has one type"
                yield Note(PARITY, describe(self.flow, op), text)

    def _loses_low_part(self, op: Op) -> bool:
        """Whether the framework computes a part of an operator low which is float32 here: the last node of a call of
        class `BOTH` whose first operand comes low."""
        call = self.calls[op.id]
        if call.listing is None or call.listing.cls != BOTH or call.ops[-1] is not op:
            return False
        return any(self.comes_low(value, op.id) for value in call.operands[:1])
