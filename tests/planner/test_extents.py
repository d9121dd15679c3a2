"""What is known of stored tensors at one look at many is what a look at each alone finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from ampgraph.core.dataflow import Dataflow, Value
from ampgraph.core.low_types import low_type
from ampgraph.formats import adapters
from ampgraph.planner.facts import extents
from ampgraph.planner.facts.extents import Extents
from onnx_text import parse

NUMBERS = [0.0, -0.0, 1.0, -3.0, 1e-7, 2.0**-26, -1e-9, 1e-42, 65504.0, -65520.0, 7e4, 3e38, np.inf, -np.inf, np.nan]
SIZES = st.sampled_from([0, 1, 2, 5, extents.SMALL, extents.SMALL + 1])
TENSORS = st.lists(st.tuples(SIZES, st.lists(st.sampled_from(NUMBERS), max_size=4)), min_size=1, max_size=6)


def flow_of(model: ModelProto, dtype: str = "float16") -> Dataflow:
    return adapters.load(model)[0].dataflow(dtype)


def model_of(tensors: list[tuple[int, list[float]]]) -> ModelProto:
    arrays = {f"w{i}": np.ones(size, np.float32) for i, (size, _) in enumerate(tensors)}
    for array, (_, numbers) in zip(arrays.values(), tensors, strict=True):
        array[: len(numbers)] = numbers[: array.size]
    added = "  ".join(f"y{i} = Concat <axis = 0> (x, w{i})" for i in range(len(tensors)))
    outputs = ", ".join(f"float[n] y{i}" for i in range(len(tensors)))
    return parse(f"g (float[m] x) => ({outputs}) {{ {added} }}", arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@given(tensors=TENSORS)
@settings(max_examples=20)
def test_a_look_at_many_finds_what_a_look_at_each_does(tensors: list[tuple[int, list[float]]], dtype: str) -> None:
    flow = flow_of(model_of(tensors), dtype)
    together, alone = Extents(flow, low_type(dtype)), Extents(flow, low_type(dtype))
    alone._plain = {}
    stored = [value for value in flow.values if value.weight]
    assert len(stored) == len(tensors)
    assert [together.of(value) for value in stored] == [alone.of(value) for value in stored]


def test_groups_leave_no_small_tensor_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "TOGETHER", 6)
    flow = flow_of(model_of([(3, []), (2, []), (4, []), (5, []), (1, [])]))
    groups = [[array.size for array in group.values()] for group in Extents(flow, low_type("float16"))._groups()]
    assert groups == [[3, 2, 4], [5, 1]]


def test_every_small_tensor_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = flow_of(model_of([(3, []), (2, []), (4, [])]))
    read: list[str] = []
    array = flow.weights.array

    def counted(value: Value, limit: int = 1 << 16) -> object:
        read.append(value.name)
        return array(value, limit)

    monkeypatch.setattr(flow.weights, "array", counted)
    monkeypatch.setattr(flow.weights, "chunks", None)  # nobody reads pieces of what is small and plain
    known = Extents(flow, low_type("float16"))
    for _ in range(2):
        assert [known.of(value).largest for value in flow.values if value.weight] == [1.0, 1.0, 1.0]
    assert sorted(read) == ["w0", "w1", "w2"]
