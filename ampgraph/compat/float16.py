"""What the two float16 converters that ONNX users know have in common: their arguments in the words of a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..api.convert import convert
from ..core.arrays import Array
from ..core.errors import AmpError
from ..core.selection import matched_ops
from ..formats.adapters import load
from ..formats.onnx.io import read_proto

SMALLEST, LARGEST = 2.0**-24, 65504.0  # of float16
DEFAULT_OP_BLOCK_LIST: list[str] = []
"""Operators that stay float32 besides those that ampgraph's lists hold: none, so that a longer list of a caller who
starts from this one means what it says."""


class NotConverted(AmpError, ValueError):
    """What the original functions raise ValueError for."""


class CompatWarning(UserWarning):
    """An argument of the original function that means something else here, and what is done instead."""


def convert_with_lists(
    model: onnx.ModelProto | str | Path,
    *,
    min_positive_val: float | None,
    max_finite_val: float | None,
    keep_io_types: bool | list[str],
    op_block_list: Collection[str] | None,
    node_block_list: Collection[str] | None,
    options: Mapping[str, object],
) -> onnx.ModelProto:
    """For another converter's function: a copy of a model in float16, with what is blocked in float32.
    ``min_positive_val``, ``max_finite_val``: weights of nodes that are not blocked are clamped to these magnitudes,
    None for no limit; ``options``: of `convert`. Raises AmpError as `convert`, NotConverted for wrong arguments. To be
    called by the public function itself: warnings name its caller."""
    if not isinstance(model, (onnx.ModelProto, str, Path)):
        raise NotConverted("AMP301", f"expected an onnx.ModelProto, not {type(model).__name__}", hint="give one")
    smallest, largest = min_positive_val or 0.0, np.inf if max_finite_val is None else max_finite_val
    if not 0 <= smallest <= largest:
        message = f"numbers cannot be clamped to {smallest:g} .. {largest:g}"
        raise NotConverted("AMP301", message, hint="0 <= min_positive_val <= max_finite_val")
    for name, names in (("op_block_list", op_block_list), ("node_block_list", node_block_list)):
        if isinstance(names, str):
            raise NotConverted("AMP301", f"{name} is a text, not a list of names", hint=f"{name}=[{names!r}]")
    proto = load_whole(model)
    ops, nodes = set(op_block_list or ()), set(node_block_list or ())
    missing = sorted(nodes - {node.name for node in _all_nodes(proto)})
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        _warn_caller(f"node_block_list: the model has no node {', '.join(missing[:3])}{more}")
    if min_positive_val is not None or max_finite_val is not None:
        proto = _clamp_weights(proto, ops, nodes, smallest, largest)
    held = _block_patterns(proto, ops, nodes - set(missing) - {""}) if ops or nodes else []
    words: dict[str, Any] = {"check": "off", "keep_io_types": keep_io_types, **options}
    given = words.get("fp32", ())
    words["fp32"] = [*held, *([given] if isinstance(given, str) else given)]
    return cast(onnx.ModelProto, convert(proto, **words))


def _block_patterns(model: onnx.ModelProto, ops: set[str], nodes: set[str]) -> list[str]:
    """For another converter's block lists: the patterns, as fp32= takes them, of operators (``op:Conv``, of any domain)
    and of nodes (their names), without those that match nothing in float32, which `convert` would refuse."""
    flow = load(model)[0].dataflow()
    patterns = [*(f"op:{prefix}{kind}" for kind in sorted(ops) for prefix in ("", "*::")), *sorted(nodes)]
    return [pattern for pattern in patterns if any(matched_ops(flow, pattern))]


def load_whole(model: onnx.ModelProto | str | Path) -> onnx.ModelProto:
    """For another converter's function: the ModelProto at a path, with its weights. Raises AMP101 to AMP103."""
    if isinstance(model, onnx.ModelProto):
        return model
    proto = read_proto(Path(model))
    onnx.load_external_data_for_model(proto, str(Path(model).parent))
    return proto


def has_float16(model: onnx.ModelProto) -> bool:
    """For another converter's function: whether a value, Cast or stored tensor of the main graph is float16 already."""
    graph = model.graph
    values = (value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info))
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    return TensorProto.FLOAT16 in {*values, *casts, *(tensor.data_type for tensor in graph.initializer)}


def convert_np_to_float16(
    np_array: Array, min_positive_val: float = SMALLEST, max_finite_val: float = LARGEST
) -> Array:
    """An array as float16, clamped to these absolute values; zeros, infinities and NaN stay. Warns where it clamps."""
    clamped = _clipped_magnitudes(np_array, min_positive_val, max_finite_val)
    changed = int(np.count_nonzero((clamped != np_array) & ~np.isnan(np_array)))
    if changed:
        message = f"{changed} of {np_array.size} numbers are clamped to {min_positive_val:g} .. {max_finite_val:g}"
        warnings.warn(message, stacklevel=2)
    return clamped.astype(np.float16)


def convert_tensor_float_to_float16(
    tensor: TensorProto, min_positive_val: float = SMALLEST, max_finite_val: float = LARGEST
) -> TensorProto:
    """Makes a float32 tensor float16 in place, clamped so; any other stays. Raises ValueError for what is no tensor."""
    if not isinstance(tensor, TensorProto):
        raise NotConverted("AMP301", f"expected an onnx.TensorProto, not {type(tensor).__name__}", hint="give one")
    if tensor.data_type == TensorProto.FLOAT:
        array = convert_np_to_float16(numpy_helper.to_array(tensor), min_positive_val, max_finite_val)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return tensor


def store_all_float16(model: onnx.ModelProto) -> None:
    """For another converter's argument: stores the float32 initializers of the main graph in float16 too, in place, a
    Cast behind each; those that are inputs or outputs, or that float16 cannot hold (with a warning), stay. To be called
    by the public function itself: warnings name its caller."""
    graph, casts = model.graph, []
    nodes = [node for part in _graph_and_bodies(graph) for node in part.node]
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    ports = {value.name for value in (*graph.input, *graph.output)}
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or tensor.name in ports:
            continue
        array = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            low = array.astype(np.float16)
        if np.isinf(low).sum() > np.isinf(array).sum():
            _warn_caller(f"force_fp16_initializers: '{tensor.name}' stays float32: float16 has no such numbers")
            continue
        wide = f"{tensor.name}_float32"
        while wide in taken:
            wide += "_"
        for node in nodes:
            node.input[:] = [wide if name == tensor.name else name for name in node.input]
        tensor.CopyFrom(numpy_helper.from_array(low, tensor.name))
        for value in graph.value_info:
            if value.name == tensor.name:
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        casts.append(helper.make_node("Cast", [tensor.name], [wide], name=wide, to=TensorProto.FLOAT))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts, *rest])


def warn_not_done(argument: str, instead: str) -> None:
    """Warns, at the caller of the public function that calls this, of what is done instead of ``argument``."""
    _warn_caller(f"{argument}: {instead}")


def _warn_caller(text: str) -> None:
    """Warns, at the line that called the public function, of an argument of another converter's function that means
    something else here. To be called by a function that the public one itself calls."""
    warnings.warn(CompatWarning(text), stacklevel=4)  # this one, its caller, the public function, the user


def _clipped_magnitudes(array: Array, smallest: float, largest: float) -> Array:
    """As another converter clamps: magnitudes clipped to ``smallest`` .. ``largest``, but for 0, inf and nan."""
    magnitudes = np.abs(array)
    stays = (magnitudes == 0) | ~np.isfinite(magnitudes)
    clipped = np.where(stays, magnitudes, np.clip(magnitudes, smallest, largest))
    return np.copysign(clipped, array).astype(array.dtype)


def _clamp_weights(
    model: onnx.ModelProto, ops: set[str], nodes: set[str], smallest: float, largest: float
) -> onnx.ModelProto:
    """For another converter's function: a copy of a model in which the float32 weights of nodes that are not blocked
    are clamped to magnitudes from ``smallest`` to ``largest``. ``ops``, ``nodes``: what is blocked."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    low = [node for node in _all_nodes(result) if node.op_type not in ops and node.name not in nodes]
    read = {name for node in low for name in node.input}
    stored = [t for graph in _graph_and_bodies(result.graph) for t in graph.initializer if t.name in read]
    stored += [a.t for node in low for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in stored:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            clipped = _clipped_magnitudes(array, smallest, largest)
            if not np.array_equal(clipped, array, equal_nan=True):
                tensor.CopyFrom(numpy_helper.from_array(clipped, tensor.name))
    return result


def _graph_and_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """For another converter's function: an ONNX graph, then the bodies of its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graph_and_bodies(attribute.g)
            for body in attribute.graphs:
                yield from _graph_and_bodies(body)


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """For another converter's function: all nodes of an ONNX model, those of bodies and functions too."""
    yield from (node for graph in _graph_and_bodies(model.graph) for node in graph.node)
    yield from (node for function in model.functions for node in function.node)
