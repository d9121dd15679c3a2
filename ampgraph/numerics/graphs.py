"""ONNX graphs as runs need them: loaded, their functions inlined, their types known, their bodies walked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ..core.dataflow import FLOAT32, Dataflow
from ..core.errors import AmpError
from ..core.graph import LOW, Graph
from ..formats import adapters
from ..formats.kinds import Model, is_graph
from ..formats.onnx import io as onnx_io
from ..formats.onnx.graph import OnnxGraph
from ..formats.onnx.shapes import sizes
from ..formats.onnx.types import declared_type
from ..runtime.ports import Port

DEFAULT_OPSET = 17  # of the standard operators, for a model that imports others alone
Attributes = Mapping[str, str | int | float | Sequence[int] | Sequence[float] | ir.TensorProtocol | ir.Attr | None]


def load_onnx(model: Model | Graph) -> OnnxGraph:
    """The graph of an ONNX model as `convert` takes it, sorted; a Graph as it is. Raises AmpError AMP1xx, AMP304."""
    graph = model if is_graph(model) else adapters.load(model)[0]
    if not isinstance(graph, OnnxGraph):
        raise AmpError("AMP304", f"a {graph.format} model is not run strictly", hint="give an ONNX model")
    graph.prepare()
    return graph


def inlined(graph: OnnxGraph) -> OnnxGraph:
    """The graph without functions of its own, itself where there are none: their formals have no types to rewrite."""
    if not graph.model.functions:
        return graph
    import onnx.inliner

    folder = folder_of(graph)
    flat = onnx.inliner.inline_local_functions(onnx_io.to_proto(graph.model))
    if flat.functions:  # a function of another opset is left alone unless its body may be converted
        flat = onnx.inliner.inline_local_functions(flat, convert_version=True)
    return OnnxGraph(onnx_io.deserialize(flat, Path(folder) if folder else None))


def flat_graph(model: Model | Graph) -> OnnxGraph:
    """A graph of the caller's own, sorted, with its functions inlined. Raises AmpError as `load_onnx`."""
    flat = inlined(load_onnx(model))
    return OnnxGraph(flat.model.clone()) if flat is model else flat


def folder_of(graph: OnnxGraph) -> str:
    """Where the data files of a model are; empty where it has none."""
    first = next(onnx_io.external_tensors(graph.model), None)
    return "" if first is None else str(Path(first.base_dir).resolve())


def serialized(model: ir.Model) -> bytes:
    """The file of a model, as a runtime takes it; weights in files beside it stay there."""
    content: bytes = onnx_io.to_proto(model).SerializeToString()
    return content


# -- what it takes and gives ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives; ``optional``: inputs with a default value."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    optional: frozenset[str] = frozenset()


def interface_of(graph: OnnxGraph) -> Interface:
    """As the file declares it."""
    main = graph.model.graph
    optional = frozenset(v.name or "" for v in main.inputs if v.is_initializer())
    inputs = {p.name: p for p in map(port_of, main.inputs) if p.name not in optional}
    return Interface(inputs, {p.name: p for p in map(port_of, main.outputs)}, optional)


def port_of(value: ir.Value) -> Port:
    """An input or output; one that is no tensor has no type."""
    container, dtype = declared_type(value)
    if container:
        return Port(value.name or "", "", ())
    return Port(value.name or "", {"string": "object"}.get(dtype, dtype), sizes(value.shape or ()))


# -- values and bodies ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Types:
    """(container, element type) of values, as inferred once; ``("", "")`` is unknown."""

    of: Mapping[ir.Value, tuple[str, str]]

    @staticmethod
    def read(flow: Dataflow) -> Types:
        """Those of a model without functions: each of its values stands in one scope."""
        return Types({value.native: (value.container, value.dtype) for value in flow.values})

    def tensor(self, value: ir.Value) -> str:
        """The element type of a tensor, empty for what is none."""
        container, dtype = self.of.get(value, ("", ""))
        return "" if container else dtype

    def low(self, value: ir.Value) -> str:
        """The low element type of a tensor or a container, else empty."""
        dtype = self.of.get(value, ("", ""))[1]
        return dtype if dtype in LOW else ""

    def is_float32(self, value: ir.Value) -> bool:
        """Whether it is a float32 tensor."""
        return self.tensor(value) == FLOAT32


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs inside a node, in the order of its attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def captured(node: ir.Node) -> list[ir.Value]:
    """The values that the bodies of a node read from outside, once each."""
    return list(dict.fromkeys(value for body in bodies(node) for value in _captured(body)))


def _captured(graph: ir.Graph) -> Iterator[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        inner = [value for body in bodies(node) for value in _captured(body)]
        yield from (value for value in (*node.inputs, *inner) if value is not None and value not in own)
        own.update(node.outputs)
    yield from (value for value in graph.outputs if value not in own)


def rewire(node: ir.Node, given: Mapping[ir.Value, ir.Value]) -> None:
    """A node, and what its bodies capture, reads other values."""
    for place, value in enumerate(node.inputs):
        if value is not None and value in given:
            node.replace_input_with(place, given[value])
    for body in bodies(node):
        for inner in body:
            rewire(inner, given)
        for place, value in enumerate(body.outputs):
            if value in given:
                body.outputs[place] = given[value]


def outputs_of(graph: ir.Graph) -> list[ir.Value]:
    """What the nodes of a graph make, in order; outputs that are left out are not among them."""
    return [value for node in graph for value in node.outputs if value.name]


def forget_annotations(graph: ir.Graph) -> None:
    """What a graph makes is not annotated: that may be stale, and a runtime infers its own."""
    stored = (value for value in graph.initializers.values() if not value.is_graph_input())
    for value in (*stored, *(value for node in graph for value in node.outputs)):
        if not value.is_graph_output():
            value.type = value.shape = value.doc_string = None
            value.metadata_props.clear()


class Names:
    """Names that nothing in a model has."""

    def __init__(self, *graphs: ir.Graph) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}  # by base, so that many names of one base take no longer each
        for graph in graphs:
            self._collect(graph)

    def _collect(self, graph: ir.Graph) -> None:
        self._taken.update(v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name)
        for node in graph:
            self._taken.update(v.name for v in node.outputs if v.name)
            for body in bodies(node):
                self._collect(body)

    def fresh(self, base: str) -> str:
        """``base``, or the first of base_1, base_2 ... that is free."""
        number = self._next.get(base, 0)
        name = f"{base}_{number}" if number else base
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        self._next[base] = number + 1
        return name


def new_node(kind: str, inputs: Sequence[ir.Value | None], name: str, attributes: Attributes | None = None) -> ir.Node:
    """A node of the standard domain with one result, which is called ``name``."""
    node = ir.node(kind, list(inputs), attributes, num_outputs=1, name="")
    node.outputs[0].name = name
    return node
