"""An ONNX model with the two faces that ampgraph works on: a dataflow to read, an editor to change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from ...core.dataflow import Dataflow
from ...core.errors import AmpError, first_line
from ...core.graph import Census, is_mindir
from ...core.progress import Progress
from . import io as onnx_io
from .dataflow import read_dataflow
from .editor import OnnxGraphEditor
from .handles import Variants
from .native import SORTED, doubted_shapes, remember, repairs_of
from .runnable import RunnableOnnx
from .schemas import opset_of_ir, same_version
from .shapes import contradicted_shapes, sizes, weightless
from .types import declared_type, dtype_name
from .walk import all_graphs, is_sorted
from .weights import dims, nbytes, stored

TRAINING_STEP = "ampgraph.step"
"""The model metadata that a training step describes itself in."""


class OnnxGraph(RunnableOnnx):
    """An ONNX model, a `core.graph.Graph`: onnx_ir's objects, edited in place and never rebuilt."""

    format, suffix = "ONNX", ".onnx"

    def __init__(self, model: ir.Model) -> None:
        """Takes ``model`` over: edits change it in place. Whoever needs theirs unchanged gives a copy."""
        self.model = model
        self._found_graphs: list[ir.Graph] | None = None  # the main graph, bodies, functions; None until asked for
        self._known_sorted = False  # every node stands behind what it reads; False: not known
        self._weights_inside = False  # the file has no data files beside it; False: not known
        super().__init__(lambda low, low_io: read_dataflow(self.model, low, low_io))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> OnnxGraph:
        """Reads, checks and repairs an ONNX file. Raises AmpError AMP101 to AMP103, AMP107, AMP204, as `io.load`."""
        graph = OnnxGraph(onnx_io.load(path))
        meta = graph.model.graph.meta
        graph._known_sorted, graph._weights_inside = meta.pop(SORTED, False), meta.pop(onnx_io.INSIDE)
        return graph

    def editor(self, flow: Dataflow, signature: Mapping[str, Hashable] | None = None) -> OnnxGraphEditor:
        """An editor of the ONNX model over its newest dataflow; raises StaleDataflow for another. Functions are copied
        as soon as it is made, and the default opset imported for its Casts. ``signature``: as of `Graph.editor`."""
        self.require_newest(flow)
        self._admit_casts()
        return OnnxGraphEditor(self.model, flow, Variants(self.model, flow, signature or {}), self.edited)

    def edited(self) -> None:
        """Behind an edit of the ONNX model, forgets all that was read of it: dataflows, order, list of graphs."""
        self._found_graphs, self._known_sorted, self._weights_inside = None, False, False
        super().edited()

    def prepare(self) -> None:
        """Sorts the nodes of all graphs of the ONNX model, so that each stands behind what it reads, once an edit."""
        if self._known_sorted:
            return
        unsorted = [graph for graph in self._graphs() if not is_sorted(graph)]
        for graph in unsorted:
            graph.sort()
        if unsorted:
            self.edited()
        self._known_sorted = True

    def repairs(self) -> list[str]:
        """What was put right in the ONNX model, a sentence each: when it was read, and by `settle_shapes`."""
        return repairs_of(self.model)

    def settle_shapes(self) -> None:
        """Replaces annotated shapes of the ONNX model that contradict onnx's inference, but for those of outputs, which
        are the model's interface and are only noted. Adds a sentence for each to `repairs`."""
        said = []
        for value, shape in contradicted_shapes(self.model):
            written, known = (str(ir.Shape(dims)) for dims in (sizes(value.shape or ()), shape))
            end = "left as it is" if value.is_graph_output() else "repaired"
            said.append(f"the shape of '{value.name}' is annotated {written} and is {known}: {end}")
            if value.is_graph_output():
                doubted_shapes(self.model).add(value.name or "")
            else:
                value.shape = ir.Shape(shape)
        remember(self.model, said)

    def fault(self) -> str:
        """The first line that onnx.checker says against the ONNX model, its weights left out; "" for a valid one."""
        try:
            onnx.checker.check_model(weightless(self.model))
        except (onnx.checker.ValidationError, ValueError, TypeError) as error:
            return first_line(error)
        return ""

    def _graphs(self) -> list[ir.Graph]:
        """Every graph of the ONNX model, bodies and functions too, found once between edits."""
        if self._found_graphs is None:
            self._found_graphs = list(all_graphs(self.model))
        return self._found_graphs

    def refuse_unknown_training(self) -> None:
        """Raises AmpError AMP205 for an ONNX training step of ours; `training_info` is refused when a model is read."""
        if TRAINING_STEP in self.model.metadata_props:
            hint = (
                "train it with ampgraph train; ampgraph export-weights writes the trained model, to be converted then"
            )
            raise AmpError("AMP205", "is a training step: its precision was decided when it was built", hint=hint)

    def _admit_casts(self) -> None:
        """Has the ONNX model and its functions import the default opset where they do not, as the Casts to come belong
        to it; a function of another opset gets the model's where only a Cast differs between the two."""
        if "" not in self.model.opset_imports and "ai.onnx" not in self.model.opset_imports:
            self.model.opset_imports[""] = opset_of_ir(self.model.ir_version)
        version = self.model.opset_imports.get("", self.model.opset_imports.get("ai.onnx", 13))
        for function in self.model.functions.values():
            own = function.opset_imports.get("", function.opset_imports.get("ai.onnx"))
            if own is None or (own != version and _differs_in_cast_alone(function, own, version)):
                function.opset_imports[""] = version

    def version(self) -> str:
        """The ONNX model's opset of the default domain, as ``opset 18``; ``opset 0`` where it imports none."""
        versions = self.model.opset_imports
        return f"opset {versions.get('', versions.get('ai.onnx', 0))}"

    def metadata(self) -> Mapping[str, str]:
        """The metadata of the ONNX model, by key: its own, not a copy."""
        return self.model.metadata_props

    def interface(self) -> dict[str, str]:
        """Name -> type, in words (``float32``, ``a sequence of float32``), of the ONNX model's inputs and outputs.
        Inputs with a stored default are left out, as the default cannot follow a new type."""
        main = self.model.graph
        inputs = [value for value in main.inputs if not value.is_initializer()]
        types = {value.name or "": declared_type(value) for value in [*inputs, *main.outputs]}
        words = {"seq": "a sequence of {}", "optional": "an optional {}", "other": "no dense tensor", "": "{}"}
        return {name: words[container].format(dtype) for name, (container, dtype) in types.items()}

    def dimensions(self) -> set[str]:
        """The names of symbolic dimensions in all annotated shapes of the ONNX model."""
        known = set()
        for graph in self._graphs():
            for value in [*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)]:
                known |= {str(dim.value) for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value}
        return known

    def census(self) -> Census:
        """How many nodes and Casts an ONNX model has in all graphs, and the bytes of its stored tensors by type."""
        casts = sum(node.op_type == "Cast" for graph in self._graphs() for node in graph)
        tensors = ((dtype_name(tensor.dtype), tensor.nbytes) for _, tensor in stored(self.model))
        return Census.of(sum(map(len, self._graphs())), casts, tensors)

    def data_files(self) -> list[Path]:
        """The paths of the data files that hold tensors of the ONNX model; empty where all are in its own file."""
        if self._weights_inside:
            return []
        taken: set[Path] = self.model.graph.meta.get(onnx_io.TAKEN, set())
        return sorted(taken | {Path(tensor.path) for tensor in onnx_io.external_tensors(self.model)})

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the ONNX model and its data file, whole or not. Raises AmpError AMP105, also for a MindIR name."""
        if is_mindir(path):
            hint = "give it a name that ends in .onnx"
            raise AmpError("AMP105", "an ONNX model cannot be written as MindIR", where=os.fspath(path), hint=hint)
        onnx_io.save(self.model, path, progress)

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Copies the .onnx file ``source`` and its data files to another name. Raises as `io.copy_unchanged`."""
        onnx_io.copy_unchanged(source, target)

    def digest(self) -> str:
        """A digest of the ONNX model, as hexadecimal digits, that changes with its structure, types and small stored
        tensors; those of more than 256 bytes, and text, count by type and shape alone."""
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
    """An ONNX attribute as the digest has it; of bodies, digested on their own, and lists of tensors the name alone."""
    if attribute.is_ref():
        return f"{attribute.name}=@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        return f"{attribute.name}={_tensor_text(attribute.value)}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS):
        return attribute.name
    return f"{attribute.name}={attribute.value!r}"


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    """A stored ONNX tensor as the digest has it: type and shape, and the numbers of one of at most 256 bytes."""
    small = tensor.dtype != ir.DataType.STRING and nbytes(tensor) <= 256
    shape = ",".join(map(str, dims(tensor)))
    return f"{dtype_name(tensor.dtype)}:[{shape}]:{tensor.tobytes().hex() if small else ''}"


def _differs_in_cast_alone(function: ir.Function, own: int, version: int) -> bool:
    """Whether all operators of an ONNX function but Cast are the same in two opsets; onnx takes one version of each."""
    same = all(node.domain or same_version(node.op_type, own, version) for node in function.all_nodes())
    return same and not same_version("Cast", own, version)
