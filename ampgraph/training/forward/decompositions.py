"""Decompositions of torch's operators before an export for training, where ONNX has no operator, or none that trains;
and gradients that a module takes inside of its forward, as gradient penalties do, written out.

Everything else stays whole: torch's own table would take norms and losses apart too. A decomposition that returns
NotImplemented leaves its node as it is. This file imports torch, so the export alone imports this file.
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
Decomposition = tuple[Function, Callable[[torch.fx.Node], bool]]
"""The function that an operator is written out as, and which of its nodes need it."""
aten = torch.ops.aten
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
WHOLE = ("lstm", "gru")  # what torch's exporter has an ONNX operator for
NEVER = -1e30  # the logarithm of a probability of 0: -inf would make NaN of gradients


def decomposed(program: torch.export.ExportedProgram, unroll: bool = False) -> torch.export.ExportedProgram:
    """A torch program with the operators of this file written out; itself for none. ``unroll``: LSTM and GRU too."""
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
    """torch's own decomposition of an operator of its graph, called directly: `run_decompositions` would otherwise look
    the operator up in this file's table again."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *args, **named: target._op_dk(composite, *args, **named)


def _is_fourier(node: torch.fx.Node) -> bool:
    """Whether a node is one of torch.fft's functions, which are made of the three that are written out here."""
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and str(target).startswith("aten.fft_")


def _table(unroll: bool) -> dict[object, Decomposition]:
    """Operator of torch's graph -> its decomposition before export; ``unroll`` as in `decomposed`."""
    layers = [getattr(aten, name).input for name in RECURRENT]
    of_torch = get_decompositions([*layers, aten.grid_sampler_2d])
    table: dict[object, Decomposition] = {}
    for name, operator in zip(RECURRENT, layers, strict=True):
        stays_whole = name in WHOLE and not unroll
        table[operator] = layer_by_layer(of_torch[operator]), is_projected if stays_whole else _every_node
    of_pictures = of_torch[aten.grid_sampler_2d.default]
    table[aten.grid_sampler_2d.default] = of_pictures, _every_node
    table[aten.grid_sampler.default] = _only_pictures(of_pictures), _every_node
    table[aten.cross_entropy_loss.default] = _torch_composition(aten.cross_entropy_loss.default), _is_smoothed
    table[aten.ctc_loss.Tensor] = table[aten.ctc_loss.IntList] = ctc_loss, _every_node
    table[aten.cdist.default] = cdist, _every_node
    table[aten._cdist_forward.default] = cdist, _every_node
    table[aten.embedding_bag.padding_idx] = table[aten.embedding_bag.default] = embedding_bag, _every_node
    table[aten.scatter_reduce.two] = scatter_reduce, _every_node
    table[aten.scaled_dot_product_attention.default] = attention_of_one_head, _has_no_heads
    grouped = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if grouped is not None:
        table[grouped.default] = grouped_products, _every_node
    return table


def _only_pictures(of_pictures: Function) -> Function:
    """torch's grid_sampler by ``of_pictures``, its decomposition for pictures [B, C, H, W], not volumes."""

    def sample(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Any:
        return of_pictures(x, grid, mode, padding, corners) if x.dim() == 4 else NotImplemented

    return sample


def _every_node(node: torch.fx.Node) -> bool:
    """For an operator of torch's graph of which every node is written out: True."""
    return True


def _is_smoothed(node: torch.fx.Node) -> bool:
    """Whether a cross entropy of torch's graph is one that ONNX does not have: smoothed, or of probabilities."""
    target: Any = node.args[1]
    smoothing = node.args[5] if len(node.args) > 5 else node.kwargs.get("label_smoothing", 0.0)
    return bool(smoothing) or bool(target.meta["val"].is_floating_point())


def _has_no_heads(node: torch.fx.Node) -> bool:
    """Whether an attention of torch's graph has no axis of heads, which torch's exporter needs."""
    query: Any = node.args[0]
    return bool(query.meta["val"].dim() != 4)


def attention_of_one_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *more: Any,
    **named: Any,
) -> Any:
    """torch's scaled_dot_product_attention of [batch, length, size] as that of one head, [batch, 1, length, size]:
    torch's exporter takes four axes only. ``more``, ``named``: its other arguments."""
    if query.dim() != 3:
        return NotImplemented
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, *more, **named).squeeze(1)


def grouped_products(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """transformers' grouped_mm (experts of a mixture): row n of ``x`` [N, I] times the matrix of its group in
    ``weight`` [G, I, O], [N, O]. Rows are sorted by group, each up to its ``ends`` [G]; rows behind give 0."""
    group = (torch.arange(x.shape[0], device=x.device)[:, None] >= ends).sum(1)
    inside = group < len(weight)
    own = weight[torch.where(inside, group, 0)]
    return torch.where(inside[:, None], torch.bmm(x.unsqueeze(1), own).squeeze(1), 0.0)


def cdist(one: Tensor, other: Tensor, p: float = 2.0, mode: int | None = None) -> Tensor:
    """torch's cdist in operators that ONNX has: the distance in the p-norm of each row of ``one`` [..., P, M] from each
    row of ``other`` [..., R, M], as [..., P, R]. Equal rows get the gradient 0, as in torch. ``mode`` has no effect."""
    difference = one.unsqueeze(-2) - other.unsqueeze(-3)
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)
    if p == 1:
        return difference.abs().sum(-1)
    if math.isinf(p):
        return difference.abs().amax(-1)
    sums = (difference * difference if p == 2 else difference.abs() ** p).sum(-1)
    differ = sums > 0
    safe = torch.where(differ, sums, 1.0)  # a root of 0 has no finite gradient
    return torch.where(differ, safe.sqrt() if p == 2 else safe ** (1 / p), 0.0)


def is_projected(node: torch.fx.Node) -> bool:
    """Whether an LSTM of torch's graph has a state narrower than its cell (proj_size), which ONNX's LSTM cannot have;
    false for a GRU, which has one state."""
    states: Any = node.args[1]
    return isinstance(states, (list, tuple)) and len({state.meta["val"].shape[2] for state in states}) > 1


def layer_by_layer(whole: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent operator of torch's graph, LSTM, GRU or RNN, by its decomposition ``whole``: layer by layer where
    there is Dropout between layers, which torch 2.13's decompositions leave out."""

    def decomposition(
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
        directions, last_states = 1 + bidirectional, []
        each = len(weights) // layers
        for layer in range(layers):
            rows = slice(layer * directions, (layer + 1) * directions)
            own = states[rows] if isinstance(states, Tensor) else [state[rows] for state in states]
            part = weights[layer * each : (layer + 1) * each]
            x, *last = whole(x, own, part, biases, 1, 0.0, train, bidirectional, batch_first)
            last_states.append(last)
            if layer < layers - 1:
                x = torch.dropout(x, dropout, True)
        return (x, *(torch.cat(parts) for parts in zip(*last_states, strict=True)))

    return decomposition


def scatter_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """torch's scatter_reduce where its exporter is wrong: means, by sums and counts, and maxima and minima without
    ``include_self``, where places that get something start at infinity. Any other stays as it is."""
    if reduce != "mean" and (include_self or reduce not in ("amax", "amin")):
        return NotImplemented
    hits = torch.zeros_like(x).scatter_add(axis, index, torch.ones_like(source))  # how many numbers each place gets
    if reduce == "mean" and include_self:
        return x.scatter_add(axis, index, source) / (hits + 1)
    if reduce == "mean":  # a place that gets none keeps its number
        return torch.where(hits > 0, 0.0, x).scatter_add(axis, index, source) / hits.clamp(min=1)
    worst = -torch.inf if reduce == "amax" else torch.inf
    return torch.scatter_reduce(torch.where(hits > 0, worst, x), axis, index, source, reduce, include_self=True)


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
    """torch's embedding_bag of flat ``indices``: sums (mode 0), means (1) or maxima (2) of the rows of each bag, 0 for
    an empty one. ``offsets`` say where bags start; rows ``padding`` (None or below 0: none) do not count. As in torch
    the result, the bag of each index, the size of each bag, and a fourth, which only torch's own backward reads."""
    count, size = indices.shape[0], weight.shape[1]
    starts = offsets[:-1] if include_last_offset else offsets
    begins = torch.zeros(count + 1, dtype=torch.int64).index_add(0, starts.long(), torch.ones_like(starts).long())
    bag = begins.cumsum(0)[:count] - 1
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


# -- CTC, which torch's exporter does not write -----------------------------------------------------------------------


def ctc_loss(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """torch's ctc_loss of logarithms of probabilities ``scores`` [T, N, C] and ``targets`` [N, S], step by step: the
    probability of each prefix of the labels, with blanks between them. ``reduction``: 0 none ([N]), 1 mean, 2 sum.
    Graves et al., Connectionist Temporal Classification (2006), 4.1. Raises NotImplementedError for other shapes."""
    if targets.dim() != 2 or scores.dim() != 3:
        raise NotImplementedError("ctc_loss: give targets of two axes, padded, and scores of three")
    lengths, labels = (torch.as_tensor(value).long() for value in (input_lengths, target_lengths))
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
        predecessors = [found, longer[:, 1:-1], torch.where(skips, longer[:, :-2], NEVER)]
        new = torch.stack(predecessors).logsumexp(0) + scores[step].gather(1, path)
        found = torch.where((step < lengths).unsqueeze(1), new, found)
    ends = found.gather(1, torch.stack([2 * labels, (2 * labels - 1).clamp(min=0)], 1))
    last = torch.where(labels > 0, ends[:, 1], NEVER)
    losses = -torch.logsumexp(torch.stack([ends[:, 0], last]), 0)
    if zero_infinity:
        losses = torch.where(losses > -NEVER / 2, 0.0, losses)
    if reduction == 0:
        return losses
    return (losses / labels.clamp(min=1)).mean() if reduction == 1 else losses.sum()


# -- Fourier transforms: ONNX's DFT has no CUDA kernel -----------------------------------------------------------------


def real_to_complex(x: Tensor, axes: Sequence[int], scaling: int, onesided: bool) -> Tensor:
    """torch's _fft_r2c (the Fourier transform of real numbers) as products with cosines and sines. The last of ``axes``
    is transformed first, and is the one of which ``onesided`` keeps only the first half of the frequencies."""
    *others, last = (axis % x.dim() for axis in axes)
    size = int(x.shape[last])
    cosines, sines = _cosines_and_sines(size, size // 2 + 1 if onesided else size)
    pair = _product_along(x, last, cosines), -_product_along(x, last, sines)
    pair = _fourier(pair, others, forward=True)
    return _as_complex(pair, _fft_scale(x, axes, scaling))


def complex_to_complex(x: Tensor, axes: Sequence[int], scaling: int, forward: bool) -> Tensor:
    """torch's _fft_c2c (the Fourier transform of complex numbers) as products with cosines and sines, axis by axis;
    ``forward`` as in `_fourier`, ``scaling`` as in `_fft_scale`."""
    return _as_complex(
        _fourier(_real_and_imaginary(x), [axis % x.dim() for axis in axes], forward), _fft_scale(x, axes, scaling)
    )


def complex_to_real(x: Tensor, axes: Sequence[int], scaling: int, size: int) -> Tensor:
    """torch's _fft_c2r (the inverse Fourier transform to real numbers) as products with cosines and sines. The last of
    ``axes`` holds half of the frequencies, of which the others are the mirror image; it gets ``size`` numbers."""
    *others, last = (axis % x.dim() for axis in axes)
    count, size = size // 2 + 1, int(size)
    real, imaginary = (part.narrow(last, 0, count) for part in _fourier(_real_and_imaginary(x), others, forward=False))
    twice = torch.where((2 * torch.arange(count)) % size == 0, 1.0, 2.0).unsqueeze(1)
    cosines, sines = (wave.T * twice for wave in _cosines_and_sines(size, count))
    made = _product_along(real, last, cosines) - _product_along(imaginary, last, sines)
    return made * _fft_scale(made, axes, scaling)


def padded_complex(x: Tensor, amounts: Sequence[int], value: float = 0.0) -> Any:
    """torch's constant_pad_nd of a complex tensor, by its parts; a real one stays as it is."""
    if not x.is_complex():
        return NotImplemented
    return torch.view_as_complex(torch.constant_pad_nd(torch.view_as_real(x), [0, 0, *amounts], value).contiguous())


def _cosines_and_sines(size: int, count: int) -> tuple[Tensor, Tensor]:
    """torch's Fourier transforms: cos and sin of 2 pi n k / size, each [size, count], n along the first axis."""
    steps = torch.arange(size).unsqueeze(1) * torch.arange(count) % size
    angles = steps.to(torch.float32) * (2 * math.pi / size)
    return angles.cos(), angles.sin()


def _product_along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """torch's Fourier transforms: a tensor with one axis multiplied by a matrix [size, new size]."""
    return (x.transpose(axis, -1) @ matrix).transpose(axis, -1)


def _real_and_imaginary(x: Tensor) -> tuple[Tensor, Tensor]:
    """torch's Fourier transforms: a complex tensor as two real ones."""
    real, imaginary = torch.view_as_real(x).unbind(-1)
    return real, imaginary


def _as_complex(pair: tuple[Tensor, Tensor], factor: float) -> Tensor:
    """torch's Fourier transforms: two real tensors, times a factor, as a complex one."""
    return torch.view_as_complex(torch.stack([part * factor for part in pair], -1))


def _fourier(pair: tuple[Tensor, Tensor], axes: Sequence[int], forward: bool) -> tuple[Tensor, Tensor]:
    """torch's Fourier transforms: that of a complex tensor, (real, imaginary), over ``axes``, not scaled; ``forward``:
    by exp(-i ...), else by exp(i ...)."""
    real, imaginary = pair
    for axis in axes:
        size = int(real.shape[axis])
        cosines, sines = _cosines_and_sines(size, size)
        sines = -sines if forward else sines
        parts = [_product_along(part, axis, wave) for part in (real, imaginary) for wave in (cosines, sines)]
        real, imaginary = parts[0] - parts[3], parts[1] + parts[2]
    return real, imaginary


def _fft_scale(x: Tensor, axes: Sequence[int], scaling: int) -> float:
    """torch's Fourier transforms: the factor for ``scaling``: 0 none, 1 size^-0.5, 2 1 / size of ``axes``."""
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
    """A torch module that runs a traced function on parameters of its own, under the names that they had."""

    def __init__(self, traced: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> None:
        """``traced`` takes a list of the parameters in the order of ``parameters``, then forward's arguments."""
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
        """Runs the traced function on the torch module's own parameters."""
        parameters = [self.get_parameter(name) for name in self.names]
        return self.get_submodule("traced by make_fx")(parameters, *args)


def with_gradients_written(module: torch.nn.Module, args: Sequence[object]) -> GradientsWritten:
    """A torch module whose forward takes gradients, with these written out, for inputs of any sizes; it has the same
    parameters. Only for a module without buffers: changes of them would be lost. ``args``: examples."""
    parameters = dict(module.named_parameters())

    def function(values: Sequence[Tensor], *given: object) -> object:
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), given)

    table: Any = core_aten_decompositions()
    values = list(parameters.values())
    with torch.enable_grad():
        traced = make_fx(function, decomposition_table=table, tracing_mode="symbolic")(values, *args)
    return GradientsWritten(traced, parameters)


def input_names(module: torch.nn.Module) -> list[str]:
    """The names of the arguments of a torch module's forward."""
    return list(inspect.signature(module.forward).parameters)
