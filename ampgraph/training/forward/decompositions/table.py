"""Which operators of a traced module are taken apart, and what for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions

from .attention import grouped_products, plain_attention
from .distances import distances
from .fourier import complex_to_complex, complex_to_real, padded, real_to_complex
from .losses import aligned, smoothed_cross_entropy
from .recurrent import RECURRENT, WHOLE, by_layers, is_projected
from .scatters import bags, scattered

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
