"""Reading and writing ONNX files: checked before anything is allocated, written whole or not at all."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ...core.errors import AmpError, first_line
from ...core.files import LFS_POINTER, PULL, whole_files
from ...core.progress import Progress
from ..checks import content
from .data_files import (
    INLINE_LIMIT,
    check_mark,
    check_tensors,
    external_of,
    external_tensors,
    free_name,
    locations,
    own_data,
    put_mark,
    read_attributes,
    remove_mark,
    write_data,
    written_outside,
)
from .faults import refuse_cycles, refuse_nodes, refuse_undefined, refuse_written_twice, unknown_versions
from .native import SORTED, bounds_as_vectors, from_proto, remember, to_proto
from .proto import Holder, holders, repair, tensors
from .walk import all_graphs
from .weights import put
from .wire import PLAIN, model_file

__all__ = ["INLINE_LIMIT", "copy_unchanged", "deserialize", "external_tensors", "load", "save", "to_proto"]

BUFFER = 1 << 20  # bytes: of a model most pieces are of some dozens
INSIDE = "ampgraph.inside"
"""Key in the meta of the main graph of a model that was just read -> whether it has no data files."""
TAKEN = "ampgraph.taken"  # key in the same -> the data files that attributes were read from


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Reads, checks and repairs an ONNX model; its external tensors stay on disk, mapped when they are read. Raises
    AmpError: AMP101 no file, AMP102 no model, AMP103 bad external data, AMP107 holds training, AMP204 faulty nodes."""
    path = Path(path)
    proto, held, outside = _checked_proto(path)
    model = _model_of_proto(proto, held, path.parent.absolute() if outside else None, str(path))
    if outside:
        hold_attributes(model)
    model.graph.meta[INSIDE] = not outside
    return model


def read_proto(path: Path) -> onnx.ModelProto:
    """An ONNX model as it is in its file, its tensors checked but not its nodes. Raises AmpError AMP101 to AMP103."""
    return _checked_proto(path)[0]


def _checked_proto(path: Path) -> tuple[onnx.ModelProto, list[Holder], bool]:
    """(ModelProto of an ONNX file, its `holders`, whether it has data files), once the tensors and the mark of the data
    file are checked. Raises AmpError AMP101 to AMP103."""
    proto, where = onnx.ModelProto(), str(path)
    with content(path, ".onnx") as data:
        try:
            proto.ParseFromString(data)
        except DecodeError:
            if bytes(data[: len(LFS_POINTER)]) == LFS_POINTER:
                raise AmpError("AMP102", "is a Git LFS pointer, not the model", where=where, hint=PULL) from None
            hint = "export it again, or compare its size with the original"
            raise AmpError("AMP102", "is not an ONNX model, or is cut short", where=where, hint=hint) from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise AmpError("AMP102", "holds no ONNX graph", where=where, hint="ampgraph reads ONNX ModelProto files")
    held = holders(proto)
    outside = check_tensors(tensors(held), path.parent, where)
    check_mark(proto, path.parent, where)
    return proto, held, outside


def deserialize(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    """The onnx_ir model of a ModelProto in memory, which is used up; ``folder``: where its data files are; with None,
    those that it names are found from the working folder. Raises AmpError AMP102 (no sense), AMP107 (holds training),
    AMP204 (faulty nodes)."""
    held = holders(proto)
    outside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors(held))
    model = _model_of_proto(proto, held, folder, "model")
    return hold_attributes(model) if outside else model


def hold_attributes(model: ir.Model) -> ir.Model:
    """Reads tensors of an ONNX model's attributes that lie in data files into memory (Constants' stay there), and
    remembers the files under `TAKEN`. Returns the model, which is changed in place."""
    files = read_attributes(all_graphs(model))
    if files:
        model.graph.meta[TAKEN] = files
    return model


def _model_of_proto(proto: onnx.ModelProto, held: list[Holder], folder: Path | None, where: str) -> ir.Model:
    """The onnx_ir model of a ModelProto, whose faults are refused or repaired and noted. ``held``: its `holders`;
    ``folder``: of its data files, as of `deserialize`; ``where``: how messages name it."""
    if proto.training_info:
        message = "holds training information, which mixed precision for inference would lose"
        raise AmpError("AMP107", message, where=where, hint="export the inference graph, or clear training_info")
    remove_mark(proto)
    refuse_nodes(proto, held, where)
    said, held = repair(proto, held, where)
    said += unknown_versions(proto)
    annotated = len(proto.graph.quantization_annotation) > 0 or len(getattr(proto, "configuration", ())) > 0
    try:
        model = from_proto(proto, held)
    except Exception as error:  # onnx_ir raises many kinds for a damaged proto
        refuse_written_twice(held, where)
        hint = "onnx.checker.check_model names the fault"
        raise AmpError("AMP102", f"cannot be understood: {first_line(error)}", where=where, hint=hint) from error
    if SORTED not in model.graph.meta:  # what is read in order reads nothing that is not there
        refuse_undefined(model, where)
        refuse_cycles(model, where)
    remember(model, [*said, *bounds_as_vectors(model.graph)])
    if not annotated:
        model.graph.meta[PLAIN] = True
    for tensor in tensors(held):
        if tensor.metadata_props:
            del tensor.metadata_props[:]  # the model has them too, and would write both
    if folder is not None:
        for graph in all_graphs(model):
            ir.external_data.set_base_dir(graph, folder)
    return model


# -- writing ----------------------------------------------------------------------------------------------------------


def save(model: ir.Model, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Writes an ONNX model, and beside it one data file if the input had one or 2 GB are passed. The data file is
    ``<path>.data``, ``<path>_data`` where the model came with such names, or another name while that is somebody else's
    or what the model itself reads. Data and model are renamed one after the other: where that is cut short, their marks
    differ and `load` refuses the pair. The model in memory keeps reading the files that it was loaded from. Raises
    AmpError AMP105 when the disk is full or the folder cannot be written; nothing stays behind."""
    path = Path(path)
    with whole_files(path, "-o") as temporary:
        outside = written_outside(model)
        given = {Path(tensor.path) for tensor in external_of(outside.values())}
        read = {os.path.realpath(place) for place in given}
        own = own_data(path)
        data = path.parent / free_name(path, own, read, [place.name for place in given]) if outside else None
        try:
            mark = write_data(outside, data, temporary("data"), progress) if data else None

            def finish(proto: onnx.ModelProto) -> None:
                if data is not None and mark is not None:
                    put_mark(proto, data.name, mark)

            with open(temporary("model"), "wb", buffering=BUFFER) as file:
                file.writelines(model_file(model, finish))
        finally:
            for value, tensor in outside.items():
                put(value, tensor)
        with _moved_into_place(temporary("data"), data, temporary("old")) if data else contextlib.nullcontext():
            os.replace(temporary("model"), path)
    _remove_unused_data(path.parent, own, read | ({os.path.realpath(data)} if data else set()))


def _remove_unused_data(folder: Path, own: set[str], used: set[str]) -> None:
    """Removes data files of a replaced ONNX model, ``own`` names in ``folder``, but for ``used`` ones (real paths)."""
    for place in (folder / name for name in own):
        if os.path.realpath(place) not in used:
            place.unlink(missing_ok=True)


@contextlib.contextmanager
def _moved_into_place(temporary: Path, target: Path, aside: Path) -> Iterator[None]:
    """For a `with` statement: moves an ONNX data file to ``target``; if the body fails, moves it away again and puts
    what was there before back. ``aside``: a free path for that, whose file the caller removes."""
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
    """Copies an ONNX model's file to another name, and its data files beside that under their own names, for a model in
    which nothing changes. Raises AmpError AMP105 for what cannot be written, or another model's data file there."""
    source, path = Path(source), Path(path)
    proto = onnx.ModelProto()
    proto.ParseFromString(source.read_bytes())
    names, own = sorted(locations(proto)), own_data(path)
    with whole_files(path, "-o") as temporary, contextlib.ExitStack() as moves:
        for number, location in enumerate(names):
            origin, target = source.parent / location, path.parent / location
            if not _same_bytes(origin, target, replaced=location in own):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, temporary(f"data{number}"))
                moves.enter_context(_moved_into_place(temporary(f"data{number}"), target, temporary(f"old{number}")))
        shutil.copyfile(source, temporary("model"))
        os.replace(temporary("model"), path)
    used = {os.path.realpath(folder / name) for folder in (source.parent, path.parent) for name in names}
    _remove_unused_data(path.parent, own, used)


def _same_bytes(origin: Path, target: Path, *, replaced: bool) -> bool:
    """Whether the data file ``origin`` of an ONNX model to be copied is at ``target`` already; ``replaced``: whether
    another file there may be replaced. Raises AmpError AMP105 for one that may not."""
    if not target.exists():
        return False
    if os.path.samefile(target, origin) or filecmp.cmp(target, origin, shallow=False):
        return True
    if replaced:
        return False
    message = f"another model's data file '{target.name}' is there already"
    raise AmpError("AMP105", message, where=str(target.parent), hint="write to another folder")
