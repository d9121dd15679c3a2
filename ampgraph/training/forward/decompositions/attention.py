"""Attention without an axis of heads, and products of rows with the matrix of their group."""

from __future__ import annotations

from typing import Any

import torch


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *more: Any,
    **named: Any,
) -> Any:
    """Of [batch, length, size], by that of one head: torch's exporter knows four axes only."""
    if query.dim() != 3:
        return NotImplemented
    wide = None if mask is None else mask.unsqueeze(1) if mask.dim() == 3 else mask
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, wide, *more, **named).squeeze(1)


def grouped_products(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """x[n] weight[g], where g is the group that row n lies in: rows are sorted by group, and ``ends`` says where each
    group ends. What lies behind the last end is 0."""
    group = (torch.arange(x.shape[0], device=x.device)[:, None] >= ends).sum(1)
    inside = group < len(weight)
    own = weight[torch.where(inside, group, 0)]
    return torch.where(inside[:, None], torch.bmm(x.unsqueeze(1), own).squeeze(1), 0.0)
