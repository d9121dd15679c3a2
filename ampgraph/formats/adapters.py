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
"""(graph, whether anything changed) -> a model of the caller's kind; one that did not change is a copy of the
caller's."""


def load(model: object) -> tuple[Graph, Back]:
    """(graph of a caller's model, a function that turns a graph of it back into the caller's kind). Takes a path,
    onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch.onnx.ONNXProgram. A path gives an onnx.ModelProto
    back, or an onnx_ir.Model where the weights are external and no value is a map; the path of a MindIR file its Graph.
    Raises AmpError AMP104 for anything else, and as the formats do for a faulty model."""
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
    """The sorted graph of an ONNX model of any kind that `convert` takes; a Graph is sorted in place and returned.
    Raises AmpError as `load`, and AMP304 for a MindIR model."""
    graph = model if is_graph(model) else load(model)[0]
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"a {graph.format} model is not run strictly", hint="give an ONNX model")
    graph.prepare()
    return graph


def proto_of(graph: OnnxGraph) -> onnx.ModelProto:
    """The ModelProto of an ONNX graph, as a runtime takes it from memory."""
    return onnx_io.to_proto(graph.model)


def _as_onnx(graph: Graph) -> OnnxGraph:
    """The graph itself, known to be an ONNX one; raises AmpError AMP307 for one of another format."""
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP307", f"{graph.format} has no opsets", hint="omit --opset")
    return graph


def at_opset(graph: Graph, opset: int) -> Graph:
    """A new graph of an ONNX model in another opset. Raises AmpError AMP307 where there is no way, as for MindIR."""
    return opsets.at_opset(_as_onnx(graph), opset)


def copy_graph(graph: Graph) -> Graph:
    """A copy of an ONNX graph that shares its stored tensors. Raises AmpError AMP307 for another format."""
    return OnnxGraph(walk.copy_model(_as_onnx(graph).model))


def defaults(graph: Graph) -> dict[str, int]:
    """Name -> bytes of the float32 tensors of an ONNX graph that are stored and inputs too: defaults, in the place of
    which a caller may give other values. Before IR version 4 every stored tensor had to be one; MindIR has none."""
    tensors = {value.name or "": value.const_value for value in _stored_inputs(graph)}
    return {name: t.nbytes for name, t in tensors.items() if t is not None and t.dtype == ir.DataType.FLOAT}


def freeze(graph: Graph, wanted: bool | None = True) -> int:
    """Makes constants of an ONNX graph's initializers that are listed as inputs too, by taking them off the inputs;
    returns how many there were. ``wanted``: False for none, None only if the file lists all that it stores."""
    wanted = _lists_all_stored(graph) if wanted is None else wanted
    found = _stored_inputs(graph) if wanted else []
    if found and isinstance(graph, OnnxGraph):
        for value in found:
            graph.model.graph.inputs.remove(value)
        graph.model.ir_version = max(graph.model.ir_version or 0, UNLISTED_SINCE)
        graph.edited()
    return len(found)


def _lists_all_stored(graph: Graph) -> bool:
    """Whether every initializer of an ONNX graph is among its inputs, as IR version 3 required and exporters did for
    some time after it, weights (of two dimensions or more) with them: a list that means none of them to be given."""
    if not isinstance(graph, OnnxGraph):
        return False
    listed, stored = _stored_inputs(graph), graph.model.graph.initializers
    old = (graph.model.ir_version or UNLISTED_SINCE) < UNLISTED_SINCE
    return old or (len(listed) == len(stored) and any(value.shape and len(value.shape) > 1 for value in listed))


def _stored_inputs(graph: Graph) -> list[ir.Value]:
    """The initializers of an ONNX graph that are inputs too; none of a MindIR graph."""
    inputs = graph.model.graph.inputs if isinstance(graph, OnnxGraph) else ()
    return [value for value in inputs if value.is_initializer()]


def _model_copy(model: ir.Model) -> ir.Model:
    """A copy of a caller's onnx_ir model. Raises AmpError AMP102 for one that reads what nothing defines."""
    try:
        return walk.copy_model(model)
    except (RuntimeError, ValueError) as error:  # its first line is the whole graph, that of its cause is not
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        hint = "ampgraph reads sparse tensors from files alone; onnx.checker.check_model names other faults"
        raise AmpError("AMP102", f"cannot be understood: {first_line(cause)}", where="model", hint=hint) from error


def _proto_copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a caller's ModelProto, as their own is never edited, nor handed back."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _native_model(graph: Graph) -> ir.Model:
    """The onnx_ir model of a graph that is known to be ONNX."""
    assert isinstance(graph, OnnxGraph)
    return graph.model


def _from_mindir(path: str | os.PathLike[str]) -> tuple[Graph, Back]:
    """(Graph of a MindIR file, the `Back` for it, which gives that Graph itself)."""
    from .mindir.graph import MindirGraph

    return MindirGraph.load(path), lambda graph, changed: graph


def _from_path(path: Path) -> tuple[Graph, Back]:
    """(Graph of an ONNX file, the `Back` for it: to a ModelProto, or an ir.Model where tensors lie in data files)."""

    def back(graph: Graph, changed: bool) -> onnx.ModelProto | ir.Model:
        model = _native_model(graph)
        if any(True for _ in onnx_io.external_tensors(model)):
            if not holds_maps(model):
                return model
            ir.external_data.load_to_model(model)  # onnx_ir has no map types, and a proto no folder
        return onnx_io.to_proto(model) if changed else onnx.load(path)

    return OnnxGraph.load(path), back


def _from_graphsurgeon(model: gs.Graph) -> tuple[Graph, Back]:
    """(Graph of a copy of a GraphSurgeon graph, the `Back` for it, which gives a GraphSurgeon graph)."""
    import onnx_graphsurgeon as gs

    def back(graph: Graph, changed: bool) -> gs.Graph:
        return gs.import_onnx(onnx_io.to_proto(_native_model(graph))) if changed else model.copy()

    return OnnxGraph(onnx_io.deserialize(gs.export_onnx(model.copy()), None)), back


def _from_torch(program: ONNXProgram) -> tuple[Graph, Back]:
    """(Graph of a copy of torch's ONNXProgram, the `Back` for it: to a program with the same exported module)."""

    def back(graph: Graph, changed: bool) -> ONNXProgram:
        return type(program)(_native_model(graph) if changed else program.model.clone(), program.exported_program)

    return OnnxGraph(program.model.clone()), back
