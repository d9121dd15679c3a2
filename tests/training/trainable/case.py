"""What a case is: a module whose forward returns its loss, and a batch; by name, in the order of their declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Make = Callable[[], nn.Module]
Batch = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """``make`` in training mode after ``torch.manual_seed``, ``batch`` for example and steps.

    ``random``: it draws numbers that are not torch's, so that losses only have to fall. ``refused``: words of the hint
    of the one error that is expected instead.
    """

    name: str
    make: Make
    batch: Batch
    lr: float = 0.05
    random: bool = False
    refused: str = ""
    fixed: bool = False  # one batch size


CASES: dict[str, Case] = {}


def case(
    name: str,
    batch: Batch,
    make: Make | None = None,
    *,
    lr: float = 0.05,
    random: bool = False,
    refused: str = "",
    fixed: bool = False,
) -> Callable[[Make], Make]:
    """Declares a case: a decorator of the module, or with ``make`` at once."""

    def declare(made: Make) -> Make:
        assert name not in CASES, name
        CASES[name] = Case(name, made, batch, lr, random, refused, fixed)
        return made

    if make is not None:
        declare(make)
    return declare


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(seed))


class Classified(nn.Module):
    """Cross entropy of what a module finds: ``forward(x, y)``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)
