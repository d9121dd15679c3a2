"""Reading and writing MindIR files: checked before anything is allocated, written whole or not at all."""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError, EncodeError

from ...core.errors import AmpError
from ...core.files import LFS_POINTER, PULL, refuse_output, same_file, whole_files
from ...core.progress import Progress
from ..checks import content, holds_no_text
from . import schema
from .schema import Message
from .weights import (
    CIPHERS,
    MindirFile,
    check_tensors,
    data_files,
    is_external,
    natural_key,
    place,
    tensors,
    write_padded,
)

EXPORT_AGAIN = "export it again, or compare its size with the original"

SUPPORTED = "ampgraph reads MindIR files as mindspore.export writes them, and ONNX"
CHECKPOINT = "mindspore.export(..., file_format='MINDIR') writes the graph; a checkpoint holds weights alone"


def foreign(data: memoryview, where: str) -> AmpError:
    """The error AMP102 that says what a file is that is no MindIR model: a zip, ONNX, ... ``where``: its name."""
    start, kind = bytes(data[:64]), kind_by_fields(data)
    if not start:
        problem, hint = "is empty", EXPORT_AGAIN
    elif start[:4] in CIPHERS:
        problem = f"is encrypted ({CIPHERS[start[:4]]})"
        hint = "export it without enc_key; mindspore.load(..., dec_key=...) reads an encrypted one"
    elif start.startswith(LFS_POINTER):
        problem, hint = "is a Git LFS pointer, not the model", PULL
    elif start.startswith(b"PK\3\4"):
        problem, hint = "is a zip archive, not a MindIR model", SUPPORTED
    elif kind == "ONNX":
        problem, hint = "is an ONNX model, not MindIR", "give it a name that ends in .onnx"
    elif kind == "MindIR":
        problem, hint = "is a MindIR model that is cut short or damaged", EXPORT_AGAIN
    elif kind:
        problem, hint = "holds no MindIR graph", CHECKPOINT
    else:
        problem = "is not a MindIR model: encrypted, cut short, or another format"
        hint = "decrypt it, or export it again"
    return AmpError("AMP102", problem, where=where, hint=hint)


def kind_by_fields(data: memoryview) -> str:
    """``ONNX``, ``MindIR``, ``protobuf`` for a whole message of another kind, or "" for anything else, by the protobuf
    fields at the top of a file, which may be cut short behind its graph's first bytes."""
    position, seen = 0, set()  # (field's number, wire type) of the fields so far
    for _ in range(1000):  # far more than either format has before its graph
        tag, position = _varint(data, position)
        seen.add((tag >> 3, tag & 7))
        if (1, 0) in seen and (7, 2) in seen:  # field 1 is ir_version, a number in ONNX alone; field 7 is the graph
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
    """Of a protobuf message: (the varint at a position, the position behind it); (0, -1) without one, and for -1."""
    value = 0
    for index, byte in enumerate(data[position : position + 10] if position >= 0 else b""):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position + index + 1
    return 0, -1


# -- reading ----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> MindirFile:
    """Reads and checks a MindIR model; its external tensors stay on disk, mapped when they are read. Raises AmpError
    (AMP101 no such file, AMP102 no model that can be read, AMP103 bad external data)."""
    where, model = str(path), schema.Model()
    with content(Path(path), ".mindir") as data:
        try:
            model.ParseFromString(data)
        except DecodeError:
            raise foreign(data, where) from None
        if not model.HasField("graph") or kind_by_fields(data) == "ONNX":
            raise foreign(data, where)
    _check_model(model, where)
    file = MindirFile(model, Path(os.path.realpath(path)))  # MindSpore looks for the data there too
    check_tensors(file)
    return file


def _check_model(model: Message, where: str) -> None:
    """Raises AmpError AMP102 for a MindIR model of a later version, big-endian, with names that are not text, or cut
    short in front of its primitives. ``where``: how messages name the file."""
    if model.mind_ir_version > schema.NEWEST_VERSION or model.mind_ir_version < 0:
        problem = f"has mind_ir_version {model.mind_ir_version}; ampgraph knows those up to {schema.NEWEST_VERSION}"
        raise AmpError("AMP102", problem, where=where, hint="export it with MindSpore 2.10 or older")
    if model.HasField("little_endian") and not model.little_endian:
        hint = "export it on a little-endian machine"
        raise AmpError("AMP102", "holds big-endian data", where=where, hint=hint)
    if holds_no_text(model):
        raise AmpError("AMP102", "holds names that are not text: it is damaged", where=where, hint=EXPORT_AGAIN)
    if not model.mind_ir_version and _lacks_primitives(model):  # the version stands behind the primitives
        raise AmpError("AMP102", "is cut short: it ends before its primitives", where=where, hint=EXPORT_AGAIN)


def _lacks_primitives(model: Message) -> bool:
    """Whether a node of a MindIR model refers to a primitive, function or value that the file does not have."""
    graphs = (model.graph, *model.functions)
    known = {primitive.name for primitive in model.primitives} | {graph.name for graph in graphs}
    for graph in graphs:
        known.update(name for node in graph.node for name in (node.name, *node.output))
        known.update(entry.name for entry in (*graph.input, *graph.parameter))
    kinds = (node.op_type.partition("REF::") for graph in graphs for node in graph.node)
    return any(mark and "::" not in name and name not in known for _, mark, name in kinds)


# -- writing ----------------------------------------------------------------------------------------------------------


def save(file: MindirFile, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Writes a MindIR model, and its external data into ``<name>_variables`` beside it, split as it was. The data files
    are named after their content, so that they overwrite none that is in use; the rename of the model file is the
    commit. The model in memory keeps reading the files it was loaded from. Raises AmpError: AMP103 bad external data,
    AMP105 for what cannot be written (nothing stays behind), AMP106 when ``path`` is the input or its data."""
    path, sources = Path(path), data_files(file)
    _refuse_overwriting(path, [*([file.path] if file.path else []), *sources])
    outside = [tensor for tensor in tensors(file.model) if is_external(tensor)]
    originals = [schema.ExternalData.FromString(tensor.external_data.SerializeToString()) for tensor in outside]
    with whole_files(path, "-o") as temporary:
        try:
            moves = _write_data(file, outside, path, temporary, progress)
            _write_model(file.model, temporary("model"), path)
        finally:
            for tensor, original in zip(outside, originals, strict=True):
                tensor.external_data.CopyFrom(original)
        _commit_files(temporary("model"), path, moves, sources)


def copy_unchanged(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copies a .mindir file to another name, and its data files beside that under their own names. Raises AmpError:
    AMP101 to AMP103 as `load`, AMP105 for what cannot be written, AMP106 when it is the input."""
    source, target = Path(source), Path(target)
    file = load(source)
    sources = data_files(file)
    _refuse_overwriting(target, [source, *sources])
    with whole_files(target, "-o") as temporary:
        moves: dict[Path, Path | None] = {}  # data file -> what becomes it, None where an equal one is there already
        for number, origin in enumerate(sources):
            location = origin.relative_to(file.path.parent)  # type: ignore[union-attr]
            final = target.parent / location
            if not final.exists():
                moves[final] = temporary(f"data_{number}")
                shutil.copyfile(origin, temporary(f"data_{number}"))
            elif filecmp.cmp(origin, final, shallow=False):
                moves[final] = None
            else:
                problem = f"another model's data file '{location}' is there already"
                raise AmpError("AMP105", problem, where=str(target.parent), hint="write to another folder")
        shutil.copyfile(source, temporary("model"))
        _commit_files(temporary("model"), target, moves, sources)


def _refuse_overwriting(path: Path, sources: list[Path]) -> None:
    """Before a MindIR model is saved as ``path``: raises AmpError AMP106 where that is one of ``sources``, AMP105 as
    `refuse_output` does, and AMP105 for a name that is not text."""
    refuse_output(path, sources, "-o")
    if os.fsencode(path.name) != path.name.encode(errors="replace"):  # the model names its data files
        hint = "choose another name with -o"
        raise AmpError("AMP105", "the file name is not text", where=ascii(str(path)), hint=hint)


def _data_folder(path: Path) -> Path:
    """The folder of a .mindir file's data, as MindSpore's: ``x_variables`` for ``x_graph.mindir`` and ``x.mindir``."""
    return path.with_name(path.name.removesuffix(".mindir").removesuffix("_graph") + "_variables")


def _write_model(model: Message, temporary: Path, path: Path) -> None:
    """Serialises a MindIR model to ``temporary``. Raises AmpError AMP105, of ``path``, beyond protobuf's 2 GiB."""
    try:
        data = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:  # 2 GiB is the end of protobuf
        hint = "export it with its weights in data files, as MindSpore does from 1 GB on"
        raise AmpError("AMP105", f"cannot be written as one file: {error}", where=str(path), hint=hint) from None
    temporary.write_bytes(data)


def _write_data(
    file: MindirFile, outside: list[Message], path: Path, temporary: Callable[[str], Path], progress: Progress | None
) -> dict[Path, Path | None]:
    """Writes the external MindIR tensors ``outside`` to temporary data files, split as they were, and makes the
    messages say where they will lie. Returns final path -> temporary path. ``path``: of the model; ``temporary``: makes
    a temporary path of a word; ``progress``: told the bytes written."""
    by_file: dict[str, list[Message]] = {}  # location they were read from -> tensors
    for tensor in outside:
        by_file.setdefault(place(file, tensor)[0], []).append(tensor)
    total, before = sum(tensor.external_data.length for tensor in outside), 0
    moves: dict[Path, Path | None] = {}
    for number, location in enumerate(sorted(by_file, key=natural_key)):
        held = sorted(by_file[location], key=lambda tensor: place(file, tensor)[1])
        digest = hashlib.blake2b(path.name.encode(), digest_size=8)
        with open(temporary(f"data_{number}"), "wb") as stream:
            places = []
            for start, length in write_padded(file, held, stream, digest):
                places.append((start, length))
                if progress:
                    progress("writing weights", min(before + start + length, total), total)
        before += sum(length for _, length in places)
        target = _data_folder(path) / f"data_{number}.{digest.hexdigest()}"
        moves[target] = temporary(f"data_{number}")
        for tensor, (start, length) in zip(held, places, strict=True):
            tensor.external_data.location = f"{target.parent.name}/{target.name}"
            tensor.external_data.offset, tensor.external_data.length = start, length
    return moves


def _commit_files(model: Path, path: Path, moves: dict[Path, Path | None], sources: list[Path]) -> None:
    """Moves the data files of a MindIR model where they belong, then the model to ``path``; then removes the data files
    of the model that stood there. An error before the model is moved takes the new data files away again. ``model``:
    the temporary file. ``moves``: final path of a data file -> its temporary file, None where the final one is there
    already. ``sources``: the data files of the input, which stay."""
    old = _own_data(path)
    with contextlib.ExitStack() as undo:
        for target, temporary in moves.items():
            _move_data_file(temporary, target, path.parent, sources, undo)
        os.replace(model, path)
        undo.pop_all()
    used = {os.path.realpath(used) for used in (*moves, *sources)}
    with contextlib.suppress(OSError):  # the output is there, whatever becomes of the old one
        for retired in old:
            if os.path.realpath(retired) not in used:
                retired.unlink(missing_ok=True)
        if old and not any(_data_folder(path).iterdir()):
            _data_folder(path).rmdir()


def _move_data_file(
    temporary: Path | None, target: Path, root: Path, sources: list[Path], undo: contextlib.ExitStack
) -> None:
    """Moves a MindIR data file to ``target``, in folders that it makes; nothing is moved where ``temporary`` is None.
    ``undo``: is told what to take away if a later step fails, which is what was not there before. Raises AmpError:
    AMP105 where a link leads out of the folder ``root``, AMP106 where it would change one of ``sources``."""
    real = os.path.realpath(root)
    if os.path.commonpath([real, os.path.realpath(target.parent)]) != real:
        problem = f"'{target.parent.name}' is a link that leaves the folder"
        raise AmpError("AMP105", problem, where=str(root), hint="remove the link, or choose another place with -o")
    if temporary is None:
        return
    for folder in reversed([target.parent, *target.parent.parents]):
        if not folder.exists():
            folder.mkdir()
            undo.callback(folder.rmdir)
    if any(same_file(target, source) for source in sources):
        if filecmp.cmp(temporary, target, shallow=False):
            return
        problem = f"the input reads '{target.name}', which the result would overwrite"
        raise AmpError("AMP106", problem, where=str(target), hint="choose another name with -o")
    if not target.exists():
        undo.callback(target.unlink, missing_ok=True)
    os.replace(temporary, target)


def _own_data(path: Path) -> list[Path]:
    """The data files that `save` wrote for the MindIR model that is at ``path`` now, known by their names."""
    folder, model = _data_folder(path), schema.Model()
    if not folder.is_dir() or not path.is_file():
        return []
    try:
        with content(path, ".mindir") as data:
            model.ParseFromString(data)
    except (AmpError, DecodeError):
        return []  # not a model: nothing of ours is behind it
    own = re.compile(re.escape(folder.name) + r"/data_\d+\.[0-9a-f]{16}")
    locations = {tensor.external_data.location for tensor in tensors(model) if tensor.HasField("external_data")}
    return sorted(path.parent / name for name in locations if isinstance(name, str) and own.fullmatch(name))
