"""Arrays that stay in their files: .npy, idx and the members of .npz, mapped from where their numbers begin.

What is compressed has no place in a file that could be mapped: it is unpacked into an unnamed temporary file, which is
mapped. The idx format: two zero bytes, a code of the type, the number of axes, their sizes as big-endian 32-bit
integers, the numbers, big-endian too (http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import math
import shutil
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ...core.arrays import Array
from ...runtime.data import header

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
READ = 1 << 20
ENCRYPTED = 1  # the bit of a member's flags


def opened(path: Path) -> IO[bytes]:
    """The file, unpacked where it is compressed."""
    if path.suffix != ".gz":
        return open(path, "rb")
    with gzip.open(path) as packed:
        return _unpacked(packed)


def mapped_npy(file: IO[bytes], end: int | None = None) -> Array:
    """The array that begins where the file stands. Raises ValueError and others for what is none."""
    shape, dtype, fortran = header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which could run code")
    return _mapped(file, dtype, shape, "F" if fortran else "C", end)


def mapped_npz(file: IO[bytes]) -> dict[str, Array]:
    """The arrays of an .npz file by name; each is read through once, for its checksum.

    Raises ValueError, and zipfile.BadZipFile for what is damaged.
    """
    found = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                found[info.filename.removesuffix(".npy")] = _member(archive, info, file)
    return found


def mapped_idx(file: IO[bytes]) -> Array:
    """The array of an idx file. Raises ValueError."""
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in IDX_TYPES or not start[3]:
        raise ValueError("its first bytes are not those of idx")
    sizes = np.frombuffer(file.read(4 * start[3]), ">u4")
    if len(sizes) != start[3]:
        raise ValueError("it is cut short")
    return _mapped(file, np.dtype(IDX_TYPES[start[2]]), tuple(map(int, sizes)), "C")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes]) -> Array:
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
        with archive.open(info) as member, _unpacked(member) as plain:
            return mapped_npy(plain)
    with archive.open(info) as member:
        while member.read(READ):  # the last one compares the checksum
            pass
    file.seek(info.header_offset + 26)  # of the local header, whose extra field may be of another size
    start = info.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
    file.seek(start)
    return mapped_npy(file, start + info.file_size)


def _unpacked(packed: IO[bytes] | gzip.GzipFile) -> IO[bytes]:
    plain = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    shutil.copyfileobj(packed, plain)
    plain.flush()
    plain.seek(0)
    return plain


def _mapped(
    file: IO[bytes], dtype: np.dtype[np.generic], shape: tuple[int, ...], order: str, end: int | None = None
) -> Array:
    """The numbers from where the file stands to ``end``, or its own."""
    start = file.tell()
    size = (file.seek(0, 2) if end is None else end) - start
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError("its size is not what its header says")
    if not size:
        return np.zeros(shape, dtype)
    return np.memmap(file, dtype, "r", start, shape, "F" if order == "F" else "C")
