"""Every test here opens CUDA sessions without a GPU, or is skipped and says what to run."""

import pytest

from set_up import mark, usable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, __file__, "placement")


@pytest.fixture(scope="session")
def gpu_python() -> str:
    """The Python whose onnxruntime has CUDA."""
    return usable("cuda_placement")
