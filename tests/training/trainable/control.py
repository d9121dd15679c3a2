"""Branches and loops that stay in the graph."""

from __future__ import annotations

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F

from .case import case, classes, numbers

Tensor = torch.Tensor


def batch() -> tuple[Tensor, Tensor]:
    return numbers(4, 6), classes(3, 4)


@case("torch.cond", batch, lr=0.2)
class Either(nn.Module):
    """Both branches have weights of their own and share some."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def first(value: Tensor) -> Tensor:
            return torch.tanh(self.one(value)) + self.other(value)

        def second(value: Tensor) -> Tensor:
            return torch.sigmoid(self.other(value))

        return F.cross_entropy(self.head(torch.cond(x.sum() > 0, first, second, (x,))), y)


@case("torch scan", lambda: (numbers(5, 4, 6), classes(3, 4)), lr=0.5, fixed=True)
class Stepped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def body(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = torch.tanh(self.step(torch.cat([state, row], -1)))
            return new, new * 2

        last, steps = scan(body, torch.zeros(4, 6), x, dim=0)
        return F.cross_entropy(self.head(last + steps.mean(0)), y)
