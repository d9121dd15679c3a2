"""Every test here that asks for `arm_python` runs Arm64's kernels, emulated, or is skipped and says what to run."""

import pytest

from set_up import mark, usable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, __file__, "arm64")


@pytest.fixture(scope="session")
def arm_python() -> str:
    """The Python that has the ONNX Runtime of Arm64 CPUs."""
    return usable("arm64")
