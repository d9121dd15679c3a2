"""A folder of arrays, memory-mapped: NAME.npy, .npz, and idx files as MNIST has them; each also with .gz behind.

What is compressed has no place in a file that could be mapped: it is unpacked into an unnamed temporary file, which is
mapped. The idx format: two zero bytes, a code of the type, the number of axes, their sizes as big-endian 32-bit
integers, the numbers, big-endian too (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import glob
import gzip
import math
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from ...core.arrays import Array
from ...core.errors import AmpError, first_line
from ...runtime.data import cannot_read, header, load_npz

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
IDX = re.compile(r"[-._]idx\d?([-._]ubyte)?$")
HINT = "it takes NAME.npy, .npz and idx files, also with .gz, where NAME is an input of the step"


def is_folder(text: str) -> bool:
    """Whether a path is a folder, or a pattern of files."""
    path = Path(text)
    return path.is_dir() or (not path.exists() and any(sign in path.name for sign in "*?["))


def load_folder(text: str, inputs: Collection[str], labels: str) -> dict[str, Array]:
    """The arrays of the files of a folder, or of those that a pattern like ``mnist/train-*`` finds, by input name.

    An idx file whose name is no input holds ``labels`` if it has one axis, else the only other input. Raises AmpError
    AMP101 for no such files, AMP108 for one that is none of these or is damaged, AMP503 for two arrays of one name.
    """
    paths = sorted(Path(text).iterdir() if Path(text).is_dir() else map(Path, glob.glob(text)))
    found: dict[str, Array] = {}
    for path in paths:
        for name, array in _read(path, inputs, labels).items():
            if name in inputs and name in found:
                hint = f"name the files of one set by a pattern: '{path.parent}/{path.name[:5]}*'"
                raise AmpError("AMP503", f"two files hold '{name}', the second is {path.name}", where=text, hint=hint)
            found[name] = array
    if not found:
        raise AmpError("AMP101", "no arrays are there", where=text, hint=HINT)
    return found


def _read(path: Path, inputs: Collection[str], labels: str) -> dict[str, Array]:
    """By name; nothing for a file of another kind."""
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith(".npy"):
            with _plain(path) as file:
                return {name.removesuffix(".npy"): _mapped_npy(file)}
        if name.endswith(".npz"):
            return load_npz(path)
        if IDX.search(name):
            with _plain(path) as file:
                array = _mapped_idx(file)
            return {_idx_name(IDX.sub("", name), array, inputs, labels): array}
    except OSError as error:
        raise cannot_read(path, error) from None
    except (ValueError, EOFError, SyntaxError, zlib.error) as error:
        message = f"is no array, or is damaged: {first_line(error)}"
        raise AmpError("AMP108", message, where=str(path), hint=HINT) from None
    return {}


def _plain(path: Path) -> IO[bytes]:
    """The file, unpacked where it is compressed."""
    if path.suffix != ".gz":
        return open(path, "rb")
    with gzip.open(path) as packed:
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
        shutil.copyfileobj(packed, unpacked)
    unpacked.flush()
    unpacked.seek(0)
    return unpacked


def _mapped_npy(file: IO[bytes]) -> Array:
    shape, dtype, fortran = header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which could run code")
    return _mapped(file, dtype, shape, "F" if fortran else "C")


def _mapped_idx(file: IO[bytes]) -> Array:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in IDX_TYPES or not start[3]:
        raise ValueError("its first bytes are not those of idx")
    sizes = np.frombuffer(file.read(4 * start[3]), ">u4")
    if len(sizes) != start[3]:
        raise ValueError("it is cut short")
    return _mapped(file, np.dtype(IDX_TYPES[start[2]]), tuple(map(int, sizes)), "C")


def _mapped(file: IO[bytes], dtype: np.dtype[np.generic], shape: tuple[int, ...], order: str) -> Array:
    """The numbers from where the file stands to its end."""
    start = file.tell()
    size = file.seek(0, 2) - start
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError("its size is not what its header says")
    if not size:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", start, shape, "F" if order == "F" else "C")


def _idx_name(stem: str, array: Array, inputs: Collection[str], labels: str) -> str:
    if stem in inputs:
        return stem
    others = [name for name in inputs if name != labels]
    return labels if array.ndim == 1 and labels else others[0] if len(others) == 1 else stem
