"""Short stored tensors are rounded together, each as if it were alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from ampgraph.core.arrays import Array
from ampgraph.formats.onnx.weights import SHORT, InFile, RoundedTensor, short_rounded
from onnx_text import parse

FLOATS = st.integers(0, 2**32 - 1).map(lambda bits: np.uint32(bits).view(np.float32))
ROWS = st.lists(FLOATS, max_size=5).map(lambda row: np.array(row, np.float32))
TYPES = st.sampled_from(["float16", "bfloat16", "float32"])


def rounded(data: Array, dtype: str = "float16", floor: float | None = None) -> RoundedTensor:
    return RoundedTensor(InFile(numpy_helper.from_array(data)), dtype, floor)


@settings(max_examples=40)
@given(st.lists(st.tuples(ROWS, TYPES), max_size=6), st.booleans())
def test_each_is_as_if_it_were_alone(drawn: list[tuple[Array, str]], long: bool) -> None:
    """``long``: with so many elements that blocks of them are rounded in another way than a few."""
    sizes = [(np.linspace(-7e4, 6e4, SHORT, dtype=np.float32), "float16")] * 3 if long else []
    tensors = [rounded(data, dtype) for data, dtype in drawn + sizes]
    found = short_rounded(tensors)
    assert {id(tensor) for tensor in tensors if tensor.size} == found.keys()
    assert all(bytes(found[id(tensor)]) == tensor.tobytes() for tensor in tensors if tensor.size)


def longer() -> RoundedTensor:
    return rounded(np.ones(SHORT + 1, np.float32))


def floored() -> RoundedTensor:
    return rounded(np.full(3, -1e9, np.float32), floor=-6e4)


def computed() -> RoundedTensor:
    return RoundedTensor(ir.tensor(np.ones(3, np.float32)), "float16")


def in_numbers() -> RoundedTensor:
    """Not as raw bytes."""
    proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }").graph.initializer[0]
    proto.ClearField("raw_data")
    proto.float_data[:] = [1, 2]
    return RoundedTensor(InFile(proto), "float16")


@pytest.mark.parametrize("make", [longer, floored, computed, in_numbers])
def test_what_is_not_short_or_not_only_rounded_is_left_out(make: object) -> None:
    assert callable(make)
    assert short_rounded([make(), None, ir.tensor([1.0])]) == {}
