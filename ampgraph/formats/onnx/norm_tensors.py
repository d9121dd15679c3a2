"""Parameters of a norm with stored statistics, rounded together: their errors cancel in what the norm computes.

y = (x - mean) * scale / sqrt(var + eps) + bias. Rounded one by one, the four shift every channel by up to a step of
the low type, in every layer in the same direction. Of the low numbers beside each variance and mean the pair is taken
that leaves factor and shift closest to what float32 parameters give.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ..rounding import LOW_TYPES
from .weights import RoundedTensor, flat, put, stored_tensor

STEPS = 64  # low numbers that are tried on both sides


class NormParameters:
    """Scale, bias, mean and variance of one norm."""

    def __init__(self, sources: list[ir.TensorProtocol], epsilon: float, dtype: str) -> None:
        self.sources, self.epsilon, self.low = sources, epsilon, LOW_TYPES[dtype]

    @cached_property
    def rounded(self) -> list[Array]:
        """The four in the low type; plainly rounded where that is not finite."""
        with np.errstate(over="ignore"):
            plain = [flat(source).astype(self.low) for source in self.sources]
        if not all(np.isfinite(part.astype(np.float64)).all() for part in plain):
            return plain
        scale, bias, mean, var = (flat(source).astype(np.float64) for source in self.sources)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            factor = scale / np.sqrt(var + self.epsilon)
            near = self._neighbours(var)
            scales = self._low(factor * np.sqrt(near + self.epsilon))
            low_scale, low_var = _closest(scales, near, scales / np.sqrt(near + self.epsilon) - factor)
            factors = low_scale / np.sqrt(low_var + self.epsilon)
            shift = bias - factor * mean
            means, biases = self._neighbours(mean), self._neighbours(bias)
            biases = np.concatenate([self._low(shift + factors * means), biases])
            means = np.concatenate([means, self._low((biases[len(means) :] - shift) / factors)])
            low_bias, low_mean = _closest(biases, means, biases - factors * means - shift)
        return [part.astype(self.low) for part in (low_scale, low_bias, low_mean, low_var)]

    def _low(self, numbers: Array) -> Array:
        """Numbers as the low type has them."""
        return numbers.astype(self.low).astype(np.float64)

    def _neighbours(self, numbers: Array) -> Array:
        """The low numbers around some by distance, their own first; of the same sign, and finite."""
        low = numbers.astype(self.low)
        bits = low.view(np.int16).astype(np.int32)
        steps = [0, *(side * step for step in range(1, STEPS + 1) for side in (-1, 1))]
        near = np.stack([(bits + step).astype(np.int16) for step in steps]).view(self.low)
        wide = near.astype(np.float64)
        valid = np.isfinite(wide) & (np.signbit(wide) == np.signbit(low.astype(np.float64)))
        return np.where(valid, wide, low.astype(np.float64))


def _closest(first: Array, second: Array, errors: Array) -> tuple[Array, Array]:
    """By channel the pair with the smallest error, the earliest of equals."""
    finite = np.isfinite(first) & np.isfinite(second) & np.isfinite(errors)
    best = np.where(finite, np.abs(errors), np.inf).argmin(axis=0), np.arange(errors.shape[1])
    return first[best], second[best]


class NormTensor(RoundedTensor):
    """One of the four."""

    def __init__(self, plain: RoundedTensor, parameters: NormParameters, place: int, dtype: str) -> None:
        super().__init__(plain.source, dtype)
        self.parameters, self.place = parameters, place
        self.name = plain.name

    def whole(self) -> Array:
        return self.parameters.rounded[self.place]

    def chunks(self) -> Iterator[Array]:
        yield self.whole()


def round_together(node: ir.Node, dtype: str) -> bool:
    """Rounds the stored parameters of a norm together; False where it has no four that were rounded."""
    values = [value for value in node.inputs[1:5] if value is not None]
    tensors = [stored_tensor(value) for value in values]
    plain = [tensor for tensor in tensors if isinstance(tensor, RoundedTensor) and tensor.low == LOW_TYPES[dtype]]
    if len(plain) != 4:
        return False
    given = node.attributes.get("epsilon")
    parameters = NormParameters([t.source for t in plain], 1e-5 if given is None else given.as_float(), dtype)
    for place, (value, tensor) in enumerate(zip(values, plain, strict=True)):
        put(value, NormTensor(tensor, parameters, place, dtype))
    return True
