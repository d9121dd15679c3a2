"""What a traced torch module is taken apart into before its export, where ONNX has no operator that trains.

nn.RNN becomes its steps, grid_sample gathers and weights, cross entropy with label smoothing its sums. LSTM and GRU
stay whole unless they are to be unrolled, or ONNX has no form for them. So does everything else: torch's own table
would take norms and losses apart too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
WHOLE = ("lstm", "gru")  # what torch's exporter has an ONNX operator for
Function = Callable[..., Any]


def decomposed(
    torch: ModuleType, program: torch.export.ExportedProgram, unroll: bool = False
) -> torch.export.ExportedProgram:
    """The program with these operators written out; the same where it has none of them."""
    table, aten = _table(torch), torch.ops.aten
    whole = () if unroll else tuple(getattr(aten, name).input for name in WHOLE)
    smooth, chosen = aten.cross_entropy_loss.default, {}
    for node in program.graph.nodes:
        if node.target in table and (node.target not in whole or _is_projected(node)):
            chosen[node.target] = table[node.target]
        if node.target is smooth and _smoothing(node):
            chosen[smooth] = _cross_entropy(torch)
    return program.run_decompositions(chosen) if chosen else program


def _is_projected(node: torch.fx.Node) -> bool:
    """An LSTM whose state is narrower than its cell, which ONNX has no form for."""
    states: Any = node.args[1]
    if not isinstance(states, (list, tuple)):
        return False
    widths = [state.meta["val"].shape[2] for state in states]
    return len(set(widths)) > 1


def _table(torch: ModuleType) -> dict[object, Function]:
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    names = [getattr(aten, name).input for name in RECURRENT]
    made = get_decompositions([*names, aten.grid_sampler_2d])
    table = {name: _by_layers(torch, made[name]) for name in names}
    plane = made[aten.grid_sampler_2d.default]
    table[aten.grid_sampler_2d.default] = plane
    table[aten.grid_sampler.default] = _sampled(torch, plane)
    return table


def _by_layers(torch: ModuleType, whole: Function) -> Function:
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


def _sampled(torch: ModuleType, plane: Function) -> Function:
    """grid_sample in the plane by bilinear or nearest numbers; other forms are left to the exporter."""

    def run(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, corners: bool) -> Any:
        return plane(x, grid, mode, padding, corners) if x.dim() == 4 else NotImplemented

    return run


def _smoothing(node: torch.fx.Node) -> float:
    return float(node.args[5] if len(node.args) > 5 else node.kwargs.get("label_smoothing", 0.0))  # type: ignore[arg-type]


def _cross_entropy(torch: ModuleType) -> Function:
    """As torch defines it: (1 - e) times the loss, and e times the mean over all classes."""

    def run(
        scores: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        reduction: int = 1,
        ignored: int = -100,
        smoothing: float = 0.0,
    ) -> torch.Tensor:
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

    return run
