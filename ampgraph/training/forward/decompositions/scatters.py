"""What is put together by place: bags of embeddings, and scatter_reduce where places keep their own value out."""

from __future__ import annotations

from typing import Any

import torch


def scattered(
    x: torch.Tensor, axis: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """scatter_reduce by sums and counts: torch's exporter is wrong for means, and without ``include_self``."""
    if reduce == "mean":
        return _mean(x, axis, index, source, include_self)
    if include_self or reduce not in ("amax", "amin"):
        return NotImplemented
    worst = -torch.inf if reduce == "amax" else torch.inf
    start = torch.where(_hits(x, axis, index, source) > 0, worst, x)
    return torch.scatter_reduce(start, axis, index, source, reduce, include_self=True)


def _mean(x: torch.Tensor, axis: int, index: torch.Tensor, source: torch.Tensor, include_self: bool) -> torch.Tensor:
    hits = _hits(x, axis, index, source)
    if include_self:
        return x.scatter_add(axis, index, source) / (hits + 1)
    start = torch.where(hits > 0, 0.0, x)
    return start.scatter_add(axis, index, source) / hits.clamp(min=1)


def _hits(x: torch.Tensor, axis: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """How many numbers each place gets."""
    return torch.zeros_like(x).scatter_add(axis, index, torch.ones_like(source))


def bags(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding: int | None = -1,
) -> tuple[torch.Tensor, ...]:
    """torch's embedding_bag: sums (mode 0), means (1) and maxima (2) of the rows of each bag; empty bags are 0."""
    count, size = indices.shape[0], weight.shape[1]
    starts = offsets[:-1] if include_last_offset else offsets
    begun = torch.zeros(count + 1, dtype=torch.int64).index_add(0, starts.long(), torch.ones_like(starts).long())
    bag = begun.cumsum(0)[:count] - 1
    kept = torch.ones(count) if padding is None or padding < 0 else (indices != padding).to(weight.dtype)
    rows = torch.nn.functional.embedding(indices, weight)
    if factors is not None:
        rows = rows * factors.unsqueeze(1)
    empty = torch.zeros(starts.shape[0], size)
    filled = torch.zeros(starts.shape[0]).index_add(0, bag, kept)
    if mode == 2:
        rows = torch.where(kept.unsqueeze(1) > 0, rows, -torch.inf)
        best = torch.scatter_reduce(
            empty - torch.inf, 0, bag.unsqueeze(1).expand(-1, size), rows, "amax", include_self=True
        )
        found = torch.where(filled.unsqueeze(1) > 0, best, 0.0)
    else:
        found = empty.index_add(0, bag, rows * kept.unsqueeze(1))
        found = found / filled.clamp(min=1).unsqueeze(1) if mode == 1 else found
    return found, bag, filled.long(), bag
