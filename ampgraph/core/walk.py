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
"""The operand of an operator that a walk up follows; NONE where the walk ends in front of the operator."""


def first_operand_of(through: Collection[str]) -> Before:
    """For a walk up a dataflow: by the first operand of operators of roles ``through``; others end it."""
    return lambda op: op.inputs[0] if op.role in through and op.inputs else NONE


def operators_above(flow: Dataflow, value: int, before: Before) -> Iterator[Op]:
    """A walk up a dataflow: the operators through which a value comes, by one operand of each, the nearest first."""
    while value != NONE:
        op = flow.writer(value)
        value = NONE if op is None else before(op)
        if op is not None and value != NONE:
            yield op


def value_above(flow: Dataflow, value: int, before: Before) -> int:
    """A walk up a dataflow: the value before all of `operators_above`; the value itself where there are none."""
    for op in operators_above(flow, value, before):
        value = before(op)
    return value


def sole_readers(flow: Dataflow, op: Op, scope: int | None = None) -> Iterator[tuple[int, Op]]:
    """A walk down a dataflow: (the one result of an operator that is read, the one operator that reads it), then the
    same of that operator, and so on. It ends where there are two readers. ``scope``: as in `sole_reader`."""
    while True:
        read = [value for value in op.outputs if value != NONE and flow.uses[value]]
        reader = sole_reader(flow, read[0], scope) if len(read) == 1 else None
        if reader is None:
            return
        yield read[0], reader
        op = reader


def reachable(starts: Iterable[T], further: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """A walk through any graph: its starts, what ``further`` gives for them and so on, each once, nearest first."""
    waiting, seen = deque(starts), set[T]()
    while waiting:
        one = waiting.popleft()
        if one not in seen:
            seen.add(one)
            yield one
            waiting.extend(further(one))


def sole_reader(flow: Dataflow, value: int, scope: int | None = None) -> Op | None:
    """A step down a dataflow: the operator that alone reads a value, and once; None where it has no use or another one,
    such as an output of the graph. ``scope``: where the operator has to stand; None: anywhere."""
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

    ``further``: the values before an operator that are followed; NONE is left out. ``origins``: what a value comes from
    across boundaries of bodies and functions (`Crossings.origins`), which are not crossed without it."""
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
    """A walk down a dataflow: all uses of some values (as a scope's output too), of their readers' results, and so on.

    ``further``: the results of a reader that are followed; NONE is left out. ``copies``: what a value is passed to
    across boundaries of bodies and functions (`Crossings.copies`), which are not crossed without it."""
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
    """A walk through a dataflow: the values that have a property which some operators start and others carry on: all
    results of an operator for which ``starts`` is true, or that reads such a value and for which ``carries`` is true.

    ``ops``: in the order of the model, as it is one pass. ``copies``: as in `downstream`."""
    found = set[int]()
    for op in ops:
        if starts(op) or (not found.isdisjoint(op.inputs) and carries(op)):
            for value in op.outputs:
                found.update(copies(value) if copies is not None else (value,))
    return found


class Crossings:
    """Values of several scopes that hold the same data, across the boundaries of bodies and functions.

    ``before``: by value, those that its data comes from, one boundary away: what a formal is given, a loop brings back,
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
        return _beyond_boundaries(value, self.before)

    def origins_into(self, found: set[int]) -> Callable[[Collection[int]], None]:
        """A function that adds values to the set ``found``, each with all that `origins` gives."""
        return partial(_add_beyond_boundaries, found, self.before) if self.before else found.update

    def copies_into(self, found: set[int]) -> Callable[[Collection[int]], None]:
        """A function that adds values to the set ``found``, each with all that `copies` gives."""
        return partial(_add_beyond_boundaries, found, self.after) if self.after else found.update

    def copies(self, value: int) -> set[int]:
        """Walks through a dataflow: the value, and those of other scopes that get its data: formals, calls' results."""
        return _beyond_boundaries(value, self.after)


def _add_beyond_boundaries(found: set[int], step: dict[int, list[int]], values: Collection[int]) -> None:
    """For a walk across bodies and functions: adds values to ``found``, and all that hold their data by ``step``."""
    found.update(values)
    for value in step.keys() & values:
        found |= _beyond_boundaries(value, step)


def _beyond_boundaries(value: int, step: dict[int, list[int]]) -> set[int]:
    """Walks through a dataflow: the value, and all that hold its data by ``step``, one of a `Crossings`' mappings."""
    return {value} if value not in step else set(reachable([value], lambda one: step.get(one, ())))
