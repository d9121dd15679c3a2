"""The kinds of model that the Python API takes; the same kind comes back. The caller's object is never changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import onnx
import onnx_ir as ir

from ..core.errors import AmpError, first_line
from ..core.graph import Graph, is_mindir
from .kinds import Model, is_graph
from .onnx import io as onnx_io
from .onnx import opset as opsets
from .onnx import walk
from .onnx.data_files import check_tensors
from .onnx.graph import OnnxGraph as OnnxGraph
from .onnx.native import holds_maps
from .onnx.proto import holders, tensors
from .onnx.runnable import OnnxStrictEditor as OnnxStrictEditor

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs
    from torch.onnx import ONNXProgram

UNLISTED_SINCE = 4  # the IR version since which a stored tensor need not be an input

Back = Callable[[Graph, bool], object]
"""Turns a graph into the caller's kind of model. It takes whether anything changed."""


def load(model: object) -> tuple[Graph, Back]:
    """The graph of a model, and a function that turns a graph back into the caller's kind.

    Takes a path, onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch.onnx.ONNXProgram. A path gives an
    onnx.ModelProto back, or an onnx_ir.Model where the weights are external and no value is a map. Where nothing
    changed it comes back as it was. Raises AmpError AMP104 for anything else.
    """
    if isinstance(model, (str, os.PathLike)):
        return _from_path(Path(model)) if not is_mindir(model) else _from_mindir(model)
    if isinstance(model, onnx.ModelProto):
        check_tensors(tensors(holders(model)), Path("."), "model")
        graph = OnnxGraph(onnx_io.deserialize(_proto_copy(model), None))
        return graph, lambda graph, changed: onnx_io.to_proto(_native_model(graph)) if changed else _proto_copy(model)
    if isinstance(model, ir.Model):
        graph = OnnxGraph(onnx_io.hold_attributes(_model_copy(model)))
        return graph, lambda graph, changed: _native_model(graph) if changed else _model_copy(model)
    module = type(model).__module__.split(".")[0]
    if module == "onnx_graphsurgeon":
        return _from_graphsurgeon(cast("gs.Graph", model))
    if type(model).__name__ == "ONNXProgram":
        return _from_torch(cast("ONNXProgram", model))
    hint = "give a path, onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch ONNXProgram"
    raise AmpError("AMP104", f"cannot convert a {type(model).__name__}", hint=hint)


def load_onnx(model: Model | Graph) -> OnnxGraph:
    """The graph of an ONNX model as `convert` takes it, sorted; a Graph as it is. Raises AmpError AMP1xx, AMP304."""
    graph = model if is_graph(model) else load(model)[0]
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"a {graph.format} model is not run strictly", hint="give an ONNX model")
    graph.prepare()
    return graph


def proto_of(graph: OnnxGraph) -> onnx.ModelProto:
    """The model of an ONNX graph as a runtime takes it from memory."""
    return onnx_io.to_proto(graph.model)


def _as_onnx(graph: Graph) -> OnnxGraph:
    """The graph of a caller's model as an ONNX one. AmpError AMP307 for another format."""
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP307", f"{graph.format} has no opsets", hint="omit --opset")
    return graph


def at_opset(graph: Graph, opset: int) -> Graph:
    """An ONNX model in another opset. Raises AmpError AMP307 where there is no way."""
    return opsets.at_opset(_as_onnx(graph), opset)


def copied(graph: Graph) -> Graph:
    """An ONNX model of a caller to try something on; stored tensors are shared. AmpError AMP307 for another format."""
    return OnnxGraph(walk.copied(_as_onnx(graph).model))


def defaults(graph: Graph) -> dict[str, int]:
    """The bytes of float32 tensors that are stored and inputs too, by name: defaults, in the place of which a caller
    may give other values. Before IR version 4 every stored tensor had to be one; MindIR has none."""
    tensors = {value.name or "": value.const_value for value in _stored_inputs(graph)}
    return {name: t.nbytes for name, t in tensors.items() if t is not None and t.dtype == ir.DataType.FLOAT}


def freeze(graph: Graph, wanted: bool | None = True) -> int:
    """Edits a graph of an older IR version: makes constants of initializers that are also listed as inputs; returns how
    many there were. ``wanted`` None: only where the file's IR version (3) had to list them."""
    found = _stored_inputs(graph) if wanted or (wanted is None and _must_list_stored(graph)) else []
    if found and isinstance(graph, OnnxGraph):
        for value in found:
            graph.model.graph.inputs.remove(value)
        graph.model.ir_version = max(graph.model.ir_version or 0, UNLISTED_SINCE)
        graph.edited()
    return len(found)


def _must_list_stored(graph: Graph) -> bool:
    """Whether the file's IR version requires every initializer among the inputs, so that being one does not mean that
    callers may replace it."""
    return isinstance(graph, OnnxGraph) and (graph.model.ir_version or UNLISTED_SINCE) < UNLISTED_SINCE


def _stored_inputs(graph: Graph) -> list[ir.Value]:
    """The initializers of the native model that are also inputs; none in MindIR."""
    inputs = graph.model.graph.inputs if isinstance(graph, OnnxGraph) else ()
    return [value for value in inputs if value.is_initializer()]


def _model_copy(model: ir.Model) -> ir.Model:
    """A copy to edit. Raises AmpError AMP102 for what makes no sense, as a model that reads what nothing defines."""
    try:
        return walk.copied(model)
    except (RuntimeError, ValueError) as error:  # its first line is the whole graph, that of its cause is not
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        hint = "ampgraph reads sparse tensors from files alone; onnx.checker.check_model names other faults"
        raise AmpError("AMP102", f"cannot be understood: {first_line(cause)}", where="model", hint=hint) from error


def _proto_copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Another proto of the same content: the caller's own is never handed back, nor edited."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _native_model(graph: Graph) -> ir.Model:
    """The native model of a graph that is known to be ONNX."""
    assert isinstance(graph, OnnxGraph)
    return graph.model


def _from_mindir(path: str | os.PathLike[str]) -> tuple[Graph, Back]:
    """A MindIR file as a Graph; what comes back is that Graph, edited in place."""
    from .mindir.graph import MindirGraph

    return MindirGraph.load(path), lambda graph, changed: graph


def _from_path(path: Path) -> tuple[Graph, Back]:
    """An ONNX file as a Graph; what comes back is a ModelProto, or an ir.Model where tensors lie in data files."""

    def back(graph: Graph, changed: bool) -> onnx.ModelProto | ir.Model:
        model = _native_model(graph)
        if any(True for _ in onnx_io.external_tensors(model)):
            if not holds_maps(model):
                return model
            ir.external_data.load_to_model(model)  # onnx_ir has no map types, and a proto no folder
        return onnx_io.to_proto(model) if changed else onnx.load(path)

    return OnnxGraph.load(path), back


def _from_graphsurgeon(model: gs.Graph) -> tuple[Graph, Back]:
    """A copy of a GraphSurgeon graph as a Graph; what comes back is a GraphSurgeon graph."""
    import onnx_graphsurgeon as gs

    def back(graph: Graph, changed: bool) -> gs.Graph:
        return gs.import_onnx(onnx_io.to_proto(_native_model(graph))) if changed else model.copy()

    return OnnxGraph(onnx_io.deserialize(gs.export_onnx(model.copy()), None)), back


def _from_torch(program: ONNXProgram) -> tuple[Graph, Back]:
    """A copy of the model of torch's ONNXProgram as a Graph; what comes back is a program with the same exported
    module."""

    def back(graph: Graph, changed: bool) -> ONNXProgram:
        return type(program)(_native_model(graph) if changed else program.model.clone(), program.exported_program)

    return OnnxGraph(program.model.clone()), back
