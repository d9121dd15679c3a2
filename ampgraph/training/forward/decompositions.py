"""What a torch module is taken apart into before its export, where ONNX has no operator that trains; and gradients that
it takes inside of forward, as gradient penalties do.

Everything else stays whole: torch's own table would take norms and losses apart too. This file imports torch: only the
export does so with it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

Tensor = torch.Tensor
Function = Callable[..., Any]
Apart = tuple[Function, Callable[[torch.fx.Node], bool]]
aten = torch.ops.aten
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
WHOLE = ("lstm", "gru")  # what torch's exporter has an ONNX operator for
NEVER = -1e30  # the logarithm of a chance of 0: of -inf no gradient comes back


def decomposed(program: torch.export.ExportedProgram, unroll: bool = False) -> torch.export.ExportedProgram:
    """A torch program with these operators written out; itself where it has none of them."""
    table, chosen = _table(unroll), dict[object, Function]()
    for node in program.graph.nodes:
        if _is_fourier(node):
            chosen |= FOURIER | {node.target: _torch_composition(node.target)}
        elif node.target in table:
            function, wanted = table[node.target]
            if wanted(node):
                chosen[node.target] = function
    return program.run_decompositions(chosen) if chosen else program


def _torch_composition(target: Any) -> Function:
    """torch's own composition of an operator; to be called directly, as `run_decompositions` would look it up in this
    table again."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *args, **named: target._op_dk(composite, *args, **named)


def _is_fourier(node: torch.fx.Node) -> bool:
    """Whether a node is one of torch.fft's functions, which are made of the three that are written out here."""
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and str(target).startswith("aten.fft_")


def _table(unroll: bool) -> dict[object, Apart]:
    """Operator of torch -> the function that it is written out as before export, and which of its nodes need it."""
    layers = [getattr(aten, name).input for name in RECURRENT]
    made = get_decompositions([*layers, aten.grid_sampler_2d])
    table: dict[object, Apart] = {}
    for name, operator in zip(RECURRENT, layers, strict=True):
        table[operator] = by_layers(made[operator]), is_projected if name in WHOLE and not unroll else _always
    plane = made[aten.grid_sampler_2d.default]
    table[aten.grid_sampler_2d.default] = plane, _always
    table[aten.grid_sampler.default] = _in_the_plane(plane), _always
    table[aten.cross_entropy_loss.default] = _torch_composition(aten.cross_entropy_loss.default), _is_smoothed
    table[aten.ctc_loss.Tensor] = table[aten.ctc_loss.IntList] = ctc_loss, _always
    table[aten.cdist.default] = cdist, _always
    table[aten._cdist_forward.default] = cdist, _always
    table[aten.embedding_bag.padding_idx] = table[aten.embedding_bag.default] = embedding_bag, _always
    table[aten.scatter_reduce.two] = scatter_reduce, _always
    table[aten.scaled_dot_product_attention.default] = plain_attention, _without_heads
    grouped = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if grouped is not None:
        table[grouped.default] = grouped_products, _always
    return table


def _in_the_plane(plane: Function) -> Function:
    """grid_sample by ``plane`` for pictures; for volumes torch's exporter has its own."""

    def run(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Any:
        return plane(x, grid, mode, padding, corners) if x.dim() == 4 else NotImplemented

    return run


def _always(node: torch.fx.Node) -> bool:
    """Every node of an operator of torch's graph is written out."""
    return True


def _is_smoothed(node: torch.fx.Node) -> bool:
    """Whether a cross entropy of torch's graph is one that ONNX does not know: smoothed, or of shares of classes."""
    target: Any = node.args[1]
    smoothing = node.args[5] if len(node.args) > 5 else node.kwargs.get("label_smoothing", 0.0)
    return bool(smoothing or target.meta["val"].is_floating_point())


def _without_heads(node: torch.fx.Node) -> bool:
    """Whether an attention has no axis of heads, which torch's exporter needs."""
    query: Any = node.args[0]
    return bool(query.meta["val"].dim() != 4)


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *more: Any,
    **named: Any,
) -> Any:
    """Attention of [batch, length, size] as that of one head: torch's exporter takes four axes only."""
    if query.dim() != 3:
        return NotImplemented
    wide = None if mask is None else mask.unsqueeze(1) if mask.dim() == 3 else mask
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, wide, *more, **named).squeeze(1)


def grouped_products(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x[n] weight[g], where g is the group that row n lies in: rows are sorted by group, and ``ends`` says where each
    group ends. What lies behind the last end is 0."""
    group = (torch.arange(x.shape[0], device=x.device)[:, None] >= ends).sum(1)
    inside = group < len(weight)
    own = weight[torch.where(inside, group, 0)]
    return torch.where(inside[:, None], torch.bmm(x.unsqueeze(1), own).squeeze(1), 0.0)


def cdist(one: Tensor, other: Tensor, p: float = 2.0, mode: int | None = None) -> Tensor:
    """Whether an LSTM of torch's graph has a state narrower than its cell, for which ONNX has no form."""
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


def is_projected(node: torch.fx.Node) -> bool:
    """Whether an LSTM of torch's graph has a state narrower than its cell, which ONNX has no form for."""
    states: Any = node.args[1]
    return isinstance(states, (list, tuple)) and len({state.meta["val"].shape[2] for state in states}) > 1


def by_layers(whole: Callable[..., Any]) -> Callable[..., Any]:
    """An LSTM of several layers as one of each, with Dropout between: torch 2.13's decomposition leaves that out."""

    def run(
        x: Tensor,
        states: Any,
        weights: Sequence[Tensor],
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
            own = states[rows] if isinstance(states, Tensor) else [state[rows] for state in states]
            part = weights[layer * each : (layer + 1) * each]
            x, *last = whole(x, own, part, biases, 1, 0.0, train, bidirectional, batch_first)
            made.append(last)
            if layer < layers - 1:
                x = torch.dropout(x, dropout, True)
        return (x, *(torch.cat(parts) for parts in zip(*made, strict=True)))

    return run


def scatter_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """torch's scatter_reduce by sums and counts: its exporter is wrong for means, and without ``include_self``."""
    if reduce == "mean":
        return _scattered_mean(x, axis, index, source, include_self)
    if include_self or reduce not in ("amax", "amin"):
        return NotImplemented
    worst = -torch.inf if reduce == "amax" else torch.inf
    start = torch.where(_hits_by_place(x, axis, index, source) > 0, worst, x)
    return torch.scatter_reduce(start, axis, index, source, reduce, include_self=True)


def _scattered_mean(x: Tensor, axis: int, index: Tensor, source: Tensor, include_self: bool) -> Tensor:
    """scatter_reduce by mean: sums divided by how many numbers each place gets."""
    hits = _hits_by_place(x, axis, index, source)
    if include_self:
        return x.scatter_add(axis, index, source) / (hits + 1)
    start = torch.where(hits > 0, 0.0, x)
    return start.scatter_add(axis, index, source) / hits.clamp(min=1)


def _hits_by_place(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """How many numbers each place of scatter_reduce's result gets."""
    return torch.zeros_like(x).scatter_add(axis, index, torch.ones_like(source))


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: Tensor | None = None,
    include_last_offset: bool = False,
    padding: int | None = -1,
) -> tuple[Tensor, ...]:
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


# -- CTC, for which torch's exporter has no form ----------------------------------------------------------------------


def ctc_loss(
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor | Sequence[int],
    letters: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """torch's ctc_loss of logarithms [T, N, C], step by step: the chance of each prefix of the labels, blanks between.

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


# -- Fourier transforms: ONNX's DFT has no CUDA kernel -----------------------------------------------------------------


def real_to_complex(x: Tensor, axes: Sequence[int], scaling: int, onesided: bool) -> Tensor:
    """torch's _fft_r2c (the Fourier transform of real numbers) as products with cosines and sines; the last of the axes
    is that of real numbers."""
    *others, last = (axis % x.dim() for axis in axes)
    size = int(x.shape[last])
    cosines, sines = _cosines_and_sines(size, size // 2 + 1 if onesided else size)
    pair = _product_along(x, last, cosines), -_product_along(x, last, sines)
    pair = _fourier(pair, others, forward=True)
    return _as_complex(pair, _fft_scale(x, axes, scaling))


def complex_to_complex(x: Tensor, axes: Sequence[int], scaling: int, forward: bool) -> Tensor:
    """torch's _fft_c2c as products with cosines and sines, axis by axis."""
    return _as_complex(
        _fourier(_real_and_imaginary(x), [axis % x.dim() for axis in axes], forward), _fft_scale(x, axes, scaling)
    )


def complex_to_real(x: Tensor, axes: Sequence[int], scaling: int, size: int) -> Tensor:
    """torch's _fft_c2r (back to real numbers): the last axis has one half of the frequencies, the other is its mirror
    image."""
    *others, last = (axis % x.dim() for axis in axes)
    count, size = size // 2 + 1, int(size)
    real, imaginary = (part.narrow(last, 0, count) for part in _fourier(_real_and_imaginary(x), others, forward=False))
    twice = torch.where((2 * torch.arange(count)) % size == 0, 1.0, 2.0).unsqueeze(1)
    cosines, sines = (wave.T * twice for wave in _cosines_and_sines(size, count))
    made = _product_along(real, last, cosines) - _product_along(imaginary, last, sines)
    return made * _fft_scale(made, axes, scaling)


def padded_complex(x: Tensor, amounts: Sequence[int], value: float = 0.0) -> Any:
    """A complex tensor with zeros around it (torch's constant_pad_nd)."""
    if not x.is_complex():
        return NotImplemented
    return torch.view_as_complex(torch.constant_pad_nd(torch.view_as_real(x), [0, 0, *amounts], value).contiguous())


def _cosines_and_sines(size: int, count: int) -> tuple[Tensor, Tensor]:
    """torch's Fourier transforms: cos and sin of 2 pi n k / size, each [size, count]."""
    steps = torch.arange(size).unsqueeze(1) * torch.arange(count) % size
    angles = steps.to(torch.float32) * (2 * math.pi / size)
    return angles.cos(), angles.sin()


def _product_along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """torch's Fourier transforms: the product of one axis of a tensor with a matrix."""
    return (x.transpose(axis, -1) @ matrix).transpose(axis, -1)


def _real_and_imaginary(x: Tensor) -> tuple[Tensor, Tensor]:
    """torch's Fourier transforms: a complex tensor as two real ones."""
    real, imaginary = torch.view_as_real(x).unbind(-1)
    return real, imaginary


def _as_complex(pair: tuple[Tensor, Tensor], factor: float) -> Tensor:
    """torch's Fourier transforms: two real tensors, times a factor, as a complex one."""
    return torch.view_as_complex(torch.stack([part * factor for part in pair], -1))


def _fourier(pair: tuple[Tensor, Tensor], axes: Sequence[int], forward: bool) -> tuple[Tensor, Tensor]:
    """As torch computes it: the Fourier transform over some axes of a complex tensor in two real parts; ``forward``:
    with exp(-i)."""
    real, imaginary = pair
    for axis in axes:
        size = int(real.shape[axis])
        cosines, sines = _cosines_and_sines(size, size)
        sines = -sines if forward else sines
        parts = [_product_along(part, axis, wave) for part in (real, imaginary) for wave in (cosines, sines)]
        real, imaginary = parts[0] - parts[3], parts[1] + parts[2]
    return real, imaginary


def _fft_scale(x: Tensor, axes: Sequence[int], scaling: int) -> float:
    """The factor of a Fourier transform by torch's number: 0 none, 1 one over the root of the size, 2 one over the
    size."""
    size = math.prod(int(x.shape[axis]) for axis in axes)
    return (1.0, size**-0.5, 1.0 / size)[scaling]


FOURIER: dict[object, Function] = {
    aten._fft_r2c.default: real_to_complex,
    aten._fft_c2c.default: complex_to_complex,
    aten._fft_c2r.default: complex_to_real,
    aten.constant_pad_nd.default: padded_complex,
}


# -- gradients inside of forward ---------------------------------------------------------------------------------------


class GradientsWritten(torch.nn.Module):
    """A traced function under the names that its parameters had."""

    def __init__(self, traced: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> None:
        super().__init__()
        self.names = list(parameters)
        for name, parameter in parameters.items():
            *path, last = name.split(".")
            holder: torch.nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, torch.nn.Module())
                holder = holder.get_submodule(part)
            holder.register_parameter(last, parameter)
        self.add_module("traced by make_fx", traced)

    def forward(self, *args: object) -> object:
        """Runs the traced function on the module's own parameters."""
        parameters = [self.get_parameter(name) for name in self.names]
        return self.get_submodule("traced by make_fx")(parameters, *args)


def with_gradients_written(module: torch.nn.Module, args: Sequence[object]) -> GradientsWritten:
    """The module with its gradients written out, for inputs of any sizes; it computes with the same parameters.

    For modules without buffers: what one does to them would be lost.
    """
    parameters = dict(module.named_parameters())

    def function(values: Sequence[Tensor], *given: object) -> object:
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), given)

    table: Any = core_aten_decompositions()
    values = list(parameters.values())
    with torch.enable_grad():
        traced = make_fx(function, decomposition_table=table, tracing_mode="symbolic")(values, *args)
    return GradientsWritten(traced, parameters)


def input_names(module: torch.nn.Module) -> list[str]:
    """What a torch module's forward calls its arguments."""
    return list(inspect.signature(module.forward).parameters)
