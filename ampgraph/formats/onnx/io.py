"""Reading and writing ONNX files: checked before anything is allocated, written whole or not at all."""

from __future__ import annotations

import contextlib
import filecmp
import mmap
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ...core.errors import AmpError, first_line
from ...core.graph import Progress
from ..checks import model_files
from . import proto as onnx_proto
from .bounds import check_tensors
from .external import INLINE_LIMIT, external_holders, external_tensors, put_tensor, tensor_of, write_data
from .map_types import from_proto, holds_maps, to_proto
from .repairs import remember, repair
from .walk import all_graphs

__all__ = [
    "INLINE_LIMIT",
    "all_graphs",
    "check_tensors",
    "copy_unchanged",
    "deserialize",
    "external_tensors",
    "holds_maps",
    "load",
    "read_proto",
    "save",
    "to_proto",
]


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Reads a model; its external tensors stay on disk, mapped when they are read.

    Raises AmpError (AMP101 no such file, AMP102 no model, AMP103 bad external data).
    """
    path = Path(path)
    return deserialize(read_proto(path), path.parent.absolute(), str(path))


def read_proto(path: Path) -> onnx.ModelProto:
    """The model as it is in the file, its tensors checked. Raises AmpError as `load` does."""
    proto = onnx.ModelProto()
    try:
        with _mapped(path) as data:
            proto.ParseFromString(data)
    except DecodeError:
        raise AmpError(
            "AMP102",
            "is not an ONNX model, or is cut short",
            where=str(path),
            hint="export it again, or compare its size with the original",
        ) from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise AmpError("AMP102", "holds no ONNX graph", where=str(path), hint="ampgraph reads ONNX ModelProto files")
    check_tensors(proto, path.parent, str(path))
    return proto


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[memoryview | bytes]:
    """The bytes of a file without a copy of them. Raises AmpError AMP101 for what is not a readable file."""
    if path.is_dir():
        raise AmpError("AMP101", "is a directory, not a model", where=str(path), hint="name the .onnx file in it")
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise AmpError("AMP101", "is not a file", where=str(path), hint="copy the model into a file first")
        file = open(path, "rb")  # noqa: SIM115  closed below, whatever the parser does
    except FileNotFoundError:
        raise AmpError("AMP101", "no such file", where=str(path), hint="check the path") from None
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise AmpError("AMP101", why, where=str(path), hint="check its permissions") from None
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # unmapped when its last view goes


def deserialize(proto: onnx.ModelProto, folder: Path | None, where: str = "model") -> ir.Model:
    """An onnx_ir model of a proto, which is used up. AMP102 where it makes no sense, AMP107 where it holds training."""
    if proto.training_info:
        raise AmpError(
            "AMP107",
            "holds training information, which mixed precision for inference would lose",
            where=where,
            hint="export the inference graph, or clear training_info",
        )
    said = repair(proto, where)
    try:
        model = from_proto(proto)
    except Exception as error:  # onnx_ir raises many kinds for a damaged proto
        raise AmpError(
            "AMP102",
            f"cannot be understood: {first_line(error)}",
            where=where,
            hint="onnx.checker.check_model names the fault",
        ) from error
    remember(model, said)
    outside = False
    for tensor in onnx_proto.tensors(proto):
        outside |= bool(tensor.external_data)
        if tensor.metadata_props:
            del tensor.metadata_props[:]  # the model has them too, and would write both
    if folder is not None and outside:
        for graph in all_graphs(model):
            ir.external_data.set_base_dir(graph, folder)
    return model


# -- writing ----------------------------------------------------------------------------------------------------------


def save(model: ir.Model, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Writes the model, and beside it one data file if the input had one or 2 GB are passed.

    The data file is named after its content, so it never overwrites one that is in use; the rename of the model file is
    the commit. Raises AmpError AMP105 when the disk is full or the folder cannot be written; nothing stays behind.
    """
    path = Path(path)
    with model_files(path) as temporary:
        outside = external_holders(model)
        data_name = ""
        originals = [(holder, tensor_of(holder)) for holder in outside]
        try:
            if outside:
                data_name = write_data(outside, path, temporary("data"), progress)
            proto = to_proto(model)
        finally:
            for holder, tensor in originals:
                put_tensor(holder, tensor)
        with open(temporary("model"), "wb") as file:
            file.write(proto.SerializeToString(deterministic=True))
        retired = _own_data(path) - {data_name}
        if retired:  # what the source reads stays: it may be a copy
            retired -= {Path(tensor.path).name for tensor in external_tensors(model)}
        with _in_place(temporary("data"), path.parent / data_name) if data_name else contextlib.nullcontext():
            os.replace(temporary("model"), path)
    for name in retired:
        (path.parent / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _in_place(temporary: Path, target: Path) -> Iterator[None]:
    """Moves a data file where it belongs; takes it away again if what follows fails and it was not there before."""
    fresh = not target.exists()
    os.replace(temporary, target)
    try:
        yield
    except BaseException:
        if fresh:
            target.unlink(missing_ok=True)
        raise


def _own_data(path: Path) -> set[str]:
    """Data files that `save` wrote for the model that stands at ``path`` now."""
    if not path.is_file():
        return set()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        return set()  # not a model: nothing of ours is behind it
    own = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.data")
    locations = {e.value for t in onnx_proto.tensors(proto) for e in t.external_data if e.key == "location"}
    return {name for name in locations if own.fullmatch(name)}


def copy_unchanged(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """The same bytes under another name, data files included, for a model in which nothing changes."""
    source, path = Path(source), Path(path)
    proto = onnx.ModelProto()
    proto.ParseFromString(source.read_bytes())
    locations = {e.value for t in onnx_proto.tensors(proto) for e in t.external_data if e.key == "location"}
    with model_files(path) as temporary:
        for number, location in enumerate(sorted(locations)):
            origin, target = source.parent / location, path.parent / location
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, temporary(f"data{number}"))
                os.replace(temporary(f"data{number}"), target)
            elif not os.path.samefile(target, origin) and not filecmp.cmp(target, origin, shallow=False):
                raise AmpError(
                    "AMP105",
                    f"another model's data file '{location}' is there already",
                    where=str(path.parent),
                    hint="write to another folder",
                )
        shutil.copyfile(source, temporary("model"))
        os.replace(temporary("model"), path)
