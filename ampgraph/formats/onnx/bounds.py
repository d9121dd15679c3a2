"""Stored tensors of an ONNX file are checked before they are touched: their bytes are there, and in its folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx_ir as ir

from ...core.errors import AmpError
from . import proto as onnx_proto


def check_tensors(proto: onnx.ModelProto, folder: Path, where: str) -> None:
    """Refuses tensors whose bytes are missing, too many, or outside the model's folder."""
    check_each(onnx_proto.tensors(proto), folder, where)


def check_each(tensors: Iterable[onnx.TensorProto], folder: Path, where: str) -> bool:
    """The same of some tensors; whether one of them lies in a data file."""
    sizes: dict[str, int] = {}
    known: dict[tuple[int, tuple[int, ...]], int | None] = {}
    root = os.path.realpath(folder)
    for tensor in tensors:
        kind = tensor.data_type, tuple(tensor.dims)
        if kind not in known:
            known[kind] = _expected_bytes(tensor, where)
        expected = known[kind]
        if expected is None:
            expected = len(tensor.raw_data)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            if tensor.HasField("raw_data") and len(tensor.raw_data) != expected:
                raise AmpError(
                    "AMP102",
                    f"tensor '{tensor.name}' says {expected:,} bytes and holds {len(tensor.raw_data):,}",
                    where=where,
                    hint="the file is damaged: export it again",
                )
            continue
        entry = {e.key: e.value for e in tensor.external_data}
        location = entry.get("location", "")
        if location not in sizes:
            sizes[location] = _external_size(location, folder, root, where, tensor.name)
        try:
            offset = int(entry.get("offset", "0"))
            length = int(entry.get("length", str(expected)))
        except ValueError:
            offset = length = -1
        if offset < 0 or length != expected or offset + length > sizes[location]:
            raise AmpError(
                "AMP103",
                f"tensor '{tensor.name}' wants {length:,} bytes at {offset:,} of '{location}', which has "
                f"{sizes[location]:,}; its shape needs {expected:,}",
                where=where,
                hint="the data file does not belong to this model, or is cut short",
            )
    return bool(sizes)


def _external_size(location: str, folder: Path, root: str, where: str, name: str) -> int:
    real = os.path.realpath(os.path.join(folder, location))
    if not location or os.path.isabs(location) or os.path.commonpath([root, real]) != root:
        raise AmpError(
            "AMP103",
            f"external data of tensor '{name}' lies outside the model's folder: '{location}'",
            where=where,
            hint="move the data file beside the model",
        )
    if not os.path.isfile(real):
        raise AmpError(
            "AMP103", f"external data file '{location}' is missing", where=where, hint="copy it beside the model"
        )
    return os.path.getsize(real)


def _expected_bytes(tensor: onnx.TensorProto, where: str) -> int | None:
    """What type and shape ask for; None for a type without a fixed size, as of strings."""
    dims = list(tensor.dims)
    count: int = math.prod(dims)
    if count > 1 << 50 or min(dims, default=0) < 0:
        raise AmpError(
            "AMP102",
            f"tensor '{tensor.name}' has an absurd shape {dims}",
            where=where,
            hint="the file is damaged: export it again",
        )
    try:
        return -(-count * ir.DataType(tensor.data_type).bitwidth // 8)
    except (TypeError, ValueError):
        return None
