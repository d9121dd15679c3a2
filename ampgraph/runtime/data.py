"""Arrays from and to .npz files: checked before anything is allocated, written whole or not at all."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from ..core.arrays import Array, DType, Feeds
from ..core.errors import AmpError, first_line
from ..core.files import LFS_POINTER, PULL, whole_file

MOST = 4 << 30  # bytes of one file that are held at once, unpacked: a file may be a thousandth of it
ALONE = "arr_0"  # as np.savez names what has no name
_HOW = "np.savez('data.npz', x=array) makes one"


def load_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an .npz file by name, in the order of the file; that of an .npy file is ``arr_0``.

    Raises AmpError AMP101 (no such file), AMP108 (no .npz, damaged, more than `MOST` bytes, or pickled Python objects,
    which are never loaded).
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise AmpError("AMP101", "is a directory, not an .npz file", where=str(path), hint=_HOW)
        with zipfile.ZipFile(path) as archive:
            if (size := sum(info.file_size for info in archive.infolist())) > MOST:
                message = f"unpacks to {size / 1e9:.1f} GB, and {MOST / 1e9:.1f} GB of one file are read at once"
                hint = "give a folder of .npz files, one for each sample: they are read one by one"
                raise AmpError("AMP108", message, where=str(path), hint=hint)
            members = archive.infolist()
            found = [_read_member(partial(archive.open, one), one.file_size, one.filename, path) for one in members]
            return dict(zip([one.filename.removesuffix(".npy") for one in members], found, strict=True))
    except FileNotFoundError:
        raise AmpError("AMP101", "no such file", where=str(path), hint="check the path") from None
    except zipfile.BadZipFile:
        if _first_bytes(path).startswith(b"\x93NUMPY"):
            return {ALONE: _read_member(lambda: open(path, "rb"), path.stat().st_size, path.name, path)}
        raise AmpError("AMP108", _why_not_npz(path), where=str(path), hint=_HOW) from None
    except MemoryError:
        message = "holds more than fits into memory"
        raise AmpError("AMP108", message, where=str(path), hint="give fewer rows") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no system has, with a zero byte in it
        raise unreadable_error(path, error) from None


def unreadable_error(path: Path, error: Exception) -> AmpError:
    """The error for an .npz file with arrays that the system cannot read."""
    why = getattr(error, "strerror", None) or first_line(error)
    return AmpError("AMP101", f"cannot be read: {why}", where=str(path), hint="check the path and its permissions")


def _first_bytes(path: Path) -> bytes:
    """The first bytes of an .npz file, enough to know a Git LFS pointer."""
    with open(path, "rb") as file:
        return file.read(len(LFS_POINTER))


def _why_not_npz(path: Path) -> str:
    """What is wrong with a file that cannot be read as .npz, as words behind its name."""
    start = _first_bytes(path)
    if start == LFS_POINTER:
        return f"is a Git LFS pointer, not the samples: {PULL}"
    return "is empty" if not start else "is not an .npz file, or is cut short"


def _read_member(opened: Callable[[], IO[bytes]], size: int, name: str, path: Path) -> Array:
    """Reads an array of an .npz file, which ``opened`` opens, called twice. Its header must fit its ``size`` in bytes,
    so that no header makes us allocate more. AmpError AMP108 for others, and for pickled objects."""
    try:
        with opened() as member:
            shape, dtype, _ = read_header(member)
            if dtype.hasobject:
                raise AmpError(
                    "AMP108",
                    f"'{name}' holds pickled Python objects, which could run code",
                    where=str(path),
                    hint="save it with a number type",
                )
            # tell() counts what the header took; a member's size is known before it is read.
            if math.prod(shape) * dtype.itemsize != size - member.tell():
                raise ValueError("its size is not what its header says")
        with opened() as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)  # type: ignore[no-untyped-call, unused-ignore]
            return array
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError, zlib.error, NotImplementedError, RuntimeError) as e:
        message = f"'{name}' is not an array, or is damaged: {first_line(e)}"
        raise AmpError("AMP108", message, where=str(path), hint=_HOW) from None


def read_header(member: IO[bytes]) -> tuple[tuple[int, ...], DType, bool]:
    """Reads the header of an array in an .npz file: shape, type, and whether the first axis runs fastest. ``member`` is
    left behind it. Raises ValueError and others for any other file."""
    version = np.lib.format.read_magic(member)  # type: ignore[no-untyped-call, unused-ignore]
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its format {version} is unknown")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(member)  # type: ignore[no-untyped-call, unused-ignore]
    return shape, dtype, fortran


def load_inputs(
    path: str | os.PathLike[str], names: Collection[str], required: Collection[str], reader: str
) -> dict[str, Array]:
    """The arrays of an .npz file that are inputs of some ``names``; what lies beside them (labels) is left out.

    Raises AmpError as `load_npz`, AMP503 where one that is ``required`` is missing, for ``reader``, "the model".
    """
    arrays = arrays_by_input(load_npz(path), names, required)
    refuse_missing(required, arrays, reader, str(path))
    return {name: array for name, array in arrays.items() if name in names}


def arrays_by_input(arrays: dict[str, Array], names: Collection[str], required: Collection[str]) -> dict[str, Array]:
    """Arrays of an .npz file by their own names; if just one ``required`` input has no array, and just one array no
    input of its name (``names``), that array is taken for the input."""
    missing, others = ([name for name in a if name not in b] for a, b in ((required, arrays), (arrays, names)))
    if len(missing) != 1 or len(others) != 1:
        return arrays
    return {missing[0] if name == others[0] else name: array for name, array in arrays.items()}


def refuse_missing(required: Iterable[str], arrays: Collection[str], reader: str, where: str = "") -> None:
    """Before a run: raises AmpError AMP503 where an input has no array. ``reader`` is who takes them: "the model"."""
    required = list(required)
    missing = next((name for name in required if name not in arrays), None)
    if missing is not None:
        held = ", ".join(map(str, list(arrays)[:8])) or "nothing"
        hint = f"it holds {held}; {reader} takes {', '.join(required)}"
        raise AmpError("AMP503", f"no array for input '{missing}'", where=where, hint=hint)


def first_nan(array: Array) -> list[int] | None:
    """Where the first NaN of an array to be fed stands; None where there is none."""
    bad = np.isnan(array) if array.dtype.kind in "fc" else np.zeros(1, np.bool_)
    return [int(index) for index in np.argwhere(bad)[0]] if bad.any() else None


def save_npz(path: str | os.PathLike[str], arrays: Feeds) -> None:
    """Writes arrays by name to an .npz file, whole or not at all; the same arrays give the same bytes.

    bfloat16, which an .npz file cannot name, is written as float32: the same numbers. Raises AmpError AMP105.
    """
    path = Path(path)
    with whole_file(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, value in arrays.items():
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise AmpError("AMP105", f"'{name}' holds Python objects", where=str(path), hint="give numbers")
            if array.dtype.name == "bfloat16":
                array = array.astype(np.float32)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call, unused-ignore]
