"""What of a step a runtime is given: the graph without its state, which is fed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from ...core.errors import AmpError
from ...formats.onnx import io as onnx_io
from ...formats.onnx.data_files import INLINE_LIMIT
from .packed_forward import ORIGINAL
from .training_step import TrainingStep


@contextlib.contextmanager
def without(graph: ir.Graph, names: Sequence[str]) -> Iterator[None]:
    """The graph without some of its initializers, for as long as the block lasts."""
    held = dict(graph.initializers)
    for name in names:
        graph.initializers.pop(name, None)
    try:
        yield
    finally:
        for name in list(graph.initializers):
            graph.initializers.pop(name)
        for name, value in held.items():
            graph.initializers[name] = value


def session_model(step: TrainingStep) -> tuple[onnx.ModelProto, str]:
    """The step without its state and without the packed forward graph, and the folder of its data files if it has any.

    Raises AmpError AMP502 for weights beyond what fits into one message; a saved step has them in a data file.
    """
    graph = step.model.graph
    unread = [name for name in graph.initializers if name.startswith(ORIGINAL)]
    with without(graph, [*(entry.name for entry in step.layout.states), *unread]):
        outside = {tensor.base_dir for tensor in onnx_io.external_tensors(step.model)}
        kept = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value is not None)
        if len(outside) > 1 or (not outside and kept > INLINE_LIMIT):
            message = f"{kept / 1e9:.1f} GB of frozen weights do not fit into one message"
            raise AmpError("AMP502", message, hint="save the step, and give the path of the file")
        proto = ir.to_proto(step.model)
    del proto.metadata_props[:]
    return proto, str(next(iter(outside), ""))
