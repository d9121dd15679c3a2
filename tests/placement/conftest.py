"""Every test here opens CUDA sessions without a GPU, or is skipped and says what to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from placement.environment import PYTHON, missing


def pytest_collection_modifyitems(items):
    """Marks what lies in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.placement)


@pytest.fixture(scope="session")
def gpu_python() -> str:
    """The Python whose onnxruntime has CUDA."""
    if missing():
        pytest.skip(missing())
    return PYTHON
