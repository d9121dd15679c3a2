"""What runs ask of an ONNX graph: a copy without functions, its boundary as declared, the file for a runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx.inliner
import onnx_ir as ir
from onnx import FunctionProto, ModelProto, NodeProto

from ...core.dataflow import FLOAT32, Dataflow, Op, Scope, Value
from ...core.errors import AmpError, first_line
from ...core.graph import LOW
from ...core.names import FreshNames
from ...core.runnable import Declared, Site, Sums, Switched
from ..editable import EditableGraph
from . import io as onnx_io
from .accumulators import computed_again
from .agreement import types_agree
from .handles import all_names, type_attribute
from .origins import read_sites
from .schemas import same_version
from .shapes import sizes
from .switches import LowParts, with_switches
from .types import DTYPES, declared_type, native_type
from .walk import captured
from .weights import stored_tensor
from .wire import graph_file

if TYPE_CHECKING:
    from typing_extensions import Self


FLOAT = ir.DataType.FLOAT
LOW_TYPES = frozenset(DTYPES[name] for name in LOW)
TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision")
"""Attributes that hold the number of a type in which an operator computes or gives its output."""
DEFAULT_OPSET = 17  # of the standard operators, for a model that imports others alone
Uses = Iterable[tuple[ir.Node, int]]  # (node, which of its inputs)


class OnnxStrictEditor:
    """The verbs by which strict runs edit an ONNX model, on handles of its dataflow: what is low becomes float32,
    rounded to the low type where it is made. Readers, outputs of graphs among them, read the same names as before; a
    rounded value's handle stands for what its readers read. Used in a `with` statement. ``done``: called at its end."""

    def __init__(self, model: ir.Model, flow: Dataflow, done: Callable[[], None]) -> None:
        self._flow, self._done = flow, done
        if not flow.opset:
            model.opset_imports[""] = DEFAULT_OPSET  # the Casts need the standard operators
        self._opset = opset = flow.opset or DEFAULT_OPSET
        self._to = {name: type_attribute("to", name, opset) for name in (FLOAT32, *LOW)}  # Cast's, by type: all share
        self._fresh = FreshNames(all_names(model, flow))
        self._first: dict[ir.Graph, ir.Node | None] = {}  # graph -> its first node of the file, None for an empty one

    def __enter__(self) -> OnnxStrictEditor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._done()

    # -- values -------------------------------------------------------------------------------------------------------

    def round_all(self, value: Value, *, stays_low: bool = False, sums: Sums | None = None) -> None:
        """In a strict run, has the readers of a low value read what its operator makes in float32, rounded, as float32:
        puts a pair of Casts, to the value's low type and back, behind the operator. ``stays_low``: the value's name,
        and the output of the graph that it is, go to the low value between the Casts, else to the one behind them.
        ``sums``: how a kernel that accumulates low adds up, by nodes in front of the Casts (`computed_again`)."""
        raw: ir.Value = value.native
        name, uses, maker = raw.name or "", raw.uses(), raw.producer()
        assert maker is not None and maker.graph is not None
        raw.name = self._fresh(f"@{value.id}")  # short: a runtime copies names of tens of thousands of values
        summed: list[ir.Node] = []
        found = raw
        if sums is not None:
            summed, found = computed_again(sums, value.dtype, self._opset, self._to, self._fresh)
        casts = [self._cast(found, value.dtype, name if stays_low else self._fresh(f"@{value.id}_low"))]
        if uses or not stays_low:
            wide_name = self._fresh(f"{name}_f32") if stays_low else name
            casts.append(self._cast(casts[0].outputs[0], FLOAT32, wide_name))
        maker.graph.insert_after(maker, [*summed, *casts])
        self._hand_over(value, uses, casts[-1].outputs[0], casts[0 if stays_low else -1].outputs[0])

    def read_float32(self, value: Value, *, stays_low: bool = True) -> None:
        """In a strict run, has the readers of a value that stays low read it as float32: a Cast stands behind what
        makes it, before all nodes for an input or weight. ``stays_low``: whether the low value keeps its name, and its
        place as output (no Cast is made if no node reads it), or the Cast's does; true for inputs, weights."""
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
        """In a strict run, has an operator read the low ``dtype`` at an input that is float32 by now, by a Cast."""
        node: ir.Node = op.native
        source = node.inputs[position]
        assert source is not None and node.graph is not None
        cast = self._cast(source, dtype, self._fresh(f"{source.name}_low"))
        node.graph.insert_before(node, cast)
        node.replace_input_with(position, cast.outputs[0])

    def store_float32(self, value: Value) -> None:
        """In a strict run, makes a low initializer float32, with the same numbers; nothing for any other value."""
        tensor = value.native.const_value
        if tensor is not None and tensor.dtype in LOW_TYPES:
            value.native.const_value = _upcast(tensor)

    def _cast(self, value: ir.Value, to: str, name: str) -> ir.Node:
        """For a strict run: a new Cast of ``value`` to type ``to``, in no graph, whose result is called ``name``."""
        node = ir.Node("", "Cast", (value,), outputs=(ir.Value(name=name),), name="")
        node.attributes.data["to"] = self._to[to]  # past the checks of each attribute: there are tens of thousands
        return node

    def _put_first(self, graph: ir.Graph, node: ir.Node) -> None:
        """For a strict run: puts a node in front of all nodes of the file, behind those put there before."""
        first = self._first.setdefault(graph, next(iter(graph), None))
        if first is None:
            graph.append(node)
        else:
            graph.insert_before(first, node)

    def _hand_over(self, value: Value, uses: Uses, wide: ir.Value, given_out: ir.Value) -> None:
        """For a strict run: has ``uses`` read ``wide`` instead of a value, and, where the value is an output of its
        graph, makes ``given_out`` that output, declared alike. The handle stands for ``given_out`` from then on, for
        ``wide`` where ``given_out`` is the old value itself."""
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

    def compute_float32(self, op: Op) -> None:
        """In a strict run, has an operator compute in float32: attributes that name low types or hold low tensors."""
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
        """In a strict run, makes a CastLike the Cast to ``dtype`` that it stands for, as what it reads changes."""
        node: ir.Node = op.native
        if node.op_type == "CastLike":
            node.op_type = "Cast"
            node.resize_inputs(1)
            node.attributes.clear()
            node.attributes["to"] = self._to[dtype]

    # -- types --------------------------------------------------------------------------------------------------------

    def declare_float32(self, value: Value) -> None:
        """In a strict run, declares a low input or output of a graph float32, inside containers too."""
        value.native.type = _wide_type(value.native.type)

    def forget_annotations(self, scope: Scope) -> None:
        """In a strict run, removes types and shapes of what a graph makes and stores, but for its inputs and outputs:
        they are out of date once types have changed, and a runtime infers them anew."""
        graph: ir.Graph = scope.native
        stored = (value for value in graph.initializers.values() if not value.is_graph_input())
        for value in (*stored, *(value for node in graph for value in node.outputs)):
            if (value.type is not None or value.shape is not None) and not value.is_graph_output():
                value.type = value.shape = None


def _upcast(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """For a strict run: a low ONNX tensor as float32, with the same numbers, name and description."""
    return ir.Tensor(tensor.numpy().astype("float32"), name=tensor.name, doc_string=tensor.doc_string)


def _wide_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """For a strict run: a type of onnx_ir with float32 in the place of a low element type; others, and None, stay."""
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_wide_type(kind.elem_type))  # type: ignore[arg-type]
    if isinstance(kind, (ir.TensorType, ir.SparseTensorType)) and kind.dtype in LOW_TYPES:
        return type(kind)(FLOAT)
    return kind


DEFAULT = ("", "ai.onnx")  # names of the domain of the standard operators


def inlined(model: ModelProto) -> ModelProto:
    """The ONNX model with its functions inlined, for a runtime that knows none; opsets of the functions in ``model``
    itself may be changed. A function of another opset whose operators are the same in the model's is inlined as it is,
    any other is converted. Raises AmpError AMP502 where onnx cannot do that."""
    _align_opsets(model)
    flat = onnx.inliner.inline_local_functions(model)
    return _inlined_at_one_opset(flat) if flat.functions else flat


def _inlined_at_one_opset(model: ModelProto) -> ModelProto:
    """The ONNX model with functions of another opset converted and inlined. Raises AmpError AMP502 if onnx cannot."""
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except RuntimeError:  # onnx raises nothing better; it asks for types of all that a function reads
        known = onnx.shape_inference.infer_shapes(model)
    try:
        return onnx.inliner.inline_local_functions(known, convert_version=True)
    except RuntimeError as error:
        message = f"onnx cannot convert function '{model.functions[0].name}' to the model's opset: {first_line(error)}"
        raise AmpError("AMP502", message, hint="export the model with one opset for all of its functions") from None


def _align_opsets(model: ModelProto) -> None:
    """Makes functions import the ONNX model's opset where all of their standard operators are the same in both."""
    own = next((item.version for item in model.opset_import if item.domain in DEFAULT), 0)
    for function in model.functions:
        for item in function.opset_import:
            if item.domain in DEFAULT and item.version != own and _same_in_both_opsets(function, item.version, own):
                item.version = own


def _same_in_both_opsets(function: FunctionProto, ours: int, theirs: int) -> bool:
    """Whether an ONNX function's standard operators are the same in both opsets, so that it can be inlined."""
    kinds = {node.op_type for node in _all_nodes(function.node) if node.domain in DEFAULT}
    return all(same_version(kind, ours, theirs) for kind in kinds)


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Some NodeProtos, each followed by those of its bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body.node)


class RunnableOnnx(EditableGraph):
    """The part of an ONNX graph that runs in float32 on a CPU ask: its file, whole or of some operators, and copies."""

    model: ir.Model

    def conflicts(self, low: str = "float16") -> Sequence[str]:
        """Sentences on slots of an ONNX model that hold two types, and on types that a slot does not admit; empty for a
        model without. Most models without are known by their annotations, without making a dataflow."""
        return [] if not self._made and types_agree(self.model) else super().conflicts(low)

    def _with_model(self, model: ir.Model) -> Self:
        """A graph of this ONNX graph's own class over another onnx_ir model."""
        return type(self)(model)  # type: ignore[arg-type]  # the class of the whole graph takes a model

    def flat(self) -> Self:
        """The ONNX graph with its functions inlined, whose inputs have no types in the file that could be rewritten;
        itself, no copy, where it has no functions. Raises AmpError AMP502 where onnx cannot inline one."""
        if not self.model.functions:
            return self
        folder = self.folder()
        flat = inlined(onnx_io.to_proto(self.model))
        return self._with_model(onnx_io.deserialize(flat, Path(folder) if folder else None))

    def copied(self) -> Self:
        """A copy of the ONNX graph to edit; stored tensors are shared."""
        return self._with_model(self.model.clone())

    def declared(self) -> tuple[Sequence[Declared], Sequence[Declared]]:
        """(inputs, outputs) as the ONNX file annotates them; inputs with a stored default are among them."""
        main = self.model.graph
        return [_as_declared(value) for value in main.inputs], [_as_declared(value) for value in main.outputs]

    def folder(self) -> str:
        """The absolute path of the folder of the ONNX model's data files; "" where it has none."""
        first = next(onnx_io.external_tensors(self.model), None)
        return "" if first is None else str(Path(first.base_dir).resolve())

    def outside(self, value: Value) -> bool:
        """Whether the bytes of an ONNX value's stored tensor lie in a data file; no for one that is rounded from a
        tensor in a data file, and for a value that is not stored."""
        return isinstance(stored_tensor(value.native), ir.ExternalTensor)

    def content(self) -> bytes:
        """The .onnx file of a graph without functions, as a runtime takes it; weights in data files stay there."""
        main, model = self.model.graph, self.model
        stored = main.initializers.values()
        return graph_file(model.ir_version, model.opset_imports, main.inputs, main.outputs, main, stored)

    def part(
        self, ops: Sequence[Op] | None, reads: Sequence[Value], makes: Sequence[Value], fed: Collection[str] = ()
    ) -> bytes:
        """The bytes of an .onnx file of some operators of the main graph, with the weights that they read. ``ops``: in
        order, None for all; ``reads``, ``makes``: the file's inputs, outputs; ``fed``: weights left out."""
        nodes = list(self.model.graph) if ops is None else [op.native for op in ops]
        own = {*(value.native for value in reads), *(value for node in nodes for value in node.outputs)}
        read = dict.fromkeys(value for node in nodes for value in (*node.inputs, *captured(node)) if value is not None)
        stored = [v for v in read if v not in own and v.name not in fed and v.const_value is not None]
        inputs = [value.native if value.native.is_graph_input() else _session_port(value) for value in reads]
        opsets = self.model.opset_imports
        imports = opsets if "" in opsets or "ai.onnx" in opsets else {**opsets, "": DEFAULT_OPSET}
        return graph_file(
            self.model.ir_version, imports, inputs, [_session_port(value) for value in makes], nodes, stored
        )

    def branch(self, op: Op, attribute: str) -> Self:
        """A body of an ONNX If as a graph of its own, with the values that both bodies read from outside as its inputs,
        and stored tensors among them as weights. ``attribute``: ``then_branch`` or ``else_branch``. What the If
        captures must be tensors of known types; their shapes are left open, since a run brings its own."""
        body, outer = op.native.attributes[attribute].as_graph(), captured(op.native)
        values = {value.native: value for value in self.dataflow().values}
        stored = [v for v in outer if v.const_value is not None and not v.is_graph_input()]
        inputs = [v for v in outer if v not in stored]
        weights, opsets = [*body.initializers.values(), *stored], dict(self.model.opset_imports)
        view = ir.GraphView(inputs, list(body.outputs), nodes=list(body), initializers=weights, opset_imports=opsets)
        graph = view.clone()
        for value, source in zip(graph.inputs, inputs, strict=True):
            value.type, value.shape = native_type("", values[source].dtype), None
        return self._with_model(ir.Model(graph, ir_version=self.model.ir_version))

    def sites(self, flat: Self) -> tuple[Site, ...]:
        """The nodes of the main graph of ``flat``, in order, each with where it comes from in this ONNX graph.
        ``flat``: this graph with its functions inlined."""
        return read_sites(self.model, flat.model)

    def switched(self, reference: Self, make_strict: Callable[[Self], None]) -> list[Switched]:
        """Makes this low ONNX graph strict in place, with an input `SWITCHES` that says of each node whether its
        roundings are done, and returns what each element of the input switches. ``reference``: the graph that it was
        converted from; both are without functions. ``make_strict``: writes the roundings into a graph."""
        parts = LowParts.of(self.model, self.dataflow())
        make_strict(self)
        found = with_switches(self.model, reference.model, parts)
        self.edited()
        return found

    def strict_editor(self, flow: Dataflow) -> OnnxStrictEditor:
        """An editor that makes an ONNX graph without functions strict. StaleDataflow for a dataflow out of date."""
        self.require_newest(flow)
        return OnnxStrictEditor(self.model, flow, self.edited)


def _session_port(value: Value) -> ir.Value:
    """An ONNX value as input or output of a file for a session, without a shape; float32 if its type is unknown."""
    return ir.Value(name=value.native.name, type=native_type(value.container, value.dtype or "float32"))


def _as_declared(value: ir.Value) -> Declared:
    """An input or output of an ONNX graph as the file declares it; its shape is empty where the file declares none."""
    return Declared(value.name or "", *declared_type(value), tuple(sizes(value.shape or ())), value.is_initializer())
