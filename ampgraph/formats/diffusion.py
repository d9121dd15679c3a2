"""A convolution's weights rounded to a low type by error diffusion: what rounding adds to one is taken from those
beside it.

y = sum over channels and places of w x. Rounded one by one, the weights have errors e, and y that of sum(e x), whose
mean square is e H e' with H = E[x x']. Of x no more is assumed than that it is a picture, a sound or what layers made
of one: along each axis neighbours correlate by RHO, so that places correlate by R, the product over the axes of
RHO**distance, and all channels have a mean, whose square is MEAN of their variance: H = I (x) R + MEAN.

As in GPTQ (E. Frantar et al., 2023) the weights are rounded one after the other, and each error is given to those that
follow in the way that makes e H e' least. For this H the way is known without a matrix. Within a channel, as H's
inverse is that of a Markov chain along each axis, an error goes to the next place of each axis by RHO and to the one
across by -RHO**2 (R. Floyd and L. Steinberg, 1976, with other shares). What no place of the channel takes is carried to
the following channels, by the inverse of I (x) R + MEAN (J. Sherman and W. Morrison, 1950).

A bias b that is rounded to b + d shifts all places alike. Behind layers that were normalised w x has a mean of about
-b; its variance is taken for 1 + |w|**2. Of all factors of w then that of 1 + d b / (b**2 + 1 + |w|**2) makes up for
most of d.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..core.arrays import Array, DType
from ..core.low_types import LowType, low_type

RHO, MEAN = 0.9, 0.5
FEWEST_CHANNELS, STEPS = 8, 72  # channels and weights of a row that are rounded one after the other, in parts
MOST_PLACES = 1 << 12  # of a kernel: those of a larger one are taken for channels, whose errors go to all that follow
LANES = 1 << 12  # rows, times parts of a row, at the same time: what is read of them stays in the second cache
EXPONENT, HALF = np.uint32(0x7F800000), 1 << 22
SIGN = np.uint16(1 << 15)
WIDE_BITS = 24  # significant bits of float32


@dataclass(frozen=True)
class Places:
    """How errors go through the places of a convolution's kernel of some shape, counted with the last axis fastest.

    ``shares[t]``: what place t gives to later places, as (place, share); ``left[t]``: what share it does not give;
    ``takes[t]``: the share of what is carried from earlier channels that place t takes."""

    shares: tuple[tuple[tuple[int, np.float32], ...], ...]
    left: tuple[np.float32, ...]
    takes: Array

    @classmethod
    @cache
    def of(cls, shape: tuple[int, ...]) -> Places:
        """The kernel of a shape; () is one place."""
        places, numbers = list(np.ndindex(shape)), np.arange(math.prod(shape)).reshape(shape)
        ways = [way for way in itertools.product((0, 1), repeat=len(shape)) if any(way)]
        shares = [
            {int(numbers[to]): -((-RHO) ** sum(way)) for way in ways if (to := _moved(place, way, shape)) is not None}
            for place in places
        ]
        takes = np.ones(1)
        for size in shape:  # the sums of rows of R's inverse
            inner = np.full(size, (1 - RHO) / (1 + RHO))
            inner[[0, -1]] = 1 / (1 + RHO) if size > 1 else 1
            takes = np.kron(takes, inner)
        return cls(
            tuple(tuple((to, np.float32(share)) for to, share in given.items()) for given in shares),
            tuple(np.float32(1 - sum(given.values())) for given in shares),
            takes.astype(np.float32)[:, None],
        )


def _moved(place: tuple[int, ...], way: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The place one step on along the axes where ``way`` is 1; None outside of the kernel."""
    to = tuple(at + step for at, step in zip(place, way, strict=True))
    return to if all(at < size for at, size in zip(to, shape, strict=True)) else None


def factors_for_biases(biases: Array, low: Array, weights: Array) -> Array:
    """The factors of a convolution's weights, one an output channel, in float64, that make up for what rounding added
    to the ``biases``, which are ``low`` now; 1 where one of the two is not finite. ``weights``: output channels first.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        variances = 1 + np.square(weights.reshape(len(biases), -1)).sum(1, dtype=np.float64)
        added = low.astype(np.float64) - biases
        factors: Array = 1 + added * biases / (np.square(biases, dtype=np.float64) + variances)
    factors[~np.isfinite(factors)] = 1
    return factors


def diffuse_errors(weights: Array, factors: Array, dtype: DType) -> Iterator[Array]:
    """The float32 weights of a convolution (output channels, input channels, then a kernel's axes), times ``factors``
    (one an output channel), in the low ``dtype``: whole output channels at a time, in one dimension.

    A weight of 0 stays 0, and no other is further than one and a half steps of the low type from what it was. Of an
    output channel with a number that is not finite, before or after, each is rounded by itself, and without its factor
    where that makes it infinite."""
    if not weights.size:
        return
    shape = weights.shape[2:] if math.prod(weights.shape[2:]) <= MOST_PLACES else ()
    kernel, low, places = Places.of(shape), low_type(dtype.name), math.prod(shape)
    channels = weights[0].size // places
    parts = -(-channels // max(FEWEST_CHANNELS, STEPS // places))
    size = -(-channels // parts)
    rows, some, absent = weights.reshape(len(weights), -1), max(1, LANES // parts), (parts * size - channels) * places
    infinite = np.array(np.inf, dtype).view(np.uint16)
    for start in range(0, len(rows), some):
        exact = rows[start : start + some] * factors[start : start + some, None].astype(np.float32)
        padded = np.pad(exact, ((0, 0), (0, absent))) if absent else exact
        lanes = np.ascontiguousarray(padded.reshape(-1, size * places).T)
        _round_lanes(lanes.reshape(size, places, -1), kernel, low)
        with np.errstate(over="ignore", invalid="ignore"):
            found = lanes.astype(dtype).T.reshape(padded.shape)[:, : exact.shape[1]]
            odd = (found.view(np.uint16) & ~SIGN).max(1) >= infinite
            single = exact[odd].astype(dtype)
            found[odd] = np.where(np.isfinite(single), single, rows[start : start + some][odd].astype(dtype))
        yield found.reshape(-1)


@np.errstate(invalid="ignore", over="ignore")  # rows that are not finite
def _round_lanes(weights: Array, kernel: Places, low: LowType) -> None:
    """Error diffusion: rounds float32 weights (channels, places, lanes) in place, each lane by itself.

    x + 3/2 M - 3/2 M is x rounded to a multiple of a step, where M is 2**23 steps."""
    binade = weights.view(np.uint32) & EXPONENT
    np.maximum(binade, np.float32(low.smallest_normal).view(np.uint32), out=binade)
    step = (binade - np.uint32((low.bits - 1) << 23)).view(np.float32)
    step *= weights != 0
    binade += np.uint32(((WIDE_BITS - low.bits) << 23) + HALF)
    rounder = binade.view(np.float32)
    least, most = weights - step, np.add(weights, step, out=step)
    carried, leaving = np.zeros((2, weights.shape[2]), np.float32)
    taken = MEAN * float(kernel.takes.sum())
    for channel, exact in enumerate(weights):
        exact += kernel.takes * carried
        for place, (shares, left) in enumerate(zip(kernel.shares, kernel.left, strict=True)):
            target, at = exact[place], (channel, place)
            rounded = np.maximum(target, least[at])
            np.minimum(rounded, most[at], out=rounded)
            rounded += rounder[at]
            rounded -= rounder[at]
            target -= rounded
            for to, share in shares:
                exact[to] += share * target
            leaving += left * target
            target[:] = rounded
        leaving *= np.float32(MEAN / (1 + taken * (len(weights) - 1 - channel)))
        carried += leaving
        leaving[:] = 0
