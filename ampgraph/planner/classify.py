"""What lists, level, schema and kernels say of each slot, before any look at the graph around it."""

from __future__ import annotations

from ..core.dataflow import NONE, Dataflow, Op, Unit
from ..core.plan import Note, Why
from ..oplists.kernels import Kernels
from .state import CUT, FREE, HIGH, LIST, LOW, VALIDITY, State

VERDICT = {"low": LOW, "float32": HIGH, "cut": FREE}


def classify(state: State) -> None:
    """Gives every unit its first verdict: validity where schema or kernel leave no choice, else the list's."""
    flow = state.flow
    cache: dict[tuple, tuple[int, int, Why]] = {}
    breakable = _breakable(state.options.kernels)
    for op in flow.ops:
        state.class_of_op[op.id] = _class(state, op)
        if op.slots:
            _tie(state, op)
            _broken(state, op, breakable)
            if op.held:
                state.hold(op, VALIDITY, Why("gradient", op.held))
    for unit in flow.units:
        owner = flow.ops[unit.op] if unit.op != NONE else None
        kind = owner.kind if owner else ""
        key = (kind, unit.slot, unit.opset, unit.admits, unit.fixed, unit.fixed_low, unit.border)
        if key not in cache:
            cache[key] = _verdict(state, unit, owner)
        value, rank, why = cache[key]
        if value != FREE:
            state.set(unit.id, value, rank, why)
    _report_unlisted(state)


def _class(state: State, op: Op) -> str:
    listing = state.listing(op)
    if listing is None:
        return "neutral" if _is_border(state.flow, op) else ""
    return listing.cls


def _is_border(flow: Dataflow, op: Op) -> bool:
    return bool(op.slots) and all(flow.units[u].border for u in op.slots.values())


def _tie(state: State, op: Op) -> None:
    options = state.options
    for group in (*options.lists.tied.get(op.role, ()), *options.kernels.tied.get(op.kind, ())):
        units = [op.slots[name] for name in group if name in op.slots]
        if len(units) > 1:
            state.merge(units)


def _breakable(kernels: Kernels | None) -> dict[str, str]:
    """Operators whose kernels fail with some value of an attribute, here or where they fall back to."""
    if kernels is None:
        return {}
    return {**_breakable(kernels.fallback), **{k: b.attribute for k, b in kernels.broken.items() if b.attribute}}


def _broken(state: State, op: Op, breakable: dict[str, str]) -> None:
    attribute = breakable.get(op.kind)
    given = state.flow.attribute(op, attribute) if attribute else None
    if attribute and given is not None:
        kernels, dtype = state.options.kernels, state.options.dtype
        version = max(state.flow.units[u].opset for u in op.slots.values())
        reason = kernels.refuses(op.kind, version, dtype, {attribute: given})
        if reason:
            state.hold(op, VALIDITY, Why("kernel", f"{op.kind} with {attribute}={given}: {reason}"))


def _verdict(state: State, unit: Unit, op: Op | None) -> tuple[int, int, Why]:
    options = state.options
    if unit.fixed_low:
        return LOW, VALIDITY, Why("boundary", "this border is low in the file, or was asked to be")
    if unit.fixed:
        rule = "unknown" if unit.fixed.startswith("no schema") else "boundary"
        return HIGH, VALIDITY, Why(rule, unit.fixed)
    invalid = _invalid(state, unit, op) if op else None
    if invalid is not None:
        return HIGH, VALIDITY, invalid
    if op is None or unit.border:
        return FREE, CUT, Why("cut", "follows its neighbours")
    listing = state.listing(op)
    if listing is None:
        return HIGH, LIST, Why("unlisted", f"{op.kind} is in no list")
    cls, level = listing.cls, options.level
    if level.float32_inside == "cut" and cls in ("black", "kept") and op.kind in options.kernels.float32_inside:
        reason = options.kernels.float32_inside[op.kind]
        return FREE, CUT, Why("cut", f"{listing.source}: {cls}, but on {options.target} {reason}")
    if op.role == "Cast" and cls == "neutral":
        return FREE, CUT, Why("cut", "a conversion in the file follows its neighbours")
    rule = getattr(level, cls)
    return VERDICT[rule], LIST, Why("list", f"{listing.source}: {cls} at {level.name} is {rule}: {listing.reason}")


def _invalid(state: State, unit: Unit, op: Op) -> Why | None:
    """Why a slot cannot be low, whatever anybody says."""
    options, kind = state.options, op.kind
    held = options.lists.float32_slots.get(op.role, {})
    slot = unit.slot.split("@")[0]
    reason = held.get(slot) or held.get("input:" + slot.split(":")[0])
    if reason and not any(slot in group for group in options.kernels.tied.get(kind, ())):
        return Why("slot", f"{slot} of {kind} stays float32: {reason}")
    if options.dtype not in unit.admits:
        later = state.flow.later_version(kind, slot, max(unit.version, 1), options.dtype)
        if later:
            return Why("opset", f"{kind}-{unit.version} does not admit {options.dtype} for {slot}; opset {later} does")
        named = f"the schema of {kind}-{unit.version}" if unit.version else kind
        return Why("schema", f"{named} does not admit {options.dtype} for {slot}")
    if unit.opset and options.kernels.admits(kind, unit.opset, slot, options.dtype) is False:
        return Why(
            "kernel", f"{options.kernels.provider} has no {options.dtype} kernel for {kind}-{unit.version} ({slot})"
        )
    return None


def _report_unlisted(state: State) -> None:
    flow = state.flow
    unlisted: dict[str, int] = {}
    for op in flow.ops:
        if op.slots and (op.kind in flow.unknown_kinds or (not state.class_of_op[op.id] and not _is_border(flow, op))):
            unlisted[op.kind] = unlisted.get(op.kind, 0) + 1
    for kind, count in sorted(unlisted.items()):
        known = "no schema is known for it" if kind in flow.unknown_kinds else "it is in no list"
        state.notes.append(Note("unlisted", kind, f"{count} node{'s' * (count > 1)} in float32: {known}"))
