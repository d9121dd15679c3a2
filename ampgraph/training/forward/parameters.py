"""Which initializers of a forward graph are trained, and which are buffers that it updates: moving averages, counters.

torch lists both in its signature, with the output that is the new value of a buffer. A buffer that is not written back
would stay as it was exported, so one that cannot be state of the step is refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ...core.dataflow import HELD
from ...core.errors import AmpError, nearest
from ...formats.onnx.nodes import kind_of
from ...oplists.traits import has, traits
from .batch_norm import initializer_of, is_trained
from .read import FLOATS, signature, type_and_shape

if TYPE_CHECKING:
    import torch


def find_parameters(model: ir.Model, freeze: Sequence[str] = ()) -> list[ir.Value]:
    """The initializers that are trained: all parameters (`parameter_names`) but those that a pattern of ``freeze``
    matches. Raises AmpError AMP305 for a pattern that matches nothing, AMP211 for a parameter that the exporter named
    and the graph does not hold, and where nothing is left, AMP205 for one that is not float32."""
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
    """The names of what is not trained: the initializers, parameters and buffers that a pattern of ``freeze`` matches.
    Raises AmpError AMP305 for a pattern that matches nothing."""
    buffers = re.findall(r"\bBUFFER target='([^']*)'", signature(model))
    known = list(dict.fromkeys([*_float_initializers(model.graph), *_listed_parameters(model), *buffers]))
    for pattern in freeze:
        if not fnmatch.filter(known, pattern):
            hint = nearest(pattern, known) or f"there are: {', '.join(known[:8])}"
            raise AmpError("AMP305", f"--freeze {pattern} matches no parameter", hint=hint)
    return {name for pattern in freeze for name in fnmatch.filter(known, pattern)}


def _float_initializers(graph: ir.Graph) -> dict[str, ir.Value]:
    """The float initializers of a forward graph that are no inputs: what may be trained."""
    return {
        value.name or "": value
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype in FLOATS and not value.is_graph_input()
    }


# -- which initializers are parameters --------------------------------------------------------------------------------


def parameter_names(model: ir.Model) -> list[str]:
    """The names of a forward graph's parameters: by the exporter's list, where the file has it. Elsewhere every float
    initializer with a dimension is one, except for

    - running statistics, and what is only read where no gradient goes: bounds, sizes, comparisons (`without_gradient`);
    - a tensor with a number of 1e4 or more, or with inf or NaN: a mask; - what is only subtracted from the data of a
    graph input or divides it: a normalisation; - a single number, unless it is a weight of a product, a convolution, a
    norm or PRelu, or is added to the result of a product or a convolution.
    """
    named, stored = _listed_parameters(model), _float_initializers(model.graph)
    if named:
        return named
    data = _untrained_data(model.graph)
    return [name for name, value in stored.items() if _is_parameter(value, data)]


LARGE = 1e4  # -1e4, -1e9 and -inf leave a place out of a softmax; weights are far smaller


def _is_parameter(value: ir.Value, data: set[ir.Value]) -> bool:
    """Whether a stored tensor is a parameter as `parameter_names` says; ``data``: `_untrained_data`."""
    tensor, reads = value.const_value, list(_readers_through_views(value))
    if tensor is None or len(tensor.shape) == 0 or tensor.size == 0:
        return False
    if any(node.op_type == "BatchNormalization" and index in (3, 4) for node, index in reads):
        return False
    if reads and all(_steers_or_normalizes(node, index, data) for node, index in reads):
        return False
    if tensor.size == 1 and not any(_is_learnt_number(node, index) for node, index in reads):
        return False
    return bool(np.abs(tensor.numpy()).max() < LARGE)


def _steers_or_normalizes(node: ir.Node, index: int, data: set[ir.Value]) -> bool:
    """Whether a node's input ``index`` is no parameter: it gets no gradient, as a shape, an axis or a condition, or raw
    ``data`` is shifted or divided by it, as by the mean of pixels."""
    kind = kind_of(node)
    normalizes = has(kind, "normalizes") and index == 1 and node.inputs[0] in data
    return normalizes or traits().at(kind, "without_gradient", index)


def _readers_through_views(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Whether something trains: the nodes that read a value, or a view of it, each with the place of the input."""
    for node, index in value.uses():
        if has(kind_of(node), "keeps_all") and index == 0 and not node.outputs[0].is_graph_output():
            yield from _readers_through_views(node.outputs[0])
        else:
            yield node, index


def _untrained_data(graph: ir.Graph) -> set[ir.Value]:
    """What does not train: raw data, which are graph inputs and what is computed from them by views, and by shifts and
    divisions by stored numbers alone."""
    found = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        kept = has(kind_of(node), "keeps_all") or has(kind_of(node), "normalizes")
        others = (value for value in node.inputs[1:] if value is not None)
        stored = all(ir.convenience.get_const_tensor(value) is not None for value in others)
        if kept and stored and node.inputs[0] in found:
            found.update(node.outputs)
    return found


def _is_learnt_number(node: ir.Node, index: int) -> bool:
    """Whether a stored single number is a parameter as input ``index`` of a node: an operand of a product, a scale or
    shift of a norm, the slope of PRelu, or added to a product's result."""
    if has(kind_of(node), "products") or traits().at(kind_of(node), "learnt_scales", index):
        return True
    other = node.inputs[1 - index] if node.op_type == "Add" else None
    maker = None if other is None else other.producer()
    return maker is not None and has(kind_of(maker), "products")


def _listed_parameters(model: ir.Model) -> list[str]:
    """The names of a forward graph's parameters by the exporter's list; empty where the file has none."""
    return re.findall(r"\bPARAMETER target='([^']*)'", signature(model))


# -- buffers that a module updates beside training ---------------------------------------------------------------------

MUTATION = re.compile(r"(\S+): BUFFER_MUTATION target='([^']*)'")
COUNTED = "num_batches_tracked"  # of BatchNorm: a number that nothing reads where the momentum is given
KEEP = "a running value: a low type would lose what one step adds"


def mutations(model: ir.Model) -> dict[str, str]:
    """The buffers that a forward graph updates, by torch's signature: buffer -> the name of its next value."""
    return {buffer: value for value, buffer in MUTATION.findall(signature(model))}


def read_buffers(model: ir.Model, frozen: Collection[str], exported_mode: bool) -> dict[str, str]:
    """The buffers that become state of a step: buffer -> the output that is its next value. Those that are ``frozen``
    stay as they are, and running statistics are left to `lower_batch_norm` (``exported_mode``: those of norms that were
    exported for training). Raises AmpError AMP215 for another that the graph lacks, or whose next value does."""
    graph = model.graph
    outputs = {value.name: value for value in graph.outputs}
    norms = [node for node in graph if is_trained(node, exported_mode)]
    stored = [initializer_of(value) for node in norms for value in node.inputs[3:5]]
    running, found = {value.name for value in stored if value is not None}, {}
    for buffer, output in mutations(model).items():
        old, new = graph.initializers.get(buffer), outputs.get(output)
        if buffer in frozen or buffer in running or (old is None and buffer.endswith(COUNTED)):
            continue
        if old is None or new is None:
            message = "not in the graph" if old is None else f"stored, and its next value '{output}' is not an output"
            hint = f"export it as an initializer and an output, or leave it as it is: --freeze {buffer}"
            raise AmpError("AMP215", f"the module updates its buffer '{buffer}', which is {message}", hint=hint)
        if type_and_shape(old) != type_and_shape(new):
            message = f"output '{output}' is {type_and_shape(new)}, and its buffer '{buffer}' is {type_and_shape(old)}"
            raise AmpError(
                "AMP215", message, hint="the next value has the type and the shape of the buffer, both known"
            )
        found[buffer] = output
    return found


def store_buffers(module: torch.nn.Module, model: ir.Model) -> list[str]:
    """Stores the buffers that a module updates beside its running statistics in its exported graph, and makes outputs
    of their next values; torch's exporter stores only what the graph reads. Returns their names."""
    graph, buffers = model.graph, dict(module.named_buffers())
    norms = [node for node in graph if is_trained(node, exported_mode=False)]
    running = {value.name for node in norms for value in node.inputs[3:5] if value is not None}
    made = {value.name: value for node in graph for value in node.outputs}
    found = []
    for name, output in mutations(model).items():
        if name not in buffers or name in running or name.endswith(COUNTED) or output not in made:
            continue
        if name not in graph.initializers:
            tensor = ir.tensor(buffers[name].detach().cpu().numpy(), name=name)
            kind = ir.TensorType(tensor.dtype)
            graph.register_initializer(
                ir.Value(name=name, type=kind, shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
            )
        if not made[output].is_graph_output():
            graph.outputs.append(made[output])
        found.append(name)
    return found


def buffer_values(graph: ir.Graph, buffers: Mapping[str, str]) -> list[tuple[ir.Value, ir.Value]]:
    """The buffers of a forward graph, with their next values, by ``buffers`` (buffer -> output); the nodes between the
    two are held in float32."""
    outputs = {value.name: value for value in graph.outputs}
    pairs = [(graph.initializers[buffer], outputs[output]) for buffer, output in buffers.items()]
    for old, new in pairs:
        behind, before = {old}, {new}
        for node in graph:
            if behind.intersection(node.inputs):
                behind.update(node.outputs)
        for node in reversed(graph):
            if before.intersection(node.outputs):
                before.update(value for value in node.inputs if value is not None)
                if behind.intersection(node.outputs):
                    node.meta[HELD] = KEEP
    return pairs
