"""Ranges as data: what is counted of an array, shares by low type, JSON both ways, and whose ranges they are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.ranges import PART, Range, Ranges, measure
from onnx_text import parse

LOW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
tensors = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6), elements=floats
)


@given(tensors)
@settings(max_examples=150, deadline=None)
def test_a_range_is_what_numpy_says(array: np.ndarray) -> None:
    found, finite = measure(array), array[np.isfinite(array)]
    assert (found.elements, found.nonfinite) == (array.size, array.size - finite.size)
    assert found.zeros == int((finite == 0).sum())
    assert found.low == (finite.min() if finite.size else 0) and found.high == (finite.max() if finite.size else 0)
    assert found.absmax == (np.abs(finite).max() if finite.size else 0)
    assert sum(found.exponents.values()) == finite.size - found.zeros
    normal = np.abs(finite[np.abs(finite) >= 2.0**-126]).astype(np.float64)
    wanted: dict[int, int] = {}
    for magnitude in normal:
        exponent = math.frexp(magnitude)[1] - 1
        wanted[exponent] = wanted.get(exponent, 0) + 1
    assert {e: n for e, n in found.exponents.items() if e > -127} == wanted


@given(tensors, st.sampled_from(sorted(LOW)))
@settings(max_examples=150, deadline=None)
def test_what_vanishes_and_what_overflows_is_what_a_cast_does(array: np.ndarray, dtype: str) -> None:
    finite = array[np.isfinite(array) & (array != 0)]
    with np.errstate(over="ignore"):
        low = finite.astype(LOW[dtype]).astype(np.float32)
    found = measure(array)
    # Exactly half the smallest subnormal is a tie that rounds to zero: it is counted as kept.
    tie = 2.0 ** (-25 if dtype == "float16" else -134)
    vanished = int(((low == 0) & (np.abs(finite) != tie)).sum())
    if dtype == "float16" or not (np.abs(finite) < 2.0**-126).any():
        assert found.vanishing(dtype) == (vanished / finite.size if finite.size else 0)
    if np.isinf(low).any():  # a cast rounds what is just above the largest number down to it
        assert found.passes(dtype, 1)
    assert found.passes(dtype, 1) == bool(
        (np.abs(finite.astype(np.float64)) > float(ml_dtypes.finfo(LOW[dtype]).max)).any()
    )


def test_the_margin_is_how_many_times_over() -> None:
    found = measure(np.array([-32752.0, 1.0], np.float32))
    assert not found.passes("float16") and not found.passes("float16", 1)
    assert found.passes("float16", 2.01) and measure(np.array([32768.0], np.float32)).passes("float16")
    assert not found.passes("bfloat16", 1e30)


def test_shares_are_of_the_elements_that_are_not_zero() -> None:
    found = measure(np.array([0, 0, 1e6, 1.0, 1e-9, -1e9], np.float32))
    assert found.overflowing("float16") == 0.5 and found.vanishing("float16") == 0.25
    assert found.overflowing("bfloat16") == 0 == found.vanishing("bfloat16")
    assert Range().overflowing("float16") == 0 == Range().vanishing("float16")


def test_pieces_add_up_to_the_whole() -> None:
    array = np.random.default_rng(0).normal(size=PART + 1000).astype(np.float32)
    array[3], array[-1] = np.inf, -7e4
    whole, parts = measure(array), Range()
    for piece in np.array_split(array, 5):
        parts.add(measure(piece))
    assert parts == whole and whole.low == np.float32(-7e4) and whole.nonfinite == 1
    strided = measure(array[:2000].reshape(100, 20).T[::2])
    assert strided == measure(np.ascontiguousarray(array[:2000].reshape(100, 20)[:, ::2]))


# -- JSON -------------------------------------------------------------------------------------------------------------


def some() -> Ranges:
    found = Ranges("d1", 2, notes=("2 samples from x", 'a "note" of ä'))
    found.add("a", np.array([0, 1e-30, -3.3, np.inf, 65504], np.float32))
    found.add("loop > b/é", np.array([1e-45], np.float32))
    found.add("empty", np.zeros(0, np.float32))
    return found


@pytest.mark.slow
@given(st.dictionaries(st.text(), tensors, max_size=4), st.text(), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_ranges_survive_json(held: dict[str, np.ndarray], digest: str, samples: int) -> None:
    found = Ranges(digest, samples)
    for name, array in held.items():
        found.add(name, array)
    text = found.to_json()
    again = Ranges.from_json(text)
    assert again == found and again.to_json() == text and list(again.values) == list(found.values)


def test_a_file_is_written_whole_and_read_back(tmp_path: Path) -> None:
    some().write(tmp_path / "r.json")
    assert Ranges.read(tmp_path / "r.json") == some()
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["samples"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    with pytest.raises(AmpError, match="AMP105"):
        some().write(tmp_path / "none" / "r.json")
    with pytest.raises(AmpError, match="AMP105"):
        some().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def altered(**more: Any) -> str:
    return json.dumps({**json.loads(some().to_json()), **more})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "nonsense", '{"ampgraph_ranges": 2}', altered(samples="x"), altered(values=[])),
        *(altered(notes=None), altered(values={"a": [1]}), altered(values={"a": [0, 0, -1, 0, 0, 0, []]})),
        *(altered(values={"a": [0, 0, 1, 0, 0, 0, ["x"]]}), altered(values={"a": [0, float("nan"), 1, 0, 0, 0, []]})),
        *(altered(values={"a": [0, 0, 1.5, 0, 0, 0, []]}), altered(values={"a": None}), "[" * 100_000),
    ],
)
def test_what_are_no_ranges(text: str, tmp_path: Path) -> None:
    with pytest.raises(AmpError, match=r"r\.json: are not ranges of ampgraph") as caught:
        (tmp_path / "r.json").write_text(text)
        Ranges.read(tmp_path / "r.json")
    assert caught.value.code == "AMP401" and "--ranges-out" in caught.value.hint


def test_files_that_cannot_be_read_and_other_formats(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "bytes"):
        with pytest.raises(AmpError, match="AMP401"):
            Ranges.read(path)
    with pytest.raises(AmpError, match="format 1 is not 2"):  # whose keys were ambiguous
        Ranges.from_json(altered(ampgraph_ranges=1))


def low_products(model: Any, data: Any, rename: dict[str, str]) -> int:
    """How many of the products go low, after values were given other names; ranges go through JSON."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [rename.get(name, name) for name in names]
    ranges = Ranges.from_json(ampgraph.calibrate(model, data).to_json())
    decisions = ampgraph.plan(model, ranges=ranges).decisions
    return sum(d.dtype == "float16" for d in decisions)


CHAIN = "g (float[2, 4] x) => (float[2, 4] y) { a = MatMul(x, w) b = MatMul(a, big) y = MatMul(b, small) }"
EYE = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize("name", ["enc > out", "a > > b", "out\\", "a->b", "a \\> b", " > ", "x > ", " > x"])
def test_any_name_steers(name: str) -> None:
    weights = {"w": EYE, "big": EYE * 40000, "small": EYE / 40000}
    data = [{"x": np.ones((2, 4), np.float32) * 2}]
    plain = low_products(parse(CHAIN, weights), data, {})
    assert low_products(parse(CHAIN, weights), data, {"b": name}) == plain


BRANCH = """g (float[2, 4] x, bool c) => (float[2, 4] y) {
    a = MatMul(x, w)
    r = If (c) <then_branch = t () => (float[2, 4] u) { v = MatMul(a, big)  u = MatMul(v, small) },
                else_branch = e () => (float[2, 4] k) { k = Neg(a) }>
    q = Mul(x, x)
    y = Add(r, q) }"""


def test_a_name_that_looks_like_a_scope_is_another_value() -> None:
    made = parse(BRANCH, w=EYE, big=EYE * 40000, small=EYE / 40000)
    for node in made.graph.node:  # the product of the main graph is named as the path of the branch's
        for names in (node.input, node.output):
            names[:] = ["r.then_branch > v" if name == "q" else name for name in names]
    found = ampgraph.calibrate(made, [{"x": np.full((2, 4), 2, np.float32), "c": np.array(True)}])
    assert found.values["r.then_branch > v"].high == 80000
    assert found.values["r.then_branch \\> v"].high == 4


def test_ranges_of_another_model_are_refused() -> None:
    some().check("d1")
    with pytest.raises(AmpError, match="another model") as caught:
        some().check("d2")
    assert caught.value.code == "AMP403"
