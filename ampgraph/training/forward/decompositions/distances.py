"""torch.cdist in differences: the exporter has no form for it."""

from __future__ import annotations

import math

import torch


def distances(one: torch.Tensor, other: torch.Tensor, p: float = 2.0, mode: int | None = None) -> torch.Tensor:
    """Of all pairs of rows. The gradient of a distance of 0 is 0, as torch has it."""
    away = one.unsqueeze(-2) - other.unsqueeze(-3)
    if p == 0:
        return (away != 0).to(away.dtype).sum(-1)
    if p == 1:
        return away.abs().sum(-1)
    if math.isinf(p):
        return away.abs().amax(-1)
    sums = (away * away if p == 2 else away.abs() ** p).sum(-1)
    apart = sums > 0
    safe = torch.where(apart, sums, 1.0)
    return torch.where(apart, safe.sqrt() if p == 2 else safe ** (1 / p), 0.0)
