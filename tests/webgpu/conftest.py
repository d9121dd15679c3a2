"""Every test here that asks for `webgpu_python` executes models on WebGPU, or is skipped and says what to run."""

import pytest

from set_up import mark, usable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, __file__, "webgpu")


@pytest.fixture(scope="session")
def webgpu_python() -> str:
    """The Python that has ONNX Runtime's WebGPU provider and a driver for it."""
    return usable("webgpu")
