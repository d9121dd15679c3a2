"""Arrays in .npz files. numpy's own function that writes them has a keyword, which types say no array may be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """One array to a name."""
    np.savez(path, **arrays)


def read_numbered(path: str | Path) -> list[np.ndarray]:
    """The arrays of a file that was written without names, in their order."""
    with np.load(path) as data:
        return [data[key] for key in sorted(data, key=lambda key: int(key.rpartition("_")[2]))]
