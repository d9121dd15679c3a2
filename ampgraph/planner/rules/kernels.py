"""Kernels of the target that fail with some attribute, or beside some neighbours, whatever the level says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ...core.dataflow import FLOAT32, NONE, Op
from ...core.plan import Why
from ...core.selection import matched_op_ids
from ...core.walk import downstream, first_operand_of, sole_reader, upstream, value_above
from ...oplists.kernels import Broken, Kernels
from ...oplists.traits import Trait
from ..decisions import ACCURACY, VALIDITY, Hold
from ..facts.facts import Facts


def broken_kernels(facts: Facts) -> Mapping[str, Callable[[Op], Iterator[Hold]]]:
    """Kind of operator whose kernel may fail on the target -> a function that gives what is held in float32 of and
    around one: by an attribute, on the target or its fallback, else by what it is and what is around it."""
    options, breaking = facts.options, _breaking_attributes(facts.options.kernels)
    asked = matched_op_ids(facts.flow, options.fp32) if options.kernels.behind_cast else ()

    def holds(op: Op) -> Iterator[Hold]:
        if op.kind in breaking:
            yield from _holds_by_attribute(facts, op, breaking[op.kind])
        broken = options.kernels.broken.get(op.kind)
        if broken is not None and options.dtype not in broken.reasons:
            broken = None
        faults = [] if broken is None else list(_find_faults(facts, op, broken))
        if op.kind in options.kernels.behind_cast and (faults or op.id in asked or not _has_low_kernel(facts, op)):
            yield from _holds_before_cast(facts, op)
        if broken is not None:
            yield from (_hold_op(op, f"{fault}: {broken.reasons[options.dtype]}") for fault in faults)
            if not options.level.lowers_everything and broken.mask_below and facts.masks.broken_number(op):
                yield from _holds_before_mask(facts, op)

    kernels = options.kernels
    return dict.fromkeys((*breaking, *kernels.broken, *kernels.behind_cast), holds)


def _find_faults(facts: Facts, op: Op, broken: Broken) -> Iterator[str]:
    """For kernels that fail: yields in words what of an operator, or around it, makes its kernel fail on the target."""
    flow = facts.flow
    if broken.before and _stands_before(facts, op, broken.before):
        yield op.kind
    if broken.reads and broken.reads in {flow.values[v].dtype for v in op.inputs if v != NONE}:
        yield f"{op.kind} of {broken.reads}"
    if broken.runs or broken.without or broken.computed or broken.gives or broken.unlike or broken.odd:
        yield from _faults_of_node(facts, op, broken)
    if broken.at_boundary:
        units = [flow.values[op.inputs[0]].unit, *(use.unit for use in flow.uses[op.outputs[0]])]
        if any(unit != NONE and flow.units[unit].op == NONE and flow.units[unit].fixed for unit in units):
            yield f"{op.kind} beside a graph input or output, which is {FLOAT32}"
    if broken.mask_below and facts.masks.broken_number(op):  # fused attention, which starts at a norm, fails to read it
        yield op.kind
    if broken.sums and _ends_embedding(facts, op, broken.sums, broken.beside):
        yield op.kind


def _has_low_kernel(facts: Facts, op: Op) -> bool:
    """For kernels that fail: whether nothing of the target's says no to a low kernel for any slot of an operator."""
    options, units = facts.options, [facts.flow.units[unit] for unit in op.slots.values()]
    slots = ((unit.slot.split("@")[0], unit.opset) for unit in units)
    return all(options.kernels.admits(op.kind, opset, slot, options.dtype) is not False for slot, opset in slots)


def _holds_before_cast(facts: Facts, op: Op) -> Iterator[Hold]:
    """For a float32 operator that fails behind a Cast: holds of what computes its first operand, and of the operators
    in between that only move or join that: if one of them were low, a Cast would stand in front."""
    traits = facts.traits
    moves = traits.operators("moves", "nothing_in_inference")

    def further(op: Op) -> list[int]:
        joined = [v for place, v in enumerate(op.inputs) if traits.at(op.role, "joins", place)]
        moved = op.inputs[:1] if op.role in moves else []
        return joined or moved

    why = f"makes what {op.kind} reads, which fails behind a Cast: {facts.options.kernels.behind_cast[op.kind]}"
    for writer in upstream(facts.flow, op.inputs[:1], further):
        if writer.slots:
            yield _hold_op(writer, why)


def _breaking_attributes(kernels: Kernels | None) -> dict[str, str]:
    """For kernels that fail: operator -> the attribute that makes it fail, on this target or its fallback."""
    if kernels is None:
        return {}
    own = {kind: broken.attribute for kind, broken in kernels.broken.items() if broken.attribute}
    return {**_breaking_attributes(kernels.fallback), **own}


def _hold_op(op: Op, text: str) -> Hold:
    """For kernels that fail: all slots of an operator in float32, for the reason ``text``."""
    return Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", text))


def _holds_by_attribute(facts: Facts, op: Op, attribute: str) -> Iterator[Hold]:
    """For kernels that fail: holds an operator if the value of this attribute makes its kernel fail."""
    given, kernels = facts.flow.attribute(op, attribute), facts.options.kernels
    opset = max(facts.flow.units[unit].opset for unit in op.slots.values())
    reason = kernels.refuses(op.kind, opset, facts.options.dtype, {attribute: given})
    if reason:
        yield _hold_op(op, f"{op.kind} with {attribute}={given}: {reason}")


def _stands_before(facts: Facts, op: Op, trait: Trait) -> bool:
    """For kernels that fail: whether an operator of a trait, with a constant beside, reads what ``op`` makes."""
    in_place = facts.traits.operators("stays_in_place")
    uses = downstream(facts.flow, op.outputs[:1], lambda mover: mover.outputs[:1] if mover.role in in_place else ())
    readers = [facts.flow.ops[use.op] for use in uses if use.op != NONE]
    return any(facts.traits.has(reader.role, trait) and _has_constant(facts, reader) for reader in readers)


def _faults_of_node(facts: Facts, op: Op, broken: Broken) -> Iterator[str]:
    """For kernels that fail: yields at most once what the target's kernel does not take of a node, in words: of its
    attributes, operands, outputs and sizes the last that `Broken` names; an odd number of elements with the others."""
    sizes = facts.flow.shape(op.outputs[0]) or facts.flow.shape(op.inputs[0])
    if broken.odd and (sizes is None or not all(isinstance(size, int) and size % 2 for size in sizes)):
        return
    names = (*broken.runs, broken.mirrored)
    found = broken.failing_attribute({name: facts.flow.attribute(op, name) for name in names if name})
    if not found and broken.without and any(v != NONE for v in op.inputs[broken.without : broken.without + 1]):
        found = f"operand {broken.without}"
    if broken.computed and any(v not in facts.stored for v in op.inputs[broken.computed :][:1] if v != NONE):
        found = f"a computed operand {broken.computed}"
    if broken.gives and any(v != NONE for v in op.outputs[broken.gives :][:1]):
        found = f"output {broken.gives}"
    if broken.unlike and len({size for size in _last_sizes(facts, op, broken.unlike) if isinstance(size, int)}) > 1:
        found = f"operands {' and '.join(map(str, broken.unlike))} of different last sizes"
    if broken.odd and (found or not broken.runs):
        found = f"{found} and an odd number of elements" if found else "an odd number of elements"
    if found:
        yield f"{op.kind} with {found}"


def _last_sizes(facts: Facts, op: Op, operands: Iterable[int]) -> Iterator[int | str | None]:
    """For kernels that fail: the last sizes of operands at some places, as far as their shapes are known."""
    for value in (op.inputs[place] for place in operands if place < len(op.inputs)):
        shape = facts.flow.shape(value) if value != NONE else None
        if shape:
            yield shape[-1]


def _has_constant(facts: Facts, op: Op) -> bool:
    """For kernels that fail: whether an operand is stored, or a stored tensor behind operators that stay in place."""
    in_place = first_operand_of(facts.traits.operators("stays_in_place"))
    return any(v != NONE and facts.flow.values[value_above(facts.flow, v, in_place)].weight for v in op.inputs)


def _ends_embedding(facts: Facts, op: Op, made_by: Trait, beside: Trait | None) -> bool:
    """For kernels that fail: whether this is the last sum of an embedding, of results of trait ``made_by``, which the
    runtime fuses wrongly with the norm behind, in a model with an operator of trait ``beside`` (None: in any)."""
    if beside is not None and not facts.flow.with_roles(facts.traits.operators(beside)):
        return False
    readers = facts.flow.readers(op.outputs[0])
    return _sums_up(facts, op, made_by) and not any(_sums_up(facts, reader, made_by) for reader in readers)


def _sums_up(facts: Facts, op: Op, made_by: Trait) -> bool:
    """For kernels that fail: whether an operator and the additions before it add only results of a trait."""
    additions, made = facts.traits.operators("additions"), facts.traits.operators(made_by)
    before = upstream(facts.flow, op.inputs, lambda maker: maker.inputs if maker.role in additions else ())
    sums = [op, *(maker for maker in before if maker.role in additions)]
    writers = (facts.flow.writer(value) for total in sums for value in total.inputs if value != NONE)
    return op.role in additions and all(w is not None and w.role in made | additions for w in writers)


def _holds_before_mask(facts: Facts, op: Op) -> Iterator[Hold]:
    """For kernels that fail: holds of arithmetic on whole numbers for a float32 mask alone, to be cast once less."""
    flow, why = facts.flow, Why("mask", "whole numbers of which alone a float32 mask is made")

    def further(op: Op) -> list[int]:
        return [v for v in op.inputs if v != NONE and sole_reader(flow, v, op.scope) is not None and is_whole(v)]

    def is_whole(value: int) -> bool:
        return flow.values[value].dtype == FLOAT32 and facts.truths.interval(value).whole

    for writer in upstream(flow, further(op), further):
        if writer.slots:
            yield Hold(tuple(writer.slots.values()), ACCURACY, why)
