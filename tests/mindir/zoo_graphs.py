"""Exports of mindcv's networks without their weights, small enough to be kept: ``zoo_graphs/NAME_LEVEL.mindir.gz``.

``python -m mindir.zoo_graphs NAME FOLDER`` makes them of what ``mindir.zoo_one NAME ... --folder FOLDER`` left. The
tests fill them with numbers that follow from the names of the parameters, the same in every file of a network.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np

from ampgraph.formats.mindir import schema
from formats.mindir import text

HOME = Path(__file__).with_name("zoo_graphs")
LEVELS = ("fp32", "O2", "O3", "auto")


def place(name: str, level: str) -> Path:
    return HOME / f"{name}_{level}.mindir.gz"


def strip(name: str, folder: Path) -> None:
    """Keeps the files of a network without the data of their parameters."""
    HOME.mkdir(exist_ok=True)
    for level in LEVELS:
        model = text.load(str(folder / f"{level}.mindir"))
        for parameter in model.graph.parameter:
            parameter.ClearField("raw_data")
        place(name, level).write_bytes(gzip.compress(model.SerializeToString(), 9, mtime=0))


def write(name: str, level: str, file: Path) -> None:
    """A file of a network, with numbers in its parameters."""
    model = schema.Model()
    model.ParseFromString(gzip.decompress(place(name, level).read_bytes()))
    for parameter in model.graph.parameter:
        key = (parameter.ref_key or parameter.name).rpartition(":")[2]
        parameter.raw_data = numbers(key, tuple(parameter.dims)).tobytes()
    file.write_bytes(model.SerializeToString())


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What a parameter holds: statistics and scales around 0 and 1, weights so that values keep their size."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    drawn = np.random.default_rng(seed).standard_normal(shape)
    last = name.rpartition(".")[2]
    if last in ("gamma", "moving_variance"):
        drawn = 1 + 0.1 * np.abs(drawn)
    elif len(shape) < 2:
        drawn *= 0.1
    else:
        drawn *= np.sqrt(2 / np.prod(shape[1:]))
    return drawn.astype(np.float32)


if __name__ == "__main__":
    strip(sys.argv[1], Path(sys.argv[2]))
