"""The environment of benchmarks/cuda_placement/set-up, if it is here: nothing is fetched by a test."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("AMPGRAPH_PLACEMENT_PYTHON") or str(ROOT / "build" / "cuda_placement" / "bin" / "python")
ASK = "import onnxruntime; assert 'CUDAExecutionProvider' in onnxruntime.get_available_providers()"


@cache
def missing() -> str:
    """Why no CUDA session can be opened, or an empty string."""
    try:
        ended = subprocess.run([PYTHON, "-I", "-c", ASK], capture_output=True, check=False)
    except OSError:
        return "onnxruntime-gpu over stand-ins for CUDA is not set up: benchmarks/cuda_placement/set-up"
    return "" if ended.returncode == 0 else f"{PYTHON} has no onnxruntime-gpu"
