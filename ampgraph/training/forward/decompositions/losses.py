"""Cross entropy with label smoothing, which torch's exporter drops, and CTC, for which it has no form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

NEVER = -1e30  # the logarithm of a chance of 0: of -inf no gradient comes back


def smoothed_cross_entropy(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignored: int = -100,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """As torch defines it: (1 - e) times the loss, and e times the mean over all classes."""
    axis = 0 if scores.dim() == 1 else 1
    classes, logarithms = scores.shape[axis], torch.log_softmax(scores, axis)
    along = [-1 if n == axis else 1 for n in range(scores.dim())]
    weighted = logarithms if weight is None else logarithms * weight.view(along)
    if target.is_floating_point():
        losses = -(weighted * (target * (1 - smoothing) + smoothing / classes)).sum(axis)
        count: Any = losses.numel()
    else:
        counted = target != ignored
        safe = torch.where(counted, target, 0)
        picked = weighted.gather(axis, safe.unsqueeze(axis)).squeeze(axis)
        losses = -(1 - smoothing) * picked - smoothing / classes * weighted.sum(axis)
        losses = torch.where(counted, losses, 0.0)
        shares = torch.ones_like(losses) if weight is None else weight[safe]
        count = torch.where(counted, shares, 0.0).sum()
    if reduction == 0:
        return losses
    return losses.sum() / count if reduction == 1 else losses.sum()


def aligned(
    scores: torch.Tensor,
    targets: torch.Tensor,
    lengths: torch.Tensor | Sequence[int],
    letters: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """CTC of logarithms [T, N, C], step by step: the chance of each prefix of the labels with blanks between them.

    Graves et al., Connectionist Temporal Classification (2006), 4.1. ``targets`` [N, S].
    """
    if targets.dim() != 2 or scores.dim() != 3:
        raise NotImplementedError("ctc_loss: give targets of two axes, padded, and scores of three")
    lengths, letters = (torch.as_tensor(value).long() for value in (lengths, letters))
    rows, places = targets.shape[0], 2 * targets.shape[1] + 1
    path = torch.full((rows, 1), blank, dtype=torch.int64)
    path = torch.cat([path, torch.stack([targets.long(), path.expand_as(targets)], 2).flatten(1)], 1)
    skips = torch.cat(
        [torch.zeros(rows, 2, dtype=torch.bool), (path[:, 2:] != path[:, :-2]) & (path[:, 2:] != blank)], 1
    )
    gap = torch.full((rows, 2), NEVER)
    found = torch.where(torch.arange(places) < 2, scores[0].gather(1, path), NEVER)
    for step in range(1, scores.shape[0]):
        longer = torch.cat([gap, found], 1)
        ways = [found, longer[:, 1:-1], torch.where(skips, longer[:, :-2], NEVER)]
        new = torch.stack(ways).logsumexp(0) + scores[step].gather(1, path)
        found = torch.where((step < lengths).unsqueeze(1), new, found)
    ends = found.gather(1, torch.stack([2 * letters, (2 * letters - 1).clamp(min=0)], 1))
    last = torch.where(letters > 0, ends[:, 1], NEVER)
    losses = -torch.logsumexp(torch.stack([ends[:, 0], last]), 0)
    if zero_infinity:
        losses = torch.where(losses > -NEVER / 2, 0.0, losses)
    if reduction == 0:
        return losses
    return (losses / letters.clamp(min=1)).mean() if reduction == 1 else losses.sum()
