"""Which float32 tensor of a reference a low one was rounded from: by its name, or by its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from ampgraph.core.arrays import Array
from ampgraph.formats.onnx.switches import Originals

HALF = ir.DataType.FLOAT16


def low(numbers: Array) -> ir.TensorProtocol:
    """What is left of numbers in float16, in float32 again, as a strict model has it."""
    return ir.tensor(numbers.astype(np.float16).astype(np.float32))


def test_a_low_tensor_has_the_original_of_its_name_or_the_closest() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    originals = Originals({"w": ir.tensor(weight), "b": ir.tensor(bias)})
    found = originals.find("w", low(bias.reshape(2, 3)), HALF)
    assert found is not None and np.array_equal(found, weight)  # the name counts, whatever the numbers
    assert originals.find("w", low(bias), HALF) is None  # another shape
    for factor in (1.0, 1.001):
        found = originals.find("renamed", low(bias.reshape(3, 2) * factor), HALF)
        assert found is not None and np.array_equal(found, bias.reshape(3, 2))
    assert originals.find("renamed", low(bias * 1.1), HALF) is None  # no factor near 1
    assert originals.find("renamed", low(bias + np.eye(6, dtype=np.float32)[0]), HALF) is None  # one number differs
    assert originals.find("renamed", low(bias[:5]), HALF) is None
    assert originals.find("renamed", ir.tensor(np.full(6, np.inf, np.float32)), HALF) is None


def test_tensors_in_data_files_are_left_out(tmp_path: Path) -> None:
    numbers = np.arange(6, dtype=np.float32)
    (tmp_path / "data").write_bytes(numbers.tobytes())
    outside = ir.ExternalTensor("data", 0, 24, ir.DataType.FLOAT, shape=ir.Shape([6]), name="w", base_dir=str(tmp_path))
    assert Originals({"w": outside}).find("w", low(numbers), HALF) is None
