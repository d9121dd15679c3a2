"""Environments that scripts of benchmarks/ set up, if they are here: nothing is fetched by a test."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ASKED = {  # what each Python is asked for, and what it has
    "cuda_placement": (
        "import onnxruntime; assert 'CUDAExecutionProvider' in onnxruntime.get_available_providers()",
        "onnxruntime-gpu over stand-ins for CUDA",
    ),
    "webgpu": ("import onnxruntime_ep_webgpu, onnxruntime", "ONNX Runtime's WebGPU provider"),
    "arm64": ("import onnxruntime, platform; assert platform.machine() == 'aarch64'", "ONNX Runtime for Arm64"),
    "openvino": ("import openvino", "OpenVINO"),
    "tensorrt": ("import tensorrt_rtx_libs, tensorrt_rtx_bindings", "TensorRT for RTX"),
}


@cache
def python_of(name: str) -> tuple[str, str]:
    """The Python of ``benchmarks/<name>/set-up``, and why it cannot be used, or an empty string."""
    variable = f"AMPGRAPH_{name.removeprefix('cuda_').upper()}_PYTHON"
    python = os.environ.get(variable) or str(ROOT / "build" / name / "bin" / "python")
    question, what = ASKED[name]
    try:
        ended = subprocess.run([python, "-I", "-c", question], capture_output=True, check=False)
    except OSError:
        return python, f"{what}: not set up here, see benchmarks/{name}/set-up"
    return python, "" if ended.returncode == 0 else f"{python} lacks {what}"


def usable(name: str) -> str:
    """That Python; the test is skipped, and says what to run, where there is none."""
    python, missing = python_of(name)
    if missing:
        pytest.skip(missing)
    return python


def mark(items: list[pytest.Item], conftest: str, name: str) -> None:
    """Marks the tests that lie in the folder of a conftest."""
    for item in items:
        if Path(conftest).parent in item.path.parents:
            item.add_marker(name)
