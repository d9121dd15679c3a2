"""Kernels of the target that fail with some attribute, or beside some neighbours, whatever the level says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Why
from ...core.walk import source
from ...oplists.kernels import Kernels
from ...oplists.traits import Trait
from ..decisions import ACCURACY, VALIDITY, Hold
from ..facts.facts import Facts
from ..options import Options

Look = Callable[[Facts, Op], list[Hold]]


def broken_kernels(facts: Facts) -> Callable[[Op], Iterator[Hold]]:
    """What is held of an operator since its kernel fails here."""
    breakable, looks = _breakable(facts.options.kernels), cache(partial(_looks, facts.options))

    def holds(op: Op) -> Iterator[Hold]:
        if op.kind in breakable:
            yield from _broken(facts, op, breakable[op.kind])
        for look in looks(op.kind):
            yield from look(facts, op)

    return holds


def _looks(options: Options, kind: str) -> list[Look]:
    """What may find that a kernel fails beside its neighbours."""
    broken = options.kernels.broken.get(kind)
    if broken is None or options.dtype not in broken.reasons:
        return []
    looks: tuple[tuple[object, Look], ...] = (
        (broken.before, _broken_before),
        (broken.reads, _broken_type),
        (broken.runs or broken.without, _left),
        (broken.mask_below, _broken_mask),
        (broken.sums, _broken_sum),
    )
    return [look for given, look in looks if given]


def _breakable(kernels: Kernels | None) -> dict[str, str]:
    """Operators whose kernels fail with some value of an attribute, here or where they fall back to."""
    if kernels is None:
        return {}
    return {**_breakable(kernels.fallback), **{k: b.attribute for k, b in kernels.broken.items() if b.attribute}}


def _broken(facts: Facts, op: Op, attribute: str) -> list[Hold]:
    given = facts.flow.attribute(op, attribute)
    kernels, units = facts.options.kernels, tuple(op.slots.values())
    version = max(facts.flow.units[u].opset for u in units)
    reason = kernels.refuses(op.kind, version, facts.options.dtype, {attribute: given})
    return [Hold(units, VALIDITY, Why("kernel", f"{op.kind} with {attribute}={given}: {reason}"))] if reason else []


def _broken_before(facts: Facts, op: Op) -> list[Hold]:
    """Holds what a runtime cannot load before a product with a constant, whatever type the product has."""
    broken = facts.options.kernels.broken.get(op.kind)
    reason = broken.reasons.get(facts.options.dtype) if broken and broken.before else None
    if broken is None or broken.before is None or reason is None:
        return []
    uses = (use for value in _in_place(facts, op.outputs[0]) for use in facts.flow.uses[value])
    readers = [facts.flow.ops[use.op] for use in uses if use.op != NONE]
    if not any(facts.traits.has(reader.role, broken.before) and _has_constant(facts, reader) for reader in readers):
        return []
    return [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]


def _broken_type(facts: Facts, op: Op) -> list[Hold]:
    """Holds what reads data of a type of which the runtime makes no low values."""
    broken = facts.options.kernels.broken.get(op.kind)
    reason = broken.reasons.get(facts.options.dtype) if broken and broken.reads else None
    if (
        broken is None
        or reason is None
        or broken.reads not in {facts.flow.values[v].dtype for v in op.inputs if v != NONE}
    ):
        return []
    return [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind} of {broken.reads}: {reason}"))]


def _left(facts: Facts, op: Op) -> list[Hold]:
    """Holds what the target leaves to its fallback in every type, though it has a kernel."""
    broken = facts.options.kernels.broken[op.kind]
    names = (*broken.runs, broken.mirrored)
    found = broken.left_for({name: facts.flow.attribute(op, name) for name in names if name})
    if not found and broken.without and any(v != NONE for v in op.inputs[broken.without : broken.without + 1]):
        found = f"operand {broken.without}"
    why = Why("kernel", f"{op.kind} with {found}: {broken.reasons[facts.options.dtype]}")
    return [Hold(tuple(op.slots.values()), VALIDITY, why)] if found else []


def _has_constant(facts: Facts, op: Op) -> bool:
    """Whether one of its operands is stored, or made of a stored one in place."""
    in_place = facts.traits.operators("stays_in_place")
    return any(v != NONE and facts.flow.values[source(facts.flow, v, in_place)].weight for v in op.inputs)


def _in_place(facts: Facts, value: int) -> Iterator[int]:
    """A value, and what Casts and the like make of it."""
    yield value
    for use in facts.flow.uses[value]:
        if use.op != NONE and facts.traits.has(facts.flow.ops[use.op].role, "stays_in_place"):
            yield from _in_place(facts, facts.flow.ops[use.op].outputs[0])


def _broken_sum(facts: Facts, op: Op) -> list[Hold]:
    """Holds the last sum of an embedding where the target's runtime fuses it with the norm behind it, wrongly."""
    broken = facts.options.kernels.broken.get(op.kind)
    reason = broken.reasons.get(facts.options.dtype) if broken is not None else None
    if broken is None or broken.sums is None or reason is None or not _sums_up(facts, op, broken.sums):
        return []
    if any(_sums_up(facts, reader, broken.sums) for value in op.outputs for reader in facts.flow.readers(value)):
        return []
    if broken.beside is not None and not any(facts.traits.has(o.role, broken.beside) for o in facts.flow.ops):
        return []
    return [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]


def _sums_up(facts: Facts, op: Op, made_by: Trait) -> bool:
    """Whether an operator adds, and everything that it and the additions before it add is made by such operators."""
    if not facts.traits.has(op.role, "additions"):
        return False
    writers = [facts.flow.writer(value) for value in op.inputs if value != NONE]
    return all(w is not None and (facts.traits.has(w.role, made_by) or _sums_up(facts, w, made_by)) for w in writers)


def _broken_mask(facts: Facts, op: Op) -> list[Hold]:
    """Holds what makes a mask by a large negative number, where the target's runtime fails to read that number: its
    fusion of attention starts at a norm."""
    reason = facts.masks.broken_number(op)
    if not reason:
        return []
    held = [Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", f"{op.kind}: {reason}"))]
    return held + ([] if facts.options.level.kept == "low" else list(_made_for(facts, op)))


def _made_for(facts: Facts, op: Op) -> Iterator[Hold]:
    """Holds the arithmetic on whole numbers in front of a float32 mask, which else would be cast once more."""
    flow, why = facts.flow, Why("mask", "whole numbers of which alone a float32 mask is made")
    work = [v for v in op.inputs if v != NONE]
    while work:
        value = work.pop()
        writer = flow.writer(value)
        alone = writer is not None and len(flow.uses[value]) == 1 and writer.scope == op.scope
        if writer is None or not alone or flow.values[value].dtype != FLOAT32 or not facts.whole.of(value).whole:
            continue
        if writer.slots:
            yield Hold(tuple(writer.slots.values()), ACCURACY, why)
        work += [v for v in writer.inputs if v != NONE]
