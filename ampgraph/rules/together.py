"""Stored numbers that are rounded together, so that their errors cancel in what is computed of them.

y = s * (W x + b). Rounded by itself the one number s scales a whole tensor by up to half a step of the low type, an
error that no later sum averages out, unlike those of the many elements of W. What rounding takes from s is given to W
and b before they are rounded; W (s * x) takes it in the same way.

y = (x - mean) * scale / sqrt(var + eps) + bias. Rounded one by one, the four shift every channel by up to a step of
the low type, in every layer in the same direction.

y = W * x + b, a convolution. Neighbours in a picture are alike, and activations are positive: what rounding adds to a
channel's weights as a whole is added to all its places. So each channel's weights keep their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.low_types import MOST_LOST, numpy_type
from ..core.plan import JointRounding, WeightEdit, Why
from ..core.ranges import NEAR
from ..oplists.traits import Trait, Traits

PARAMETERS = range(1, 5)
"""The operands of a norm with stored statistics beside its data: scale, bias, mean and variance."""
Parts = dict[int, float]
"""Stored value -> what it is multiplied by before it is rounded."""
Read = tuple[int, int]
"""An operator, and the place where it reads."""
NOBODY: Set[Read] = frozenset()


def rounded_together(flow: Dataflow, traits: Traits, dtype: str, edits: Iterable[WeightEdit]) -> list[JointRounding]:
    """What is rounded together of the stored tensors that become low, as ``edits`` say: by scalings beside products, by
    norms, and by convolutions, in the order of the model. Nothing of MindIR, whose norms keep float32 parameters."""
    low = LowStored(flow, traits, dtype, edits)
    if not low.rounds or not flow.opset:  # a MindIR model has none
        return []
    found, shared = list[JointRounding](), set[int]()
    factors, statistics = traits.operators("scalings"), traits.operators("stored_statistics")
    for op in flow.with_roles(factors | statistics | traits.operators("channels_by_rows")):
        path = flow.scopes[op.scope].path
        if op.role in factors:
            number, parts = low.shares_of_scaling(op, shared)
            shared |= parts.keys()
            values = [(flow.values[id], factor) for id, factor in parts.items()]
            shares = tuple((flow.scopes[value.scope].path, value.name, factor) for value, factor in values)
            text = f"what rounding takes from {number:g} is given to the stored operands of the product beside it"
            if parts:
                found.append(JointRounding(path, op.index, Why("factor", text), shares))
        elif op.role not in statistics:
            if low.holds_weights(op):
                why = Why("channels", "the weights of each channel keep their sum")
                found.append(JointRounding(path, op.index, why))
        elif len(op.outputs) == 1 and low.holds_parameters(op):
            found.append(JointRounding(path, op.index, Why("statistics", "parameters of a norm: their errors cancel")))
    return found


class LowStored:
    """Rounded together: the stored tensors of a model that are rounded, and the places that read them so. ``edits``
    None: as if every one were. ``rounds``: whether any is."""

    def __init__(self, flow: Dataflow, traits: Traits, dtype: str, edits: Iterable[WeightEdit] | None = None) -> None:
        self.flow, self.traits, self.dtype = flow, traits, dtype
        self._low: dict[tuple[str, str], WeightEdit] | None = None
        if edits is not None:
            low = (edit for edit in edits if edit.store != FLOAT32 and edit.floor is None)
            self._low = {(edit.scope, edit.value): edit for edit in low}
        self._readers = dict[int, Set[Read]]()
        self.rounds = self._low is None or bool(self._low)

    def readers(self, value: int) -> Set[Read]:
        """Rounded together: the places that read a stored tensor rounded; `NOBODY` where it stays float32."""
        if value not in self._readers:
            self._readers[value] = self._find_readers(value)
        return self._readers[value]

    def _find_readers(self, value: int) -> Set[Read]:
        """Rounded together: the places that read a stored tensor rounded: all, or those of a second, rounded copy."""
        item, uses = self.flow.values[value], self.flow.uses[value]
        if not item.weight or item.dtype != FLOAT32:
            return NOBODY
        if self._low is not None:
            edit = self._low.get((self.flow.scopes[item.scope].path, item.name))
            if edit is None:
                return NOBODY
            if edit.store == "both":
                rounded = set(edit.uses)
                uses = [use for use in uses if self.flow.place(use) in rounded]
        return {(use.op, use.index) for use in uses}

    def shares_of_scaling(self, op: Op, shared: set[int]) -> tuple[float, Parts]:
        """Rounded together: a scaling's number, and the stored values that make up for its error, of a product in front
        or else of those behind. (0, {}) where it has no such number. No values where the product's operands are not
        stored, are read elsewhere, or are low numbers already, nor where the number is read elsewhere and rounding
        takes 2^-12 of it at most. ``shared``: values of other scalings."""
        numbers = [self._number(op, place, shared) for place in range(len(op.inputs))]
        place = next((k for k, number in enumerate(numbers) if number), None)
        multiplies = self.traits.has(op.kind, "multiplies")
        if len(op.inputs) != 2 or place is None or (place == 0 and not multiplies) or NONE in op.inputs:
            return 0.0, {}
        number = numbers[place]
        with np.errstate(over="ignore"):
            low = float(np.float64(number).astype(numpy_type(self.dtype)))
        lost = number / low if low else 0.0
        if not multiplies and lost:
            lost = 1 / lost
        if lost == 1 or abs(lost - 1) > MOST_LOST or (abs(lost - 1) <= NEAR and self._stored(op, place) is None):
            return number, {}  # a number that others read too is worth other weights only if rounding moves it far
        return number, self.parts_before(op.inputs[1 - place], lost) or self._parts_behind(op.outputs[0], lost)

    def holds_parameters(self, op: Op) -> bool:
        """Rounded together: whether the four parameters of a norm are rounded and read by it alone."""
        values = [op.inputs[place] for place in PARAMETERS if place < len(op.inputs)]
        private = all(self.readers(value) == {(op.id, place)} for place, value in enumerate(values, 1))
        return private and len(set(values)) == len(PARAMETERS)

    def holds_weights(self, op: Op) -> bool:
        """Rounded together: whether rounding changes a convolution's weights, and it alone reads them."""
        value = op.inputs[1]
        return self.readers(value) == {(op.id, 1)} and self._is_inexact(value)

    def parts_before(self, value: int, factor: float = 1.0) -> Parts:
        """Rounded together: the stored operands of the product that makes a value, and biases added behind it, each
        with ``factor``. Empty where a value on the way is read twice, or made otherwise."""
        flow, parts = self.flow, Parts()
        while _is_private(flow, value):
            op = flow.writer(value)
            if op is None or "::" in op.kind:
                return {}
            place, bias = self._stored_operand(op) if self.traits.has(op.role, "additions") else (0, None)
            if self.traits.has(op.role, "reshapes"):
                value = op.inputs[0]
            elif bias is not None:
                parts[bias] = factor
                value = op.inputs[1 - place]
            else:
                held = self._operands(op)
                return {**parts, **dict.fromkeys(held, factor)} if held and self._is_inexact(held[0]) else {}
        return {}

    def _stored_operand(self, op: Op) -> tuple[int, int | None]:
        """Rounded together: (place, value) of the first stored operand of an operator; (0, None) where none is."""
        for place in range(len(op.inputs)):
            value = self._stored(op, place)
            if value is not None:
                return place, value
        return 0, None

    def _parts_behind(self, value: int, factor: float) -> Parts:
        """Rounded together: the weights of the products that read a value, each with ``factor``, through moves and
        biases, which are divided by it. Empty where anything else reads the value."""
        flow, parts = self.flow, Parts()
        while _is_private(flow, value):
            (use,) = flow.uses[value]
            op = flow.ops[use.op]
            _, bias = self._stored_operand(op)
            if self._is_standard(op, "additions") and bias is not None:
                parts[bias] = 1 / factor
            elif not self._is_standard(op, "reshapes") or use.index != 0:
                break
            value = op.outputs[0]
        for use in flow.uses[value]:
            held = self._operands(flow.ops[use.op]) if use.op != NONE and use.index == 0 else []
            if not held or not self._is_inexact(held[0]):
                return {}
            parts[held[0]] = factor
        return parts if flow.uses[value] else {}

    def _is_standard(self, op: Op, trait: Trait) -> bool:
        """Rounded together: whether a standard operator has a trait; operators of other domains round in other ways."""
        return "::" not in op.kind and self.traits.has(op.kind, trait)

    def _stored(self, op: Op, place: int, private: bool = True) -> int | None:
        """Rounded together: the stored value that an operand is, behind identities too, where it is read rounded; else
        None. ``private``: only where nobody else reads it."""
        flow, read, value = self.flow, (op.id, place), op.inputs[place]
        while value != NONE:
            if flow.values[value].weight:
                readers = self.readers(value)
                return value if read in readers and (not private or len(readers) == 1) else None
            writer = flow.writer(value)
            if writer is None or not self._is_standard(writer, "nothing_in_inference"):
                return None
            if private and not _is_private(flow, value):
                return None
            read, value = (writer.id, 0), writer.inputs[0]
        return None

    def _number(self, op: Op, place: int, shared: set[int]) -> float:
        """Rounded together: the finite number that an operand stores, if it is not among ``shared``; else 0."""
        value = self._stored(op, place, private=False)
        number = self.flow.scalar(value) if value is not None and value not in shared else None
        return number if number is not None and np.isfinite(number) else 0.0

    def _operands(self, op: Op) -> list[int]:
        """Rounded together: the stored operands in which a product is linear; empty where one of them is not stored."""
        places = self.traits.positions(op.kind, "linear_in") if "::" not in op.kind else ()
        found = [self._stored(op, k) for k in places if k < len(op.inputs) and op.inputs[k] != NONE]
        return [] if None in found else [value for value in found if value is not None]

    def _is_inexact(self, value: int) -> bool:
        """Rounded together: whether rounding changes a stored tensor: what was low once stays what it is."""
        low = numpy_type(self.dtype)
        with np.errstate(over="ignore"):
            parts = self.flow.weights.chunks(self.flow.values[value])
            return any(not np.array_equal(part.astype(low).astype(np.float32), part) for part in parts)


def _is_private(flow: Dataflow, value: int) -> bool:
    """Rounded together: whether one operator alone reads a value."""
    return value != NONE and len(flow.uses[value]) == 1 and flow.uses[value][0].op != NONE
