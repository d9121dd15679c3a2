"""The pass for Olive, inside real workflows; Olive brings forty packages and is no part of the test extra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph

WHY = "olive is not installed: pip install olive-ai requests"
olive = pytest.importorskip("olive", reason=WHY)
MODEL = Path(__file__).resolve().parents[2] / "models/digits_cnn.onnx"


def run(folder: Path, model: Path, provider: str = "CUDAExecutionProvider", **words: object) -> Path | None:
    """Runs a workflow of this one pass; the file that it wrote, None where the pass failed."""
    from olive.workflows import run

    from ampgraph.plugins.olive import package_config

    data = words.pop("data_configs", [])
    workflow: dict[str, Any] = {
        "input_model": {"type": "ONNXModel", "model_path": str(model)},
        "data_configs": data,
        "systems": {
            "here": {
                "type": "LocalSystem",
                "accelerators": [
                    {"device": "cpu" if provider.startswith("CPU") else "gpu", "execution_providers": [provider]}
                ],
            }
        },
        "passes": {"low": {"type": "AmpgraphMixedPrecision", **words}},
        "target": "here",
        "output_dir": str(folder / "out"),
        "cache_dir": str(folder / "cache"),
    }
    best = run(workflow, package_config=package_config()).get_best_candidate()
    place = best and Path(best.model_path)
    return next(place.glob("*.onnx")) if place and place.is_dir() else place


def test_providers_and_workflows(tmp_path: Path) -> None:
    written = run(tmp_path, MODEL, level="O2", check="require", fp32=["op:Gemm"])
    assert written is not None
    expected = ampgraph.convert(MODEL, "O2", fp32=["op:Gemm"], output=tmp_path / "expected.onnx")
    assert written.read_bytes() == expected.read_bytes()
    # the provider says the target
    written = run(tmp_path, MODEL, "CPUExecutionProvider", level="auto")
    assert written is not None
    expected = ampgraph.convert(MODEL, "auto", target="cpu", output=tmp_path / "expected.onnx")
    assert written.read_bytes() == expected.read_bytes()


def test_ranges_of_its_data_are_heeded(tmp_path: Path) -> None:
    from olive.data.registry import Registry

    @Registry.register_dataset("ampgraph_large_values")  # type: ignore[untyped-decorator]
    def large(data_dir: str | None = None, **_: object) -> list[tuple[dict[str, np.ndarray[Any, Any]], int]]:
        return [({"x": np.full((1, 4), 300.0, np.float32)}, 0) for _ in range(2)]

    model = tmp_path / "square.onnx"
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[N, 4] x) => (float[N, 1] y)\n'
    text += "<float[4, 1] w = {100.0, 100.0, 100.0, 100.0}> { y = MatMul(x, w) }"
    onnx.save(onnx.parser.parse_model(text), model)
    data = {"name": "large", "type": "DummyDataContainer", "load_dataset_config": {"type": "ampgraph_large_values"}}
    written = run(tmp_path, model, level="O2", data_configs=[data], data_config="large")
    assert written is not None
    assert [node.op_type for node in onnx.load(written).graph.node] == ["MatMul"], "30000 * 4 overflows: float32"


def test_weights_beside_the_model_travel_along(tmp_path: Path) -> None:
    source = tmp_path / "source" / "model.onnx"
    source.parent.mkdir()
    onnx.save(onnx.load(MODEL), source, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    written = run(tmp_path, source, level="O2")
    assert written is not None and written.is_relative_to(tmp_path / "out")
    assert ampgraph.verify(source, written).ok


def test_a_missed_check_that_is_required_leaves_no_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(tmp_path, MODEL, level="O2", check="require", tolerance=1e-9) is None
    assert "AMP507" in caplog.text


def test_the_package_configuration_keeps_olives_own_passes(tmp_path: Path) -> None:
    target = tmp_path / "packages.json"
    subprocess.run([sys.executable, "-m", "ampgraph.plugins.olive", target], check=True)
    passes = json.loads(target.read_text(encoding="utf-8"))["passes"]
    assert "OnnxQuantization" in passes
    assert passes["AmpgraphMixedPrecision"]["module_path"] == "ampgraph.plugins.olive.AmpgraphMixedPrecision"


def test_a_workflow_without_providers_says_the_target_by_its_device() -> None:
    from olive.hardware.accelerator import AcceleratorSpec

    from ampgraph.plugins.olive import _target

    assert [_target(AcceleratorSpec(device)) for device in ("gpu", "cpu")] == ["cuda", "cpu"]
    assert _target(AcceleratorSpec("gpu", "TensorrtExecutionProvider")) == "tensorrt"
