"""What the tests of samples share: a small model, rows of numbers, and how a refusal looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from ampgraph.core.errors import AmpError
from ampgraph.numerics.inputs.samples import load_samples
from onnx_text import parse


def model(inputs: str = "float[1, 3] x", nodes: str = "y = Identity(x)", output: str = "float[1, 3] y") -> ModelProto:
    return parse(f"g ({inputs}) => ({output}) {{ {nodes} }}")


def rows(count: int, columns: int = 3) -> np.ndarray:
    return np.arange(count * columns, dtype=np.float32).reshape(count, columns)


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return list(one) == list(two) and all(
        one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name]) for name in one
    )


def refusal(code: str, made: ModelProto, data: Any, *words: str, **more: Any) -> AmpError:
    with pytest.raises(AmpError) as caught:
        list(load_samples(made, data, **more))
    assert caught.value.code == code, caught.value
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value), caught.value
    return caught.value
