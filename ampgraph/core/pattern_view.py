"""A dataflow as patterns look at it: through what changes nothing, with numbers and attributes in one form."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .dataflow import FLOAT32, NONE, Dataflow, Op
from .patterns import Conventions

TWICE = 4  # how many nodes in a row may stand twice


class View:
    """Reads a dataflow by the conventions of patterns. ``roles``: the operators that patterns speak of;
    ``overridable``: whether an input that has a stored tensor by default is a stored one too."""

    def __init__(
        self, flow: Dataflow, conventions: Conventions, roles: Collection[str], *, overridable: bool = True
    ) -> None:
        self.flow, self.conventions, self.roles, self.through = flow, conventions, roles, conventions.through
        self.overridable = overridable

    def seen_through(self, value: int) -> tuple[int, tuple[Op, ...]]:
        """The value before casts and identities that change nothing, and these."""
        chain: tuple[Op, ...] = ()
        values, ops, through = self.flow.values, self.flow.ops, self.through
        while (producer := values[value].producer) != NONE and ops[producer].role in through:
            if not self.changes_nothing(ops[producer]):
                break
            chain += (ops[producer],)
            value = ops[producer].inputs[0]
        return value, chain

    def changes_nothing(self, op: Op) -> bool:
        values = self.flow.values
        if op.role not in self.through:
            return False
        return values[op.inputs[0]].dtype == values[op.outputs[0]].dtype == FLOAT32

    def casts_behind(self, op: Op) -> Iterator[Op]:
        """What changes nothing and alone reads the result of an operator, one after the other."""
        uses = self.flow.uses[op.outputs[0]]
        if len(uses) == 1 and uses[0].op != NONE and self.changes_nothing(reader := self.flow.ops[uses[0].op]):
            yield reader
            yield from self.casts_behind(reader)

    def number(self, value: int) -> float | None:
        """The number in a stored tensor of one element."""
        return self.flow.scalar(value, overridable=self.overridable)

    def stored(self, sort: str, value: int) -> bool:
        """Whether a value is a stored tensor of a sort, a key of STORED."""
        if not self._is_stored(value):
            return False
        shape = self.flow.shape(value) or ()
        return sort == "any" or (len(shape) if sort == "vector" else sum(dim != 1 for dim in shape)) <= 1

    def _is_stored(self, value: int) -> bool:
        item = self.flow.values[value]
        return item.weight or (self.overridable and item.default)

    def attribute(self, op: Op, name: str) -> object:
        """An attribute, or the stored operand that later versions have in its place."""
        value: object = self.flow.attribute(op, name)
        place = self.conventions.operand_attributes.get(name, NONE)
        if value is None and NONE < place < len(op.inputs) and op.inputs[place] != NONE:
            item = self.flow.values[op.inputs[place]]
            array = self.flow.weights.array(item) if item.weight else None
            value = ("computed", item.id) if array is None else array.reshape(-1).tolist()
        return tuple(value) if isinstance(value, (list, tuple)) else value

    def from_the_front(self, op: Op, axes: object) -> object:
        """Axes counted from the front, where that is known."""
        if not isinstance(axes, tuple) or not all(isinstance(axis, int) for axis in axes):
            return axes
        shape = self.flow.shape(op.inputs[0])
        return axes if shape is None else tuple(axis % max(len(shape), 1) for axis in axes)

    def same(self, value: int, other: int, depth: int = 0) -> tuple[Op, ...] | None:
        """The nodes that compute two values alike, none where the values are one; None where they may differ."""
        if value == other:
            return ()
        one, two = self.flow.writer(value), self.flow.writer(other)
        if one is None or two is None or one.role != two.role or one.role not in self.roles or depth == TWICE:
            return None
        if len(one.inputs) != len(two.inputs):
            return None
        if any(self.attribute(one, name) != self.attribute(two, name) for name in self.conventions.identity):
            return None
        copies: tuple[Op, ...] = (one, two)
        for a, b in zip(one.inputs, two.inputs, strict=True):
            if NONE in (a, b) and a != b:
                return None
            found = self.same(self.seen_through(a)[0], self.seen_through(b)[0], depth + 1) if a != b else ()
            if found is None:
                return None
            copies += found
        return copies
