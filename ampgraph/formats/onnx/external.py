"""Stored tensors of an ONNX model that lie in data files: found, and streamed to a new one."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from ...core.graph import Progress
from .data_files import Mark
from .walk import stored
from .weights import InFile, RoundedTensor, nbytes, tensor_chunks

Holder = ir.Value | ir.Node
"""What holds a stored tensor: an initializer, or a Constant."""

INLINE_LIMIT = 1_900_000_000  # protobuf stops at 2 GiB
EXTERNAL_FROM = 1024  # bytes: smaller tensors stay in the model file
ALIGN = 4096  # so that readers can map a tensor


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """The stored tensors whose bytes lie in data files."""
    return external_of(stored(model))


def external_of(holders: Iterable[Holder]) -> Iterator[ir.ExternalTensor]:
    """Those of some holders."""
    for holder in holders:
        source = _source(tensor_of(holder))
        if type(source) is not InFile and isinstance(source, ir.ExternalTensor):
            yield source


def take_in(graphs: Iterable[ir.Graph]) -> set[Path]:
    """Reads what lies in data files of attributes other than a Constant's into the model: it is not written to a new
    data file, and the old one is not beside the result. The files."""
    found: set[Path] = set()
    for node in (node for graph in graphs for node in graph if node.op_type != "Constant"):
        for name, attribute in list(node.attributes.data.items()):
            if attribute.is_ref() or attribute.type not in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
                continue
            single = attribute.type == ir.AttributeType.TENSOR
            tensors = [attribute.as_tensor()] if single else list(attribute.as_tensors())
            outside = {Path(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}
            if outside:
                held = [_held(tensor) for tensor in tensors]
                node.attributes[name] = ir.AttrTensor(name, held[0]) if single else ir.AttrTensors(name, held)
                found |= outside
    return found


def _held(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same tensor in memory, its data file closed."""
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name, doc_string=tensor.doc_string)


def tensor_of(holder: ir.Value | ir.Node) -> ir.TensorProtocol:
    tensor = holder.const_value if isinstance(holder, ir.Value) else holder.attributes["value"].value
    assert tensor is not None
    return tensor


def put_tensor(holder: ir.Value | ir.Node, tensor: ir.TensorProtocol) -> None:
    if isinstance(holder, ir.Value):
        holder.const_value = tensor
    else:
        holder.attributes["value"] = ir.AttrTensor("value", tensor)


def _source(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor in the file behind one that is rounded when it is read."""
    return tensor.source if type(tensor) is not InFile and isinstance(tensor, RoundedTensor) else tensor


def _is_external(tensor: ir.TensorProtocol) -> bool:
    source = _source(tensor)
    return type(source) is not InFile and isinstance(source, ir.ExternalTensor)


def external_holders(stored: Iterable[Holder]) -> list[Holder]:
    """What goes to a data file: what came from one, and every large initializer where 2 GB would be passed."""
    holders = [(holder, tensor_of(holder)) for holder in stored]
    inline = sum(nbytes(tensor) for holder, tensor in holders if isinstance(holder, ir.Value))
    return [
        holder
        for holder, tensor in holders
        if _is_external(tensor)
        or (inline > INLINE_LIMIT and isinstance(holder, ir.Value) and tensor.nbytes >= EXTERNAL_FROM)
    ]


def write_data(holders: list[ir.Value | ir.Node], place: Path, temporary: Path, progress: Progress | None) -> Mark:
    """Streams the tensors to one file, which is to go to ``place``, and points their holders there; its mark."""
    checksum, places, position = 0, [], 0
    tensors = [tensor_of(holder) for holder in holders]
    total = sum(tensor.nbytes for tensor in tensors)
    with open(temporary, "wb") as file:
        for tensor in tensors:
            padding = -position % ALIGN
            file.write(b"\0" * padding)
            start = position = position + padding
            for chunk in tensor_chunks(tensor):
                checksum = zlib.crc32(chunk, checksum)
                file.write(chunk)
                position += len(chunk)
            places.append((start, position - start))
            if progress:
                progress("writing weights", position, total)
        mark = Mark(position, f"{checksum:08x}")
        file.write(mark.line())
    for holder, tensor, (offset, length) in zip(holders, tensors, places, strict=True):
        label = tensor.name or (holder.name if isinstance(holder, ir.Value) else "") or ""
        shape: ir.Shape = tensor.shape  # type: ignore[assignment]
        stored = ir.ExternalTensor(
            place.name, offset, length, tensor.dtype, shape=shape, name=label, base_dir=place.parent
        )
        put_tensor(holder, stored)
    return mark
