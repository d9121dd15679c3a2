"""What to install for what is missing, in words that work from a checkout and from an installed wheel."""

from __future__ import annotations

import sys

PACKAGES = {
    "cpu": ("onnxruntime>=1.22",),
    "distributed": ("torch>=2.6",),
    "gpu": ("onnxruntime-gpu>=1.22",),
    "mindspore": ("mindspore==2.10.0",),
    "olive": ("olive-ai>=0.13",),
    "openvino": ("openvino>=2026.4",),
    "tensorboard": ("tensorboard>=2.12",),
    "tensorrt-rtx": ("tensorrt-rtx-cu13-libs>=1.7", "tensorrt-rtx-cu13-bindings>=1.7"),
    "torch": ("torch>=2.6", "onnxscript>=0.5"),
    "webgpu": ("onnxruntime>=1.32", "onnxruntime-ep-webgpu>=0.4"),
}
"""Extra of ampgraph -> packages that it needs, by their own names: an installed ampgraph may be in no index."""


def pip_install(extra: str) -> str:
    """The command that installs an extra's packages beside this ampgraph, whether its environment is active or not."""
    python = sys.executable or "python"
    python = f"'{python}'" if " " in python else python
    return f"{python} -m pip install {' '.join(repr(package) for package in PACKAGES[extra])}"
