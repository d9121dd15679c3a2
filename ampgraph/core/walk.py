"""Ways through a dataflow: before and behind values, through operators of some roles (kinds, as lists call them), to a
sole reader, and across the boundaries of bodies and functions: a formal is what a call's argument is called inside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from .dataflow import NONE, Dataflow, Op, Use

T = TypeVar("T", bound=Hashable)
Before = Callable[[Op], int]
"""Which operand of an operator is followed; NONE where a way ends in front of the operator."""


def first_operand_of(through: Collection[str]) -> Before:
    """A walk up a dataflow: follows the first operands of operators of some roles."""
    return lambda op: op.inputs[0] if op.role in through and op.inputs else NONE


def operators_above(flow: Dataflow, value: int, before: Before) -> Iterator[Op]:
    """A walk up a dataflow: the operators that a value comes through by one operand of each, the nearest first."""
    while value != NONE and (op := flow.writer(value)) is not None and (value := before(op)) != NONE:
        yield op


def value_above(flow: Dataflow, value: int, before: Before) -> int:
    """A walk up a dataflow: the value before all operators that one comes through by one operand of each."""
    for op in operators_above(flow, value, before):
        value = before(op)
    return value


def sole_readers(flow: Dataflow, op: Op, scope: int | None = None) -> Iterator[tuple[int, Op]]:
    """A walk down a dataflow: the one result of an operator that is read, with the one operator that reads it; then the
    same of that, and so on."""
    while len(read := [v for v in op.outputs if v != NONE and flow.uses[v]]) == 1:
        reader = sole_reader(flow, read[0], scope)
        if reader is None:
            return
        yield read[0], reader
        op = reader


def reachable(starts: Iterable[T], further: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Where a walk starts, what follows from there, and so on, each once, the nearest first, whatever is walked on."""
    waiting, seen = deque(starts), set[T]()
    while waiting:
        one = waiting.popleft()
        if one not in seen:
            seen.add(one)
            yield one
            waiting.extend(further(one))


def sole_reader(flow: Dataflow, value: int, scope: int | None = None) -> Op | None:
    """A step down a dataflow: the operator that alone reads a value, in its one use; None where there is another, or an
    output of the graph. ``scope``: only one in this scope."""
    uses = flow.uses[value]
    if len(uses) != 1 or uses[0].op == NONE or scope not in (None, uses[0].scope):
        return None
    return flow.ops[uses[0].op]


def upstream(
    flow: Dataflow,
    values: Iterable[int],
    further: Callable[[Op], Iterable[int]],
    origins: Callable[[int], Collection[int]] | None = None,
) -> Iterator[Op]:
    """A walk up a dataflow: the operators that made some values, those that made what these read, and so on, each once.

    ``further``: the values before an operator that are followed. ``origins``: what a value is passed from across the
    boundaries of bodies and functions (`Crossings.origins`), which are not crossed without it."""
    work, seen = list(values), set[int]()
    while work:
        value = work.pop()
        for one in origins(value) if origins is not None and value != NONE else (value,):
            op = flow.writer(one) if one != NONE else None
            if op is not None and op.id not in seen:
                seen.add(op.id)
                yield op
                work += further(op)


def downstream(
    flow: Dataflow,
    values: Iterable[int],
    further: Callable[[Op], Iterable[int]],
    copies: Callable[[int], Collection[int]] | None = None,
) -> Iterator[Use]:
    """A walk down a dataflow: the uses of some values, of what their readers make, and so on, of each value once;
    outputs of a scope too.

    ``further``: what a reader makes that is followed. ``copies``: what a value is passed to across the boundaries of
    bodies and functions (`Crossings.copies`), which are not crossed without it."""
    work, seen = list(values), set[int]()
    while work:
        value = work.pop()
        for one in (copies(value) if copies is not None else (value,)) if value != NONE else ():
            if one not in seen:
                seen.add(one)
                for use in flow.uses[one]:
                    yield use
                    work += further(flow.ops[use.op]) if use.op != NONE else ()


def carried_values(
    ops: Iterable[Op],
    starts: Callable[[Op], bool],
    carries: Callable[[Op], bool],
    copies: Callable[[int], Collection[int]] | None = None,
) -> set[int]:
    """A walk through a dataflow: what operators that start something make, and what others make of that which carry it
    on; ``ops`` in the order of the model, ``copies`` as in `downstream`."""
    found = set[int]()
    for op in ops:
        if starts(op) or (not found.isdisjoint(op.inputs) and carries(op)):
            for value in op.outputs:
                found.update(copies(value) if copies is not None else (value,))
    return found


class Crossings:
    """Values that carry on across the boundary of a body or a function: the same data under another number.

    By value, those of other scopes that hold the same data. ``before``: what a formal is given, a loop brings back,
    or a body returns. ``after`` is the reverse."""

    def __init__(self, flow: Dataflow) -> None:
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        for source, target in flow.passed:
            if NONE in (source, target):
                continue  # an optional input that is not given
            self.before.setdefault(target, []).append(source)
            self.after.setdefault(source, []).append(target)

    def origins(self, value: int) -> set[int]:
        """Walks through a dataflow: the value, and all values of other scopes that it gets its data from: a formal's
        arguments, a loop's last state, a body's results."""
        return _carried_over(value, self.before)

    def origins_into(self, found: set[int]) -> Callable[[Iterable[int]], None]:
        """A function that adds values to ``found``, each with all that `origins` gives."""
        return partial(_add_carried_over, found, self.before) if self.before else found.update

    def copies_into(self, found: set[int]) -> Callable[[Iterable[int]], None]:
        """A function that adds values to ``found``, each with all that `copies` gives."""
        return partial(_add_carried_over, found, self.after) if self.after else found.update

    def copies(self, value: int) -> set[int]:
        """Walks through a dataflow: the value, and those of other scopes that get its data: formals, calls' results."""
        return _carried_over(value, self.after)


def _add_carried_over(found: set[int], step: dict[int, list[int]], values: Iterable[int]) -> None:
    """For a walk across bodies and functions: adds the values and all that they carry on as."""
    found.update(values)
    for value in step.keys() & values:
        found |= _carried_over(value, step)


def _carried_over(value: int, step: dict[int, list[int]]) -> set[int]:
    """Walks through a dataflow: all values that hold the same data as this one, by steps across boundaries."""
    return {value} if value not in step else set(reachable([value], lambda one: step.get(one, ())))
