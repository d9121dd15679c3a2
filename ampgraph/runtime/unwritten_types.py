"""Element types of values for which a runtime writes none: as the operator's schema says, from those of its inputs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import onnx

from ..oplists.traits import has

_TENSOR_TYPES = {
    f"tensor({name.lower()})": number
    for name, number in (*onnx.TensorProto.DataType.items(), ("float32", onnx.TensorProto.FLOAT))
}


def unwritten(node: onnx.NodeProto, kind: str, types: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The outputs of ``node`` that ``types`` lacks, each with the element type that follows, if one does."""
    for index, name in enumerate(node.output):
        if name and not types.get(name):
            found = _made(node, kind) or _follows(node, index, types)
            if found:
                yield name, found


def _made(node: onnx.NodeProto, kind: str) -> int:
    """What a Cast names itself; 0 for another operator."""
    return next((item.i for item in node.attribute if item.name == "to"), 0) if has(kind, "casts") else 0


def _follows(node: onnx.NodeProto, index: int, types: Mapping[str, int]) -> int:
    given = [types.get(name, 0) for name in node.input]
    sources = _sources(node.op_type, node.domain, len(given), index)
    if isinstance(sources, int):
        return sources
    return next((given[i] for i in sources if given[i]), 0)


@functools.cache
def _sources(kind: str, domain: str, inputs: int, index: int) -> int | tuple[int, ...]:
    """The element type of an output, or the inputs that have its type."""
    try:
        schema = onnx.defs.get_schema(kind, domain="" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:  # of the runtime's own domains: what it fuses has the type of its data
        return tuple(range(inputs)) if index == 0 else ()
    if not schema.outputs:
        return ()
    name = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
    last = len(schema.inputs) - 1
    alike = tuple(i for i in range(inputs) if last >= 0 and schema.inputs[min(i, last)].type_str == name)
    allowed = next((t.allowed_type_strs for t in schema.type_constraints if t.type_param_str == name), [name])
    return (len(allowed) == 1 and _TENSOR_TYPES.get(allowed[0])) or alike
