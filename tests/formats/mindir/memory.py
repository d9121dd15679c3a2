"""Reads, rounds and writes a split model of N megabytes; prints the most private memory (KiB) that it took.

``python memory.py FOLDER MEGABYTES``. A process of its own, because memory is the process's.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir import build as mindir_build

ROWS, COLUMNS = 4096, 1024  # 16 MB each


def private() -> int:
    """Anonymous memory of this process, in KiB: what is mapped from files does not count."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0])


def sparse_model(folder: Path, megabytes: int) -> Path:
    """A split model whose data file is a hole."""
    build, length = mindir_build.Build(), ROWS * COLUMNS * 4
    (folder / "net_variables").mkdir()
    count = megabytes * 1_000_000 // length
    for number in range(count):
        tensor = build.graph.parameter.add(name=f"main:w{number}", ref_key=f"w{number}", data_type=1)
        tensor.dims.extend([ROWS, COLUMNS])
        place = tensor.external_data
        place.location, place.offset, place.length = "net_variables/data_0", 64 + number * length, length
    with open(folder / "net_variables" / "data_0", "wb") as file:
        file.write(b"\1")
        file.truncate(64 + count * length)
    return mindir_build.write(build.model, folder / "net_graph.mindir")


def main() -> None:
    folder = Path(sys.argv[1])
    path = sparse_model(folder, int(sys.argv[2]))
    most, finished = private(), threading.Event()
    before = most

    def watch() -> None:
        nonlocal most
        while not finished.wait(0.002):
            most = max(most, private())

    watcher = threading.Thread(target=watch)
    watcher.start()
    file = mindir_io.load(path)
    for tensor in file.model.graph.parameter:
        mindir_weights.round_tensor(file, tensor, "float16")
    mindir_io.save(file, folder / "low.mindir")
    finished.set()
    watcher.join()
    assert most >= before
    print(most)


main()
