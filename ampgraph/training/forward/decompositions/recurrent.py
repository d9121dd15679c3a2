"""Recurrent layers as their steps: nn.RNN always, LSTM and GRU where they are to be unrolled or ONNX has no form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
WHOLE = ("lstm", "gru")  # what torch's exporter has an ONNX operator for


def is_projected(node: torch.fx.Node) -> bool:
    """An LSTM whose state is narrower than its cell, which ONNX has no form for."""
    states: Any = node.args[1]
    return isinstance(states, (list, tuple)) and len({state.meta["val"].shape[2] for state in states}) > 1


def by_layers(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Layer by layer, Dropout between them: torch 2.13's decomposition of several layers leaves it out."""

    def run(
        x: torch.Tensor,
        states: Any,
        weights: Sequence[torch.Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if layers == 1 or not train or not dropout:
            return whole(x, states, weights, biases, layers, 0.0, train, bidirectional, batch_first)
        sides, made = 1 + bidirectional, []
        each = len(weights) // layers
        for layer in range(layers):
            rows = slice(layer * sides, (layer + 1) * sides)
            own = states[rows] if isinstance(states, torch.Tensor) else [state[rows] for state in states]
            part = weights[layer * each : (layer + 1) * each]
            x, *last = whole(x, own, part, biases, 1, 0.0, train, bidirectional, batch_first)
            made.append(last)
            if layer < layers - 1:
                x = torch.dropout(x, dropout, True)
        return (x, *(torch.cat(parts) for parts in zip(*made, strict=True)))

    return run
