"""Data files beside an ONNX model: checked, found, named, marked, and written.

``model.onnx.data`` is replaced by a rename of its own, before that of the model. So both bear a mark, the length and a
checksum of the data: the model in its metadata, the data file as its last line. A reader that finds two marks which
differ has a pair of which one half is older.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ...core.errors import AmpError
from ...core.progress import Progress
from ..checks import check_extent, check_held, data_file, elements_in
from .proto import holders, tensors
from .weights import InFile, RoundedTensor, nbytes, put, stored, tensor_chunks

INLINE_LIMIT = 1_900_000_000  # protobuf stops at 2 GiB
EXTERNAL_FROM = 1024  # bytes: smaller tensors stay in the model file
ALIGN = 4096  # so that readers can map a tensor
KEY = "ampgraph.data"  # of the metadata entry in which a model names its data file, with its length and checksum
_LINE = re.compile(rb"\nampgraph data (\d{1,20}) ([0-9a-f]{8}|[0-9a-f]{32})\n\Z")  # 32: what earlier versions wrote
_LONGEST = 80  # bytes of the last line


def check_tensors(tensors: Iterable[onnx.TensorProto], folder: Path, where: str) -> bool:
    """Refuses ONNX tensors whose bytes are missing, too many, or outside the model's folder, by AmpError AMP102 and
    AMP103; returns whether one lies in a data file. ``where``: how messages name the file."""
    sizes: dict[str, int] = {}  # location of a data file -> its bytes
    known: dict[tuple[int, tuple[int, ...]], int | None] = {}  # (type, shape) -> bytes; None for text
    for tensor in tensors:
        kind, who = (tensor.data_type, tuple(tensor.dims)), f"tensor '{tensor.name}'"
        if kind not in known:
            count = elements_in(kind[1], who, where)
            try:
                known[kind] = -(-count * ir.DataType(kind[0]).bitwidth // 8)
            except (TypeError, ValueError):  # a type without a fixed size, as of strings
                known[kind] = None
        expected = known[kind]
        if expected is None:
            expected = len(tensor.raw_data)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            if tensor.HasField("raw_data"):
                check_held(len(tensor.raw_data), expected, who, where)
            continue
        entry = {e.key: e.value for e in tensor.external_data}
        location = entry.get("location", "")
        if location not in sizes:
            sizes[location] = os.path.getsize(data_file(location, folder, who, where))
        try:
            offset, length = int(entry.get("offset", "0")), int(entry.get("length", str(expected)))
        except ValueError:
            offset = length = -1
        check_extent((location, offset, length), sizes[location], expected, who, where)
    return bool(sizes)


@dataclass(frozen=True)
class Mark:
    """What a model and its ONNX data file both say of the data: how many bytes, and a CRC-32 in hexadecimal digits: it
    tells files apart that were mixed up, and takes little time."""

    length: int
    checksum: str

    def line(self) -> bytes:
        """The last line of an ONNX data file of this mark."""
        return f"\nampgraph data {self.length} {self.checksum}\n".encode()

    @staticmethod
    def of_file(path: Path) -> Mark | None:
        """The mark in an ONNX data file's last line; None without one, and where that says another length."""
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - _LONGEST))
                found = _LINE.search(file.read(_LONGEST))
        except OSError:
            return None
        if found is None or int(found[1]) != start + found.start():
            return None
        return Mark(int(found[1]), found[2].decode())


def put_mark(proto: onnx.ModelProto, name: str, mark: Mark) -> None:
    """Writes into an ONNX model's metadata, in the place of an older mark, its data file's name and mark."""
    remove_mark(proto)
    proto.metadata_props.add(key=KEY, value=f"{name} {mark.length} {mark.checksum}")


def remove_mark(proto: onnx.ModelProto) -> None:
    """Removes the mark from an ONNX model's metadata, as it says something of the file, not of the model."""
    for index in reversed([n for n, entry in enumerate(proto.metadata_props) if entry.key == KEY]):
        del proto.metadata_props[index]


def check_mark(proto: onnx.ModelProto, folder: Path, where: str) -> None:
    """Raises AmpError AMP103 for an ONNX model and a data file of different conversions: both have marks, which differ.
    A data file without a mark, or one that the model does not read any more, was written by somebody else."""
    said = next((entry.value for entry in proto.metadata_props if entry.key == KEY), "")
    name, *rest = said.rsplit(" ", 2)
    if len(rest) != 2 or name not in locations(proto):
        return
    found = Mark.of_file(folder / name)
    if found is not None and [str(found.length), found.checksum] != rest:
        hint = "a conversion was interrupted, or another model replaced it: convert again"
        message = f"the data file '{name}' belongs to another version of this model"
        raise AmpError("AMP103", message, where=where, hint=hint)


def locations(proto: onnx.ModelProto) -> set[str]:
    """The locations of the data files that an ONNX model reads: paths relative to its folder, as it has them."""
    return {e.value for tensor in tensors(holders(proto)) for e in tensor.external_data if e.key == "location"}


def own_data(path: Path) -> set[str]:
    """The names of the data files beside ``path`` that ampgraph wrote for the ONNX model that stands there now: it
    reads them, and they have a mark or a name as earlier versions gave. Empty where no model stands there."""
    if not path.is_file():
        return set()
    named = re.compile(re.escape(path.name) + r"(\.\d+)?[._]data")
    hashed = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.data")  # how they were named before 0.2
    names = glob.glob(f"{glob.escape(path.name)}[._]*", root_dir=path.parent)
    beside = {name for name in names if named.fullmatch(name) or hashed.fullmatch(name)}
    if not beside:
        return set()  # without a look at the model, which may be large
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        return set()  # not a model: nothing of ours is behind it
    read = beside & locations(proto)
    return {name for name in read if hashed.fullmatch(name) or Mark.of_file(path.parent / name)}


def free_name(path: Path, own: Collection[str], read: Collection[str], given: Collection[str] = ()) -> str:
    """The name for the data file of an ONNX model at ``path``: ``model.onnx.data``, with a number if it is taken.
    ``own``: what `own_data` says; ``read``: real paths of files that are read while it is written; ``given``: names of
    the data that the model came with: ``model.onnx_data`` where those end so, by which transformers.js finds it."""
    end = "_data" if given and all(re.search(r"_data(_\d+)?$", name) for name in given) else ".data"

    def is_taken(name: str) -> bool:
        place = path.parent / name
        return os.path.lexists(place) and (name not in own or os.path.realpath(place) in read)

    numbered = (f"{path.name}.{number}{end}" for number in itertools.count(1))
    return next(name for name in itertools.chain([f"{path.name}{end}"], numbered) if not is_taken(name))


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """The tensors in data files that an ONNX model's stored tensors are, or are rounded from."""
    return external_of(tensor for _, tensor in stored(model))


def external_of(tensors: Iterable[ir.TensorProtocol]) -> Iterator[ir.ExternalTensor]:
    """The tensors in data files that some ONNX tensors are, or are rounded from; the others are left out."""
    return filter(None, map(_external_source, tensors))


def _external_source(tensor: ir.TensorProtocol) -> ir.ExternalTensor | None:
    """The tensor in a data file that an ONNX tensor is, or is rounded from; None for one in the model's file."""
    if type(tensor) is InFile:  # asked first: `isinstance` is slow to say no of onnx_ir's protocols
        return None
    source = tensor.source if isinstance(tensor, RoundedTensor) else tensor
    return source if type(source) is not InFile and isinstance(source, ir.ExternalTensor) else None


def read_attributes(graphs: Iterable[ir.Graph]) -> set[Path]:
    """Reads tensors of attributes, but for Constants', that lie in data files into the model's memory: they are not
    written to a new data file, and the old one is not beside the result. Returns the paths of these files."""
    found: set[Path] = set()
    for node in (node for graph in graphs for node in graph if node.op_type != "Constant"):
        for name, attribute in list(node.attributes.data.items()):
            if attribute.is_ref() or attribute.type not in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
                continue
            single = attribute.type == ir.AttributeType.TENSOR
            tensors = [attribute.as_tensor()] if single else list(attribute.as_tensors())
            outside = {Path(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}
            if outside:
                held = [
                    ir.Tensor(each.numpy().copy(), dtype=each.dtype, name=each.name, doc_string=each.doc_string)
                    for each in tensors
                ]
                node.attributes[name] = ir.AttrTensor(name, held[0]) if single else ir.AttrTensors(name, held)
                found |= outside
    return found


def written_outside(model: ir.Model) -> dict[ir.Value, ir.TensorProtocol]:
    """The tensors of an ONNX model that are written to its data file, by value: those that came from one, and all
    initializers of `EXTERNAL_FROM` bytes and more where these would make the file pass 2 GB."""
    held = dict(stored(model))
    initializers = {value: nbytes(tensor) for value, tensor in held.items() if value.producer() is None}
    over = sum(initializers.values()) > INLINE_LIMIT
    found = {}
    for value, tensor in held.items():
        if _external_source(tensor) is not None or (over and initializers.get(value, 0) >= EXTERNAL_FROM):
            found[value] = tensor
    return found


def write_data(
    held: dict[ir.Value, ir.TensorProtocol], place: Path, temporary: Path, progress: Progress | None
) -> Mark:
    """Writes ONNX tensors to the data file ``temporary``, and has their values refer to ``place``, where it is to go.
    Returns its mark. ``held``: by value; ``progress``: told the bytes written."""
    checksum, places, position = 0, [], 0  # places: (offset, length) of each tensor
    total = sum(tensor.nbytes for tensor in held.values())
    with open(temporary, "wb") as file:
        for tensor in held.values():
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
    for (value, tensor), (offset, length) in zip(held.items(), places, strict=True):
        label = tensor.name or (value.name if value.producer() is None else "") or ""
        shape: ir.Shape = tensor.shape  # type: ignore[assignment]
        moved = ir.ExternalTensor(
            place.name, offset, length, tensor.dtype, shape=shape, name=label, base_dir=place.parent
        )
        put(value, moved)
    return mark
