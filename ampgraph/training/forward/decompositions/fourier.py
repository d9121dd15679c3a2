"""Fourier transforms as products with cosines and sines: ONNX's DFT has no CUDA kernel. Numbers of N^2 for N places.

Complex numbers are pairs along a last axis of two, as torch's exporter has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

Tensor = torch.Tensor


def real_to_complex(x: Tensor, axes: Sequence[int], scaling: int, onesided: bool) -> Tensor:
    """torch's _fft_r2c; the last of the axes is that of real numbers."""
    *others, last = (axis % x.dim() for axis in axes)
    size = int(x.shape[last])
    cosines, sines = _waves(size, size // 2 + 1 if onesided else size)
    pair = _along(x, last, cosines), -_along(x, last, sines)
    pair = _turned(pair, others, forward=True)
    return _complex(pair, _factor(x, axes, scaling))


def complex_to_complex(x: Tensor, axes: Sequence[int], scaling: int, forward: bool) -> Tensor:
    return _complex(_turned(_pair(x), [axis % x.dim() for axis in axes], forward), _factor(x, axes, scaling))


def complex_to_real(x: Tensor, axes: Sequence[int], scaling: int, size: int) -> Tensor:
    """torch's _fft_c2r: the last axis has one half of the frequencies, the other is its mirror image."""
    *others, last = (axis % x.dim() for axis in axes)
    count, size = size // 2 + 1, int(size)
    real, imaginary = (part.narrow(last, 0, count) for part in _turned(_pair(x), others, forward=False))
    twice = torch.where((2 * torch.arange(count)) % size == 0, 1.0, 2.0).unsqueeze(1)
    cosines, sines = (wave.T * twice for wave in _waves(size, count))
    made = _along(real, last, cosines) - _along(imaginary, last, sines)
    return made * _factor(made, axes, scaling)


def padded(x: Tensor, amounts: Sequence[int], value: float = 0.0) -> Any:
    """Zeros around complex numbers."""
    if not x.is_complex():
        return NotImplemented
    return torch.view_as_complex(torch.constant_pad_nd(torch.view_as_real(x), [0, 0, *amounts], value).contiguous())


def _waves(size: int, count: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi n k / size: [size, count]."""
    steps = torch.arange(size).unsqueeze(1) * torch.arange(count) % size
    angles = steps.to(torch.float32) * (2 * math.pi / size)
    return angles.cos(), angles.sin()


def _along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    return (x.transpose(axis, -1) @ matrix).transpose(axis, -1)


def _pair(x: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = torch.view_as_real(x).unbind(-1)
    return real, imaginary


def _complex(pair: tuple[Tensor, Tensor], factor: float) -> Tensor:
    return torch.view_as_complex(torch.stack([part * factor for part in pair], -1))


def _turned(pair: tuple[Tensor, Tensor], axes: Sequence[int], forward: bool) -> tuple[Tensor, Tensor]:
    real, imaginary = pair
    for axis in axes:
        size = int(real.shape[axis])
        cosines, sines = _waves(size, size)
        sines = -sines if forward else sines
        parts = [_along(part, axis, wave) for part in (real, imaginary) for wave in (cosines, sines)]
        real, imaginary = parts[0] - parts[3], parts[1] + parts[2]
    return real, imaginary


def _factor(x: Tensor, axes: Sequence[int], scaling: int) -> float:
    """By torch's number: 0 none, 1 one over the root of the size, 2 one over the size."""
    size = math.prod(int(x.shape[axis]) for axis in axes)
    return (1.0, size**-0.5, 1.0 / size)[scaling]
