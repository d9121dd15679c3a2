"""A constant factor beside a product, rounded together with what the product stores.

y = s * (W x + b). Rounded by itself the one number s scales a whole tensor by up to half a step of the low type, an
error that no later sum averages out, unlike those of the many elements of W. What rounding takes from s is given to W
and b before they are rounded; W (s * x) takes it in the same way.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.ranges import NEAR
from ...oplists.traits import Trait, has, positions
from ..rounding import Rounder
from .stored import put
from .weights import LOW_TYPES, RoundedTensor, flat, pieces, stored_tensor

MOST = 2.0**-7  # what rounding takes from a normal number of a low type, at most
MOST_ZEROS = 1 << 16  # elements
Parts = dict[ir.Value, float]
"""Stored values, and what each is multiplied with before it is rounded."""


class ScaledTensor(RoundedTensor):
    """A float32 tensor times a factor near one, rounded once. What is finite when rounded plainly stays finite."""

    def __init__(self, source: ir.TensorProtocol, dtype: str, factor: float) -> None:
        super().__init__(source, dtype)
        self.factor = factor

    def _round_into(self, part: Array, place: Array, rounder: Rounder) -> None:
        super()._round_into(part, place, rounder)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (part.astype(np.float64) * self.factor).astype(self.low)
        np.copyto(place, scaled, where=np.isfinite(scaled))


def round_factor(node: ir.Node, dtype: str) -> None:
    """Rounds the stored factor of a Mul or the divisor of a Div together with a product before it, else behind it.

    Nothing happens where the product's operands are not stored, are read elsewhere, or are low numbers already, nor
    where the factor is read elsewhere and rounding takes 2^-12 of it at most."""
    numbers = [_number(value, dtype) for value in node.inputs]
    place = next((k for k, number in enumerate(numbers) if number), None)
    if len(node.inputs) != 2 or place is None or (place == 0 and not has(node.op_type, "multiplies")):
        return
    number, data = numbers[place], node.inputs[1 - place]
    low = float(np.float64(number).astype(LOW_TYPES[dtype]))
    lost = number / low if low else 0.0
    lost = lost if has(node.op_type, "multiplies") or not lost else 1 / lost
    if lost == 1 or abs(lost - 1) > MOST or data is None:
        return
    if abs(lost - 1) <= NEAR and _stored(node.inputs[place], dtype) is None:
        return  # of what others read as well only what moves them far is worth other weights
    parts = _before(data, lost, dtype) or _behind(node.outputs[0], lost, dtype)
    for value, factor in (parts or {}).items():
        held = stored_tensor(value)
        assert isinstance(held, RoundedTensor)
        before = held.factor if isinstance(held, ScaledTensor) else 1.0
        scaled = ScaledTensor(held.source, dtype, before * factor)
        scaled.name = held.name
        put(value, scaled)


def _before(value: ir.Value, factor: float, dtype: str) -> Parts | None:
    """The operands of the product that makes a value, biases added behind it among them; None where there is none."""
    parts: Parts = {}
    while _private(value) and (node := value.producer()) is not None and not node.domain:
        if _is(node, "reshapes"):
            onward = node.inputs[0]
        elif _is(node, "additions") and (bias := _added(node, dtype)) is not None:
            parts[bias], onward = factor, _other(node, bias)
        elif _is(node, "additions") and (zeros := next(filter(_is_zero, node.inputs), None)) is not None:
            onward = _other(node, zeros)
        elif held := _operands(node, dtype):
            return {**parts, **dict.fromkeys(held, factor)} if _inexact(held[0]) else None
        else:
            return None
        if onward is None:
            return None
        value = onward
    return None


def _behind(value: ir.Value, factor: float, dtype: str) -> Parts | None:
    """The first operands of the products that read a value, by way of at most moves and constants added; what is added
    shrinks instead. None where anything else reads it."""
    parts: Parts = {}
    while len(value.uses()) == 1 and not value.is_graph_output():
        ((node, place),) = value.uses()
        if _is(node, "additions") and (bias := _added(node, dtype)) is not None:
            parts[bias] = 1 / factor
        elif not _is(node, "reshapes") or place != 0:
            break
        value = node.outputs[0]
    if value.is_graph_output() or not value.uses():
        return None
    for node, place in value.uses():
        held = _operands(node, dtype) if place == 0 else []
        if not held or not _inexact(held[0]):
            return None
        parts[held[0]] = factor
    return parts


def _is(node: ir.Node, trait: Trait) -> bool:
    return not node.domain and has(node.op_type, trait)


def _private(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _stored(value: ir.Value | None, dtype: str, private: bool = True) -> ir.Value | None:
    """The stored value that another one is, if it is rounded to ``dtype``. ``private``: and read here alone."""
    while value is not None:
        node = value.producer()
        if node is None or node.op_type == "Constant":
            held = stored_tensor(value) if (not private or _private(value)) and not value.is_graph_input() else None
            if not isinstance(held, RoundedTensor) or type(held) not in (RoundedTensor, ScaledTensor):
                return None
            return value if held.low == LOW_TYPES[dtype] and held.floor is None else None
        value = node.inputs[0] if _is(node, "nothing_in_inference") and (not private or _private(value)) else None
    return None


def _number(value: ir.Value | None, dtype: str) -> float:
    """The float32 number behind a stored factor, 0 where there is none."""
    stored = _stored(value, dtype, private=False)  # it stays as it is, whoever else reads it
    if stored is None:
        return 0.0
    held = stored_tensor(stored)
    if not isinstance(held, RoundedTensor) or isinstance(held, ScaledTensor) or held.size != 1:
        return 0.0
    number = float(flat(held.source)[0])
    return number if np.isfinite(number) else 0.0


def _added(node: ir.Node, dtype: str) -> ir.Value | None:
    """The stored value that an addition adds."""
    return next((stored for value in node.inputs if (stored := _stored(value, dtype)) is not None), None)


def _is_zero(value: ir.Value | None) -> bool:
    """Whether a value is stored zeros, which are the same times anything, whoever else reads them."""
    while value is not None and (node := value.producer()) is not None and _is(node, "nothing_in_inference"):
        value = node.inputs[0]
    held = None if value is None or value.is_graph_input() else stored_tensor(value)
    return held is not None and held.size <= MOST_ZEROS and not any(part.any() for part in pieces(flat(held)))


def _other(node: ir.Node, bias: ir.Value) -> ir.Value | None:
    """What a stored value is added to."""
    at = next(k for k, value in enumerate(node.inputs) if value is not None and _leads_to(value, bias))
    return node.inputs[1 - at]


def _leads_to(value: ir.Value | None, stored: ir.Value) -> bool:
    while value is not None and value is not stored:
        node = value.producer()
        value = node.inputs[0] if node is not None and _is(node, "nothing_in_inference") else None
    return value is stored


def _operands(node: ir.Node, dtype: str) -> list[ir.Value]:
    """The stored operands in which a product is linear, all of them; none where one is something else."""
    places = [] if node.domain else [k for k in positions(node.op_type, "linear_in") if k < len(node.inputs)]
    found = [_stored(node.inputs[k], dtype) for k in places if node.inputs[k] is not None]
    return [] if None in found else [value for value in found if value is not None]


def _inexact(value: ir.Value) -> bool:
    """Whether rounding changes anything of a stored tensor: weights that were low numbers once stay what they are."""
    held = stored_tensor(value)
    assert isinstance(held, RoundedTensor)
    return any(_rounds(part, held) for part in pieces(flat(held.source)))


def _rounds(part: Array, held: RoundedTensor) -> bool:
    with np.errstate(over="ignore"):
        return not np.array_equal(part.astype(held.low).astype(np.float32), part)
