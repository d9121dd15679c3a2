"""What a file is, by its first bytes, and what to say of one that is no MindIR model."""

from __future__ import annotations

from ...core.errors import AmpError
from .weights import CIPHERS

EXPORT_AGAIN = "export it again, or compare its size with the original"


def foreign(data: memoryview, where: str) -> AmpError:
    """What to say of a file that is no MindIR model."""
    start, hint = bytes(data[:64]), "ampgraph reads MindIR files as mindspore.export writes them, and ONNX"
    if not start:
        return AmpError("AMP102", "is empty", where=where, hint=EXPORT_AGAIN)
    if start[:4] in CIPHERS:
        hint = "export it without enc_key; mindspore.load(..., dec_key=...) reads an encrypted one"
        return AmpError("AMP102", f"is encrypted ({CIPHERS[start[:4]]})", where=where, hint=hint)
    if start.startswith(b"version https://git-lfs"):
        return AmpError("AMP102", "is a Git LFS pointer, not the model", where=where, hint="run git lfs pull")
    if start.startswith(b"PK\3\4"):
        return AmpError("AMP102", "is a zip archive, not a MindIR model", where=where, hint=hint)
    kind = looks_like(data)
    if kind == "ONNX":
        return AmpError("AMP102", "is an ONNX model, not MindIR", where=where, hint="give it a name that ends in .onnx")
    if kind == "MindIR":
        return AmpError("AMP102", "is a MindIR model that is cut short or damaged", where=where, hint=EXPORT_AGAIN)
    if kind:
        hint = "mindspore.export(..., file_format='MINDIR') writes the graph; a checkpoint holds weights alone"
        return AmpError("AMP102", "holds no MindIR graph", where=where, hint=hint)
    problem = "is not a MindIR model: encrypted, cut short, or another format"
    return AmpError("AMP102", problem, where=where, hint="decrypt it, or export it again")


def looks_like(data: memoryview) -> str:
    """`ONNX`, `MindIR`, `protobuf` or nothing, by the fields at the top of a file, which may be cut short."""
    position, seen = 0, set()
    for _ in range(1000):  # far more than either format has before its graph
        tag, position = _varint(data, position)
        seen.add((tag >> 3, tag & 7))
        if (1, 0) in seen and (7, 2) in seen:  # ir_version is a number there
            return "ONNX"
        if (1, 2) in seen and (7, 2) in seen:
            return "MindIR"
        size, after = _varint(data, position)
        skip = {0: after, 1: position + 8, 2: after + size, 5: position + 4}.get(tag & 7, -1)
        if tag < 8 or position < 0 or skip < position:
            return ""
        if skip >= len(data):
            return "protobuf" if skip == len(data) else ""
        position = skip
    return ""


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number and the position behind it; position -1 where there is none."""
    value = 0
    for index, byte in enumerate(data[position : position + 10] if position >= 0 else b""):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position + index + 1
    return 0, -1
