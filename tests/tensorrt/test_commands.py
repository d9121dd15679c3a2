"""`inspect` and `check` with TensorRT's own parser and builder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from cli_helpers import process
from onnx_text import parse
from tensorrt.test_build import MIXED

W = {"w": np.eye(64, dtype=np.float32), "v": np.eye(64, dtype=np.float32)}
NET = parse("g (float[N,64] x) => (float[N,64] y) { a = MatMul (x, w)  b = Relu (a)  y = MatMul (b, v) }", W, opset=17)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model and what it was made from."""
    before, after = tmp_path / "m.onnx", tmp_path / "m.O2.onnx"
    onnx.save(NET, before)
    ampgraph.convert(before, "O2", target="tensorrt", check="off", output=after)
    return before, after


def test_inspect_shows_kernels_and_types_beside_the_originals(files: tuple[Path, Path], trt_python: str) -> None:
    before, after = files
    found = ampgraph.inspect(after, before, target="tensorrt", runtime=trt_python, dims={"N": 8}).fusions
    assert found is not None and found.before is not None and found.after is not None and not found.note
    assert set(found.before.types) == {"float32"} and found.after.types["float16"] >= 1
    assert found.after.engine_bytes > 0 and found.runtime.startswith("TensorRT for RTX")
    assert {name for node in found.nodes for name in node.computes} >= {"y"}
    ended = process("inspect", after, "--against", before, "--target", "tensorrt", "--runtime", trt_python)
    assert ended.returncode == 0 and "builds it; nothing was run" in ended.stdout and "types   float16" in ended.stdout


def test_inspect_without_tensorrt_says_so_in_one_line(files: tuple[Path, Path]) -> None:
    ended = process("inspect", files[1], "--target", "tensorrt", "--runtime", sys.executable)
    assert ended.returncode == 2 and "error[AMP501]: TensorRT for RTX is not installed" in ended.stderr
    assert "hint:" in ended.stderr and "Traceback" not in ended.stderr


def test_check_builds(files: tuple[Path, Path], trt_python: str) -> None:
    before, after = files
    found = ampgraph.check(after, before, runtime=trt_python)
    assert found.ok and "builds" in found.passed


def test_check_says_what_is_refused_and_what_mends_it(tmp_path: Path, trt_python: str) -> None:
    onnx.save(MIXED, tmp_path / "m.onnx")
    found = ampgraph.check(tmp_path / "m.onnx", runtime=trt_python)
    (finding,) = [one for one in found.findings if one.rule == "builds"]
    assert finding.level == "error" and "node 'sampled' (GridSample)" in finding.message
    assert finding.hint == "convert it with --fp32 sampled"


def test_what_the_original_meets_as_well_is_a_warning(tmp_path: Path, trt_python: str) -> None:
    onnx.save(MIXED, tmp_path / "m.onnx")
    found = ampgraph.check(tmp_path / "m.onnx", tmp_path / "m.onnx", runtime=trt_python)
    (finding,) = [one for one in found.findings if one.rule == "builds"]
    assert finding.level == "warning" and "is refused as well" in finding.hint


def test_nothing_builds_for_other_targets(files: tuple[Path, Path]) -> None:
    ended = process("check", files[1], "--target", "cuda", "--runtime", sys.executable)
    assert ended.returncode == 2 and "nothing builds for cuda" in ended.stderr
