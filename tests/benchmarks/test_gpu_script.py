"""`benchmarks/gpu.py` without a GPU: everything but the CUDA session itself, on tiny models."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnx_text import parse

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import gpu  # noqa: E402
from gpu_models import FULL, TINY  # noqa: E402
from model_facts import microsoft_ops, static_facts  # noqa: E402

MODELS = BENCHMARKS.parent / "models"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    for name, timed in TINY.items():
        timed.write(folder / f"{name}.onnx")
    return folder


def test_whole_script(tmp_path, tiny):
    exports = tmp_path / "exports"
    exports.mkdir()
    for suffix in ("onnx", "npz"):
        shutil.copy(tiny / f"resnet50.{suffix}", exports)
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), str(tmp_path / "out"), "--provider", "cpu", "--tiny"]
    command += ["--models", "llama", "--variants", "O0", "O2", "no_such_peer", "--runs", "2"]
    command += ["--exports", str(exports), "--export-variants", "O2", "--export-runs", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out/gpu.json").read_text())
    rows = {(r["part"], r["model"], r["variant"]): r for r in results["rows"]}
    assert results["machine"]["provider"] == "cpu" and results["machine"]["onnxruntime"]
    assert set(rows) == {("timed", "llama", v) for v in ("float32", "O2", "no_such_peer")} | {
        ("export", "resnet50", v) for v in ("float32", "O2")
    }
    low = rows["timed", "llama", "O2"]
    assert (
        low["median_ms"] > 0 and low["items_per_s"] > 0 and low["heavy"] == rows["timed", "llama", "float32"]["heavy"]
    )
    assert low["error_to_float32"]["rel_l2"] < 0.02 and low["peak_mb"] is None
    assert low["out_mb"] < rows["timed", "llama", "float32"]["out_mb"]
    # A converter that fails is a row with its reason; the others still run.
    assert "unknown converter" in rows["timed", "llama", "no_such_peer"]["error"]
    assert rows["export", "resnet50", "O2"]["passed"]
    text = (tmp_path / "out/gpu.md").read_text()
    assert "these figures mean nothing" in text and "## llama" in text and "| resnet50 | O2 | pass |" in text


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_are_the_large_ones_made_small(name, tiny):
    model = onnx.load(tiny / f"{name}.onnx")
    onnx.checker.check_model(model, full_check=True)
    kinds = {node.op_type for node in model.graph.node}
    wanted = {
        "resnet50": {"Conv", "Relu", "Add", "MaxPool", "ReduceMean", "Gemm"},
        "bert": {"MatMul", "LayerNormalization", "Gelu", "Softmax", "IsNaN", "Where", "GatherND"},
        "llama": {"MatMul", "Pow", "Reciprocal", "Sigmoid", "Softmax", "Expand", "Slice", "Neg"},
    }
    assert wanted[name] <= kinds
    assert type(FULL[name].size) is type(TINY[name].size) and FULL[name].items > TINY[name].items


def test_failures_name_what_is_wrong():
    row: dict[str, Any] = {
        "error": None,
        "heavy_on_cpu": [],
        "error_to_float32": {"rel_l2": 1e-3, "nonfinite": 0, "mismatch": 0},
    }
    assert gpu.failures_of(row, 2e-2) == []
    assert "MatMul_7" in gpu.failures_of({**row, "heavy_on_cpu": ["MatMul_7"]}, 2e-2)[0]
    assert "above" in gpu.failures_of(row, 1e-4)[0]
    broken = {**row, "error_to_float32": {"rel_l2": 0.0, "nonfinite": 3, "mismatch": 0}}
    assert "3 values not finite" in gpu.failures_of(broken, 2e-2)[0]
    assert gpu.failures_of({"error": "it died"}, 2e-2) == ["it died"]


@pytest.mark.parametrize(("fused", "differs"), [({"FusedMatMul": 2}, []), ({}, ["fused"])])
def test_what_the_device_does_is_held_against_what_was_told(monkeypatch, tmp_path, fused, differs):
    from ampgraph.runtime import optimizing
    from ampgraph.runtime.optimized import Optimized, OptimizedNode

    nodes = (OptimizedNode("a", "com.microsoft::FusedMatMul", "CUDA", "float16"),) * 2
    monkeypatch.setattr(optimizing, "optimized", lambda *a, **k: Optimized("a test", nodes, frozenset()))
    args = gpu.parse([str(tmp_path), "--stand-ins", "PYTHON"])
    row = {"error": None, "fused": fused, "copies": 0}
    assert gpu.as_told(tmp_path, row, args)["differs"] == differs
    assert gpu.as_told(tmp_path, row, gpu.parse([str(tmp_path)])) == {}


def test_the_training_script_without_a_gpu(tmp_path, monkeypatch, capsys):
    words = ["--device", "cpu", "--tiny", "--out", str(tmp_path / "train.json")]
    monkeypatch.setattr(sys, "argv", ["gpu_train.py", *words])
    runpy.run_path(str(BENCHMARKS / "gpu_train.py"), run_name="__main__")
    found = json.loads((tmp_path / "train.json").read_text())
    assert found["tiny"] and set(found["rows"]) == {
        "ampgraph O0", "ampgraph O2", "ampgraph auto", "torch float32", "torch autocast"
    }  # fmt: skip
    assert "these figures mean nothing" in capsys.readouterr().out


def test_facts_count_casts_and_low_heavy_nodes_at_any_depth(tmp_path):
    model = parse(
        """
        <ir_version: 9, opset_import: ["": 20, "local": 1, "com.microsoft": 1]>
        g (float[4,4] x, bool c) => (float[4,4] y) {
            w = Cast<to=10>(x)
            a = If (c) <
                then_branch = t () => (float16[4,4] p) { p = MatMul(w, w) },
                else_branch = e () => (float16[4,4] q) { q = Identity(w) }>
            b = Cast<to=1>(a)
            m = com.microsoft.FusedMatMul(b, x)
            y = local.f(m)
        }
        <domain: "local", opset_import: ["": 20]>
        f (v) => (z) { l = Cast<to=10>(v)  k = MatMul(l, l)  z = Cast<to=1>(k) }
        """
    )
    onnx.save(model, tmp_path / "m.onnx")
    facts = static_facts(tmp_path / "m.onnx")
    assert facts["casts"] == 4
    assert (facts["heavy_low"], facts["heavy"], facts["heavy_unknown"]) == (2, 3, 0)
    assert microsoft_ops(tmp_path / "m.onnx") == {"FusedMatMul": 1}
