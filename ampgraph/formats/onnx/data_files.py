"""Data files beside an ONNX model: how they are named, whose they are, and which belong together.

``model.onnx.data`` is replaced by a rename of its own, before that of the model. So both bear a mark, the length and a
checksum of the data: the model in its metadata, the data file as its last line. A reader that finds two marks which
differ has a pair of which one half is older.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from ...core.errors import AmpError
from . import proto as onnx_proto

KEY = "ampgraph.data"
_LINE = re.compile(rb"\nampgraph data (\d{1,20}) ([0-9a-f]{8}|[0-9a-f]{32})\n\Z")  # 32: what earlier versions wrote
_LONGEST = 80  # bytes of the last line


@dataclass(frozen=True)
class Mark:
    """What a data file holds: how many bytes, and their checksum, a CRC-32: it tells files of one length apart that
    were mixed up, and takes a fifth of the time of one that withstands malice."""

    length: int
    checksum: str

    def line(self) -> bytes:
        """How a data file ends."""
        return f"\nampgraph data {self.length} {self.checksum}\n".encode()

    @staticmethod
    def of_file(path: Path) -> Mark | None:
        """The mark of a data file; None for one that has none, or was written to since, or is not there."""
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size - _LONGEST))
                found = _LINE.search(file.read(_LONGEST))
        except OSError:
            return None
        whole = found is not None and int(found[1]) == start + found.start()
        return Mark(int(found[1]), found[2].decode()) if found is not None and whole else None


def put_mark(proto: onnx.ModelProto, name: str, mark: Mark) -> None:
    """Writes into a model which data file is its own."""
    take_mark(proto)
    proto.metadata_props.add(key=KEY, value=f"{name} {mark.length} {mark.checksum}")


def take_mark(proto: onnx.ModelProto) -> None:
    """Removes the mark: it is of the file, and not of the model."""
    for index in reversed([n for n, entry in enumerate(proto.metadata_props) if entry.key == KEY]):
        del proto.metadata_props[index]


def check_mark(proto: onnx.ModelProto, folder: Path, where: str) -> None:
    """Raises AmpError AMP103 for a model and a data file of different conversions.

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
    """The data files that a model reads, as it names them."""
    return {e.value for tensor in onnx_proto.tensors(proto) for e in tensor.external_data if e.key == "location"}


def own_data(path: Path) -> set[str]:
    """Data files beside ``path`` that ampgraph wrote for the model that stands there now, by what both say."""
    if not path.is_file():
        return set()
    named = re.compile(re.escape(path.name) + r"(\.\d+)?\.data")
    hashed = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.data")  # how they were named before 0.2
    names = glob.glob(f"{glob.escape(path.name)}.*", root_dir=path.parent)
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


def free_name(path: Path, own: Collection[str], read: Collection[str]) -> str:
    """The name for the data of a model at ``path``: ``model.onnx.data``, with a number where that is somebody else's.

    ``own``: what `own_data` says; ``read``: real paths of files that are read while it is written."""

    def taken(name: str) -> bool:
        place = path.parent / name
        return os.path.lexists(place) and (name not in own or os.path.realpath(place) in read)

    numbered = (f"{path.name}.{number}.data" for number in itertools.count(1))
    return next(name for name in itertools.chain([f"{path.name}.data"], numbered) if not taken(name))
