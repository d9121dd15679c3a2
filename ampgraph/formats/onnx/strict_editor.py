"""The verbs of strict runs on an ONNX model without functions: what is low becomes float32, and is rounded by Casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from ...core.dataflow import FLOAT32, Dataflow, Op, Scope, Value
from ...core.graph import LOW
from ...core.names import FreshNames
from .handles import all_names, type_attribute
from .types import DTYPES

FLOAT = ir.DataType.FLOAT
LOW_TYPES = frozenset(DTYPES[name] for name in LOW)
TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision")
DEFAULT_OPSET = 17  # of the standard operators, for a model that imports others alone
Uses = Iterable[tuple[ir.Node, int]]


class OnnxStrictEditor:
    """The verbs of `core.runnable.StrictEditor`. A rounded value's handle stands for what its readers read."""

    def __init__(self, model: ir.Model, flow: Dataflow, done: Callable[[], None]) -> None:
        self._flow, self._done = flow, done
        if not flow.opset:
            model.opset_imports[""] = DEFAULT_OPSET  # the Casts need the standard operators
        opset = flow.opset or DEFAULT_OPSET
        self._to = {name: type_attribute("to", name, opset) for name in (FLOAT32, *LOW)}  # many nodes share one
        self._fresh = FreshNames(all_names(model, flow))
        self._first: dict[ir.Graph, ir.Node | None] = {}  # the first node that was there

    def __enter__(self) -> OnnxStrictEditor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._done()

    # -- values -------------------------------------------------------------------------------------------------------

    def round_all(self, value: Value, *, stays_low: bool = False) -> None:
        """A pair of Casts behind the operator; the value between them, or behind them, takes the name over."""
        raw: ir.Value = value.native
        name, uses, maker = raw.name or "", raw.uses(), raw.producer()
        assert maker is not None and maker.graph is not None
        raw.name = self._fresh(f"@{value.id}")  # short: a runtime copies names of tens of thousands of values
        casts = [self._cast(raw, value.dtype, name if stays_low else self._fresh(f"@{value.id}_low"))]
        if uses or not stays_low:
            wide_name = self._fresh(f"{name}_f32") if stays_low else name
            casts.append(self._cast(casts[0].outputs[0], FLOAT32, wide_name))
        maker.graph.insert_after(maker, casts)
        self._hand_over(value, uses, casts[-1].outputs[0], casts[0 if stays_low else -1].outputs[0])

    def read_wide(self, value: Value, *, stays_low: bool = True) -> None:
        """A Cast behind what makes the value, or before all nodes."""
        low: ir.Value = value.native
        name, uses, maker = low.name or "", low.uses(), low.producer()
        if stays_low and maker is not None and not uses:
            return
        if not stays_low:
            low.name = self._fresh(f"{name}_low")
        cast = self._cast(low, FLOAT32, self._fresh(f"{name}_f32") if stays_low else name)
        graph = low.graph
        assert graph is not None
        if maker is not None:
            graph.insert_after(maker, cast)
        else:
            self._put_first(graph, cast)
        self._hand_over(value, uses, cast.outputs[0], low if stays_low else cast.outputs[0])

    def read_low(self, op: Op, position: int, dtype: str) -> None:
        """A Cast before the operator."""
        node: ir.Node = op.native
        source = node.inputs[position]
        assert source is not None and node.graph is not None
        cast = self._cast(source, dtype, self._fresh(f"{source.name}_low"))
        node.graph.insert_before(node, cast)
        node.replace_input_with(position, cast.outputs[0])

    def store_wide(self, value: Value) -> None:
        """The same numbers in float32."""
        tensor = value.native.const_value
        if tensor is not None and tensor.dtype in LOW_TYPES:
            value.native.const_value = _upcast(tensor)

    def _cast(self, value: ir.Value, to: str, name: str) -> ir.Node:
        node = ir.Node("", "Cast", (value,), outputs=(ir.Value(name=name),), name="")
        node.attributes.data["to"] = self._to[to]  # past the checks of each attribute: there are tens of thousands
        return node

    def _put_first(self, graph: ir.Graph, node: ir.Node) -> None:
        """Before the nodes that were there, behind what came before them so."""
        first = self._first.setdefault(graph, next(iter(graph), None))
        if first is None:
            graph.append(node)
        else:
            graph.insert_before(first, node)

    def _hand_over(self, value: Value, uses: Uses, wide: ir.Value, given_out: ir.Value) -> None:
        """Readers read ``wide``; what was an output of a graph is ``given_out``, of the same declaration."""
        old: ir.Value = value.native
        for node, place in uses:
            node.replace_input_with(place, wide)
        if old.is_graph_output() and old is not given_out:
            given_out.type, given_out.shape = old.type, old.shape
            graph = old.graph
            assert graph is not None
            for place, output in enumerate(graph.outputs):
                if output is old:
                    graph.outputs[place] = given_out
        value.native = given_out if given_out is not old else wide

    # -- operators ----------------------------------------------------------------------------------------------------

    def compute_wide(self, op: Op) -> None:
        """By the attributes that name types, and by those that hold tensors."""
        attributes = op.native.attributes
        for name, attribute in list(attributes.data.items()):
            kind = attribute.type
            if kind == ir.AttributeType.INT:
                if name in TYPE_ATTRIBUTES and attribute.value in LOW_TYPES:
                    attributes[name] = ir.AttrInt64(name, FLOAT.value)
            elif kind == ir.AttributeType.TYPE_PROTO:
                wide = ir.TypeAndShape(_wide_type(attribute.value.type), attribute.value.shape)
                attributes[name] = ir.AttrTypeProto(name, wide)
            elif kind == ir.AttributeType.TENSOR and attribute.value.dtype in LOW_TYPES:
                attributes[name] = ir.AttrTensor(name, _upcast(attribute.value))
            elif kind == ir.AttributeType.TENSORS:
                tensors = [_upcast(t) if t.dtype in LOW_TYPES else t for t in attribute.value]
                attributes[name] = ir.AttrTensors(name, tensors)

    def name_type(self, op: Op, dtype: str) -> None:
        """A CastLike becomes the Cast that it is."""
        node: ir.Node = op.native
        if node.op_type == "CastLike":
            node.op_type = "Cast"
            node.resize_inputs(1)
            node.attributes.clear()
            node.attributes["to"] = self._to[dtype]

    # -- types --------------------------------------------------------------------------------------------------------

    def declare_wide(self, value: Value) -> None:
        """A low element type becomes float32, inside containers too."""
        value.native.type = _wide_type(value.native.type)

    def forget_annotations(self, scope: Scope) -> None:
        """They may be stale by now."""
        graph: ir.Graph = scope.native
        stored = (value for value in graph.initializers.values() if not value.is_graph_input())
        for value in (*stored, *(value for node in graph for value in node.outputs)):
            if (value.type is not None or value.shape is not None) and not value.is_graph_output():
                value.type = value.shape = None


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
