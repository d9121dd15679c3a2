"""The environment of benchmarks/tensorrt/set-up, if it is here: nothing is fetched by a test."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("AMPGRAPH_TENSORRT_PYTHON") or str(ROOT / "build" / "tensorrt" / "bin" / "python")
ASK = "import tensorrt_rtx_libs, tensorrt_rtx_bindings"


@cache
def missing() -> str:
    """Why no engine can be built, or an empty string."""
    try:
        ended = subprocess.run([PYTHON, "-I", "-c", ASK], capture_output=True, check=False)
    except OSError:
        return "TensorRT for RTX is not set up: benchmarks/tensorrt/set-up"
    return "" if ended.returncode == 0 else f"{PYTHON} has no TensorRT for RTX"
