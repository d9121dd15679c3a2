"""Recurrent layers, by their modules and by their cells."""

from __future__ import annotations

import torch
from torch import nn

from .case import Classified, case, classes, numbers

LENGTH, SIZE, HIDDEN = 6, 5, 8


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(4, LENGTH, SIZE), classes(3, 4)


class Last(nn.Module):
    """A head on the last step of a recurrent layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(HIDDEN * (1 + layer.bidirectional), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return found


def layer(kind: type[nn.RNNBase], **options: object) -> nn.Module:
    return Classified(Last(kind(SIZE, HIDDEN, batch_first=True, **options)))  # type: ignore[arg-type]


both = {"num_layers": 2, "bidirectional": True}
case("RNN tanh", batch, lambda: layer(nn.RNN), lr=0.5)
case("RNN relu, 2 layers, bidirectional", batch, lambda: layer(nn.RNN, nonlinearity="relu", **both), lr=0.2)
case("LSTM", batch, lambda: layer(nn.LSTM), lr=0.5)
case("LSTM, 2 layers, bidirectional", batch, lambda: layer(nn.LSTM, **both), lr=0.5)
case(
    "LSTM, 2 layers, Dropout between them",
    batch,
    lambda: layer(nn.LSTM, num_layers=2, dropout=0.2),
    lr=0.5,
    random=True,
)
case("LSTM with a projection", batch, lambda: Projected(), lr=0.5)
case("GRU", batch, lambda: layer(nn.GRU), lr=0.5)
case("GRU, 2 layers, bidirectional", batch, lambda: layer(nn.GRU, **both), lr=0.5)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(SIZE, HIDDEN, batch_first=True, proj_size=4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.layer(x)[0].mean(1)), y)


@case("Encoder and decoder, states handed over", batch, lr=0.5)
class Handed(nn.Module):
    """The decoder starts from the encoder's states; the outputs of all steps count."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(SIZE, HIDDEN, batch_first=True)
        self.decoder, self.head = nn.LSTM(SIZE, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, states = self.encoder(x)
        scores = self.head(self.decoder(x.flip(1), states)[0])
        return nn.functional.cross_entropy(scores.transpose(1, 2), y.unsqueeze(1).expand(-1, LENGTH))


class Loop(nn.Module):
    """A cell in a Python loop."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        last = state[0] if isinstance(state, tuple) else state
        return nn.functional.cross_entropy(self.head(last), y)


case("LSTMCell in a Python loop", batch, lambda: Loop(nn.LSTMCell(SIZE, HIDDEN)), lr=0.5)
case("GRUCell in a Python loop", batch, lambda: Loop(nn.GRUCell(SIZE, HIDDEN)), lr=0.5)


@case("pack_padded_sequence", batch, refused="pass padded sequences")
class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(SIZE, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([6, 5, 3, 2])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.functional.cross_entropy(self.head(self.layer(packed)[1][0][0]), y)


@case("Padded sequences and a mask", lambda: (*batch(), torch.tensor([6, 5, 3, 2])), lr=0.5)
class Padded(nn.Module):
    """What to do instead: the step at the last place that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(SIZE, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        steps = self.layer(x)[0]
        last = steps.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, HIDDEN)).squeeze(1)
        return nn.functional.cross_entropy(self.head(last), y)
