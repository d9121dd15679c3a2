"""Sums and means by how many elements they are of: static sizes, and open ones by the strides before them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from onnx_text import parse
from planner.support import casts, converted, dtype_of

W = np.ones((8, 8, 1, 1), np.float32) / 8


def pooled(sizes: str, strides: int, pool: str = "GlobalAveragePool (c)") -> ModelProto:
    text = f"""g (float[1,8,{sizes}] x) => (float[1,8,1,1] y) {{
        a = Conv <strides = [{strides}, {strides}]> (x, w)  c = Relu (a)  p = {pool}  y = Conv (p, w) }}"""
    return parse(text, {"w": W}, opset=13)


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype"),
    [("H,W", 8, "f16"), ("H,W", 2, "f32"), ("48,192", 1, "f32"), ("48,192", 4, "f16"), ("H,W", 1, "f32")],
)
def test_open_sizes_are_divided_by_the_strides_before(sizes: str, strides: int, dtype: str) -> None:
    assert dtype_of(converted(pooled(sizes, strides), "O2"), "GlobalAveragePool") == dtype


def test_a_named_size_counts() -> None:
    model = pooled("H,W", 1)
    assert dtype_of(ampgraph.convert(model, "O2", dims={"H": 32, "W": 32}), "GlobalAveragePool") == "f16"


def test_what_is_enlarged_is_guessed_anew() -> None:
    text = """g (float[1,8,H,W] x) => (float[1,8,1,1] y) {
        a = Conv <strides = [32, 32]> (x, w)  b = Resize (a, , s)  p = GlobalAveragePool (b)  y = Conv (p, w) }"""
    model = parse(text, {"w": W, "s": np.array([1, 1, 32, 32], np.float32)}, opset=13)
    assert dtype_of(converted(model, "O2"), "GlobalAveragePool") == "f32"


@pytest.mark.parametrize(("sizes", "strides", "count"), [("7,7", 1, 0), ("H,W", 1, 2), ("H,W", 8, 0), ("64,64", 1, 2)])
def test_a_mean_of_few_elements_is_no_sum_to_fear(sizes: str, strides: int, count: int) -> None:
    model = pooled(sizes, strides, "ReduceMean <axes = [2, 3]> (c)")
    assert casts(converted(model, "auto")) == 2 + count
    assert dtype_of(converted(model, "O1"), "ReduceMean") == "f32"


@pytest.mark.parametrize("square", ["Mul (c, c)", "Pow (c, two)"])
def test_a_mean_of_squares_is_held(square: str) -> None:
    text = f"""g (float[1,8,7,7] x) => (float[1,8,1,1] y) {{
        c = Conv (x, w)  s = {square}  p = ReduceMean <axes = [2, 3]> (s)  y = Conv (p, w) }}"""
    model = parse(text, {"w": W, "two": np.float32(2)} if "two" in square else {"w": W}, opset=13)
    assert dtype_of(converted(model, "auto"), "ReduceMean") == "f32"


SUMS = {"few": (3, "c", "f16"), "many": (9, "c", "f32"), "squares": (3, "Mul (c, c)", "f32")}


@pytest.mark.parametrize(("size", "source", "dtype"), SUMS.values(), ids=SUMS)
def test_a_sum_of_few_elements_is_like_additions(size: int, source: str, dtype: str) -> None:
    """As a router adds up the weights of the experts that it chose."""
    text = f"""g (float[4,8] x) => (float[4,8] y) {{
        c = MatMul (x, w)  s = {source}  p = ReduceSum <keepdims = 1> (s, last)  y = MatMul (p, v) }}"""
    text = text.replace("s = c ", "").replace("(s, last)", "(c, last)") if source == "c" else text
    rng = np.random.default_rng(0)
    stored = {"w": rng.standard_normal((8, size)), "v": rng.standard_normal((1, 8))}
    weights = {name: array.astype(np.float32) for name, array in stored.items()}
    model = parse(text, {**weights, "last": np.array([-1])}, opset=13)
    assert dtype_of(converted(model, "auto"), "ReduceSum") == dtype
    assert dtype_of(converted(model, "O1"), "ReduceSum") == "f32"
