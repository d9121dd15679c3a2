"""Every test here that asks for `trt_python` builds engines without a GPU, or is skipped and says what to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrt.environment import PYTHON, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.tensorrt)


@pytest.fixture(scope="session")
def trt_python() -> str:
    """The Python that has TensorRT for RTX."""
    if missing():
        pytest.skip(missing())
    return PYTHON
