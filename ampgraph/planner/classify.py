"""What lists, level, schema and kernels say of each slot (the operands and results of an operator that share a type),
before any look at the graph around it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.dataflow import NONE, Dataflow, Op, Unit
from ..core.plan import Note, Why
from ..core.walk import downstream
from ..oplists.framework_lists import Listing
from ..oplists.levels import Level
from ..oplists.options import Options
from .decisions import CUT, FREE, HIGH, LIST, LOW, VALIDITY, Hold, Ledger, Tie, Verdict
from .facts.facts import Facts
from .fused_pairs import folded_into_product
from .opsets import freed_at
from .rules.kernels import broken_kernels

SIDES = {"low": LOW, "float32": HIGH, "cut": FREE}
"""What a level says of a class -> the side of its units."""


@dataclass(frozen=True)
class Classes:
    """First verdicts. ``of_op``: by an operator's id, the list class that governs it, "" for none; ``verdicts``: one of
    every unit, by its id; ``first``: what is entered before them, ties of slots and what no list can change."""

    of_op: Sequence[str]
    verdicts: Sequence[Verdict]
    first: Sequence[Tie | Hold]
    notes: Sequence[Note]

    def enter(self, ledger: Ledger) -> None:
        """Enters first verdicts into the ledger: ties and holds first, then each unit that is not left free."""
        for item in self.first:
            if isinstance(item, Tie):
                ledger.tie(item.units)
            else:
                ledger.hold(item)
        for unit, (side, rank, why) in enumerate(self.verdicts):
            if side != FREE:
                ledger.decide(unit, side, rank, why)
        ledger.notes += self.notes


def classify(facts: Facts) -> Classes:
    """Every unit's first verdict: validity where schema or kernel leave no choice, else the list's."""
    flow, classes = facts.flow, list[str]()
    for op in flow.ops:
        listing = facts.listing(op)
        if listing is not None:
            classes.append(listing.cls)
        else:
            classes.append("neutral" if _computes_nothing(flow, op) else "")
    masked = list(masked_rows(facts))
    return Classes(classes, _verdicts(facts, masked), _ties_and_holds(facts, masked), _unlisted_notes(facts, classes))


def _computes_nothing(flow: Dataflow, op: Op) -> bool:
    """Whether an operator is nothing but a boundary of bodies or functions."""
    return bool(op.slots) and all(flow.units[unit].crosses for unit in op.slots.values())


def classify_validity(facts: Facts) -> Classes:
    """First verdicts by validity alone, which hold under every framework's rule: what schema and kernels leave no
    choice of, and slots that share one type; everything else is free."""
    found: list[Verdict] = []
    known: dict[tuple[object, ...], Verdict] = {}
    for unit in facts.flow.units:
        op = facts.flow.ops[unit.op] if unit.op != NONE else None
        type_key = (op.kind if op else "", unit.slot, unit.opset, unit.version, unit.admits)
        key = (*type_key, unit.fixed, unit.fixed_low, _is_lifted(facts, unit, op))
        if key not in known:
            known[key] = _verdict_by_validity(facts, unit, op) or Verdict(FREE, CUT, Why("cut", ""))
        found.append(known[key])
    return Classes((), found, _ties_and_holds(facts, masked_rows(facts)), ())


def _ties_and_holds(facts: Facts, masked: Iterable[MaskedRows]) -> list[Tie | Hold]:
    """What goes before any verdict: ties of slots, and holds that nothing can lift."""
    first: list[Tie | Hold] = [tie for rows in masked for tie in rows.ties]
    tied, kernels, broken = facts.options.lists.tied, facts.options.kernels.tied, broken_kernels(facts)
    for op in facts.flow.ops:
        first += [Tie(units) for units in tied_to_forward(facts.flow, op)]
        if op.slots:
            if len(op.slots) > 1:
                groups = (*tied.get(op.role, ()), *kernels.get(op.kind, ()))
                together = [tuple(op.slots[name] for name in group if name in op.slots) for group in groups]
                first += [Tie(units) for units in (*together, _declared_units(facts, op)) if len(units) > 1]
            if op.kind in broken:
                first += broken[op.kind](op)
            held = op.held or ("" if facts.options.level.lowers_everything else op.kept)
            if held:
                first.append(Hold(tuple(op.slots.values()), VALIDITY, Why("gradient", held)))
    return first


def _verdicts(facts: Facts, masked: Iterable[MaskedRows]) -> list[Verdict]:
    """The first verdict of every unit, by list, level, schema and kernel; units that agree in these share one."""
    flow, verdicts, by_node = facts.flow, [], _roles_judged_by_node(facts)
    attends = {rows.softmax.id: rows.why for rows in masked if facts.options.level.deny == "float32"}
    known: dict[tuple[object, ...], Verdict] = {}
    for unit in flow.units:
        kind, left_to_cut, follows = "", "", False
        owner = flow.ops[unit.op] if unit.op != NONE else None
        if owner is not None:
            kind, follows = owner.kind, owner.follows != NONE
            left_to_cut = _why_left_to_cut(facts, owner) if owner.role in by_node else ""
            left_to_cut = left_to_cut or attends.get(owner.id, "")
        type_key = (kind, unit.slot, unit.opset, unit.admits, unit.fixed, unit.fixed_low, unit.crosses)
        key = (*type_key, _is_lifted(facts, unit, owner), left_to_cut, follows)
        if key not in known:
            known[key] = _verdict(facts, unit, owner, left_to_cut)
        verdicts.append(known[key])
    return verdicts


def _verdict(facts: Facts, unit: Unit, op: Op | None, left_to_cut: str) -> Verdict:
    """The verdict on a slot of ``op`` (None: an input or output of the model) by validity, else by its list.
    ``left_to_cut``: why this very operator is left to the cut at this level, whatever its class; "" if it is not."""
    options = facts.options
    valid = _verdict_by_validity(facts, unit, op)
    if valid is not None:
        return valid
    if op is None or unit.crosses:
        return Verdict(FREE, CUT, Why("cut", "follows its neighbours"))
    if options.kernels.is_cast_elsewhere(op.kind, unit.opset, unit.slot.split("@")[0], options.dtype):
        provider = options.kernels.provider
        text = f"{provider} has no kernel for {op.kind}-{unit.version}, and the CPU's computes in float32"
        return Verdict(HIGH, VALIDITY, Why("kernel", text))
    if op.follows != NONE:
        return Verdict(FREE, CUT, Why("gradient", "takes the type of its forward operator"))
    listing = facts.listing(op)
    if listing is None:
        return Verdict(HIGH, LIST, Why("unlisted", f"{op.kind} is in no list"))
    cls, level = listing.cls, options.level
    if level.trusts_kernels(cls) and op.kind in options.kernels.float32_inside:
        left_to_cut = f"on {options.target} {options.kernels.float32_inside[op.kind]}"
    if left_to_cut:
        return Verdict(FREE, CUT, Why("cut", f"{listing.source}: {cls}, but {left_to_cut}"))
    if cls == "neutral" and facts.traits.has(op.role, "casts"):
        return Verdict(FREE, CUT, Why("cut", "a conversion in the file follows its neighbours"))
    rule = level.of_class(cls)
    return Verdict(SIDES[rule], LIST, by_list(listing, level, listing.reason))


def by_list(listing: Listing, level: Level, reason: str) -> Why:
    """What a level makes of a class, as a decision's why. ``reason``: why the operator is in that class."""
    text = f"{listing.source}: {listing.cls} at {level.name} is {level.of_class(listing.cls)}: {reason}"
    return Why("list", text, reason)


def _verdict_by_validity(facts: Facts, unit: Unit, op: Op | None) -> Verdict | None:
    """The verdict on a slot where its place in the model, its schema or its kernel leave no choice; else None."""
    if unit.fixed_low:
        return Verdict(LOW, VALIDITY, Why("boundary", "it is low in the file, or was asked to be"))
    if unit.fixed and not _is_lifted(facts, unit, op):
        rule = "opset" if unit.freed_at else "boundary"
        if op is not None and op.kind in facts.flow.unknown_kinds:
            rule = "unknown"
        return Verdict(HIGH, VALIDITY, Why(rule, unit.fixed))
    invalid = _why_invalid(facts, unit, op) if op else None
    return Verdict(HIGH, VALIDITY, invalid) if invalid is not None else None


def _is_lifted(facts: Facts, unit: Unit, op: Op | None) -> bool:
    """Whether the user lifts what fixes a slot: that no schema of its operator is known. Differs from node to node."""
    return bool(unit.fixed and unit.admits) and op is not None and is_declared(facts.options, op)


def _declared_units(facts: Facts, op: Op) -> tuple[int, ...]:
    """The units of an operator without a schema that go low together, as the user says that it takes the low type: all
    but those that a list keeps in float32. Empty for an operator with a schema, or of which nobody says it."""
    units, kept = facts.flow.units, facts.options.lists.float32_slots.get(op.role, {})
    if op.kind not in facts.flow.unknown_kinds or not is_declared(facts.options, op):
        return ()
    return tuple(unit for slot, unit in op.slots.items() if slot not in kept and units[unit].admits)


def is_declared(options: Options, op: Op) -> bool:
    """First verdicts: whether the user says that an operator without a schema takes the low type: by a list, or --low
    by its kind or name. A pattern that happens to match it does not say so."""
    return op.kind in options.lists.edited or not {f"op:{op.kind}", op.name or None}.isdisjoint(options.low)


def _roles_judged_by_node(facts: Facts) -> Collection[str]:
    """The roles of operators whose nodes `_why_left_to_cut` may treat differently, so that each has to be looked at."""
    if facts.options.level.infer == "float32":
        return {op.role for op in facts.flow.ops}
    return facts.traits.operators("stored_statistics")


def _why_left_to_cut(facts: Facts, op: Op) -> str:
    """Why an operator goes to the cut though its class is float32; "" where it does not: at O1 what dequantizes a
    stored weight or is folded into a product, at O2 a norm with stored statistics and float32 inside."""
    traits, options = facts.traits, facts.options
    if options.level.infer == "float32":
        if traits.has(op.role, "dequantizes") and facts.flow.values[op.inputs[0]].weight:
            return "a stored weight has the type of what reads it"
        fusion = folded_into_product(facts.flow, options, op)
        return f"on {options.target} {fusion} takes it into the product before it" if fusion else ""
    norms_held = options.level.infer == "low" and options.level.fp32 == "float32"
    inside = options.kernels.float32_inside.get(op.kind, "")
    if not norms_held or not inside or not traits.has(op.role, "stored_statistics"):
        return ""
    in_training = len(op.outputs) != 1 or bool(facts.flow.attribute(op, "training_mode"))
    return "" if in_training else f"on {options.target} {inside}"


def _why_invalid(facts: Facts, unit: Unit, op: Op) -> Why | None:
    """Why a slot of an operator cannot be low, whatever anybody says; None where it can be. ``unit``: that of the slot,
    which is a type variable (`T`), or an input's name with its type where the schema has none (`scales:tensor(float)`);
    behind an @ it has the place of a variadic operand of any type (`V@i0`)."""
    options, kind = facts.options, op.kind
    slot = unit.slot.split("@")[0]
    if reason := _why_float32_slot(options, op, slot):
        # `core.plan` reads the reason out of this sentence in plans of format 1
        return Why("slot", f"{slot} of {kind} stays float32: {reason}", reason)
    if options.dtype not in unit.admits:
        text = f"{kind}-{unit.version} does not admit {options.dtype} for {slot}"
        later = freed_at(facts.flow, options, unit)
        if later:
            return Why("opset", f"{text}; opset {later} does")
        admitting = facts.flow.later_version(kind, slot, max(unit.version, 1), options.dtype)
        if admitting:
            return Why("schema", f"{text}; opset {admitting} does, but {options.kernels.provider} has no kernel for it")
        named = f"the schema of {kind}-{unit.version}" if unit.version else kind
        return Why("schema", f"{named} does not admit {options.dtype} for {slot}")
    if unit.opset and options.kernels.admits(kind, unit.opset, slot, options.dtype) is False:
        text = f"{options.kernels.provider} has no {options.dtype} kernel for {kind}-{unit.version} ({slot})"
        said = options.kernels.refused.get(kind, {}).get(options.dtype)
        text += f": {said}" if said else ""
        later = freed_at(facts.flow, options, unit)
        return Why("opset", f"{text}; opset {later} has one") if later else Why("kernel", text)
    return None


def _why_float32_slot(options: Options, op: Op, slot: str) -> str:
    """First verdicts: why lists hold a slot in float32 (`OpLists.float32_slots`); "" where they do not. Kernels of the
    target that want the slot in the type of others outweigh that, unless it is one of `OpLists.firm`."""
    tied = any(slot in group for group in options.kernels.tied.get(op.kind, ()))
    if tied and slot not in options.lists.firm.get(op.role, ()):
        return ""
    held = options.lists.float32_slots.get(op.role, {})
    return held.get(slot) or held.get("input:" + slot.split(":")[0], "")


def _unlisted_notes(facts: Facts, classes: Sequence[str]) -> list[Note]:
    """Notes on operators that are float32 because no list or no schema has them, one a kind. ``classes``: by an
    operator's id, the class that governs it, "" for none. Not on what could not be low anyway."""
    flow = facts.flow
    counts: dict[str, int] = {}
    for op in flow.ops:
        if not op.slots or op.held or op.kept or is_declared(facts.options, op):
            continue
        inner = [flow.units[unit] for unit in op.slots.values() if not flow.units[unit].crosses]
        unlisted = not classes[op.id] and any(facts.options.dtype in unit.admits for unit in inner)
        if unlisted or op.kind in flow.unknown_kinds:
            counts[op.kind] = counts.get(op.kind, 0) + 1
    notes = []
    for kind, count in sorted(counts.items()):
        known = "no schema is known for it" if kind in flow.unknown_kinds else "it is in no list"
        notes.append(Note("unlisted", kind, f"{count} node{'s' * (count > 1)} in float32: {known}"))
    return notes


class MaskedRows(NamedTuple):
    """A Softmax of which a Where replaces the rows that are masked as a whole. ``why``: why it is left to the cut ("":
    it is not). ``ties``: of the Where, and if there is a ``why`` the comparison, with each product that reads it."""

    softmax: Op
    ties: list[Tie]
    why: str


def masked_rows(facts: Facts) -> Iterator[MaskedRows]:
    """First verdicts: every Softmax of which a Where replaces the rows that are masked as a whole (NaN), where the
    target makes one kernel of that with the products behind (`Kernels.attention`)."""
    flow, options = facts.flow, facts.options
    for op in flow.ops if options.kernels.attention else ():
        form = options.kernels.attention.get(op.kind)
        if form is None:
            continue
        readers = list(flow.readers(op.outputs[0]))
        tests = {reader.outputs[0]: reader for reader in readers if reader.kind == form.tests}
        for select in (reader for reader in readers if reader.kind == form.selects):
            test = next((tests[value] for value in select.inputs if value in tests), None)
            products = _products_reading(facts, select.outputs[0]) if test is not None else []
            if test is None or not products:
                continue
            units, why = [*select.slots.values()], ""
            if options.dtype in form.low:
                units += test.slots.values()
                why = f"on {options.target} it is one kernel with the products around it, low"
            yield MaskedRows(op, [Tie((*units, *product.slots.values())) for product in products], why)


def _products_reading(facts: Facts, value: int) -> list[Op]:
    """First verdicts: the products (of the trait `scores`) that read a value, straight or through reshapes."""
    scores, reshapes = facts.traits.operators("scores"), facts.traits.operators("reshapes")
    uses = downstream(facts.flow, [value], lambda op: op.outputs[:1] if op.role in reshapes else ())
    readers = [facts.flow.ops[use.op] for use in uses if use.op != NONE]
    return [reader for reader in readers if reader.role in scores]


def forward_of(flow: Dataflow, op: Op) -> Op:
    """First verdicts: the forward operator of a gradient; any other operator itself."""
    return flow.ops[op.follows] if op.follows != NONE else op


def tied_to_forward(flow: Dataflow, op: Op) -> Iterator[tuple[int, int]]:
    """First verdicts: pairs (forward operator's unit, unit of its gradient) that share a type: of slots of one name, or
    of the forward's first slot if the gradient has one slot alone. None for another operator, nor of fixed units."""
    if op.follows == NONE:
        return
    forward = flow.ops[op.follows].slots
    first = next(iter(forward.values()), NONE)
    for slot, unit in op.slots.items():
        followed = forward.get(slot, first if len(op.slots) == 1 else NONE)
        if followed != NONE and not flow.units[unit].fixed and not flow.units[followed].fixed:
            yield followed, unit
