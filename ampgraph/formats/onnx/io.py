"""Reading and writing ONNX files: checked before anything is allocated, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import hashlib
import mmap
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ...core.errors import AmpError, first_line
from ...core.files import refuse_output
from . import proto as onnx_proto
from .weights import tensor_chunks

INLINE_LIMIT = 1_900_000_000  # protobuf stops at 2 GiB
EXTERNAL_FROM = 1024  # bytes: smaller tensors stay in the model file
ALIGN = 4096  # so that readers can map a tensor

Progress = Callable[[str, int, int], None]


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
    onnx_proto.densify(proto, where)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx_ir raises many kinds for a damaged proto
        raise AmpError(
            "AMP102",
            f"cannot be understood: {first_line(error)}",
            where=where,
            hint="onnx.checker.check_model names the fault",
        ) from error
    for tensor in onnx_proto.tensors(proto):
        if tensor.metadata_props:
            del tensor.metadata_props[:]  # the model has them too, and would write both
    if folder is not None and any(t.external_data for t in onnx_proto.tensors(proto)):
        for graph in all_graphs(model):
            ir.external_data.set_base_dir(graph, folder)
    return model


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the functions' graphs, and the bodies in them at any depth."""
    waiting = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in waiting:
        yield graph
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    waiting.append(attribute.value)
                elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                    waiting.extend(attribute.value)


def check_tensors(proto: onnx.ModelProto, folder: Path, where: str) -> None:
    """Refuses tensors whose bytes are missing, too many, or outside the model's folder."""
    sizes: dict[str, int] = {}
    root = os.path.realpath(folder)
    for tensor in onnx_proto.tensors(proto):
        expected = _expected_bytes(tensor, where)
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


def _expected_bytes(tensor: onnx.TensorProto, where: str) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    if count < 0 or count > 1 << 50 or any(dim < 0 for dim in tensor.dims):
        raise AmpError(
            "AMP102",
            f"tensor '{tensor.name}' has an absurd shape {list(tensor.dims)}",
            where=where,
            hint="the file is damaged: export it again",
        )
    try:
        return -(-count * ir.DataType(tensor.data_type).bitwidth // 8)
    except (TypeError, ValueError):
        return len(tensor.raw_data)  # strings have no fixed size


# -- writing ----------------------------------------------------------------------------------------------------------


def save(model: ir.Model, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Writes the model, and beside it one data file if the input had one or 2 GB are passed.

    The data file is named after its content, so it never overwrites one that is in use; the rename of the model file is
    the commit. Raises AmpError AMP105 when the disk is full or the folder cannot be written; nothing stays behind.
    """
    path = Path(path)
    with _whole_or_nothing(path) as temporary:
        outside = _external_holders(model)
        data_name = ""
        originals = [(holder, _tensor(holder)) for holder in outside]
        try:
            if outside:
                data_name = _write_data(outside, path, temporary("data"), progress)
            proto = ir.to_proto(model)
        finally:
            for holder, tensor in originals:
                _put(holder, tensor)
        with open(temporary("model"), "wb") as file:
            file.write(proto.SerializeToString(deterministic=True))
        read = {Path(tensor.path).name for tensor in external_tensors(model)}  # by the source, which may be a copy
        retired = _own_data(path) - {data_name} - read
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
    with _whole_or_nothing(path) as temporary:
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


@contextlib.contextmanager
def _whole_or_nothing(path: Path) -> Iterator[Callable[[str], Path]]:
    """Gives names of temporary files beside ``path`` and removes what is left of them, whatever happens."""
    made: dict[str, Path] = {}

    def temporary(part: str) -> Path:
        return made.setdefault(part, path.parent / f".{path.name}.{os.getpid()}.{part}.tmp")

    try:
        refuse_output(path)
        yield temporary
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise AmpError(
            "AMP105",
            "the disk is full" if full else f"cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free some space, or choose another place with -o" if full else "choose another place with -o",
        ) from error
    finally:
        for leftover in made.values():
            leftover.unlink(missing_ok=True)


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """The stored tensors whose bytes lie in data files."""
    for holder in _holders(model):
        source = _source(_tensor(holder))
        if isinstance(source, ir.ExternalTensor):
            yield source


def _holders(model: ir.Model) -> Iterator[ir.Value | ir.Node]:
    """What holds a stored tensor: initializers and Constant nodes, those of functions too."""
    for graph in all_graphs(model):
        yield from (value for value in graph.initializers.values() if value.const_value is not None)
        for node in graph:
            if node.op_type == "Constant" and "value" in node.attributes and not node.attributes["value"].is_ref():
                yield node


def _tensor(holder: ir.Value | ir.Node) -> ir.TensorProtocol:
    tensor = holder.const_value if isinstance(holder, ir.Value) else holder.attributes["value"].value
    assert tensor is not None
    return tensor


def _put(holder: ir.Value | ir.Node, tensor: ir.TensorProtocol) -> None:
    if isinstance(holder, ir.Value):
        holder.const_value = tensor
    else:
        holder.attributes["value"] = ir.AttrTensor("value", tensor)


def _source(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The tensor in the file behind one that is rounded when it is read."""
    return getattr(tensor, "source", tensor)


def _is_external(tensor: ir.TensorProtocol) -> bool:
    return isinstance(_source(tensor), ir.ExternalTensor)


def _external_holders(model: ir.Model) -> list[ir.Value | ir.Node]:
    """What goes to a data file: what came from one, and every large initializer where 2 GB would be passed."""
    holders = [(holder, _tensor(holder)) for holder in _holders(model)]
    inline = sum(tensor.nbytes for _, tensor in holders if isinstance(_, ir.Value))
    return [
        holder
        for holder, tensor in holders
        if _is_external(tensor)
        or (inline > INLINE_LIMIT and isinstance(holder, ir.Value) and tensor.nbytes >= EXTERNAL_FROM)
    ]


def _write_data(holders: list[ir.Value | ir.Node], path: Path, temporary: Path, progress: Progress | None) -> str:
    """Streams the tensors to one file and points their holders at it; returns the file's final name."""
    digest, places, position = hashlib.blake2b(digest_size=8), [], 0
    tensors = [_tensor(holder) for holder in holders]
    total = sum(tensor.nbytes for tensor in tensors)
    with open(temporary, "wb") as file:
        for tensor in tensors:
            padding = -position % ALIGN
            file.write(b"\0" * padding)
            start = position = position + padding
            for chunk in tensor_chunks(tensor):
                digest.update(chunk)
                file.write(chunk)
                position += len(chunk)
            places.append((start, position - start))
            if progress:
                progress("writing weights", position, total)
    name = f"{path.name}.{digest.hexdigest()}.data"
    for holder, tensor, (offset, length) in zip(holders, tensors, places, strict=True):
        label = tensor.name or (holder.name if isinstance(holder, ir.Value) else "") or ""
        shape: ir.Shape = tensor.shape  # type: ignore[assignment]
        _put(
            holder, ir.ExternalTensor(name, offset, length, tensor.dtype, shape=shape, name=label, base_dir=path.parent)
        )
    return name
