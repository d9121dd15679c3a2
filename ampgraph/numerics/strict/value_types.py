"""Element types of every value, worked out from operator schemas: annotations in the file are not believed.

A type is a schema's own spelling, `tensor(float16)` or `seq(tensor(float))`; the empty string is "unknown".
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

_DT = onnx.TensorProto.DataType
TYPE_NAMES: dict[int, str] = {
    _DT.FLOAT: "float", _DT.UINT8: "uint8", _DT.INT8: "int8", _DT.UINT16: "uint16", _DT.INT16: "int16",
    _DT.INT32: "int32", _DT.INT64: "int64", _DT.STRING: "string", _DT.BOOL: "bool", _DT.FLOAT16: "float16",
    _DT.DOUBLE: "double", _DT.UINT32: "uint32", _DT.UINT64: "uint64", _DT.COMPLEX64: "complex64",
    _DT.COMPLEX128: "complex128", _DT.BFLOAT16: "bfloat16",
}  # fmt: skip
LOW_TYPES = {_DT.FLOAT16: "float16", _DT.BFLOAT16: "bfloat16"}
_LOW = re.compile(r"\b(?:float16|bfloat16)\b")
DTYPE_ATTRIBUTES = frozenset(
    {"dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"}
)
_NORMS_WITH_STATISTICS = frozenset(
    {"LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
)
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def tensor(elem_type: int) -> str:
    """The spelling of a tensor type, `tensor(float16)` for 10."""
    return f"tensor({TYPE_NAMES.get(elem_type) or _DT.Name(elem_type).lower()})" if elem_type else ""


def low_of(spelling: str) -> int:
    """FLOAT16 or BFLOAT16 when the type, or what it contains, is of that type; else 0."""
    found = _LOW.search(spelling)
    return 0 if not found else _DT.FLOAT16 if found.group() == "float16" else _DT.BFLOAT16


def is_tensor(spelling: str) -> bool:
    return spelling.startswith("tensor(")


def of_proto(proto: TypeProto) -> str:
    """The spelling of a type in a file."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return tensor(proto.tensor_type.elem_type)
    if kind == "sparse_tensor_type":
        return f"sparse_{tensor(proto.sparse_tensor_type.elem_type)}"
    if kind == "sequence_type":
        return f"seq({of_proto(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({of_proto(proto.optional_type.elem_type)})"
    return ""


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((a for a in node.attribute if a.name == name), None)


@dataclass(frozen=True)
class Signature:
    """The type strings of an operator's formals, and what each type variable admits."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variadic_in: bool
    variadic_out: bool
    homogeneous: bool
    allowed: Mapping[str, tuple[str, ...]]


@cache
def signature(of: str, op_type: str, version: int) -> Signature | None:
    """The operator's signature: from onnx, else from ONNX Runtime where that is installed, else None."""
    try:
        s = onnx.defs.get_schema(op_type, version, of)
    except onnx.defs.SchemaError:
        return _runtime_signatures().get((of, op_type))
    last = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return Signature(
        tuple(i.type_str for i in s.inputs),
        tuple(o.type_str for o in s.outputs),
        bool(s.inputs) and s.inputs[-1].option == last,
        bool(s.outputs) and s.outputs[-1].option == last,
        not s.inputs or s.inputs[-1].is_homogeneous,
        {c.type_param_str: tuple(c.allowed_type_strs) for c in s.type_constraints},
    )


@cache
def _runtime_signatures() -> dict[tuple[str, str], Signature]:
    """The signatures of the operators that ONNX Runtime adds (com.microsoft), the newest version of each."""
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        schemas = state.get_all_operator_schema()
    except (ImportError, AttributeError):
        return {}
    option = state.schemadef.OpSchema.FormalParameterOption.Variadic
    found = {}
    for s in sorted(schemas, key=lambda s: s.since_version):
        if s.domain in ("", "ai.onnx.ml"):
            continue
        found[s.domain, s.name] = Signature(
            tuple(i.typeStr for i in s.inputs),
            tuple(o.typeStr for o in s.outputs),
            bool(s.inputs) and s.inputs[-1].option == option,
            bool(s.outputs) and s.outputs[-1].option == option,
            not s.inputs or s.inputs[-1].isHomogeneous,
            {c.type_param_str: tuple(c.allowed_type_strs) for c in s.type_constraints},
        )
    return found


def _binding(sig: Signature, inputs: list[str]) -> dict[str, str]:
    """What each type variable is, by the inputs that are there."""
    bound: dict[str, str] = {}
    for i, actual in enumerate(inputs):
        at = min(i, len(sig.inputs) - 1)
        if not actual or at < 0 or (i >= len(sig.inputs) - 1 and sig.variadic_in and not sig.homogeneous):
            continue
        bound.setdefault(sig.inputs[at], actual)
    return bound


def output_types(node: NodeProto, inputs: list[str], version: int, annotated: Callable[[str], str]) -> list[str]:
    """The types of a node's outputs, `annotated` answering only for operators without a schema."""
    given = _by_attribute(node, inputs)
    sig = signature(domain(node.domain), node.op_type, version)
    if sig is None:
        first = next((t for t in inputs if is_tensor(t) and "float" in t), "")
        return [given.get(i) or annotated(o) or first for i, o in enumerate(node.output)]
    bound = _binding(sig, inputs)
    result = []
    for i in range(len(node.output)):
        formal = sig.outputs[min(i, len(sig.outputs) - 1)] if sig.outputs else ""
        allowed = sig.allowed.get(formal, ())
        sole = allowed[0] if len(allowed) == 1 else formal if "(" in formal else ""
        result.append(given.get(i) or bound.get(formal) or sole)
    return result


@dataclass
class GraphTypes:
    """The type of every name that a graph can read, its outer graphs' included; bodies by node, in order."""

    values: ChainMap[str, str]
    bodies: list[list[GraphTypes]] = field(default_factory=list)


def infer(model: ModelProto) -> GraphTypes:
    """Types throughout a model that has no functions of its own."""
    return _graph(model.graph, opsets(model), ChainMap())


def opsets(model: ModelProto) -> dict[str, int]:
    return {domain(o.domain): o.version for o in model.opset_import}


def domain(name: str) -> str:
    """The two spellings of the standard domain as one."""
    return "" if name == "ai.onnx" else name


def is_standard(node: NodeProto) -> bool:
    return not domain(node.domain)


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node, in the order in which `GraphTypes.bodies` has them."""
    return [
        g
        for a in node.attribute
        if a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
        for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)
    ]


def typed_nodes(graph: GraphProto, types: GraphTypes) -> Iterator[tuple[NodeProto, list[str], list[str]]]:
    """Every node with the types of its inputs and outputs, those of inner graphs after their owner."""
    for node, inner in zip(graph.node, types.bodies, strict=True):
        yield node, [types.values.get(n, "") for n in node.input], [types.values.get(n, "") for n in node.output]
        for g, t in zip(bodies(node), inner, strict=True):
            yield from typed_nodes(g, t)


def _graph(
    graph: GraphProto, versions: Mapping[str, int], outer: ChainMap[str, str], actuals: Sequence[str] = ()
) -> GraphTypes:
    """A formal declared without a type has that of its actual."""
    annotated = {v.name: of_proto(v.type) for v in graph.value_info}
    result = GraphTypes(outer.new_child())
    known = result.values
    for i, value in enumerate(graph.input):
        known[value.name] = of_proto(value.type) or (actuals[i] if i < len(actuals) else "")
    known.update((i.name, tensor(i.data_type)) for i in graph.initializer)
    known.update((i.values.name, tensor(i.values.data_type)) for i in graph.sparse_initializer)
    for node in graph.node:
        inputs = [known.get(name, "") for name in node.input]
        inner = bodies(node)
        types = [_graph(g, versions, known, _actuals(node.op_type, inputs, len(g.input))) for g in inner]
        result.bodies.append(types)
        if node.op_type in _CONTROL and is_standard(node):
            outputs = _control_outputs(node.op_type, [_results(g, t) for g, t in zip(inner, types, strict=True)])
        else:
            version = versions.get(domain(node.domain), 1)
            outputs = output_types(node, inputs, version, lambda name: annotated.get(name, ""))
        known.update((name, kind) for name, kind in zip(node.output, outputs, strict=False) if name)
    return result


def _results(graph: GraphProto, types: GraphTypes) -> list[str]:
    return [types.values.get(v.name, "") or of_proto(v.type) for v in graph.output]


def _actuals(op: str, inputs: list[str], count: int) -> list[str]:
    """The outer types behind a body's formals; a Scan 8 has its sequence lengths before them."""
    if op == "SequenceMap":
        return [t.removeprefix("seq(").removesuffix(")") if t.startswith("seq(") else t for t in inputs]
    return inputs if op == "Loop" else inputs[-count:] if op == "Scan" and count else []


def _control_outputs(op: str, results: list[list[str]]) -> list[str]:
    """The types of a control-flow node's outputs, by those of its bodies."""
    if op == "If":
        return [next(filter(None, kinds), "") for kinds in zip(*results, strict=False)]
    if op == "SequenceMap":
        return [f"seq({t})" for t in results[0]]
    return results[0][1:] if op == "Loop" else results[0]


def _by_attribute(node: NodeProto, inputs: list[str]) -> dict[int, str]:
    """Output types that an attribute or a container's element fixes, by output index."""
    first = inputs[0] if inputs else ""
    op = node.op_type
    if op in _NORMS_WITH_STATISTICS:
        stash = attribute(node, "stash_type")
        # A stash of 1 is also what ONNX Runtime's own normalizations give their statistics.
        return dict.fromkeys((1, 2), tensor(stash.i if stash else _DT.FLOAT))
    if op in ("Cast", "BitCast"):
        to = attribute(node, "to")
        return {} if to is None else {0: tensor(to.i or _DT.Value(to.s.decode()))}
    if op in ("Constant", "ConstantOfShape"):
        return {0: _constant_type(node)}
    if op in ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "EyeLike"):
        dtype = attribute(node, "dtype")
        return {0: tensor(dtype.i) if dtype else first or tensor(_DT.FLOAT)}
    if op in ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"):
        dtype = attribute(node, "output_datatype")
        return {0: tensor(dtype.i if dtype else _DT.FLOAT)}
    if op == "DequantizeLinear":
        dtype = attribute(node, "output_dtype")
        return {0: tensor(dtype.i) if dtype and dtype.i else inputs[1] if len(inputs) > 1 else ""}
    return _container_type(node, first)


def _container_type(node: NodeProto, first: str) -> dict[int, str]:
    """Operators that put a value into a sequence or an optional, or take it out."""
    op = node.op_type
    if op in ("SequenceConstruct", "SplitToSequence"):
        return {0: f"seq({first})"} if first else {}
    if op in ("SequenceAt", "ConcatFromSequence"):
        return {0: first.removeprefix("seq(").removesuffix(")")} if first.startswith("seq(") else {}
    if op == "SequenceEmpty":
        dtype = attribute(node, "dtype")
        return {0: f"seq({tensor(dtype.i if dtype else _DT.FLOAT)})"}
    if op == "Optional":
        declared = attribute(node, "type")
        inner = first or (of_proto(declared.tp) if declared else "")
        return {0: f"optional({inner})"} if inner else {}
    if op == "OptionalGetElement":
        return {0: first[len("optional(") : -1] if first.startswith("optional(") else first}
    return {}


def _constant_type(node: NodeProto) -> str:
    for a in node.attribute:
        if a.name == "value":
            return tensor(a.t.data_type)
        if a.name == "sparse_value":
            return tensor(a.sparse_tensor.values.data_type)
        if a.name.startswith("value_"):
            kind = a.name.removeprefix("value_").rstrip("s") or "string"
            return {"float": "tensor(float)", "int": "tensor(int64)"}.get(kind, "tensor(string)")
    return tensor(_DT.FLOAT)
