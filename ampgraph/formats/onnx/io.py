"""Reading and writing ONNX files: checked before anything is allocated, written whole or not at all."""

from __future__ import annotations

import contextlib
import filecmp
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ...core.errors import AmpError, first_line
from ...core.files import LFS_POINTER, PULL
from ...core.graph import Progress
from ..checks import model_files
from .bounds import check_each, check_tensors
from .data_files import Mark, check_mark, free_name, locations, own_data, put_mark, take_mark
from .external import (
    INLINE_LIMIT,
    external_holders,
    external_of,
    external_tensors,
    put_tensor,
    take_in,
    tensor_of,
    write_data,
)
from .map_types import from_proto, holds_maps, to_proto
from .model_file import know_plain, model_file
from .proto import Holder, holders
from .repairs import remember, repair
from .walk import all_graphs, stored

__all__ = [
    "INLINE_LIMIT",
    "all_graphs",
    "check_tensors",
    "copy_unchanged",
    "deserialize",
    "external_tensors",
    "hold_attributes",
    "holds_maps",
    "load",
    "read_proto",
    "save",
    "to_proto",
]


BUFFER = 1 << 20  # bytes: of a model most pieces are of some dozens
INSIDE = "ampgraph.inside"
"""Where the main graph of a model that was just read remembers whether all its tensors are in the model's own file."""
TAKEN = "ampgraph.taken"
"""Where it remembers the data files that attributes were read from."""


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Reads a model; its external tensors stay on disk, mapped when they are read.

    Raises AmpError (AMP101 no such file, AMP102 no model, AMP103 bad external data).
    """
    path = Path(path)
    proto, held, outside = _checked(path)
    model = _native(proto, held, path.parent.absolute() if outside else None, str(path))
    model.graph.meta[INSIDE] = not outside
    return model


def read_proto(path: Path) -> onnx.ModelProto:
    """The model as it is in the file, its tensors checked. Raises AmpError as `load` does."""
    return _checked(path)[0]


def _checked(path: Path) -> tuple[onnx.ModelProto, list[Holder], bool]:
    """The same with its graphs, which take a walk to find, and whether it has data files."""
    proto = onnx.ModelProto()
    try:
        with _mapped(path) as data:
            proto.ParseFromString(data)
    except DecodeError:
        raise _not_onnx(path) from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise AmpError("AMP102", "holds no ONNX graph", where=str(path), hint="ampgraph reads ONNX ModelProto files")
    held = holders(proto)
    outside = check_each((tensor for holder in held for tensor in holder.tensors()), path.parent, str(path))
    check_mark(proto, path.parent, str(path))
    return proto, held, outside


def _not_onnx(path: Path) -> AmpError:
    """What is wrong with a file that does not read as protobuf."""
    with path.open("rb") as file:
        pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    message = "is a Git LFS pointer, not the model" if pointer else "is not an ONNX model, or is cut short"
    hint = PULL if pointer else "export it again, or compare its size with the original"
    return AmpError("AMP102", message, where=str(path), hint=hint)


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
    held = holders(proto)
    tensors = (tensor for holder in held for tensor in holder.tensors())
    outside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)
    model = _native(proto, held, folder, where)
    return hold_attributes(model) if outside else model


def hold_attributes(model: ir.Model) -> ir.Model:
    """Reads what attributes have in data files, but for Constants, and remembers these."""
    if taken := take_in(all_graphs(model)):
        model.graph.meta[TAKEN] = taken
    return model


def _native(proto: onnx.ModelProto, held: list[Holder], folder: Path | None, where: str) -> ir.Model:
    if proto.training_info:
        raise AmpError(
            "AMP107",
            "holds training information, which mixed precision for inference would lose",
            where=where,
            hint="export the inference graph, or clear training_info",
        )
    take_mark(proto)
    said, held = repair(proto, held, where)
    annotated = len(proto.graph.quantization_annotation) > 0 or len(getattr(proto, "configuration", ())) > 0
    try:
        model = from_proto(proto, held)
    except Exception as error:  # onnx_ir raises many kinds for a damaged proto
        raise AmpError(
            "AMP102",
            f"cannot be understood: {first_line(error)}",
            where=where,
            hint="onnx.checker.check_model names the fault",
        ) from error
    remember(model, said)
    if not annotated:
        know_plain(model)
    for tensor in (tensor for holder in held for tensor in holder.tensors()):
        if tensor.metadata_props:
            del tensor.metadata_props[:]  # the model has them too, and would write both
    if folder is not None:
        for graph in all_graphs(model):
            ir.external_data.set_base_dir(graph, folder)
        hold_attributes(model)
    return model


# -- writing ----------------------------------------------------------------------------------------------------------


def save(model: ir.Model, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Writes the model, and beside it one data file if the input had one or 2 GB are passed.

    The data file is ``<path>.data``, or another name while that is somebody else's or what the model itself reads. Data
    and model are renamed one after the other: where that is cut short, their marks differ and `load` refuses the pair.
    Raises AmpError AMP105 when the disk is full or the folder cannot be written; nothing stays behind.
    """
    path = Path(path)
    with model_files(path) as temporary:
        outside = external_holders(stored(model))
        read = {os.path.realpath(tensor.path) for tensor in external_of(outside)}
        own = own_data(path)
        data = path.parent / free_name(path, own, read) if outside else None
        originals = [(holder, tensor_of(holder)) for holder in outside]
        try:
            mark = write_data(outside, data, temporary("data"), progress) if data else None
            with open(temporary("model"), "wb", buffering=BUFFER) as file:
                file.writelines(model_file(model, partial(_marked, data, mark)))
        finally:
            for holder, tensor in originals:
                put_tensor(holder, tensor)
        with _in_place(temporary("data"), data, temporary("old")) if data else contextlib.nullcontext():
            os.replace(temporary("model"), path)
    _retire(path.parent, own, read | ({os.path.realpath(data)} if data else set()))


def _marked(data: Path | None, mark: Mark | None, proto: onnx.ModelProto) -> None:
    """Says in a model which data file is its own."""
    if data is not None and mark is not None:
        put_mark(proto, data.name, mark)


def _retire(folder: Path, own: set[str], used: set[str]) -> None:
    """Removes the data of the model that was replaced, but for what is used, which are real paths."""
    for place in (folder / name for name in own):
        if os.path.realpath(place) not in used:
            place.unlink(missing_ok=True)


@contextlib.contextmanager
def _in_place(temporary: Path, target: Path, aside: Path) -> Iterator[None]:
    """Moves a data file where it belongs; if what follows fails, everything is as it was before."""
    if target.exists():
        os.replace(target, aside)
    try:
        os.replace(temporary, target)
        yield
    except BaseException:
        target.unlink(missing_ok=True)
        if aside.exists():
            os.rename(aside, target)
        raise


def copy_unchanged(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """The same bytes under another name, data files included, for a model in which nothing changes."""
    source, path = Path(source), Path(path)
    proto = onnx.ModelProto()
    proto.ParseFromString(source.read_bytes())
    names, own = sorted(locations(proto)), own_data(path)
    with model_files(path) as temporary, contextlib.ExitStack() as moves:
        for number, location in enumerate(names):
            origin, target = source.parent / location, path.parent / location
            if not _same_bytes(origin, target, replaced=location in own):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, temporary(f"data{number}"))
                moves.enter_context(_in_place(temporary(f"data{number}"), target, temporary(f"old{number}")))
        shutil.copyfile(source, temporary("model"))
        os.replace(temporary("model"), path)
    used = {os.path.realpath(folder / name) for folder in (source.parent, path.parent) for name in names}
    _retire(path.parent, own, used)


def _same_bytes(origin: Path, target: Path, *, replaced: bool) -> bool:
    """Whether a data file is there already. Raises AmpError AMP105 for another one, unless it is to be replaced."""
    if not target.exists():
        return False
    if os.path.samefile(target, origin) or filecmp.cmp(target, origin, shallow=False):
        return True
    if replaced:
        return False
    message = f"another model's data file '{target.name}' is there already"
    raise AmpError("AMP105", message, where=str(target.parent), hint="write to another folder")
