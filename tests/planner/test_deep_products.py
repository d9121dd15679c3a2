"""Products that are too deep for the target's float16 accumulators are float32: alone, or with others in a row. So are
layers and long sums whose kernel computes in float16 inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse

NET = """g (float[4, A] x) => (float[4, C] y) {
    a = MatMul (x, w)
    r = Relu (a)
    y = MatMul (r, v)
}"""


def wide(depths: tuple[int, int, int], target: str = "webgpu", level: str = "O2") -> list[str]:
    """The products that stay float32 for their depth."""
    first, middle, last = depths
    weights = {"w": np.full((first, middle), 0.01, np.float32), "v": np.full((middle, last), 0.01, np.float32)}
    text = NET.replace("A", str(first)).replace("C", str(last))
    plan = ampgraph.plan(parse(text, weights, opset=17), level, target=target)
    return [one.why.text.split()[0] for one in plan.decisions if one.why.rule == "accumulator" and one.kind == "MatMul"]


@pytest.mark.parametrize(
    ("depths", "held"),
    [
        ((768, 1024, 8), []),
        ((768, 3072, 8), ["3,072"]),
        ((1024, 1400, 8), ["1,400"]),
        ((3072, 3072, 8), ["3,072", "3,072"]),
    ],
)
def test_the_deepest_stay_float32(depths: tuple[int, int, int], held: list[str]) -> None:
    assert wide(depths) == held
    assert wide(depths, target="cuda") == wide(depths, level="O3") == []


def test_bfloat16_is_refused_with_the_reason() -> None:
    with pytest.raises(AmpError, match="webgpu runs no bfloat16: WGSL has no bfloat16") as told:
        ampgraph.plan(
            parse(
                NET.replace("A", "8").replace("C", "8"),
                {"w": np.ones((8, 8), np.float32), "v": np.ones((8, 8), np.float32)},
                opset=17,
            ),
            "O2",
            dtype="bfloat16",
            target="webgpu",
        )
    assert told.value.code == "AMP304"


@pytest.mark.parametrize(("heads", "held"), [(8, []), (40, ["2,560"])])
def test_the_depth_of_an_einsum_is_all_that_it_sums_over(heads: int, held: list[str]) -> None:
    """A product of heads by 64 sums over both, though its last axis is 64 alone."""
    text = (
        f'g (float[2, 16, {heads}, 64] x) => (float[2, 16, 8] y) {{ y = Einsum <equation = "abcd,cde->abe"> (x, w) }}'
    )
    model = parse(text, {"w": np.full((heads, 64, 8), 0.01, np.float32)}, opset=17)
    plan = ampgraph.plan(model, "O2", target="webgpu")
    assert [one.why.text.split()[0] for one in plan.decisions if one.why.rule == "accumulator"] == held


@pytest.mark.parametrize(
    ("target", "places", "dims", "held"),
    [
        ("webgpu", "H, W", {}, True),
        ("webgpu", "56, 56", {}, False),
        ("webgpu", "H, W", {"H": 56, "W": 56}, False),
        ("cuda", "H, W", {}, False),
    ],
)
def test_a_mean_of_who_knows_how_many_places(target: str, places: str, dims: dict[str, int], held: bool) -> None:
    """It is a sum before it is divided, which float16 may not hold: 2,400 places of 55 are 132,000."""
    text = f"""g (float[1, 8, {places}] x) => (float[1, 8, 1, 1] y) {{
        r = MaxPool <kernel_shape = [8, 8], strides = [8, 8]> (x)
        y = GlobalAveragePool (r)
    }}"""
    plan = ampgraph.plan(parse(text, opset=17), "O2", target=target, dims=dims)
    rules = {one.kind: one.why.rule for one in plan.decisions if one.dtype == "float32"}
    assert (rules.get("GlobalAveragePool") == "long-sum") == held


LAYER = """g (float[5, 1, 8] x) => (float[5, 1, 1, 8] y) {
    m = MatMul (x, k)
    y, h, c = LSTM <hidden_size = 8> (m, w, r)
}"""


def layer_type(level: str, **options: Any) -> tuple[str, list[str]]:
    """What an LSTM computes in, and what is said of it."""
    random = np.random.default_rng(0)
    weights = {n: random.standard_normal((1, 32, 8)).astype(np.float32) for n in "wr"} | {
        "k": np.eye(8, dtype=np.float32)
    }
    plan = ampgraph.plan(parse(LAYER, weights, opset=17), level, **options)
    [dtype] = {one.dtype for one in plan.decisions if one.kind == "LSTM"}
    return dtype, [note.topic for note in plan.notes if note.topic.startswith("inside")]


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_a_layer_that_cuda_rounds_inside_is_float32(level: str) -> None:
    assert layer_type(level) == ("float32", ["inside"])


def test_it_is_low_where_asked_for() -> None:
    assert layer_type("O3") == ("float16", ["inside (not held)"])
    assert layer_type("O2", rule="no-inside") == layer_type("O2", low="op:LSTM") == ("float16", [])


@pytest.mark.parametrize(("count", "dtype"), [("400", "float16"), ("N", "float32")])
def test_a_mean_whose_sum_is_stored_low_is_float32_where_nobody_says_of_how_many(count: str, dtype: str) -> None:
    text = f"""g (float[2, {count}, 8] x) => (float[2, 4] y) {{
        a = MatMul (x, v)
        m = ReduceMean <axes = [1], keepdims = 0> (a)
        y = MatMul (m, w)
    }}"""
    weights = {"v": np.eye(8, dtype=np.float32), "w": np.full((8, 4), 0.1, np.float32)}
    plan = ampgraph.plan(parse(text, weights, opset=17), "O2")
    assert {one.dtype for one in plan.decisions if one.kind == "ReduceMean"} == {dtype}
