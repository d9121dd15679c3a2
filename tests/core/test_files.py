"""Files appear whole or not at all, whatever stops the writing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampgraph.core.errors import AmpError
from ampgraph.core.files import try_folder, whole_file, whole_files
from ampgraph.core.names import FreshNames


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_text("old")
    with whole_file(target, suffix=".ckpt") as beside:
        beside.write_text("new")
        assert target.read_text() == "old" and beside.parent == tmp_path and beside.suffix == ".ckpt"
    assert target.read_text() == "new" and os.listdir(tmp_path) == ["out.bin"]


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "AMP105.*the disk is full"),
        (OSError(errno.EFBIG, "File too large"), "AMP105.*cannot be written: File too large"),
        (KeyboardInterrupt(), None),
    ],
)
def test_what_stops_the_writing_leaves_the_old_file(tmp_path: Path, raised: BaseException, found: str | None) -> None:
    target = tmp_path / "out.bin"
    target.write_text("old")
    with pytest.raises((AmpError, KeyboardInterrupt), match=found), whole_file(target, "-o") as beside:
        beside.write_text("half")
        raise raised
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["out.bin"]


def noting(calls: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which notes its name where it is called."""

    def called(*given: Any) -> Any:
        calls.append(name)
        return function(*given)

    return called


def test_a_durable_file_is_on_the_disk_before_it_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("replace", "fsync"):
        monkeypatch.setattr(os, name, noting(done, name, getattr(os, name)))
    with whole_file(tmp_path / "a", durable=True) as beside:
        beside.write_text("x")
    assert done == ["fsync", "replace", "fsync"]


def test_names_and_folders(tmp_path: Path) -> None:
    with whole_files(tmp_path / "m.onnx") as temporary:
        assert temporary("data") == temporary("data") != temporary("model")
        temporary("data").write_text("x")
    assert os.listdir(tmp_path) == []
    # a folder is tried without a trace
    try_folder(tmp_path / "a")
    assert os.listdir(tmp_path) == []
    with pytest.raises(AmpError, match="AMP105"):
        try_folder(tmp_path / "none" / "a")


def test_fresh_names_are_counted() -> None:
    fresh = FreshNames(["a", "a_1", None])
    assert [fresh("a"), fresh("a"), fresh("b"), fresh("b")] == ["a_2", "a_3", "b", "b_1"]
