"""Which operators of a traced module are taken apart, and what for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions

from .fourier import complex_to_complex, complex_to_real, padded, real_to_complex
from .losses import aligned, smoothed_cross_entropy

Function = Callable[..., Any]
Apart = tuple[Function, Callable[[torch.fx.Node], bool]]
aten = torch.ops.aten


def decomposed(program: torch.export.ExportedProgram, unroll: bool = False) -> torch.export.ExportedProgram:
    """The program with these operators written out; itself where it has none of them."""
    table, chosen = _table(unroll), dict[object, Function]()
    for node in program.graph.nodes:
        if _is_fourier(node):
            chosen |= _FOURIER | {node.target: _own(node.target)}
        elif node.target in table:
            function, wanted = table[node.target]
            if wanted(node):
                chosen[node.target] = function
    return program.run_decompositions(chosen) if chosen else program


_FOURIER: dict[object, Function] = {
    aten._fft_r2c.default: real_to_complex,
    aten._fft_c2c.default: complex_to_complex,
    aten._fft_c2r.default: complex_to_real,
    aten.constant_pad_nd.default: padded,
}


def _own(target: Any) -> Function:
    """torch's composition of an operator, which `decompose` would look for in this table again."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *args, **named: target._op_dk(composite, *args, **named)


def _is_fourier(node: torch.fx.Node) -> bool:
    """One of torch.fft's functions, which are made of the three that are written out here."""
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and str(target).startswith("aten.fft_")


def _table(unroll: bool) -> dict[object, Apart]:
    """The operator, its function, and which of its nodes need it."""
    layers = [getattr(aten, name).input for name in RECURRENT]
    made = get_decompositions([*layers, aten.grid_sampler_2d])
    table: dict[object, Apart] = {}
    for name, operator in zip(RECURRENT, layers, strict=True):
        table[operator] = by_layers(made[operator]), is_projected if name in WHOLE and not unroll else _always
    plane = made[aten.grid_sampler_2d.default]
    table[aten.grid_sampler_2d.default] = plane, _always
    table[aten.grid_sampler.default] = _in_the_plane(plane), _always
    table[aten.cross_entropy_loss.default] = smoothed_cross_entropy, _is_smoothed
    table[aten.ctc_loss.Tensor] = table[aten.ctc_loss.IntList] = aligned, _always
    table[aten.cdist.default] = distances, _always
    table[aten._cdist_forward.default] = distances, _always
    table[aten.embedding_bag.padding_idx] = table[aten.embedding_bag.default] = bags, _always
    table[aten.scatter_reduce.two] = scattered, _always
    table[aten.scaled_dot_product_attention.default] = plain_attention, _without_heads
    grouped = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if grouped is not None:
        table[grouped.default] = grouped_products, _always
    return table


def _in_the_plane(plane: Function) -> Function:
    """grid_sample of images; of volumes the exporter is left to it."""

    def run(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, corners: bool) -> Any:
        return plane(x, grid, mode, padding, corners) if x.dim() == 4 else NotImplemented

    return run


def _always(node: torch.fx.Node) -> bool:
    return True


def _is_smoothed(node: torch.fx.Node) -> bool:
    """Cross entropy that ONNX's operator does not know: with label smoothing, or of shares in place of classes."""
    target: Any = node.args[1]
    smoothing = node.args[5] if len(node.args) > 5 else node.kwargs.get("label_smoothing", 0.0)
    return bool(smoothing or target.meta["val"].is_floating_point())


def _without_heads(node: torch.fx.Node) -> bool:
    query: Any = node.args[0]
    return bool(query.meta["val"].dim() != 4)


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


def distances(one: torch.Tensor, other: torch.Tensor, p: float = 2.0, mode: int | None = None) -> torch.Tensor:
    """Of all pairs of rows. The gradient of a distance of 0 is 0, as torch has it."""
    away = one.unsqueeze(-2) - other.unsqueeze(-3)
    if p == 0:
        return (away != 0).to(away.dtype).sum(-1)
    if p == 1:
        return away.abs().sum(-1)
    if math.isinf(p):
        return away.abs().amax(-1)
    sums = (away * away if p == 2 else away.abs() ** p).sum(-1)
    apart = sums > 0
    safe = torch.where(apart, sums, 1.0)
    return torch.where(apart, safe.sqrt() if p == 2 else safe ** (1 / p), 0.0)


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
