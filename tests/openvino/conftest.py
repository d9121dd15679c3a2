"""Every test here that asks for `ov_python` executes models on OpenVINO, or is skipped and says what to run."""

import pytest

from set_up import mark, usable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, __file__, "openvino")


@pytest.fixture(scope="session")
def ov_python() -> str:
    """The Python that has OpenVINO."""
    return usable("openvino")
