"""What of others' errors is told."""

from __future__ import annotations

import pytest

from ampgraph.core.errors import first_line

PLACE = "/onnxruntime_src/onnxruntime/core/framework/tensor.h:210"

SAID = [
    ("", "RuntimeError"),
    ("one line\nand another", "one line"),
    (
        f"Exception: {PLACE} T* onnxruntime::Tensor::MutableData() [with T = float] type is wrong",
        "Exception: tensor.h:210: type is wrong",
    ),
    (
        f"{PLACE} bool f(const std::function<void (int)>&, int) const x > 0 was false. (so)",
        "tensor.h:210: x > 0 was false. (so)",
    ),
    (f"{PLACE} a place without a function", f"{PLACE} a place without a function"),
    (f"{PLACE} never closed (so", f"{PLACE} never closed (so"),
    ("model.onnx: /some/file.onnx is damaged (at 12)", "model.onnx: /some/file.onnx is damaged (at 12)"),
]


@pytest.mark.parametrize(("said", "told"), SAID)
def test_an_error_is_one_line_without_the_function_that_raised_it(said: str, told: str) -> None:
    assert first_line(RuntimeError(said)) == told
