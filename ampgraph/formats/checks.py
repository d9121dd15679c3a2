"""What is checked around a conversion: files and stored tensors before they are touched, outputs before they are
written, and whether a model was damaged to begin with."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import AmpError, first_line
from ..core.files import refuse_output
from ..core.graph import Graph, is_mindir

if TYPE_CHECKING:
    from google.protobuf.message import Message

MODEL_SUFFIXES = {".onnx", ".mindir"}


def refuse_overwriting(graph: Graph, output: Path, sources: Iterable[Path], option: str) -> None:
    """Before a model is written to ``output``: raises AmpError AMP105 and AMP106 as `refuse_output` does, with the data
    files of ``graph`` among the sources. ``option``: by which the user names the output, for the hint."""
    refuse_output(output, [*sources, *graph.data_files()], option)


def refuse_result(graph: Graph, output: Path, sources: Iterable[Path], option: str) -> None:
    """Before a model is written to ``output``: raises as `refuse_overwriting`, and AMP105 for another format's name."""
    if output.suffix.lower() in MODEL_SUFFIXES - {graph.suffix}:
        message = f"the name is of another format, and a conversion keeps the model's, {graph.format}"
        raise AmpError("AMP105", message, where=str(output), hint=f"{option} {output.with_suffix(graph.suffix)}")
    refuse_overwriting(graph, output, sources, option)


@contextlib.contextmanager
def content(path: Path, suffix: str) -> Iterator[memoryview]:
    """For a `with` statement: the bytes of a model's file of either format, mapped, not copied. Raises AmpError AMP101
    for what is no file that can be read. ``suffix``: what names of this format end in, for the hint."""
    try:
        if path.is_dir():
            hint = f"name the {suffix} file in it"
            raise AmpError("AMP101", "is a directory, not a model", where=str(path), hint=hint)
        if not stat.S_ISREG(path.stat().st_mode):
            raise AmpError("AMP101", "is not a file", where=str(path), hint="copy the model into a file first")
        file = open(path, "rb")  # noqa: SIM115  closed below, whatever the parser does
    except FileNotFoundError:
        raise AmpError("AMP101", "no such file", where=str(path), hint="check the path") from None
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise AmpError("AMP101", why, where=str(path), hint="check its permissions") from None
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # unmapped when its last view goes


# -- stored tensors, which ``who`` names, of a model that is ``where`` ------------------------------------------------

DAMAGED = "the file is damaged: export it again"
FOREIGN_DATA = "the data file does not belong to this model, or is cut short"


def elements_in(dims: Sequence[int], who: str, where: str) -> int:
    """How many elements the shape of a stored tensor has. Raises AmpError AMP102 for a negative size, and beyond 2**50;
    ``who`` and ``where``: how the message names the tensor and the file."""
    count = 1
    for dim in dims:
        count = count * dim if dim >= 0 else -1
        if not 0 <= count <= 1 << 50:
            raise AmpError("AMP102", f"{who} has an absurd shape {list(dims)}"[:300], where=where, hint=DAMAGED)
    return count


def check_held(held: int, expected: int, who: str, where: str) -> None:
    """Raises AmpError AMP102 where a stored tensor in the model's file holds another number of bytes (``held``) than
    its shape needs (``expected``); ``who``, ``where``: as for `elements_in`."""
    if held != expected:
        raise AmpError("AMP102", f"{who} says {expected:,} bytes and holds {held:,}", where=where, hint=DAMAGED)


def data_file(location: str, folder: Path, who: str, where: str) -> str:
    """The real path of a data file of either format. Raises AmpError AMP103 for one outside the model's ``folder``, or
    not there. ``location``: as a tensor names it; ``who``, ``where``: as for `elements_in`."""
    root, real = os.path.realpath(folder), ""
    if location and "\0" not in location and not os.path.isabs(location):
        real = os.path.realpath(os.path.join(folder, location))
    if not real or os.path.commonpath([root, real]) != root:
        message = f"external data of {who} lies outside the model's folder: '{location}'"
        raise AmpError("AMP103", message, where=where, hint="move the data file beside the model")
    if not os.path.isfile(real):
        message = f"external data file '{location}' is missing"
        raise AmpError("AMP103", message, where=where, hint="copy it beside the model")
    return real


def check_extent(place: tuple[str, int, int], size: int, expected: int, who: str, where: str) -> None:
    """Raises AmpError AMP103 where a stored tensor does not lie in its data file of ``size`` bytes, or has not the
    ``expected`` bytes of its shape. ``place``: (location, offset, length); ``who``, ``where``: as for `elements_in`."""
    location, offset, length = place
    if offset < 0 or length != expected or offset + length > size:
        message = f"{who} wants {length:,} bytes at {offset:,} of '{location}', which has {size:,}"
        raise AmpError("AMP103", f"{message}; its shape needs {expected:,}", where=where, hint=FOREIGN_DATA)


# -- faults -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def faults_reported(*models: object) -> Iterator[None]:
    """For a `with` statement: turns an unexpected error in the body into AmpError AMP204 where one of ``models``
    (paths, ModelProtos; others are not looked at) is faulty ONNX to begin with."""
    import logging

    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # its warnings would come before the one message
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, AmpError) and not error.code.startswith("AMP9"):
            raise
        for model in models:
            fault = "" if is_mindir(model) else _checker_fault(model)
            if fault:
                raise AmpError(
                    "AMP204",
                    f"cannot be used: the file is faulty: {fault}",
                    where=str(model) if isinstance(model, (str, os.PathLike)) else "model",
                    hint="export it again, or repair it; AMPGRAPH_DEBUG=1 shows where it failed",
                ) from error
        raise


def _checker_fault(model: object) -> str:
    """What onnx.checker says first against a path or ModelProto, or that names are not text; "" for anything else."""
    import onnx

    if not isinstance(model, (str, os.PathLike, onnx.ModelProto)):
        return ""
    try:
        onnx.checker.check_model(model, full_check=True)
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
        return "it holds names that are not text" if holds_no_text(proto) else ""
    except Exception as error:  # the checker raises several kinds
        return first_line(error)


def holds_no_text(message: Message) -> bool:
    """Whether a string field of a protobuf message, however deep, is not UTF-8."""
    for field, value in message.ListFields():
        items = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
        if field.type == field.TYPE_STRING and any(isinstance(item, bytes) for item in items):
            return True
        if field.type == field.TYPE_MESSAGE and any(holds_no_text(item) for item in items):
            return True
    return False
