"""Files are executed by OpenVINO in the types that they hold, and what ran where is said."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.low_types import numpy_type
from ampgraph.runtime.executed import Runtime, by_precision
from ampgraph.runtime.targets import executed_session
from cli_helpers import process
from onnx_text import parse
from planner.support import casts, dtype_of
from set_up import ROOT

TRANSFORMER = ROOT / "models" / "digits_transformer.onnx"
LOW_BORDER = """g (bfloat16[2, 3] x, bfloat16 k, int64[2] n) => (bfloat16[2, 3] y, int64[2] m) {
    y = Mul (x, k)
    m = Add (n, n)
}"""
CONVS = """g (float[1, 3, 16, 16] x) => (float[1, 8, 7, 7] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (a)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    y = Conv <pads = [0, 0, 0, 0], kernel_shape = [2, 2]> (p, v)
}"""


@pytest.fixture
def computes_bfloat16(ov_python: str) -> None:
    """Skips the test where the CPU does not."""
    runtime = Runtime("openvino", ov_python)
    if "bfloat16" not in runtime.low:
        pytest.skip(f"{runtime.name} computes bfloat16 in float32 here: the CPU has no avx512_bf16")


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer, as `--target openvino` alone makes it."""
    path = tmp_path_factory.mktemp("made") / "low.onnx"
    ampgraph.convert(TRANSFORMER, target="openvino", output=path, check="off")
    return path


def test_the_target_alone_means_bfloat16_at_o1(tmp_path: Path) -> None:
    made = json.loads(process("convert", TRANSFORMER, "--target", "openvino", "--dry-run", "--json").stdout)
    assert (made["level"], made["dtype"]) == ("O1", "bfloat16")
    named = ["--target", "openvino", "--level", "O2", "--dtype", "float16", "--dry-run", "--json"]
    made = json.loads(process("convert", TRANSFORMER, *named).stdout)
    assert (made["level"], made["dtype"]) == ("O2", "float16")
    recipe = ampgraph.Recipe(target="openvino", dtype="float16")
    assert ampgraph.Recipe.from_text(recipe.to_text()) == recipe != ampgraph.Recipe(target="openvino")


def test_convolutions_are_low_at_the_least_opset_that_admits_them() -> None:
    weights = {"w": np.ones((8, 3, 3, 3), np.float32), "v": np.ones((8, 8, 2, 2), np.float32)}
    model = parse(CONVS, weights, opset=17)
    made = ampgraph.convert(model, target="openvino", check="off")
    assert made.opset_import[0].version == 22 and dtype_of(made, "Conv") == "bf16" and casts(made) > 0


@pytest.mark.usefixtures("computes_bfloat16")
def test_products_run_low_and_the_prediction_is_near(ov_python: str, lowered: Path) -> None:
    real = ampgraph.verify(TRANSFORMER, lowered, target="openvino", runtime=ov_python, tolerance=0.05)
    found = by_precision(real.layers)
    assert found["bfloat16"]["FullyConnected"] == 14 and "FullyConnected" not in found["float32"]
    assert "Softmax" in found["float32"] and "Softmax" not in found["bfloat16"]
    assert not real.strict and real.device == "openvino" and "by real kernels of OpenVINO" in repr(real)
    strict = ampgraph.verify(TRANSFORMER, lowered, tolerance=0.05)
    predicted, error = (one.outputs[0].scores.decisive for one in (strict, real))
    assert strict.strict and not strict.layers and 0.8 < predicted / error < 1.25


def test_what_ran_where_is_said(ov_python: str, lowered: Path) -> None:
    words = ("check", lowered, "--against", TRANSFORMER, "--tolerance", "0.05")
    there = process(*words, "--target", "openvino", "--runtime", ov_python)
    assert there.returncode == 0 and "right by real kernels of OpenVINO 20" in there.stdout
    here = process(*words)
    assert here.returncode == 0 and "right by a strict run" in here.stdout
    ran = process("run", lowered, "--target", "openvino", "--runtime", ov_python)
    assert ran.returncode == 0 and "executed by OpenVINO 20" in ran.stdout


def test_low_borders_scalars_and_integers_cross_the_process(ov_python: str, tmp_path: Path) -> None:
    runtime, path = Runtime("openvino", ov_python), tmp_path / "border.onnx"
    onnx.save(parse(LOW_BORDER, opset=22), path)
    session = executed_session(runtime, path)
    low = next(iter(session.inputs.values())).dtype
    x = np.asarray([[1, 2, 3], [4, 5, 6]], np.float32).astype(numpy_type(low))
    found = session.run({"x": x, "k": x[0, 1], "n": np.asarray([3, 4])})
    assert found["y"].dtype == x.dtype and found["y"].tolist() == (2 * x).tolist() and found["m"].tolist() == [6, 8]
    with pytest.raises(AmpError, match="AMP503"):
        session.run({"x": x[:1], "k": x[0, 1], "n": np.asarray([3, 4])})


def test_a_runtime_that_dies_is_an_error_and_no_hang(ov_python: str, lowered: Path) -> None:
    runtime = Runtime("openvino", ov_python)
    session = executed_session(runtime, lowered)
    runtime._child.kill()
    with pytest.raises(AmpError, match=r"AMP504.*dies of it"):
        session.run({"image": np.zeros((1, 1, 8, 8), np.float32)})


def test_an_environment_that_lacks_it_is_named(lowered: Path) -> None:
    if process("run", lowered, "--target", "openvino").returncode == 0:
        pytest.skip("OpenVINO is installed here")
    for words in ((), ("--runtime", sys.executable)):
        ended = process("run", lowered, "--target", "openvino", *words)
        assert ended.returncode == 2 and "AMP501" in ended.stderr and "openvino>=" in ended.stderr
    for words in (("--runtime", "/nowhere/python"), ("--runtime", "/bin/false")):
        ended = process("verify", TRANSFORMER, lowered, "--target", "openvino", *words)
        assert ended.returncode == 2 and "AMP508" in ended.stderr and "Traceback" not in ended.stderr
    ended = process("check", lowered, "--target", "cuda", "--runtime", sys.executable)
    assert ended.returncode == 2 and "AMP404" in ended.stderr
    ended = process("run", lowered, "--runtime", sys.executable)
    assert ended.returncode == 2 and "AMP311" in ended.stderr


def test_bench_takes_any_runtime_that_is_named(ov_python: str, lowered: Path) -> None:
    plain = process("bench", TRANSFORMER, "--target", "cpu", "--rounds", "1", "--json")
    assert {row["runtime"].rpartition(" ")[0] for row in json.loads(plain.stdout)["rows"]} == {"ONNX Runtime"}
    lacks = process("bench", TRANSFORMER, "--target", "webgpu", "--runtime", ov_python)
    assert lacks.returncode == 2 and "AMP501" in lacks.stderr
    nobody = process("bench", TRANSFORMER, "--target", "cann")
    assert nobody.returncode == 2 and "AMP404" in nobody.stderr
    elsewhere = process("run", lowered, "--target", "cpu-arm64")
    assert platform.machine() != "x86_64" or "AMP501" in elsewhere.stderr and "(x86_64)" in elsewhere.stderr


def test_models_are_timed_in_turn(ov_python: str, lowered: Path) -> None:
    ended = process("bench", TRANSFORMER, lowered, "--runtime", ov_python, "--rounds", "3", "--json")
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    there = [row for row in rows if row["runtime"].startswith("OpenVINO") and row["threads"] == 1]
    assert {row["runtime"].split()[0] for row in rows} == {"ONNX", "OpenVINO"}
    assert there[0]["error"] == 0 and there[0]["speed"] == 1 and 0 < there[-1]["error"] < 0.05
    assert all(row["refused"] or row["seconds"] > 0 for row in rows)
