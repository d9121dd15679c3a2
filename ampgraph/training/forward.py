"""A forward graph made ready for differentiation: flat, typed, its parameters found."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from ..errors import AmpError, nearest
from ..formats import adapters
from ..formats.onnx_format import OnnxGraph
from .lower_residues import lower_residues

OLDEST = 18  # the opset that gradients are written in
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def read_forward(model: Any) -> ir.Model:
    """A flat copy of a model: functions inlined, at opset 18 or later, every type and shape inferred that can be.

    Raises AmpError AMP1xx and AMP2xx for what cannot be read, AMP205 for a graph that is a training step already.
    """
    graph, _ = adapters.load(model)
    if not isinstance(graph, OnnxGraph):
        hint = "a .mindir file is trained by ampgraph.mindspore.train_step"
        raise AmpError("AMP104", f"cannot build a training step from {graph.format}", hint=hint)
    graph.refuse_training()
    opset = graph.model.opset_imports.get("", graph.model.opset_imports.get("ai.onnx", OLDEST))
    if opset < OLDEST:
        converted = adapters.at_opset(graph, OLDEST)
        assert isinstance(converted, OnnxGraph)
        graph = converted
    graph.prepare()
    common.InlinePass()(graph.model)
    infer(graph.model)
    if lower_residues(graph.model.graph):
        infer(graph.model)
    return graph.model


def infer(model: ir.Model) -> None:
    """Types and shapes of what has none, where onnx can tell."""
    common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def find_parameters(model: ir.Model, freeze: Sequence[str] = ()) -> list[ir.Value]:
    """The initializers that are trained: all parameters but those that a pattern of ``freeze`` matches.

    What torch's exporter calls a parameter is one; where the file has no such word, every float initializer with a
    dimension and more than one element is, but for running statistics. Raises AmpError AMP305 for a pattern that
    matches nothing, AMP211 for a parameter that the exporter named and the graph does not hold, AMP205 for one that is
    not float32.
    """
    graph = model.graph
    stored = {
        value.name or "": value
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype in FLOATS and not value.is_graph_input()
    }
    named = _named(model)
    running = {value for node in graph if node.op_type == "BatchNormalization" for value in node.inputs[3:5]}
    names = named or [name for name, value in stored.items() if _is_tensor(value) and value not in running]
    frozen = {name for pattern in freeze for name in _matches(pattern, [*stored, *named])}
    trained = [name for name in names if name not in frozen]
    missing = [name for name in trained if name not in stored]
    if missing:
        told = f"parameter '{missing[0]}' is not in the graph: an exporter merges parameters that start out equal"
        raise AmpError("AMP211", told, hint="export with ampgraph.export_for_training, or --freeze it")
    if not trained:
        raise AmpError("AMP211", "nothing is left to train", hint="freeze less, or export the model with its weights")
    for name in trained:
        if stored[name].const_value.dtype != ir.DataType.FLOAT:  # type: ignore[union-attr]
            told = f"parameter '{name}' is stored low: an optimizer needs float32"
            raise AmpError("AMP205", told, hint="build the step from the float32 model")
    return [stored[name] for name in trained]


def _is_tensor(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and len(tensor.shape) > 0 and tensor.size > 1


def _matches(pattern: str, names: Sequence[str]) -> list[str]:
    hits = fnmatch.filter(names, pattern)
    if not hits:
        hint = nearest(pattern, list(names)) or f"there are: {', '.join(names[:8])}"
        raise AmpError("AMP305", f"--freeze {pattern} matches no parameter", hint=hint)
    return hits


def _named(model: ir.Model) -> list[str]:
    """What the exporter says that the parameters are called; empty where it says nothing."""
    text = model.graph.metadata_props.get(SIGNATURE) or model.metadata_props.get(SIGNATURE) or ""
    return re.findall(r"\bPARAMETER target='([^']*)'", text)
