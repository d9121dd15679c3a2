"""A folder of arrays, memory-mapped: NAME.npy, .npz, and idx files as MNIST has them; each also with .gz behind."""

from __future__ import annotations

import glob
import re
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

from ...core.arrays import Array
from ...core.errors import AmpError, first_line
from ...runtime.data import cannot_read
from .dataset import mapped_idx, mapped_npy, mapped_npz, opened

IDX = re.compile(r"[-._]idx\d?([-._]ubyte)?$")
LARGE = 1 << 26  # bytes of an .npz file that is mapped
HINT = "it takes NAME.npy, .npz and idx files, each also with .gz, where NAME is an input of the step"
DAMAGED = (ValueError, EOFError, SyntaxError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)


def stays_on_disk(text: str) -> bool:
    """Whether a path is a folder, a pattern of files, or a large .npz file."""
    path = Path(text)
    if path.is_file():
        return path.name.removesuffix(".gz").endswith(".npz") and path.stat().st_size >= LARGE
    return path.is_dir() or (not path.exists() and any(sign in path.name for sign in "*?["))


def load_folder(text: str, inputs: Collection[str], labels: str) -> dict[str, Array]:
    """The arrays by input name: of a file, of a folder, or of the files that a pattern like ``mnist/train-*`` finds.

    An idx file whose name is no input holds ``labels`` if it has one axis, else the only other input. Raises AmpError
    AMP101 for no such files, AMP108 for one that is none of these or is damaged, AMP503 for two arrays of one name.
    """
    given = Path(text)
    paths = [given] if given.is_file() else sorted(given.iterdir() if given.is_dir() else map(Path, glob.glob(text)))
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
            with opened(path) as file:
                return {name.removesuffix(".npy"): mapped_npy(file)}
        if name.endswith(".npz"):
            with opened(path) as file:
                return mapped_npz(file)
        if IDX.search(name):
            with opened(path) as file:
                array = mapped_idx(file)
            return {_idx_name(IDX.sub("", name), array, inputs, labels): array}
    except OSError as error:
        raise cannot_read(path, error) from None
    except DAMAGED as error:
        message = f"is no array, or is damaged: {first_line(error)}"
        raise AmpError("AMP108", message, where=str(path), hint=HINT) from None
    return {}


def _idx_name(stem: str, array: Array, inputs: Collection[str], labels: str) -> str:
    if stem in inputs:
        return stem
    others = [name for name in inputs if name != labels]
    return labels if array.ndim == 1 and labels else others[0] if len(others) == 1 else stem
