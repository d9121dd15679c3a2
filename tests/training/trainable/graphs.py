"""Graph networks, tables, and what scatters, sorts and gathers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .case import case, classes, numbers

NODES, EDGES, SIZE = 7, 12, 6


def edges() -> tuple[torch.Tensor, ...]:
    return numbers(NODES, SIZE), classes(NODES, EDGES), classes(NODES, EDGES, seed=1), classes(3, NODES)


class Messages(nn.Module):
    """Messages along edges, put together at their ends."""

    def __init__(self, together: str) -> None:
        super().__init__()
        self.message, self.head, self.together = nn.Linear(SIZE, 8), nn.Linear(8, 3), together

    def forward(self, x: torch.Tensor, start: torch.Tensor, end: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sent = torch.tanh(self.message(x))[start]
        places, empty = end[:, None].expand(-1, 8), torch.zeros(NODES, 8)
        if self.together == "index_add":
            found = empty.index_add(0, end, sent)
        elif self.together == "scatter_add":
            found = empty.scatter_add(0, places, sent)
        else:
            found = empty.scatter_reduce(0, places, sent, self.together, include_self=self.together != "mean")
        return F.cross_entropy(self.head(found), y)


def messages(together: str) -> None:
    name = together if together.endswith("add") else f"scatter_reduce {together}"
    case(f"Graph network, {name}", edges, lambda: Messages(together), fixed=True, lr=0.5)


for way in ("index_add", "scatter_add", "amax", "amin", "mean"):
    messages(way)


def bags() -> tuple[torch.Tensor, torch.Tensor]:
    return classes(9, 4, 5), classes(3, 4)


class Bag(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 8, mode=mode), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.bag(words)), y)


case("EmbeddingBag, mean", bags, lambda: Bag("mean"), lr=0.5)
case("EmbeddingBag, sum", bags, lambda: Bag("sum"), lr=0.1)


@case(
    "EmbeddingBag with offsets", lambda: (classes(9, 12), torch.tensor([0, 3, 3, 7]), classes(3, 4)), fixed=True, lr=0.5
)
class Bags(nn.Module):
    """Bags of several sizes, one of them empty."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 8, mode="mean"), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, offsets: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.bag(words, offsets)), y)


@case("Embedding and mean", bags, lr=0.5)
class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.words(words).mean(1)), y)


@case("DLRM: embeddings, products of pairs", lambda: (numbers(4, 5), classes(9, 4, 3), numbers(4, 1).gt(0).float()))
class Ranked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.tables = nn.Linear(5, 8), nn.ModuleList(nn.Embedding(9, 8) for _ in range(3))
        self.top = nn.Sequential(nn.Linear(8 + 6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, which: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dense = F.relu(self.dense(x))
        rows = torch.stack([dense, *(table(which[:, n]) for n, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))
        one, other = torch.tril_indices(4, 4, -1)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([dense, pairs[:, one, other]], 1)), y)


@case("sort and cumsum", lambda: (numbers(4, 6), numbers(4, 6, seed=1)), lr=0.02)
class Sorted(nn.Module):
    """The distance of two distributions on a line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found, _ = self.line(x).sort(-1)
        return (found.cumsum(-1) - y.sort(-1).values.cumsum(-1)).abs().mean()


@case("A part chosen by topk and gather", lambda: (numbers(4, 9, 6), classes(3, 4)), lr=0.2)
class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        best, which = self.score(x).squeeze(-1).topk(4, dim=1)
        rows = x.gather(1, which[..., None].expand(-1, -1, 6)) * torch.sigmoid(best)[..., None]
        return F.cross_entropy(self.head(rows.mean(1)), y)
