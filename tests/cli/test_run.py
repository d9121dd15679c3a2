"""`ampgraph run`: what it tells, what it writes, and its answers to mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ampgraph
from ampgraph.report.outputs import describe_outputs
from cli_helpers import contents, refused
from npz import write_npz
from runtime.adder import BIAS, FEEDS, X, written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_outputs_in_a_line_each() -> None:
    rows = describe_outputs(
        {
            "plain": np.array([[1.0, -2.0], [0.5, 4.0]], np.float16),
            "odd": np.array([np.nan, np.inf, -np.inf, 3.0], np.float32),
            "lost": np.full((2, 1), np.nan),
            "none": np.zeros((0, 3), np.float32),
            "number": np.int64(7),
            "flags": np.array([True, False]),
            "low": np.ones(2, ml_dtypes.bfloat16),
            "texts": np.array(["a"], object),
            "parts": [X, X],
        }
    )
    assert [str(row) for row in rows] == [
        "plain  float16 2x2  -2 to 4, mean 0.875",
        "odd  float32 4  3 to 3, mean 3  2 infinite, 1 NaN",
        "lost  float64 2x1  0 infinite, 2 NaN",
        "none  float32 0x3",
        "number  int64 scalar  7 to 7, mean 7",
        "flags  bool 2  0 to 1, mean 0.5",
        "low  bfloat16 2  1 to 1, mean 1",
        "texts  object 1",
        "parts  sequence of 2 0",
    ]
    data = json.loads(json.dumps([row.to_dict() for row in rows], allow_nan=False))
    assert data[1]["infinite"] == 2 and data[1]["nan"] == 1 and data[2]["smallest"] is None


def test_the_command_tells_and_writes(amp: Any, folder: Path) -> None:
    out = folder / "out.npz"
    code, told, err = amp("run", folder / "m.onnx", "--data", folder / "data.npz", "-o", out)
    assert (code, err) == (0, "") and told.splitlines()[0].startswith("y  float32 4x3  ")
    assert told.splitlines()[1] == "rows  float32 4  -1 to -1, mean -1"
    with np.load(out) as found:
        assert list(found) == ["y", "rows"] and (found["y"] == (X + BIAS) * 2).all()
    before = out.read_bytes()
    code, told, _ = amp("run", folder / "m.onnx", "--data", folder / "data.npz", "-o", out, "--strict", "--json")
    assert code == 0 and json.loads(told)[1]["mean"] == -1.0
    assert out.read_bytes() == before  # the same numbers, the same bytes


def test_inputs_are_generated_where_none_are_given(amp: Any, folder: Path) -> None:
    code, told, err = amp("run", folder / "m.onnx", "--dim", "batch=5")
    assert code == 0 and told.startswith("y  float32 5x3  ")
    assert err.startswith("inputs were generated: 1 sample, seed 0")
    assert amp("run", folder / "m.onnx", "--dim", "batch=5", "--strict")[1] == told
    assert amp("run", folder / "m.onnx", "--dim", "batch=5", "-q") == (0, "", "")
    assert amp("run", folder / "m.onnx", "--dim", "batch=5", "--seed", "1")[1] != told
    refused(amp("run", folder / "m.onnx", "--dim", "rows=5"), "AMP310", "there are: batch")


def test_nan_in_what_is_fed_is_told(amp: Any, folder: Path) -> None:
    fed = {**FEEDS, "x": np.where(np.arange(12).reshape(4, 3) == 7, np.float32(np.nan), X)}
    write_npz(folder / "nan.npz", fed)
    code, told, err = amp("run", folder / "m.onnx", "--data", folder / "nan.npz")
    assert (code, err) == (0, "input 'x' holds NaN, first at [2, 1]\n") and "1 NaN" in told
    with pytest.warns(UserWarning, match="input 'x' holds NaN"):
        ampgraph.run(folder / "m.onnx", fed)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--data", "none.npz"], "AMP101", "no such file"),
        (["--data", "m.onnx"], "AMP108", "is not an .npz file"),
        (["--data", "less.npz"], "AMP503", "no array for input 'scale'"),
        (["--data", "wrong.npz"], "AMP503", "float64 was fed"),
        (["--data", "data.npz", "--device", "gpx"], "AMP321", "unknown device 'gpx'"),
        (["--data", "data.npz", "--device", "ascend"], "AMP321", "ONNX models"),
        (["--data", "data.npz", "-o", "none/out.npz"], "AMP105", "does not exist"),
        (["--data", "data.npz", "-o", "folder"], "AMP105", "is a directory"),
    ],
)
def test_mistakes_write_nothing(
    amp: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: str, told: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "folder").mkdir()
    np.savez("less.npz", x=X)
    write_npz("wrong.npz", {**FEEDS, "x": X.astype(np.float64)})
    before = contents(folder)
    more = [] if "-o" in words else ["-o", "out.npz"]
    refused(amp("run", "m.onnx", *words, *more), code, told)
    assert contents(folder) == before


def test_a_full_disk_keeps_the_old_outputs(amp: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from errno import ENOSPC

    (folder / "out.npz").write_bytes(b"old")
    before = contents(folder)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    words = ("run", folder / "m.onnx", "--data", folder / "data.npz", "-o", folder / "out.npz")
    refused(amp(*words), "AMP105", "the disk is full")
    assert contents(folder) == before
