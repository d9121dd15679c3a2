"""Writes arrays as an .npz file; numpy's own function has a keyword of its own, which types say no array may be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """One array to a name."""
    np.savez(path, **arrays)
