"""Stored tensors of a MindIR model: where their bytes lie, checked before they are touched, rounded piece by piece."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...core.arrays import Array, DType
from ...core.errors import AmpError
from ..checks import DAMAGED, FOREIGN_DATA, check_extent, check_held, data_file, elements_in
from ..rounding import LOW_TYPES, STORED_TYPES, Rounder, pieces
from . import schema
from .schema import Message

ALIGN = 64  # MindSpore's data files have a header of this size, and pad each parameter to it
CIPHERS = {b"\xd8^:\x7f": "AES-GCM", b"\xd9^:\x7f": "AES-CBC", b"\xda^:\x7f": "SM4-CBC"}  # how MindSpore marks a block
LITTLE = b"\1"  # first byte of a data file; MindSpore's loader compares it with its own byte order


@dataclass(frozen=True)
class PendingRounding:
    """A float32 tensor in a MindIR data file that becomes ``dtype`` when it is read or saved. ``location``, ``offset``
    and ``length`` (bytes): where its float32 elements lie. ``floor``: what is below becomes it first."""

    location: str
    offset: int
    length: int
    dtype: str
    floor: float | None


@dataclass
class MindirFile:
    """A MindIR model in memory; external tensors stay in their data files."""

    model: Message
    path: Path | None
    """Where it was read from, beside which its data files lie; None for a model that was made in memory."""
    rounded: dict[str, PendingRounding] = field(default_factory=dict)
    """Token -> pending rounding: the token stands as location in the tensor until the model is saved."""

    @property
    def where(self) -> str:
        """The .mindir file as messages name it: its path, or ``model`` for one in memory."""
        return str(self.path or "model")


def is_external(tensor: Message) -> bool:
    """Whether the bytes of a .mindir Tensor message lie in a data file; no if the message holds bytes as well."""
    return tensor.HasField("external_data") and not (tensor.HasField("raw_data") and tensor.raw_data)


def tensors(model: Message) -> Iterator[Message]:
    """Every Tensor message of a MindIR model that may hold data: parameters, and those in attributes at any depth."""
    for graph in (model.graph, *model.functions):
        yield from graph.parameter
        for node in graph.node:
            for attributes in (node.attribute, node.node_attr, node.primal_attr):
                yield from _attribute_tensors(attributes)
        yield from _attribute_tensors(graph.attribute)
    for primitive in model.primitives:
        yield from _attribute_tensors(primitive.attribute)


def _attribute_tensors(attributes: Message) -> Iterator[Message]:
    """The Tensor messages in MindIR attributes, those in nested values included."""
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        yield from _attribute_tensors(attribute.values)


def data_files(file: MindirFile) -> list[Path]:
    """The paths of the data files that a MindIR model reads, data_9 in front of data_10; none for one in memory."""
    if file.path is None:
        return []
    locations = {place(file, tensor)[0] for tensor in tensors(file.model) if is_external(tensor)}
    return [file.path.parent / location for location in sorted(locations, key=natural_key)]


def natural_key(location: str) -> list[tuple[int, str]]:
    """A sort key for locations of a MindIR model's data files that puts data_10 behind data_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", location) if part]


def place(file: MindirFile, tensor: Message) -> tuple[str, int, int]:
    """(location of the data file, offset, length in bytes) of an external MindIR tensor, as it was read: of one whose
    rounding is pending those of its float32 elements."""
    pending = file.rounded.get(tensor.external_data.location)
    if pending is not None:
        return pending.location, pending.offset, pending.length
    return tensor.external_data.location, tensor.external_data.offset, tensor.external_data.length


# -- checks -----------------------------------------------------------------------------------------------------------


def check_tensors(file: MindirFile) -> None:
    """Refuses a MindIR model with a tensor whose bytes are missing, too many, or outside the model's folder. Raises
    AmpError (AMP102 the model contradicts itself, AMP103 bad external data)."""
    sizes: dict[str, int] = {}  # location of a data file -> its bytes
    for tensor in tensors(file.model):
        if tensor.HasField("external_data") and not is_external(tensor) and tensor.external_data.location:
            raise AmpError(
                "AMP102", f"{_name_in_messages(tensor)} holds its data twice", where=file.where, hint=DAMAGED
            )
        if is_external(tensor):
            _check_external(file, tensor, sizes)
        elif tensor.raw_data:
            expected = _expected_bytes(file, tensor)
            if expected is not None:
                check_held(len(tensor.raw_data), expected, _name_in_messages(tensor), file.where)


def _check_external(file: MindirFile, tensor: Message, sizes: dict[str, int]) -> None:
    """Raises AmpError AMP103 where an external MindIR tensor does not fit its data file, AMP102 for impossible
    dimensions. ``sizes``: location -> bytes of the data files looked at so far, to which this adds."""
    location, offset, length = place(file, tensor)
    if location not in sizes:
        sizes[location] = _data_size(file, location, tensor)
    pending = tensor.external_data.location in file.rounded
    expected = 4 * _element_count(file, tensor) if pending else _expected_bytes(file, tensor)
    expected = length if expected is None else expected
    check_extent((location, offset, length), sizes[location], expected, _name_in_messages(tensor), file.where)


def _data_size(file: MindirFile, location: str, tensor: Message) -> int:
    """The bytes of a MindIR data file. Raises AmpError AMP103 for one that is not there, outside the model's folder,
    unreadable, encrypted, or not written by MindSpore on a little-endian machine. ``tensor``: named in the message."""
    if file.path is None:
        problem = f"{_name_in_messages(tensor)} lies in a data file, and the model in no folder"
        raise AmpError("AMP103", problem, where=file.where, hint="load the model from its file")
    real = data_file(location, file.path.parent, _name_in_messages(tensor), file.where)
    what = f"external data file '{location}'"
    try:
        with open(real, "rb") as data:
            start = data.read(4)
    except OSError as error:
        problem, hint = f"{what} cannot be read: {error.strerror}", "check its permissions"
        raise AmpError("AMP103", problem, where=file.where, hint=hint) from None
    if start in CIPHERS:
        problem, hint = f"{what} is encrypted ({CIPHERS[start]})", "export the model without enc_key"
        raise AmpError("AMP103", problem, where=file.where, hint=hint)
    if start[:1] != LITTLE:
        problem = f"{what} is not little endian, or no data file of MindSpore's"
        raise AmpError("AMP103", problem, where=file.where, hint=FOREIGN_DATA)
    return os.path.getsize(real)


def _expected_bytes(file: MindirFile, tensor: Message) -> int | None:
    """The bytes that a MindIR tensor of this shape and type needs; None for text, an unknown type or compressed data.
    Raises AmpError AMP102 for an impossible shape."""
    kind = schema.ELEMENT_TYPES.get(tensor.data_type, "string")
    count = _element_count(file, tensor)
    return None if kind == "string" or tensor.compression_type else count * _numpy_type(kind).itemsize


def _element_count(file: MindirFile, tensor: Message) -> int:
    """How many elements a MindIR tensor has by its dimensions. Raises AmpError AMP102 for impossible ones."""
    return elements_in(tensor.dims, _name_in_messages(tensor), file.where)


def _numpy_type(kind: str) -> DType:
    """The numpy type for a name in the MindIR schema's ELEMENT_TYPES, not ``string``; bfloat16 is ml_dtypes'."""
    return LOW_TYPES.get(kind) or np.dtype(kind)


def _name_in_messages(tensor: Message) -> str:
    """A MindIR tensor as messages name it, shortened to 200 characters."""
    return f"parameter '{str(tensor.ref_key or tensor.name)[:200]}'"


# -- elements ---------------------------------------------------------------------------------------------------------


def elements(file: MindirFile, tensor: Message) -> Array:
    """The elements of a .mindir Tensor message in one dimension, in its element type. They are mapped read-only from
    the data file where they are external, and copied where a rounding of that is pending. Raises AmpError (AMP102 no
    data, text, compressed or damaged, AMP103 bad external data)."""
    kind = schema.ELEMENT_TYPES.get(tensor.data_type, "")
    if kind in ("", "string") or tensor.compression_type:
        problem = f"{_name_in_messages(tensor)} holds no numbers that can be read (type {tensor.data_type}" + (
            f", compression {tensor.compression_type})" if tensor.compression_type else ")"
        )
        raise AmpError("AMP102", problem, where=file.where, hint="export the model without compression")
    if is_external(tensor):
        pending = file.rounded.get(tensor.external_data.location)
        if pending is None:
            return _mapped_elements(file, tensor, _numpy_type(kind))
        source = _mapped_elements(file, tensor, np.dtype(np.float32))
        return Rounder(STORED_TYPES[pending.dtype], pending.floor).whole(source)
    data = _inline_elements(tensor, _numpy_type(kind))
    if data.size != _element_count(file, tensor):
        problem = f"{_name_in_messages(tensor)} holds {data.size:,} elements; its shape says {list(tensor.dims)}"
        raise AmpError("AMP102", problem, where=file.where, hint=DAMAGED)
    return data


def _mapped_elements(file: MindirFile, tensor: Message, dtype: DType) -> Array:
    """The elements of an external MindIR tensor, mapped read-only from its data file, in one dimension. ``dtype``: of
    the elements in the file: float32 where a rounding is pending. Raises AmpError AMP103 for bad data."""
    _check_external(file, tensor, {})
    location, offset, length = place(file, tensor)
    if not length:
        return np.empty(0, dtype)
    assert file.path is not None
    try:
        return np.memmap(file.path.parent / location, np.uint8, "r", offset, (length,)).view(np.ndarray).view(dtype)
    except (OSError, ValueError) as error:
        problem = f"external data file '{location}' cannot be mapped: {error}"
        raise AmpError("AMP103", problem, where=file.where, hint=FOREIGN_DATA) from None


def _inline_elements(tensor: Message, dtype: DType) -> Array:
    """The elements of a tensor that lie in the .mindir file itself, in one dimension, from whichever field has them;
    empty where none does, which the caller compares with the shape."""
    if raw := tensor.raw_data:
        return np.frombuffer(raw, dtype, len(raw) // dtype.itemsize)
    if tensor.float_data:
        return np.asarray(tensor.float_data, np.float32).astype(dtype, copy=False)
    if tensor.int64_data:
        return np.asarray(tensor.int64_data, np.int64).astype(dtype, copy=False)
    data = np.asarray(tensor.int32_data, np.int32)
    if dtype in LOW_TYPES.values():
        return data.astype(np.uint16).view(dtype)  # int32_data has the bits of low numbers, as in ONNX
    return data.astype(dtype, copy=False)


# -- rounding ---------------------------------------------------------------------------------------------------------


def round_tensor(file: MindirFile, tensor: Message, dtype: str, floor: float | None = None) -> None:
    """Makes a float32 Tensor message of a .mindir file ``dtype``, rounded to nearest even; an external one when it is
    saved. ``dtype``: float16, bfloat16, or float32 for a mask that is only floored. Finite elements below ``floor``
    become ``floor`` first: only for masks, where the plan says so. Raises AmpError (AMP102 damaged, AMP103 bad external
    data), and ValueError for a tensor that is not float32 and for another ``dtype``."""
    if schema.ELEMENT_TYPES.get(tensor.data_type) != "float32" or dtype not in STORED_TYPES:
        raise ValueError(f"{_name_in_messages(tensor)} of type {tensor.data_type} cannot become {dtype}")
    if is_external(tensor):
        _check_external(file, tensor, {})
        pending = PendingRounding(*place(file, tensor), dtype, floor)
        token = f"\0rounded {len(file.rounded)}"  # no file has such a name
        file.rounded[token] = pending
        tensor.external_data.location = token
        tensor.external_data.length = pending.length // 4 * STORED_TYPES[dtype].itemsize
    else:
        tensor.raw_data = Rounder(STORED_TYPES[dtype], floor).whole(elements(file, tensor)).tobytes()
        tensor.ClearField("float_data")
    tensor.data_type = schema.ELEMENT_NUMBERS[dtype]


def stored_chunks(file: MindirFile, tensor: Message) -> Iterator[bytes]:
    """The bytes of an external MindIR tensor, rounded if pending, in pieces. Raises AmpError AMP103 for bad data."""
    pending = file.rounded.get(tensor.external_data.location)
    data = _mapped_elements(file, tensor, np.dtype(np.uint8 if pending is None else np.float32))
    parts = pieces(data) if pending is None else Rounder(STORED_TYPES[pending.dtype], pending.floor).parts(data)
    yield from (part.tobytes() for part in parts)


def write_padded(
    file: MindirFile, held: list[Message], stream: BinaryIO, digest: hashlib.blake2b
) -> Iterator[tuple[int, int]]:
    """Writes a MindIR data file of the external tensors ``held`` as MindSpore lays it out, and yields (offset, length)
    of each, in bytes. Tensors that lie at one place and are rounded alike are written once. It writes while it is
    iterated, and feeds ``digest`` with that. Raises AmpError AMP103 for bad external data, and OSError."""
    written: dict[object, tuple[int, int]] = {}  # place and rounding -> (offset, length)
    stream.write(LITTLE + bytes(ALIGN - 1))
    position = ALIGN
    for tensor in held:
        pending = file.rounded.get(tensor.external_data.location)
        key = place(file, tensor), None if pending is None else (pending.dtype, pending.floor)
        if key not in written:
            start = position
            for chunk in stored_chunks(file, tensor):
                digest.update(chunk)
                position += stream.write(chunk)
            written[key] = start, position - start
            padding = bytes(-position % ALIGN)
            digest.update(padding + start.to_bytes(8, "little"))
            position += stream.write(padding)
        yield written[key]
