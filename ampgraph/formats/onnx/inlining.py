"""The bodies of a file's functions in the place of their calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto

from ...core.errors import AmpError, first_line
from .schemas import schema

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
