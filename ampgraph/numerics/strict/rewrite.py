"""The rewriting behind a strict run: low values become float32, each rounded by a pair of Casts where it is made."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from ampgraph.numerics.strict import value_types as vt

FLOAT = TensorProto.FLOAT
# Their low results are elements of low inputs, or of nothing: rounding them again would change no bit.
_EXACT = frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat", "Split", "Expand"}
    | {"Tile", "Gather", "GatherElements", "GatherND", "Where", "Relu", "Neg", "Abs", "DepthToSpace", "SpaceToDepth"}
    | {"Compress", "Constant", "ConstantOfShape", "ReverseSequence", "TopK", "Unique", "Trilu"}
    | {"SequenceAt", "OptionalGetElement", "ConcatFromSequence", "If", "Loop", "Scan"}
)
# Constants up to this many bytes are upcast in the file, larger ones by a Cast: a model near 2 GB must not outgrow it.
_INLINE_LIMIT = 1 << 20


def rewrite(model: ModelProto, *, keep_border: bool, folder: str = "") -> ModelProto:
    """Rewrite a model without functions, in place; unless the border is kept, it becomes float32 as well."""
    if "" not in vt.opsets(model):
        # The rounding Casts need the standard operators, which a model of custom ones need not import.
        model.opset_import.append(helper.make_opsetid("", 17))
    names = set(_value_names(model.graph))
    _Rewriter(vt.opsets(model)[""], names, folder).graph(model.graph, vt.infer(model), ChainMap(), border=keep_border)
    return model


@dataclass
class _Rewriter:
    """One walk over the graphs of a model. `aliases` maps a name to the float32 name that readers use."""

    opset: int
    names: set[str]
    folder: str

    def graph(
        self, graph: GraphProto, types: vt.GraphTypes, aliases: ChainMap[str, str], *, border: bool = False
    ) -> None:
        kept = {v.name for v in (*graph.input, *graph.output)} if border else set()
        here = _Graph(self, types, aliases.new_child(), kept)
        for value in graph.input:
            here.declare(value.name, value.name in kept)
        here.initializers(graph)
        for node, inner in zip(graph.node, types.bodies, strict=True):
            here.node(node, inner)
        for value in (*graph.input, *graph.output):
            if value.name not in kept or not vt.is_tensor(vt.of_proto(value.type)):
                _retype(value.type)
        # Annotations may be stale and none is needed: the runtime infers its own.
        del graph.value_info[:]
        del graph.node[:]
        graph.node.extend(here.nodes)

    def fresh(self, base: str) -> str:
        name, k = base, 0
        while name in self.names:
            k += 1
            name = f"{base}_{k}"
        self.names.add(name)
        return name

    def cast(self, source: str, target: str, to: int) -> NodeProto:
        spelled: int | str = to if self.opset >= 6 else TensorProto.DataType.Name(to)
        return helper.make_node("Cast", [source], [target], to=spelled)


@dataclass
class _Graph:
    """One graph while it is rewritten: `kept` names stay low, `nodes` is the new list."""

    owner: _Rewriter
    types: vt.GraphTypes
    aliases: ChainMap[str, str]
    kept: set[str]
    nodes: list[NodeProto] = field(default_factory=list)

    def declare(self, name: str, stays_low: bool) -> None:
        """Enter a graph input or an initializer; one that stays low is read through a Cast."""
        kind = self.types.values.get(name, "")
        self.aliases[name] = name
        if stays_low and vt.low_of(kind) and vt.is_tensor(kind):
            self.aliases[name] = self.owner.fresh(f"{name}_f32")
            self.nodes.append(self.owner.cast(name, self.aliases[name], FLOAT))

    def initializers(self, graph: GraphProto) -> None:
        inputs = {v.name for v in graph.input}
        for init in graph.initializer:
            low, is_input = init.data_type in vt.LOW_TYPES, init.name in inputs
            if low and is_input and init.name not in self.kept:
                _upcast(init, self.owner.folder)  # The default of an input turns float32 with it.
            elif low and not is_input:
                stays = init.name in self.kept or not _small(init)
                self.declare(init.name, stays)
                if not stays:
                    _upcast(init)
            elif not is_input:
                self.aliases[init.name] = init.name
        for sparse in graph.sparse_initializer:
            self.aliases[sparse.values.name] = sparse.values.name
            if sparse.values.data_type in vt.LOW_TYPES:
                _upcast(sparse.values)

    def node(self, node: NodeProto, inner: list[vt.GraphTypes]) -> None:
        """Append a node, with what rounds its low outputs behind it."""
        for body, types in zip(vt.bodies(node), inner, strict=True):
            self.owner.graph(body, types, self.aliases)
        kinds = [self.types.values.get(name, "") for name in node.output]
        reads = [self.aliases.get(name, name) for name in node.input]
        if node.op_type == "BitCast":
            # Its meaning is the bits: it reads, and makes, the low type itself.
            reads = [self._lowered(r, self.types.values.get(n, "")) for r, n in zip(reads, node.input, strict=True)]
        del node.input[:]
        node.input.extend(reads)
        self.nodes.append(node)
        makes_low = self._attributes(node, vt.low_of(kinds[0]) if kinds else 0)
        for i, kind in enumerate(kinds):
            if node.output[i]:
                self._output(node, i, kind, makes_low)

    def _lowered(self, name: str, kind: str) -> str:
        if not vt.low_of(kind):
            return name
        target = self.owner.fresh(f"{name}_low")
        self.nodes.append(self.owner.cast(name, target, vt.low_of(kind)))
        return target

    def _attributes(self, node: NodeProto, low: int) -> bool:
        """Turn a node's low attributes to float32; True when it goes on making a low output, by rounding."""
        if node.op_type == "CastLike" and low:
            node.op_type = "Cast"
            del node.input[1:], node.attribute[:]
            node.attribute.extend(self.owner.cast("", "", low).attribute)
        if node.op_type in ("Cast", "BitCast") and vt.is_standard(node):
            return bool(low)
        for a in node.attribute:
            if a.name in vt.DTYPE_ATTRIBUTES and a.type == AttributeProto.INT and a.i in vt.LOW_TYPES:
                a.i = FLOAT
            elif a.type == AttributeProto.TYPE_PROTO:
                _retype(a.tp)
            elif a.type == AttributeProto.SPARSE_TENSOR and a.sparse_tensor.values.data_type in vt.LOW_TYPES:
                _upcast(a.sparse_tensor.values)
            for t in (a.t, *a.tensors) if a.type in (AttributeProto.TENSOR, AttributeProto.TENSORS) else ():
                if t.data_type in vt.LOW_TYPES:
                    _upcast(t, self.owner.folder)
        return False

    def _output(self, node: NodeProto, i: int, kind: str, makes_low: bool) -> None:
        """Name one output for its readers: float32, rounded, and low itself only where it is kept so."""
        name, low, kept = node.output[i], vt.low_of(kind), node.output[i] in self.kept
        exact = node.op_type in _EXACT and vt.is_standard(node)
        self.aliases[name] = name
        if not low or not vt.is_tensor(kind) or (exact and not kept):
            return
        rounded = name if kept else self.owner.fresh(f"{name}_low")
        if makes_low:
            node.output[i] = rounded
        else:
            node.output[i] = self.owner.fresh(f"{name}_raw")
            self.nodes.append(self.owner.cast(node.output[i], rounded, low))
        if kept:
            self.aliases[name] = self.owner.fresh(f"{name}_f32")
        self.nodes.append(self.owner.cast(rounded, self.aliases[name], FLOAT))


def _value_names(graph: GraphProto) -> Iterable[str]:
    for v in (*graph.input, *graph.output, *graph.initializer):
        yield v.name
    for node in graph.node:
        yield from node.input
        yield from node.output
        for body in vt.bodies(node):
            yield from _value_names(body)


def _small(tensor: TensorProto) -> bool:
    return tensor.data_location != TensorProto.EXTERNAL and tensor.ByteSize() <= _INLINE_LIMIT


def _upcast(tensor: TensorProto, folder: str = "") -> None:
    """Turn a low tensor in a file to float32, exactly."""
    name, doc = tensor.name, tensor.doc_string
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor, folder).astype("float32"), name))
    tensor.doc_string = doc


def _retype(kind: TypeProto) -> None:
    """Replace a low element type by float32, inside containers too."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(kind, which)
        if inner.elem_type in vt.LOW_TYPES:
            inner.elem_type = FLOAT
    elif which in ("sequence_type", "optional_type"):
        _retype(getattr(kind, which).elem_type)
