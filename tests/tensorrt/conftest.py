"""Every test here that asks for `trt_python` builds engines without a GPU, or is skipped and says what to run."""

import pytest

from set_up import mark, usable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, __file__, "tensorrt")


@pytest.fixture(scope="session")
def trt_python() -> str:
    """The Python that has TensorRT for RTX."""
    return usable("tensorrt")
