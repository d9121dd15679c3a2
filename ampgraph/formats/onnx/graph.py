"""An ONNX model with the two faces that ampgraph works on: a dataflow to read, an editor to change."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
from collections.abc import Hashable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from ...core.dataflow import Dataflow, Op
from ...core.errors import AmpError
from ...core.graph import Census, Progress, is_mindir
from . import io as onnx_io
from .census import census
from .dataflow import DataflowBuilder, declared_type, dtype_name
from .editor import OnnxEditor
from .schemas import first_opset_admitting, opset_of_ir, schema
from .shapes import OnnxShapes
from .variants import Variants
from .weights import OnnxWeights

TRAINING_STEP = "ampgraph.step"
"""The model metadata that a training step describes itself in."""


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Millions of small objects that all live: the cyclic collector would only walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()  # all that lives now goes to the oldest generation at once, unvisited
            gc.unfreeze()
            gc.enable()


class OnnxGraph:
    """The native model, never rebuilt."""

    format, suffix = "ONNX", ".onnx"

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._all: list[ir.Graph] | None = None

    @staticmethod
    def load(path: str | os.PathLike[str]) -> OnnxGraph:
        return OnnxGraph(onnx_io.load(path))

    def dataflow(self, low: str = "float16", low_io: frozenset[str] = frozenset()) -> Dataflow:
        """A snapshot. ``low_io``: graph inputs and outputs that are to be low."""
        flow = Dataflow(OnnxWeights(), lambda op, name: None, layer_of, OnnxShapes(self.model))
        builder = DataflowBuilder(self.model, flow, low, low_io)
        flow.attribute = builder.plain_attribute
        flow.later_version, flow.newest = first_opset_admitting, onnx.defs.onnx_opset_version()
        return builder.build()

    def editor(self, flow: Dataflow, signature: dict[str, Hashable]) -> OnnxEditor:
        """An editor over a fresh dataflow. ``signature``: what was decided in each function scope."""
        return OnnxEditor(self.model, flow, Variants(self.model, flow, signature))

    def prepare(self) -> None:
        """Sorts what is unsorted."""
        for graph in self._graphs():
            if not _is_sorted(graph):
                graph.sort()

    def _graphs(self) -> list[ir.Graph]:
        """Every graph, bodies and functions included; the walk over all attributes is done once."""
        if self._all is None:
            self._all = list(onnx_io.all_graphs(self.model))
        return self._all

    def refuse_training(self) -> None:
        """Raises AmpError AMP205 for a training step of ours; `training_info` is refused when the model is read."""
        if TRAINING_STEP in self.model.metadata_props:
            hint = (
                "train it with ampgraph train; ampgraph export-weights writes the trained model, to be converted then"
            )
            raise AmpError("AMP205", "is a training step: its precision was decided when it was built", hint=hint)

    def before_edits(self) -> None:
        """Imports the default domain, which every Cast needs."""
        if "" not in self.model.opset_imports and "ai.onnx" not in self.model.opset_imports:
            self.model.opset_imports[""] = opset_of_ir(self.model.ir_version)
        version = self.model.opset_imports.get("", self.model.opset_imports.get("ai.onnx", 13))
        for function in self.model.functions.values():
            own = function.opset_imports.get("", function.opset_imports.get("ai.onnx"))
            if own is None or (own != version and _admits_cast_of(function, own, version)):
                function.opset_imports[""] = version

    def version(self) -> str:
        """The opset of the default domain."""
        versions = self.model.opset_imports
        return f"opset {versions.get('', versions.get('ai.onnx', 0))}"

    def interface(self) -> list[str]:
        """Names of the inputs and outputs; an input with a default value cannot follow a new type."""
        given = self.model.graph
        inputs = [value for value in given.inputs if not value.is_initializer()]
        return [v.name or "" for v in [*inputs, *given.outputs]]

    def dimensions(self) -> set[str]:
        """Names of symbolic dimensions."""
        known = set()
        for part in self._graphs():
            for value in [*part.inputs, *part.outputs, *(output for node in part for output in node.outputs)]:
                known |= {str(dim.value) for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value}
        return known

    def census(self) -> Census:
        return census(self.model)

    def data_files(self) -> list[Path]:
        return sorted({Path(tensor.path) for tensor in onnx_io.external_tensors(self.model)})

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        if is_mindir(path):
            hint = "give it a name that ends in .onnx"
            raise AmpError("AMP105", "an ONNX model cannot be written as MindIR", where=os.fspath(path), hint=hint)
        onnx_io.save(self.model, path, progress)

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        onnx_io.copy_unchanged(source, target)

    def digest(self) -> str:
        """Changes with the structure, the types and the small constants; large weights count by type and shape."""
        digest = hashlib.blake2b(digest_size=16)
        for graph in self._graphs():
            parts = [str(sorted(graph.opset_imports.items()))]
            parts += [f"{v.name}:{declared_type(v)}" for v in [*graph.inputs, *graph.outputs]]
            for node in graph:
                parts.append(
                    f"{node.domain}:{node.op_type}:{[v.name if v else '' for v in node.inputs]}"
                    f"{[v.name for v in node.outputs]}"
                )
                parts += [_attribute_text(attribute) for attribute in node.attributes.values()]
            for name, value in graph.initializers.items():
                tensor = value.const_value
                if tensor is not None:
                    parts.append(f"{name}:{_tensor_text(tensor)}")
            digest.update("\n".join(parts).encode())
        return digest.hexdigest()


def _attribute_text(attribute: ir.Attr) -> str:
    """What a plan may depend on; a body counts as the graph that it is."""
    if attribute.is_ref():
        return f"{attribute.name}=@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        return f"{attribute.name}={_tensor_text(attribute.value)}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS):
        return attribute.name
    return f"{attribute.name}={attribute.value!r}"


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    small = tensor.dtype != ir.DataType.STRING and tensor.nbytes <= 256
    return f"{dtype_name(tensor.dtype)}:{tensor.shape}:{tensor.tobytes().hex() if small else ''}"


def layer_of(op: Op) -> str:
    """The exporter's scope of a node, dot separated, or the folders of its slash-separated name."""
    node: ir.Node = op.native
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
    if scopes:
        names = [name.strip(" '\"") for name in scopes.strip("[]").split(",")]
        return names[-2] if len(names) > 1 else names[0]
    parts = [part for part in (node.name or "").split("/")[:-1] if part]
    return ".".join(parts)


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True


def _admits_cast_of(function: ir.Function, own: int, version: int) -> bool:
    """Whether only a Cast tells the function's opset from the model's: onnx refuses an operator of both versions."""

    def differs(op_type: str) -> bool:
        mine, others = schema("", op_type, own), schema("", op_type, version)
        return mine is None or others is None or mine.since_version != others.since_version

    return differs("Cast") and not any(node.domain == "" and differs(node.op_type) for node in function.all_nodes())
