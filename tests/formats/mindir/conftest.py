"""MindIR files for the tests of this folder."""

import pytest

from formats.mindir.files import dense, write, write_split


@pytest.fixture
def together(tmp_path):
    """A model in one file."""
    return write(dense(), tmp_path / "net.mindir")


@pytest.fixture
def split(tmp_path):
    """A model in a folder of its own, with two data files; read-only, as MindSpore leaves them."""
    path = write_split(dense(), tmp_path / "given", files=2)
    for file in path.parent.rglob("*"):
        file.chmod(0o700 if file.is_dir() else 0o400)
    return path
