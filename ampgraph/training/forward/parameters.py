"""Which initializers of a forward graph are trained."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, nearest
from ...formats.onnx.nodes import kind_of
from ...oplists.traits import has, traits
from .read import FLOATS, signature


def find_parameters(model: ir.Model, freeze: Sequence[str] = ()) -> list[ir.Value]:
    """The initializers that are trained: all parameters (`parameter_names`) but those that ``freeze`` matches.

    Raises AmpError AMP305 for a pattern that matches nothing, AMP211 for a parameter that the exporter named and the
    graph does not hold, AMP205 for one that is not float32.
    """
    stored, frozen = _float_initializers(model.graph), frozen_names(model, freeze)
    trained = [name for name in parameter_names(model) if name not in frozen]
    missing = [name for name in trained if name not in stored]
    if missing:
        message = (
            f"parameter '{missing[0]}' is not in the graph: nothing reads it, or an exporter merged it with another one"
        )
        raise AmpError("AMP211", message, hint="export with ampgraph.export_for_training, or --freeze it")
    if not trained:
        raise AmpError("AMP211", "nothing is left to train", hint="freeze less, or export the model with its weights")
    for name in trained:
        if stored[name].const_value.dtype != ir.DataType.FLOAT:  # type: ignore[union-attr]
            message = f"parameter '{name}' is stored low: an optimizer needs float32"
            raise AmpError("AMP205", message, hint="build the step from the float32 model")
    return [stored[name] for name in trained]


def frozen_names(model: ir.Model, freeze: Sequence[str]) -> set[str]:
    """The initializers, parameters and buffers that a pattern matches.

    Raises AmpError AMP305 for one that matches nothing.
    """
    buffers = re.findall(r"\bBUFFER target='([^']*)'", signature(model))
    known = list(dict.fromkeys([*_float_initializers(model.graph), *_listed_parameters(model), *buffers]))
    return {name for pattern in freeze for name in _matches(pattern, known)}


def _float_initializers(graph: ir.Graph) -> dict[str, ir.Value]:
    """The float initializers that are no inputs."""
    return {
        value.name or "": value
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype in FLOATS and not value.is_graph_input()
    }


def _matches(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that a pattern of --freeze matches. Raises AmpError AMP305 for none."""
    hits = fnmatch.filter(names, pattern)
    if not hits:
        hint = nearest(pattern, list(names)) or f"there are: {', '.join(names[:8])}"
        raise AmpError("AMP305", f"--freeze {pattern} matches no parameter", hint=hint)
    return hits


# -- which initializers are parameters --------------------------------------------------------------------------------


def parameter_names(model: ir.Model) -> list[str]:
    """What torch's exporter calls a parameter, where the file has its list.

    Elsewhere every float initializer with a dimension is one, except for

    - running statistics, and what is only read where no gradient goes: bounds, sizes, comparisons (the trait
      without_gradient);
    - a tensor with a number of 1e4 or more, or with inf or NaN: a mask;
    - what is only subtracted from the data of a graph input or divides it: a normalization;
    - a single number, unless it is a weight of a product, a convolution, a norm or PRelu, or is added to the result
      of a product or a convolution.
    """
    named, stored = _listed_parameters(model), _float_initializers(model.graph)
    if named:
        return named
    data = _raw_data(model.graph)
    return [name for name, value in stored.items() if _is_parameter(value, data)]


LARGE = 1e4  # -1e4, -1e9 and -inf leave a place out of a softmax; weights are far smaller


def _is_parameter(value: ir.Value, data: set[ir.Value]) -> bool:
    """Whether training would move a stored tensor: it is no statistic, shape, mask or constant."""
    tensor, reads = value.const_value, list(_readers_through_views(value))
    if tensor is None or len(tensor.shape) == 0 or tensor.size == 0:
        return False
    if any(node.op_type == "BatchNormalization" and index in (3, 4) for node, index in reads):
        return False
    if reads and all(_gets_no_gradient(node, index) or _normalizes(node, index, data) for node, index in reads):
        return False
    if tensor.size == 1 and not any(_is_learnt_number(node, index) for node, index in reads):
        return False
    return bool(np.abs(tensor.numpy()).max() < LARGE)


def _gets_no_gradient(node: ir.Node, index: int) -> bool:
    """Whether an input steers a node and gets no gradient: a shape, an axis, a condition."""
    return traits().at(kind_of(node), "without_gradient", index)


def _readers_through_views(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that read a value or a view of it, each with the place of the input."""
    for node, index in value.uses():
        if has(kind_of(node), "keeps_all") and index == 0 and not node.outputs[0].is_graph_output():
            yield from _readers_through_views(node.outputs[0])
        else:
            yield node, index


def _raw_data(graph: ir.Graph) -> set[ir.Value]:
    """Graph inputs, and what is made of them by views, shifts and divisions: still the model's raw data."""
    found = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        kept = has(kind_of(node), "keeps_all") or has(kind_of(node), "normalizes")
        if kept and node.inputs[0] in found and all(value is None or _is_stored(value) for value in node.inputs[1:]):
            found.update(node.outputs)
    return found


def _is_stored(value: ir.Value) -> bool:
    """Whether a value is an initializer or made by a Constant."""
    return ir.convenience.get_const_tensor(value) is not None


def _normalizes(node: ir.Node, index: int, data: set[ir.Value]) -> bool:
    """Whether a stored tensor is what raw data is shifted or divided by (a mean of pixels), and no parameter."""
    return has(kind_of(node), "normalizes") and index == 1 and node.inputs[0] in data


def _is_learnt_number(node: ir.Node, index: int) -> bool:
    """Whether a stored single number is learnt at this operand: of a product, as a scale, or added to a product's
    result."""
    if has(kind_of(node), "products") or traits().at(kind_of(node), "learnt_scales", index):
        return True
    other = node.inputs[1 - index] if node.op_type == "Add" else None
    maker = None if other is None else other.producer()
    return maker is not None and has(kind_of(maker), "products")


def _listed_parameters(model: ir.Model) -> list[str]:
    """The names of parameters by the exporter's own list; empty where the file has none."""
    return re.findall(r"\bPARAMETER target='([^']*)'", signature(model))
