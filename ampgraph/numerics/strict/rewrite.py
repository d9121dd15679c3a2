"""The rewriting behind a strict run: low values become float32, each rounded by a pair of Casts where it is made."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ...core.dataflow import FLOAT32
from ...core.graph import LOW
from ...formats.onnx.graph import OnnxGraph
from ...formats.onnx.types import DTYPES
from ...oplists.traits import has
from ..graphs import DEFAULT_OPSET, Names, Types, forget_annotations

FLOAT = ir.DataType.FLOAT
LOW_TYPES = frozenset(DTYPES[name] for name in LOW)
TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision")
# Constants up to this many bytes are upcast in the file, larger ones by a Cast: a model near 2 GB must not outgrow it.
INLINE_LIMIT = 1 << 20


def rewrite(graph: OnnxGraph, *, keep_border: bool) -> None:
    """Rewrites a model without functions, in place; unless the border is kept, it becomes float32 as well."""
    model, flow = graph.model, graph.dataflow()
    if not flow.opset:
        model.opset_imports[""] = DEFAULT_OPSET  # the rounding Casts need the standard operators
    writer = _PairWriter(model, Types.read(flow), flow.opset or DEFAULT_OPSET)
    for place, native in enumerate([scope.native for scope in flow.scopes]):
        writer.graph(native, keep_border and place == 0)
    graph.edited()


class _PairWriter:
    """One walk over the graphs of a model. A wide value is known by the low type that it stands for."""

    def __init__(self, model: ir.Model, types: Types, opset: int) -> None:
        self._kinds, self._names = dict(types.of), Names(model.graph)
        self._to = {name: _type_attribute(DTYPES[name], opset) for name in (FLOAT32, *LOW)}  # many nodes share one

    def graph(self, graph: ir.Graph, border: bool) -> None:
        """Rewrites one graph; its bodies are graphs of their own."""
        kept = {*graph.inputs, *graph.outputs} if border else set()
        nodes = list(graph)
        for value in graph.inputs:
            if value in kept and self._low(value):
                self._widen(value, graph, nodes)
        for value in list(graph.initializers.values()):
            self._initializer(value, graph, nodes, value in kept)
        for node in nodes:
            self._node(node, graph, kept)
        self._retype(graph, border)

    def _low(self, value: ir.Value | None) -> str:
        """The type of a low tensor."""
        container, dtype = self._kinds.get(value, ("", "")) if value is not None else ("", "")
        return dtype if dtype in LOW and not container else ""

    # -- values that are there ----------------------------------------------------------------------------------------

    def _widen(self, value: ir.Value, graph: ir.Graph, nodes: list[ir.Node]) -> None:
        """An input or a stored tensor stays low, and is read through a Cast."""
        uses = tuple(value.uses())
        cast = self._cast(value, FLOAT32, self._names.fresh(f"{value.name}_f32"))
        if nodes:
            graph.insert_before(nodes[0], cast)
        else:
            graph.append(cast)
        self._read(uses, cast.outputs[0], self._low(value))

    def _initializer(self, value: ir.Value, graph: ir.Graph, nodes: list[ir.Node], kept: bool) -> None:
        tensor = value.const_value
        if tensor is None or tensor.dtype not in LOW_TYPES:
            return
        large = isinstance(tensor, ir.ExternalTensor) or tensor.nbytes > INLINE_LIMIT
        if not value.is_graph_input() and (kept or (large and not value.is_graph_output())):
            self._widen(value, graph, nodes)
        elif not kept:  # the default of an input turns float32 with it
            value.const_value = _upcast(tensor)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _node(self, node: ir.Node, graph: ir.Graph, kept: set[ir.Value]) -> None:
        kinds = [self._low(value) for value in node.outputs]
        if node.op_type == "BitCast":  # its meaning is the bits: it reads, and makes, the low type itself
            for place, value in enumerate(node.inputs):
                if value is not None and (dtype := self._low(value)):
                    cast = self._cast(value, dtype, self._names.fresh(f"{value.name}_low"))
                    graph.insert_before(node, cast)
                    node.replace_input_with(place, cast.outputs[0])
        makes_low = self._attributes(node, kinds[0] if kinds else "")
        exact = has(node.op_type, "exact") and not node.domain
        for value, dtype in zip(node.outputs, kinds, strict=True):
            if value.name and dtype and (value in kept or not exact):
                self._output(value, dtype, graph, value in kept, makes_low)

    def _attributes(self, node: ir.Node, low: str) -> bool:
        """Turns a node's low attributes to float32; True when it goes on making a low output, by rounding."""
        if node.op_type == "CastLike" and low:
            node.op_type = "Cast"
            node.resize_inputs(1)
            node.attributes.clear()
            node.attributes["to"] = self._to[low]
        if node.op_type in ("Cast", "BitCast") and not node.domain:
            return bool(low)
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.INT and name in TYPE_ATTRIBUTES and attribute.value in LOW_TYPES:
                node.attributes[name] = ir.AttrInt64(name, FLOAT.value)
            elif attribute.type == ir.AttributeType.TYPE_PROTO:
                kind = ir.TypeAndShape(_wide_type(attribute.value.type), attribute.value.shape)
                node.attributes[name] = ir.AttrTypeProto(name, kind)
            elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in LOW_TYPES:
                node.attributes[name] = ir.AttrTensor(name, _upcast(attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                tensors = [_upcast(t) if t.dtype in LOW_TYPES else t for t in attribute.value]
                node.attributes[name] = ir.AttrTensors(name, tensors)
        return False

    def _output(self, value: ir.Value, dtype: str, graph: ir.Graph, kept: bool, makes_low: bool) -> None:
        """Its readers read it rounded, under its own name; low itself it is only where it is kept so."""
        name, uses, rounded = value.name or "", tuple(value.uses()), value
        maker = value.producer()
        assert maker is not None
        low_name = name if kept else self._names.fresh(f"{name}_low")
        if makes_low:
            value.name = low_name
        else:
            value.name = self._names.fresh(f"{name}_raw")
            cast = self._cast(value, dtype, low_name)
            graph.insert_after(maker, cast)
            maker, rounded = cast, cast.outputs[0]
        wide = rounded
        if uses or not kept:
            cast = self._cast(rounded, FLOAT32, self._names.fresh(f"{name}_f32") if kept else name)
            graph.insert_after(maker, cast)
            wide = cast.outputs[0]
            self._read(uses, wide, dtype)
        _give_out(graph, value, rounded if kept else wide)

    def _cast(self, value: ir.Value, to: str, name: str) -> ir.Node:
        node = ir.Node("", "Cast", [value], [self._to[to]], num_outputs=1, name="")
        node.outputs[0].name = name
        return node

    def _read(self, uses: Iterable[tuple[ir.Node, int]], wide: ir.Value, dtype: str) -> None:
        self._kinds[wide] = ("", dtype)
        for node, place in uses:
            node.replace_input_with(place, wide)

    # -- types --------------------------------------------------------------------------------------------------------

    def _retype(self, graph: ir.Graph, border: bool) -> None:
        """The border says what it is, as before or in float32."""
        for value in (*graph.inputs, *graph.outputs):
            if not border or self._kinds.get(value, ("", ""))[0]:
                value.type = _wide_type(value.type)
        forget_annotations(graph)


def _give_out(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """What was an output of the graph is another value, of the same declaration."""
    if old.is_graph_output() and old is not new:
        new.type, new.shape = old.type, old.shape
        for place, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[place] = new


def _type_attribute(kind: ir.DataType, opset: int) -> ir.Attr:
    return ir.AttrInt64("to", kind.value) if opset >= 6 else ir.AttrString("to", kind.name)


def _upcast(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A low tensor in float32, exactly."""
    return ir.Tensor(tensor.numpy().astype("float32"), name=tensor.name, doc_string=tensor.doc_string)


def _wide_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """A low element type becomes float32, inside containers too."""
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_wide_type(kind.elem_type))  # type: ignore[arg-type]
    if isinstance(kind, (ir.TensorType, ir.SparseTensorType)) and kind.dtype in LOW_TYPES:
        return type(kind)(FLOAT)
    return kind
