"""What a graph that torch exported does to its buffers beside training: moving averages, counters.

torch lists them in its signature, the new value of each an output. A buffer that is not written back would stay as it
was exported, so what cannot be state of the step is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from ...core.dataflow import HELD
from ...core.errors import AmpError
from .batch_norm import initializer_of, is_trained
from .read import described, signature

if TYPE_CHECKING:
    import torch

MUTATION = re.compile(r"(\S+): BUFFER_MUTATION target='([^']*)'")
COUNTED = "num_batches_tracked"  # of BatchNorm: a number that nothing reads where the momentum is given
KEEP = "a running value: a low type would lose what one step adds"


def mutations(model: ir.Model) -> dict[str, str]:
    """Buffer -> the value that is its next one, as torch says."""
    return {buffer: value for value, buffer in MUTATION.findall(signature(model))}


def read_buffers(model: ir.Model, frozen: Collection[str], exported_mode: bool) -> dict[str, str]:
    """Buffer -> the output that is its next value, for those that can be state; not for what is ``frozen``.

    Running statistics are left to `lower_batch_norm`, ``exported_mode`` as there.

    Raises AmpError AMP215 for another buffer that the graph has not got, or whose next value is no output of its type.
    """
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
        if described(old) != described(new):
            message = f"output '{output}' is {described(new)}, and its buffer '{buffer}' is {described(old)}"
            raise AmpError(
                "AMP215", message, hint="the next value has the type and the shape of the buffer, both known"
            )
        found[buffer] = output
    return found


def give_out(module: torch.nn.Module, model: ir.Model) -> list[str]:
    """Makes state of the buffers that a module updates beside its running statistics: stored, with an output each.

    torch's exporter stores only what the graph reads. Returns their names.
    """
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
    """Each buffer and its next value; what lies between them is kept in float32."""
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
