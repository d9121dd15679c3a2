"""The forward graph that a step holds for evaluation and export: its structure packed as text in the metadata, while
its weights are the step's."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Container, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError

FORWARD = "ampgraph.forward"
"""The model metadata that holds a packed forward graph."""
SMALL = 1024  # bytes: tensors up to here are packed with the structure
ORIGINAL = "ampgraph.forward/"
"""The prefix of the initializers that only the forward graph needs (see `keep_originals`): no node reads them."""


def pack(model: ir.Model) -> str:
    """Packs the forward model without its larger initializers (beyond `SMALL`) into the text that a step holds."""
    kept = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > SMALL:
            kept[name] = tensor
            value.const_value = ir.tensor(np.zeros((0,), np.float32), name=name)
    try:
        proto = ir.to_proto(model)
    finally:
        for name, tensor in kept.items():
            model.graph.initializers[name].const_value = tensor
    whole = proto.SerializeToString(deterministic=True)
    packed = zlib.compress(whole, 9)
    if len(whole) > _most_unpacked(packed):
        packed = zlib.compress(whole, 0)
    return base64.b85encode(packed).decode()


def _most_unpacked(packed: bytes) -> int:
    """The most bytes that a step's packed forward graph may unpack to: a file with more is made to fill the memory."""
    return (1 << 20) + 50 * len(packed)


def _inflated(packed: bytes) -> bytes:
    """A step's packed forward graph unpacked. Raises ValueError for more than `_most_unpacked`, zlib.error for what is
    cut off or is not zlib's."""
    stream, most = zlib.decompressobj(), _most_unpacked(packed)
    whole = stream.decompress(packed, most + 1)
    if len(whole) > most or not stream.eof:
        raise ValueError("the forward graph is too large, or cut off")
    return whole


def originals(graph: ir.Graph) -> dict[str, ir.TensorProtocol]:
    """For a step's packed forward graph: the initializers that `pack` leaves out, by name, as they are now."""
    stored = {value.name or "": value.const_value for value in graph.initializers.values()}
    return {name: tensor for name, tensor in stored.items() if tensor is not None and tensor.nbytes > SMALL}


def keep_originals(graph: ir.Graph, tensors: Mapping[str, ir.TensorProtocol], state: Container[str]) -> None:
    """For a step's packed forward graph: adds, under the prefix `ORIGINAL`, those of the tensors that `pack` left out
    that the step's graph has no more as they were: weights outside of its ``state`` that became low, were folded or
    renamed."""
    for name, tensor in tensors.items():
        value = graph.initializers.get(name)
        if name not in state and (value is None or value.const_value is not tensor):
            kept = ir.Value(
                name=ORIGINAL + name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(tensor.shape.numpy()),
                const_value=tensor,
            )
            graph.initializers[ORIGINAL + name] = kept


def unpack(text: str, tensors: Mapping[str, Array], left_out: Mapping[str, Array] | None = None) -> ir.Model:
    """The forward model that a step holds packed, with ``tensors`` as its initializers of the same names. ``left_out``:
    numbers only for initializers that `pack` left out and ``tensors`` lack; small ones are in the text. Raises AmpError
    AMP206 for a text that cannot be read, and where numbers are missing."""
    try:
        proto = onnx.ModelProto.FromString(_inflated(base64.b85decode(text)))
        model: ir.Model = ir.from_proto(proto)
    except Exception as error:  # base64, zlib, protobuf and onnx_ir have an error each
        raise AmpError("AMP206", "the forward graph in it cannot be read", hint="build the step again") from error
    for name, value in model.graph.initializers.items():
        missing = value.const_value is not None and value.const_value.size == 0 and value.shape != ir.Shape((0,))
        array = tensors.get(name, (left_out or {}).get(name) if missing else None)
        if array is not None:
            value.const_value = ir.tensor(array, name=name)
            value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
        elif missing:
            raise AmpError("AMP206", f"no numbers for '{name}'", hint="use the step that the checkpoint was made with")
    return model
