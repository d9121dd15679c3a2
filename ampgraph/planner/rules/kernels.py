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
    """By kind of operator whose kernel may fail here, a function that gives what is held in float32 of and around one:
    by an attribute, on the target or where that falls back to, else by what the operator is and what is around it."""
    options, breakable = facts.options, _breakable(facts.options.kernels)
    asked = matched_op_ids(facts.flow, options.fp32) if options.kernels.behind_cast else ()

    def holds(op: Op) -> Iterator[Hold]:
        if op.kind in breakable:
            yield from _by_attribute(facts, op, breakable[op.kind])
        broken = options.kernels.broken.get(op.kind)
        found = [*_faults(facts, op, broken)] if broken is not None and options.dtype in broken.reasons else []
        if op.kind in options.kernels.behind_cast and (found or op.id in asked or not _is_taken(facts, op)):
            yield from _behind_cast(facts, op)
        if broken is None or options.dtype not in broken.reasons:
            return
        for fault in found:
            yield _held(op, f"{fault}: {broken.reasons[options.dtype]}")
        if options.level.fp32 != "low" and broken.mask_below and facts.masks.broken_number(op):
            yield from _made_for(facts, op)

    kernels = options.kernels
    return dict.fromkeys((*breakable, *kernels.broken, *kernels.behind_cast), holds)


def _faults(facts: Facts, op: Op, broken: Broken) -> Iterator[str]:
    """What of an operator, or around it, makes its kernel fail on the target, as the reasons begin."""
    flow = facts.flow
    if broken.before and _stands_before(facts, op, broken.before):
        yield op.kind
    if broken.reads and broken.reads in {flow.values[v].dtype for v in op.inputs if v != NONE}:
        yield f"{op.kind} of {broken.reads}"
    if broken.runs or broken.without or broken.computed or broken.gives or broken.unlike or broken.odd:
        yield from _not_taken(facts, op, broken)
    if broken.at_boundary:
        units = [flow.values[op.inputs[0]].unit, *(use.unit for use in flow.uses[op.outputs[0]])]
        if any(u != NONE and flow.units[u].op == NONE and flow.units[u].fixed for u in units):
            yield f"{op.kind} beside a graph input or output, which is {FLOAT32}"
    if broken.mask_below and facts.masks.broken_number(op):  # fused attention, which starts at a norm, fails to read it
        yield op.kind
    if broken.sums and _ends_embedding(facts, op, broken.sums, broken.beside):
        yield op.kind


def _is_taken(facts: Facts, op: Op) -> bool:
    """Whether the target has a kernel of an operator in the low type."""
    options, units = facts.options, [facts.flow.units[unit] for unit in op.slots.values()]
    slots = ((unit.slot.split("@")[0], unit.opset) for unit in units)
    return all(options.kernels.admits(op.kind, opset, slot, options.dtype) is not False for slot, opset in slots)


def _behind_cast(facts: Facts, op: Op) -> Iterator[Hold]:
    """Holds in float32 what computes the data of a float32 operator that fails behind a Cast, and the operators in
    between that only move or join it: a low one of either would put a Cast in front."""
    traits = facts.traits
    moves = traits.operators("moves", "nothing_in_inference")

    def further(op: Op) -> list[int]:
        if joined := [v for place, v in enumerate(op.inputs) if traits.at(op.role, "joins", place)]:
            return joined
        return list(op.inputs[:1]) if op.role in moves else []

    why = f"makes what {op.kind} reads, which fails behind a Cast: {facts.options.kernels.behind_cast[op.kind]}"
    for writer in upstream(facts.flow, op.inputs[:1], further):
        if writer.slots:
            yield _held(writer, why)


def _breakable(kernels: Kernels | None) -> dict[str, str]:
    """For kernels that fail: operator -> the attribute of which some value makes it fail, on this target or its
    fallback."""
    if kernels is None:
        return {}
    return {**_breakable(kernels.fallback), **{k: b.attribute for k, b in kernels.broken.items() if b.attribute}}


def _held(op: Op, text: str) -> Hold:
    """For kernels that fail: all slots of an operator in float32, for the reason ``text``."""
    return Hold(tuple(op.slots.values()), VALIDITY, Why("kernel", text))


def _by_attribute(facts: Facts, op: Op, attribute: str) -> Iterator[Hold]:
    """What holds an operator of whose kernel the value of one attribute decides."""
    given, kernels = facts.flow.attribute(op, attribute), facts.options.kernels
    version = max(facts.flow.units[u].opset for u in op.slots.values())
    reason = kernels.refuses(op.kind, version, facts.options.dtype, {attribute: given})
    if reason:
        yield _held(op, f"{op.kind} with {attribute}={given}: {reason}")


def _stands_before(facts: Facts, op: Op, trait: Trait) -> bool:
    """Whether the runtime fails to load the operator since one of a trait follows, a product with a constant."""
    in_place = facts.traits.operators("stays_in_place")
    uses = downstream(facts.flow, op.outputs[:1], lambda one: one.outputs[:1] if one.role in in_place else ())
    readers = [facts.flow.ops[use.op] for use in uses if use.op != NONE]
    return any(facts.traits.has(reader.role, trait) and _has_constant(facts, reader) for reader in readers)


def _not_taken(facts: Facts, op: Op, broken: Broken) -> Iterator[str]:
    """What the target's kernel does not take of this node, in words: an attribute, an operand, an output, sizes."""
    sizes = facts.flow.shape(op.outputs[0]) or facts.flow.shape(op.inputs[0])
    if broken.odd and (sizes is None or not all(isinstance(size, int) and size % 2 for size in sizes)):
        return
    names = (*broken.runs, broken.mirrored)
    found = broken.left_for({name: facts.flow.attribute(op, name) for name in names if name})
    if not found and broken.without and any(v != NONE for v in op.inputs[broken.without : broken.without + 1]):
        found = f"operand {broken.without}"
    if broken.computed and any(v not in facts.stored for v in op.inputs[broken.computed :][:1] if v != NONE):
        found = f"a computed operand {broken.computed}"
    if broken.gives and any(v != NONE for v in op.outputs[broken.gives :][:1]):
        found = f"output {broken.gives}"
    if broken.unlike and len({size for size in _last_sizes(facts, op, broken.unlike) if isinstance(size, int)}) > 1:
        found = f"operands {' and '.join(map(str, broken.unlike))} of different last sizes"
    if broken.odd and (found or not broken.runs):
        found = " and ".join(filter(None, (found, "an odd number of elements")))
    if found:
        yield f"{op.kind} with {found}"


def _last_sizes(facts: Facts, op: Op, operands: Iterable[int]) -> Iterator[int | str | None]:
    """The last sizes of some operands, as far as there are such and their shapes are known."""
    for value in (op.inputs[place] for place in operands if place < len(op.inputs)):
        shape = facts.flow.shape(value) if value != NONE else None
        if shape:
            yield shape[-1]


def _has_constant(facts: Facts, op: Op) -> bool:
    """Whether one of its operands is stored, or made of a stored one in place."""
    in_place = first_operand_of(facts.traits.operators("stays_in_place"))
    return any(v != NONE and facts.flow.values[value_above(facts.flow, v, in_place)].weight for v in op.inputs)


def _ends_embedding(facts: Facts, op: Op, made_by: Trait, beside: Trait | None) -> bool:
    """Whether this is the last sum of an embedding that the runtime fuses wrongly with the norm behind it, in a model
    that has an operator of the trait ``beside``, if one is named."""
    if beside is not None and not facts.flow.with_roles(facts.traits.operators(beside)):
        return False
    readers = facts.flow.readers(op.outputs[0])
    return _sums_up(facts, op, made_by) and not any(_sums_up(facts, reader, made_by) for reader in readers)


def _sums_up(facts: Facts, op: Op, made_by: Trait) -> bool:
    """Whether an operator adds, and everything that it and the additions before it add is made by such operators."""
    adds, made = facts.traits.operators("additions"), facts.traits.operators(made_by)
    before = upstream(facts.flow, op.inputs, lambda one: one.inputs if one.role in adds else ())
    sums = [op, *(one for one in before if one.role in adds)]
    writers = (facts.flow.writer(value) for one in sums for value in one.inputs if value != NONE)
    return op.role in adds and all(w is not None and (w.role in made or w.role in adds) for w in writers)


def _made_for(facts: Facts, op: Op) -> Iterator[Hold]:
    """Holds the arithmetic on whole numbers in front of a float32 mask, which else would be cast once more."""
    flow, why = facts.flow, Why("mask", "whole numbers of which alone a float32 mask is made")

    def further(op: Op) -> list[int]:
        return [v for v in op.inputs if v != NONE and sole_reader(flow, v, op.scope) is not None and is_whole(v)]

    def is_whole(value: int) -> bool:
        return flow.values[value].dtype == FLOAT32 and facts.truths.of(value).whole

    for writer in upstream(flow, further(op), further):
        if writer.slots:
            yield Hold(tuple(writer.slots.values()), ACCURACY, why)
