"""Arrays in files: what is read is what was written; everything else is one message."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.core.files import LFS_POINTER
from ampgraph.runtime import data
from ampgraph.runtime.data import load_npz, save_npz

ARRAYS: dict[str, np.ndarray] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/b": np.array(3.5, np.float16),
    "file": np.zeros((0, 4), np.int64),
    "flags": np.array([True, False]),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "words": np.array(["one", "two"]),
}


def refused(path: Path) -> AmpError:
    with pytest.raises(AmpError) as caught:
        load_npz(path)
    assert caught.value.hint and str(path) in str(caught.value)
    return caught.value


def member(content: bytes) -> bytes:
    """A zip file with one member."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", content)
    return file.getvalue()


def header(text: str, content: bytes = b"") -> bytes:
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode() + content


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out.data"  # the name is kept: numpy would add .npz
    save_npz(path, ARRAYS)
    again = load_npz(path)
    assert list(again) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)
    first = path.read_bytes()
    save_npz(path, ARRAYS)
    assert path.read_bytes() == first and os.listdir(tmp_path) == ["out.data"]
    # bfloat16 is written as float32
    array = np.array([1.5, -3e38], ml_dtypes.bfloat16)
    save_npz(tmp_path / "x.npz", {"x": array})
    found = load_npz(tmp_path / "x.npz")["x"]
    assert found.dtype == np.float32 and (found == array.astype(np.float32)).all()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpys_own_files_are_read(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "x.npz", **{name: array for name, array in ARRAYS.items() if name != "file"})
    np.testing.assert_array_equal(load_npz(tmp_path / "x.npz")["x"], ARRAYS["x"])


def test_what_is_not_there_or_no_npz(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.npz").code == "AMP101"
    assert refused(tmp_path).code == "AMP101"
    path = tmp_path / "x.npz"
    for content, told in ((b"", "is empty"), (b"text", "is not an .npz"), (b"\x93NUMPY\x01\x00", "is not an array")):
        path.write_bytes(content)
        error = refused(path)
        assert error.code == "AMP108" and told in error.message
    save_npz(path, ARRAYS)
    path.write_bytes(path.read_bytes()[:-30])
    assert "cut short" in refused(path).message


def test_arrays_that_are_no_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([{}, None], object))
    assert "pickled" in refused(path).message
    # damaged bytes are told
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000.0))
    damaged = bytearray(path.read_bytes())
    damaged[200:300] = bytes(100)
    path.write_bytes(damaged)
    assert refused(path).code == "AMP108"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an array",
        b"\x93NUMPY\x09\x00",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999, )}", b"1234"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, )}", b"1234"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1, )}", b"12"),
        header("{'descr': '<q9', 'fortran_order': False, 'shape': (1, )}", b"1234"),
        header("{'descr': __import__('os')}"),
        header("{{{"),
    ],
)
def test_damaged_members_are_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(member(content))
    error = refused(path)
    assert error.code == "AMP108" and "'x.npy'" in error.message


def test_an_unfinished_file_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.npz"
    save_npz(path, {"x": np.zeros(3)})
    before = path.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data.np.lib.format, "write_array", full)
    with pytest.raises(AmpError, match="AMP105.*disk is full"):
        save_npz(path, ARRAYS)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["out.npz"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for path, told in ((tmp_path / "no" / "x.npz", "does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(AmpError, match=f"AMP105.*{told}"):
            save_npz(path, ARRAYS)
    with pytest.raises(AmpError, match="AMP105.*'x'.*objects"):
        save_npz(tmp_path / "x.npz", {"x": np.array([{}])})
    assert os.listdir(tmp_path) == []


def test_one_input_takes_an_array_of_any_name(tmp_path: Path) -> None:
    """Of a file, an .npy file too; but not where two could be meant, nor in the place of what is there."""
    x = ARRAYS["x"]
    np.savez(tmp_path / "any.npz", picture=x)
    np.savez(tmp_path / "beside.npz", picture=x, labels=np.zeros(2))
    np.save(tmp_path / "any.npy", x)
    for name, inputs, required in (("any.npz", "x", "x"), ("any.npy", "x", "x"), ("any.npz", "xy", "x")):
        assert data.load_inputs(tmp_path / name, inputs, required, "the model")["x"].tobytes() == x.tobytes()
    step = data.load_inputs(tmp_path / "beside.npz", ["x", "labels"], ["x", "labels"], "the step")
    assert step["x"].tobytes() == x.tobytes() and step["labels"].shape == (2,)
    for name, required in (("beside.npz", "x"), ("any.npz", "xy"), ("any.npy", "xy")):
        with pytest.raises(AmpError, match="AMP503.*no array for input 'x'"):
            data.load_inputs(tmp_path / name, required, required, "the model")
    assert list(data.load_inputs(tmp_path / "any.npz", ["picture"], [], "the model")) == ["picture"]


def test_an_npy_file_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "huge.npy").write_bytes(header("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"))
    assert refused(tmp_path / "huge.npy").code == "AMP108"
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    assert "could run code" in refused(tmp_path / "pickled.npy").message


def test_a_pointer_of_git_lfs_and_a_file_that_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer, large = tmp_path / "pointer.npz", tmp_path / "large.npz"
    pointer.write_bytes(LFS_POINTER + b"/v1\noid sha256:0\nsize 1\n")
    np.savez_compressed(large, x=np.zeros(1000))
    monkeypatch.setattr(data, "MOST", 4096)
    for path, why in ((pointer, "Git LFS pointer"), (large, "unpacks to")):
        with pytest.raises(AmpError, match=why) as caught:
            load_npz(path)
        assert caught.value.code == "AMP108"


def test_the_first_nan_of_what_is_fed() -> None:
    array = np.array([[0, np.inf], [np.nan, np.nan]], np.float32)
    assert data.first_nan(array) == [1, 0] and data.first_nan(array[:1]) is None
    assert data.first_nan(np.arange(3)) is None and data.first_nan(np.array(["nan"])) is None
