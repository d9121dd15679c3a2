"""The networks of the MindIR tests as MindSpore exported them once, in one committed archive.

MindSpore writes the time and addresses into its files, and orders some tables by addresses: an export made again is
another file. So the digests start from these, and need no mindspore. ``python -m digests.nets`` makes the archive again
(with mindspore), after which the group ``mindir`` has to be written again too.
"""

from __future__ import annotations

import functools
import io
import tarfile
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("nets.tar.xz")


@functools.cache
def networks() -> dict[str, bytes]:
    """The content of every file, by the name of the network."""
    found = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None, member.name
            found[Path(member.name).stem] = file.read()
    return found


def main() -> None:
    from mindir import cases, parity

    with tempfile.TemporaryDirectory() as folder:
        parity.export(Path(folder), cases.NAMES, ["fp32"])
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for name in sorted(cases.NAMES):
                content = (Path(folder) / name / "fp32.mindir").read_bytes()
                entry = tarfile.TarInfo(f"{name}.mindir")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
