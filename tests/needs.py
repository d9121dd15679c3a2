"""What ONNX Runtime 1.23 lacks or computes wrongly: the last one for Python 3.10, and the oldest that tests run on."""

from __future__ import annotations

import pytest
from onnx import ModelProto

ort = pytest.importorskip("onnxruntime")
OLD = tuple(int(part) for part in ort.__version__.split(".")[:2]) <= (1, 23)


def needs_runtime(why: str) -> pytest.MarkDecorator:
    """Skips a test on that ONNX Runtime or an older one. ``why``: what it lacks or does wrongly."""
    return pytest.mark.skipif(OLD, reason=f"needs an ONNX Runtime newer than {ort.__version__}: {why}")


def needs_runtime_that_opens(model: ModelProto) -> None:
    """Skips the test there, with the runtime's own words, where it refuses the model as it came."""
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        if not OLD:
            raise
        pytest.skip(f"needs an ONNX Runtime newer than {ort.__version__}: {error}")
