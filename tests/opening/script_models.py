"""Recurrent layers and encoders with the batch first, as TorchScript writes them, with a Linear behind them."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path

import onnx
import torch
from torch import nn


class Recurrent(nn.Module):
    """A recurrent layer, and what reads all its states."""

    def __init__(self, kind: str, bidirectional: bool = False) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(12, 16, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(16 * (1 + bidirectional), 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0])


class Encoder(nn.Module):
    """Two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


MODELS = {
    "lstm": lambda: Recurrent("LSTM"),
    "gru": lambda: Recurrent("GRU"),
    "rnn": lambda: Recurrent("RNN"),
    "bilstm": lambda: Recurrent("LSTM", bidirectional=True),
    "encoder": Encoder,
}


@cache
def scripted(name: str) -> onnx.ModelProto:
    """A model with sizes of batch and sequence that are open."""
    torch.manual_seed(0)
    open_sizes = {0: "batch", 1: "length"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "model.onnx")
        torch.onnx.export(
            MODELS[name]().eval(), (torch.randn(2, 5, 12),), path, dynamo=False, opset_version=17,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": open_sizes, "y": open_sizes},
        )  # fmt: skip
        return onnx.load(path)
