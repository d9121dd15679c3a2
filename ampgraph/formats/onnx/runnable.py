"""What runs ask of an ONNX graph: a copy without functions, its border as declared, the file for a runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx.inliner
import onnx_ir as ir
from onnx import FunctionProto, ModelProto, NodeProto

from ...core.dataflow import Dataflow, Op, Value
from ...core.errors import AmpError, first_line
from ...core.runnable import Declared
from ...core.sites import Site, Switched
from ..editable import EditableGraph
from . import io as onnx_io
from .origins import read_sites
from .schemas import schema
from .shapes import sizes
from .strict_editor import DEFAULT_OPSET, OnnxStrictEditor
from .switches import LowParts, with_switches
from .types import declared_type, native_type
from .walk import captured
from .weights import stored_tensor
from .wire import graph_file

if TYPE_CHECKING:
    from typing_extensions import Self


DEFAULT = ("", "ai.onnx")


def inlined(model: ModelProto) -> ModelProto:
    """The model without functions; its own are changed.

    One of another opset whose operators are the same in the model's is taken over as it is, any other is converted.
    Raises AmpError AMP502 where onnx cannot do that.
    """
    _align(model)
    flat = onnx.inliner.inline_local_functions(model)
    return _converted(flat) if flat.functions else flat


def _converted(model: ModelProto) -> ModelProto:
    """Functions of another opset converted to the model's and inlined."""
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except RuntimeError:  # onnx raises nothing better; it asks for types of all that a function reads
        known = onnx.shape_inference.infer_shapes(model)
    try:
        return onnx.inliner.inline_local_functions(known, convert_version=True)
    except RuntimeError as error:
        message = f"onnx cannot convert function '{model.functions[0].name}' to the model's opset: {first_line(error)}"
        raise AmpError("AMP502", message, hint="export the model with one opset for all of its functions") from None


def _align(model: ModelProto) -> None:
    """Gives functions the model's opset where that changes none of their operators."""
    own = next((item.version for item in model.opset_import if item.domain in DEFAULT), 0)
    for function in model.functions:
        for item in function.opset_import:
            if item.domain in DEFAULT and item.version != own and _alike(function, item.version, own):
                item.version = own


def _alike(function: FunctionProto, ours: int, theirs: int) -> bool:
    kinds = {node.op_type for node in _nodes(function.node) if node.domain in DEFAULT}
    found = ((schema("", kind, ours), schema("", kind, theirs)) for kind in kinds)
    return all(a is not None and b is not None and a.since_version == b.since_version for a, b in found)


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body.node)


class RunnableOnnx(EditableGraph):
    """What `core.runnable.RunnableGraph` adds to a graph."""

    model: ir.Model

    def _of(self, model: ir.Model) -> Self:
        """A graph of the same kind."""
        return type(self)(model)  # type: ignore[arg-type]  # the class of the whole graph takes a model

    def flat(self) -> Self:
        """The graph without functions, itself where there are none: their formals have no types to rewrite."""
        if not self.model.functions:
            return self
        from .runnable import inlined

        folder = self.folder()
        flat = inlined(onnx_io.to_proto(self.model))
        return self._of(onnx_io.deserialize(flat, Path(folder) if folder else None))

    def copied(self) -> Self:
        """A copy to edit; stored tensors are shared."""
        return self._of(self.model.clone())

    def declared(self) -> tuple[Sequence[Declared], Sequence[Declared]]:
        """Inputs and outputs as the file annotates them."""
        main = self.model.graph
        return [_declared(value) for value in main.inputs], [_declared(value) for value in main.outputs]

    def folder(self) -> str:
        """Where the data files of the model are; empty where it has none."""
        first = next(onnx_io.external_tensors(self.model), None)
        return "" if first is None else str(Path(first.base_dir).resolve())

    def outside(self, value: Value) -> bool:
        """Whether the bytes of a stored tensor lie in a data file."""
        return isinstance(stored_tensor(value.native), ir.ExternalTensor)

    def content(self) -> bytes:
        """The file of a graph without functions, as a runtime takes it; weights in files beside it stay there."""
        main, model = self.model.graph, self.model
        stored = main.initializers.values()
        return graph_file(model.ir_version, model.opset_imports, main.inputs, main.outputs, main, stored)

    def part(
        self, ops: Sequence[Op] | None, reads: Sequence[Value], makes: Sequence[Value], fed: Collection[str] = ()
    ) -> bytes:
        """The file of some operators, of all for None, with the weights that they read but for those ``fed``."""
        nodes = list(self.model.graph) if ops is None else [op.native for op in ops]
        own = {*(value.native for value in reads), *(value for node in nodes for value in node.outputs)}
        wanted = dict.fromkeys(
            value for node in nodes for value in (*node.inputs, *captured(node)) if value is not None
        )
        stored = [v for v in wanted if v not in own and v.name not in fed and v.const_value is not None]
        inputs = [value.native if value.native.is_graph_input() else _port(value) for value in reads]
        opsets = self.model.opset_imports
        imports = opsets if "" in opsets or "ai.onnx" in opsets else {**opsets, "": DEFAULT_OPSET}
        return graph_file(self.model.ir_version, imports, inputs, [_port(value) for value in makes], nodes, stored)

    def branch(self, op: Op, name: str) -> Self:
        """The body of an If as a model of its own: what it reads from outside are its inputs, or weights."""
        body, outer = op.native.attributes[name].as_graph(), captured(op.native)
        types = {value.native: value for value in self.dataflow().values}
        stored = [v for v in outer if v.const_value is not None and not v.is_graph_input()]
        inputs = [v for v in outer if v not in stored]
        weights, opsets = [*body.initializers.values(), *stored], dict(self.model.opset_imports)
        view = ir.GraphView(inputs, list(body.outputs), nodes=list(body), initializers=weights, opset_imports=opsets)
        graph = view.clone()
        for value, source in zip(graph.inputs, inputs, strict=True):
            value.type, value.shape = native_type("", types[source].dtype), None
        return self._of(ir.Model(graph, ir_version=self.model.ir_version))

    def sites(self, flat: Self) -> tuple[Site, ...]:
        """The nodes of the main graph of ``flat``, under the names that they have here."""
        return read_sites(self.model, flat.model)

    def switched(self, reference: Self, make_strict: Callable[[Self], None]) -> list[Switched]:
        """Makes itself strict, with a switch for every node that rounds."""
        parts = LowParts.of(self.model, self.dataflow())
        make_strict(self)
        found = with_switches(self.model, reference.model, parts)
        self.edited()
        return found

    def strict_editor(self, flow: Dataflow) -> OnnxStrictEditor:
        """An editor over the newest dataflow of a graph without functions."""
        self.require_newest(flow)
        return OnnxStrictEditor(self.model, flow, self.edited)


def _port(value: Value) -> ir.Value:
    """A value as a session's input or output."""
    return ir.Value(name=value.native.name, type=native_type(value.container, value.dtype or "float32"))


def _declared(value: ir.Value) -> Declared:
    return Declared(value.name or "", *declared_type(value), tuple(sizes(value.shape or ())), value.is_initializer())
