"""What the cut is asked of a model, the sizes of its values, and what their Casts cost in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..core.dataflow import NONE, Dataflow, Op
from ..oplists.options import Options
from ..oplists.traits import Traits
from .decisions import Decisions

LAUNCH = 1 << 20  # bytes: what a kernel start is worth, about a microsecond of a device's memory bandwidth
STORED_TWICE_LIMIT = 1 << 20  # bytes of float32: a larger tensor is never stored in both types


@dataclass(frozen=True)
class CutTask:
    """What the cut is asked: a model with decisions. ``byte_worth``: by free unit, what a byte saved there is worth, 1
    where none is given; ``integer_valued``: float values that hold integers, which are never rounded and widened again;
    ``fused``: float32 operators that the target's runtime takes into one kernel with the Casts around them."""

    flow: Dataflow
    options: Options
    decisions: Decisions
    byte_worth: Mapping[int, int] = field(default_factory=dict)
    integer_valued: Collection[int] = frozenset()
    fused: Collection[int] = frozenset()

    @property
    def costs(self) -> Costs:
        """For the cut: the costs of Casts in this model, computed anew for each reader of this."""
        return Costs(self.flow, self.options)


class Costs:
    """Sizes of values in elements and prices of their Casts in bytes, each computed when the cut asks for it."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        self.flow, self.options = flow, options
        self.dims, self.cast_together = options.dims, options.cast_together
        self._elements: dict[int, int] = {}

    def elements(self, value: int) -> int:
        """The number of elements of a value, at least 1; guessed where its shape is open."""
        found = self._elements.get(value)
        if found is None:
            item = self.flow.values[value]
            if item.weight:
                found = self.flow.weights.size(item)
            elif self._is_static(value):
                found = math.prod(self.flow.dims(value, self.dims))
            else:
                found = self._guess_elements(value)
            self._elements[value] = found = max(found, 1)
        return found

    def _guess_elements(self, value: int) -> int:
        """The number of elements of a value without a shape: that of a value known to have as many, if there is one."""
        root = self._roots[value]
        if root != value:
            return self.elements(root)  # a guess must be the same on both sides of a Transpose
        known = next((member for member in self._members.get(value, ()) if self._is_static(member)), value)
        return math.prod(self.flow.dims(known, self.dims))

    @cached_property
    def _roots(self) -> Sequence[int]:
        """For the costs of Casts: by value id, the value whose guessed size it has (`same_size_roots`)."""
        return same_size_roots(self.flow, self.options)

    @cached_property
    def _members(self) -> Mapping[int, Sequence[int]]:
        """For the costs of Casts: root -> the values further down that have its size."""
        members: dict[int, list[int]] = {}
        for value, root in enumerate(self._roots):
            if value != root:
                members.setdefault(root, []).append(value)
        return members

    def _is_static(self, value: int) -> bool:
        """For the costs of Casts: whether every dimension of a value is known as a number."""
        shape = self.flow.shape(value)
        return shape is not None and all(isinstance(dim, int) for dim in shape)

    def cast(self, value: int) -> int:
        """The cost of a Cast in bytes: it reads 4 and writes 2 an element, or the reverse."""
        return 6 * self.elements(value) * self._times(value) + LAUNCH * self.starts(value)

    def starts(self, value: int) -> int:
        """How many kernels are started to cast a value: one for each run of its scope, none if cast with others."""
        return 0 if self.is_cast_with_others(value) else self._times(value)

    def _times(self, value: int) -> int:
        """How often the scope runs that makes a value: once, or more in a loop's body."""
        return self.flow.scopes[self.flow.values[value].scope].times

    def is_cast_with_others(self, value: int) -> bool:
        """Whether a value is cast by a node that casts many, so that it starts no kernel of its own: a training step's
        input with a first value (`Value.default`), of up to `Options.cast_together` numbers."""
        return self.flow.values[value].default and self.elements(value) <= self.cast_together


def same_size_roots(flow: Dataflow, options: Options) -> list[int]:
    """For each value, by id, the id of a value of the same size, as far up as operators keep the number of elements. It
    is the value itself where there is none: two values with one root have the same size."""
    roots = list(range(len(flow.values)))
    same_size = options.lists.traits.operators("same_size")
    for value in flow.values:  # writers come before what they write, their inputs before them
        op = flow.writer(value.id)
        if op is not None and op.role in same_size and op.inputs[0] != NONE and op.outputs[0] == value.id:
            roots[value.id] = roots[op.inputs[0]]
    return roots


def multiplications(flow: Dataflow, op: Op, dims: Callable[[int], Sequence[int]], traits: Traits) -> int | None:
    """How many multiplications a product takes; None where its shapes do not tell. ``dims``: the sizes of a value, open
    ones assumed.

    Another than an Einsum, a convolution or a matrix product takes each row of data times all that is stored, as an
    LSTM; where nothing is stored it is an attention, which meets each key twice: in the scores, and with its value."""
    first, *rest = shapes = [dims(v) for v in op.inputs if v != NONE]
    made = math.prod(dims(op.outputs[0]))
    if not rest:
        return made
    equation = flow.attribute(op, "equation")
    if equation:
        return einsum_multiplications(str(equation), shapes)
    if traits.has(op.role, "biased"):  # a transposed convolution spreads each element of its input
        places = made if traits.has(op.role, "channels_by_rows") else math.prod(first)
        return places * math.prod(rest[0][1:])
    if traits.has(op.role, "scores"):
        return made * math.prod(first[-2:-1] if flow.attribute(op, "transA") else first[-1:])
    stored = sum(math.prod(dims(v)) for v in op.inputs[1:] if v != NONE and flow.values[v].weight)
    if stored:
        return math.prod(first[:-1]) * stored
    keys = dims(op.inputs[1]) if op.inputs[1] != NONE else first  # or all three in one
    return 2 * made * keys[-2] if len(keys) > 1 else None


def einsum_multiplications(equation: str, shapes: Sequence[Sequence[int]]) -> int | None:
    """The multiplications of an Einsum by its equation and its operands' shapes: the product of the
    sizes of all indices. None for an ellipsis, or an equation that does not fit the shapes."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if [len(term) for term in terms] != [len(shape) for shape in shapes] or "." in equation:
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return math.prod(sizes.values())
