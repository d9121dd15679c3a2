"""Generated inputs: seeded, the same everywhere, and such that the model runs on them."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from ampgraph.core.errors import AmpError
from ampgraph.core.low_types import numpy_type
from ampgraph.numerics.inputs.generate import HIDDEN
from ampgraph.numerics.inputs.painted import Numbers
from ampgraph.numerics.inputs.samples import Samples, load_samples
from ampgraph.numerics.inputs.sizes import GraphInput, Sizes
from onnx_text import parse

ort = pytest.importorskip("onnxruntime")
TABLE = np.ones((7, 4), np.float32)


def runs(made: ModelProto, samples: Samples) -> list[Any]:
    """What the model gives for every sample; an index out of range or a wrong shape would stop it."""
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return [session.run(None, item) for item in samples]


def generated(text: str, weights: dict[str, Any] | None = None, opset: int = 17, **more: Any) -> Samples:
    """The samples for a model, which runs on them and gives no NaN."""
    made = parse(text, opset=opset, **(weights or {}))
    found = load_samples(made, None, **more)
    for outputs in runs(made, found):
        assert not any(np.isnan(array).any() for array in outputs if array.dtype.kind == "f")
    return found


def told(samples: Samples, name: str) -> str:
    return next(note for note in samples.notes if note.startswith(f"'{name}'"))


# -- seeds ------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes_on_every_machine() -> None:
    text = "g (float[n, 3] x) => (float[n, 3] y) { y = Identity(x) }"
    found = generated(text, count=3)
    assert found.generated and found.notes[0] == "inputs were generated: 3 samples, seed 0"
    blobs = [[item["x"].tobytes() for item in load_samples(parse(text), None, 3, seed)] for seed in (0, 0, 1)]
    assert blobs[0] == blobs[1]
    assert len({*blobs[0], *blobs[2]}) == 6
    assert hashlib.sha256(b"".join(blobs[0])).hexdigest()[:16] == "27ce74b265b63e64"


def test_a_sample_does_not_depend_on_how_many_there_are() -> None:
    text = "g (float[n, 3] x) => (float[n, 3] y) { y = Identity(x) }"
    few, many = (list(load_samples(parse(text), count=count)) for count in (2, 5))
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(few, many, strict=False))


def test_normal_numbers_are_about_normal() -> None:
    array = Numbers(0, 0, 0).normal((100_000,))
    assert array.dtype == np.float32
    assert abs(float(array.mean())) < 0.02 and abs(float(array.std()) - 1) < 0.02
    assert 0.65 < float((np.abs(array) < 1).mean()) < 0.72


@given(st.integers(-50, 50), st.integers(0, 90), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_integers_are_within_their_bounds(first: int, span: int, seed: int) -> None:
    array = Numbers(seed).integers(first, first + span, (64,))
    assert first <= array.min() and array.max() <= first + span


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_symbolic_sizes_are_the_users_first() -> None:
    text = "g (float[n, m] x, float[m, n] z) => (float[n, n] y) { y = MatMul(x, z) }"
    found = generated(text, count=2, dims={"n": 5})
    item = next(iter(found))
    assert item["x"].shape[0] == 5 == item["z"].shape[1] and item["x"].shape[1] == item["z"].shape[0]
    assert "[5, " in told(found, "x")


@pytest.mark.parametrize(
    ("name", "shape", "sizes"),
    [
        ("image", ("batch", 3, "height", "width"), (1, 3, 256, 256)),
        ("x", (None, 3, None, None), (1, 3, 256, 256)),
        ("x", (None, None, None, 3), (1, 256, 256, 3)),
        ("line", ("batch", 1, 32, "width"), (1, 1, 32, 160)),
        ("wave", ("batch", "samples"), (1, 16000)),
        ("spectra", ("batch", "frames", 80), (1, 64, 80)),
        ("input_ids", ("batch", "sequence"), (1, 16)),
        ("x", ("N", "T"), (1, 16)),
        ("x", ("a", "a"), (16, 16)),
    ],
)
def test_sizes_that_nobody_gives(name: str, shape: Any, sizes: tuple[int, ...]) -> None:
    port = GraphInput(name, "int64" if "ids" in name else "float32", shape)
    assert Sizes([port]).shape(port) == sizes


def test_a_mask_spans_the_past_and_the_present() -> None:
    ports = [
        GraphInput("input_ids", "int64", ("batch", "seq")),
        GraphInput("attention_mask", "int64", ("batch", "past_len + seq")),
        GraphInput("past_key_values.0.key", "float32", ("batch", 4, "past_len", 8)),
    ]
    sizes = Sizes(ports)
    assert [sizes.shape(port) for port in ports] == [(1, 16), (1, 24), (1, 4, 8, 8)]
    given = Sizes(ports, {"past_len": 3, "seq": 1})
    assert [given.shape(port)[-1] for port in ports[:2]] == [1, 4]


# -- what inputs are for ----------------------------------------------------------------------------------------------


def test_indices_stay_within_their_table() -> None:
    text = "g (int64[n, m] ids) => (float[n, m, 4] y) { y = Gather(table, ids) }"
    found = generated(text, {"table": TABLE}, count=8)
    drawn = np.concatenate([item["ids"].ravel() for item in found])
    assert set(drawn.tolist()) == set(range(7))
    assert told(found, "ids").endswith("indices up to 6 ('table')")


def test_indices_that_are_shifted_and_cast_stay_within_their_table() -> None:
    text = """g (int32[n, m] ids) => (float[n, m, 4] y) {
        wide = Cast <to = 7> (ids)  up = Unsqueeze(wide, zero)  low = Squeeze(up, zero)
        shifted = Sub(low, three)  y = Gather(table, shifted) }"""
    found = generated(text, {"table": TABLE, "three": np.int64(3), "zero": np.array([0])}, count=8)
    drawn = np.concatenate([item["ids"].ravel() for item in found])
    assert (drawn.min(), drawn.max()) == (3, 9)


def test_an_index_of_two_tables_fits_the_smaller() -> None:
    text = "g (int64[n] ids) => (float[n, 4] y) { a = Gather(table, ids)  b = Gather(small, ids)  y = Add(a, b) }"
    found = generated(text, {"table": TABLE, "small": TABLE[:3]}, count=4)
    assert max(int(item["ids"].max()) for item in found) == 2


def test_indices_inside_functions_and_bodies() -> None:
    made = parse(
        """g (int64[n] ids, int64[n] more, bool c) => (float[n, 4] y) {
            a = own.look(ids, table)
            b = If (c) <then_branch = t () => (float[n, 4] u) { u = Gather(table, more) },
                        else_branch = e () => (float[n, 4] v) { v = Identity(a) }>
            y = Add(a, b) }""",
        domains=["own"],
        functions='<domain: "own", opset_import: ["" : 17]> look (i, t) => (o) { o = Gather(t, i) }',
        table=TABLE,
    )
    found = load_samples(made)
    assert len(runs(made, found)) == 8
    assert {int(item[name].max()) <= 6 for item in found for name in ("ids", "more")} == {True}
    assert {bool(item["c"]) for item in found} == {True, False}


def test_one_hot_by_equality_draws_from_what_it_is_compared_with() -> None:
    text = """g (int64[n, m] bytes) => (float[n, m, 5] y) {
        up = Unsqueeze(bytes, last)  same = Equal(up, range)  y = Cast <to = 1> (same) }"""
    found = generated(text, {"range": np.arange(5), "last": np.array([-1])}, count=8)
    assert {int(v) for item in found for v in item["bytes"].ravel()} == set(range(5))


MASKED = """g (float[2, 4, 4] scores, int64[2, 4] attention_mask) => (float[2, 4, 4] y) {
    up = Unsqueeze(attention_mask, one)  float = Cast <to = 1> (up)  hidden = Sub(unit, float)
    added = Mul(hidden, lowest)  sum = Add(scores, added)  y = Softmax(sum) }"""


def test_a_mask_is_ones_with_a_tail_of_zeros_in_every_other_sample() -> None:
    weights = {"one": np.array([1]), "unit": np.float32(1), "lowest": np.float32(-3.4e38)}
    found = generated(MASKED, weights, count=8)
    masks = [item["attention_mask"] for item in found]
    assert all((mask == 1).all() for mask in masks[::2])
    assert all((np.diff(mask, axis=1) <= 0).all() and (mask[:, 0] == 1).all() for mask in masks)
    assert any((mask == 0).any() for mask in masks)


@pytest.mark.parametrize("hides", [False, True], ids=["one keeps", "one hides"])
def test_a_mask_that_is_subtracted(hides: bool) -> None:
    """Numbers up to 9 in its place would be infinite scores, and the model could not be checked."""
    text = MASKED.replace("attention_mask", "kept").replace("Add(scores", "Sub(scores")
    text = text.replace("Sub(unit, float)", "Identity(float)") if hides else text
    found = generated(text, {"one": np.array([1]), "unit": np.float32(1), "lowest": np.float32(3.4e38)}, count=8)
    masks = [item["kept"] != hides for item in found]
    assert all(mask[:, 0].all() for mask in masks) and any(not mask.all() for mask in masks)


def test_a_mask_that_hides_where_it_is_one() -> None:
    text = """g (float[2, 4] scores, bool[2, 4] key_padding) => (float[2, 4] y) {
        sum = Where(key_padding, lowest, scores)  y = Softmax(sum) }"""
    found = generated(text, {"lowest": np.float32(-1e9)}, count=8)
    masks = [item["key_padding"] for item in found]
    assert not any(mask[:, 0].any() for mask in masks) and any(mask.any() for mask in masks)


def test_a_float_mask_that_is_added_hides_a_tail() -> None:
    text = """g (float[2, 4, 4] q, float[2, 4, 4] k, float[2, 1, 4] bias) => (float[2, 4, 4] y) {
        scores = MatMul(q, k)  sum = Add(scores, bias)  y = Softmax(sum) }"""
    found = generated(text, count=8)
    assert {float(v) for item in found for v in item["bias"].ravel()} == {0.0, HIDDEN}
    assert "standard normal" in told(found, "q")


def test_lengths_positions_segments_and_sizes() -> None:
    text = """g (float[6, 2, 3] x, int64[2] lens, int64[2, 6] position_ids, int64[2, 6] token_type_ids, int64[1] k)
        => (float[6, 2, 3] y, float[2, 6, 4] p, float[2, 6, 4] t, float[6, 2, 1] v, int64[6, 2, 1] i) {
        y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, lens)
        p = Gather(table, position_ids)  t = Gather(types, token_type_ids)  v, i = TopK(x, k) }"""
    found = generated(text, {"table": TABLE, "types": TABLE[:2]}, count=4)
    first = next(iter(found))
    assert all(item["lens"].min() >= 1 and item["lens"].max() <= 6 for item in found)
    assert first["position_ids"].tolist() == [list(range(6))] * 2
    assert first["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]] * 2
    assert first["k"].tolist() == [1] and "TopK" in told(found, "k")


def test_positions_without_a_table_count_up() -> None:
    found = generated("g (int64[2, 6] position_ids) => (float[2, 6] y) { y = Cast <to = 1> (position_ids) }", count=1)
    assert next(iter(found))["position_ids"].tolist() == [list(range(6))] * 2


def test_limits_let_through_what_lies_between() -> None:
    text = """g (float[4] x, float low, float high) => (float[4] y) {
        above = GreaterOrEqual(x, low)  below = LessOrEqual(x, high)  kept = And(above, below)
        y = Where(kept, x, zero) }"""
    first = next(iter(generated(text, {"zero": np.float32(0)}, count=1)))
    assert (first["low"].tolist(), first["high"].tolist()) == (0.0, 1e4) and first["low"].shape == ()


def test_arguments_of_logarithms_are_positive() -> None:
    found = generated("g (float[4, 9] x) => (float[4, 9] y) { y = Log(x) }")
    assert all(item["x"].min() > 0 for item in found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "bool"])
def test_every_type(dtype: str) -> None:
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    found = load_samples(parse(f"g ({name}[3, 50] x) => ({name}[3, 50] y) {{ y = Identity(x) }}"))
    item = next(iter(found))["x"]
    assert item.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)) and item.shape == (3, 50)
    assert len(np.unique(item)) > 1


# -- refusals ---------------------------------------------------------------------------------------------------------


def refused(made: ModelProto, word: str) -> None:
    with pytest.raises(AmpError, match=word) as caught:
        load_samples(made)
    assert caught.value.code == "AMP503" and "--data" in caught.value.hint


def test_what_cannot_be_generated() -> None:
    refused(parse("g (string[2] words) => (string[2] y) { y = Identity(words) }"), "'words' holds text")
    refused(parse("g (float[100000, 100000] x) => (float[n, m] y) { y = Relu(x) }"), "too large")
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["s"], ["y"])], "g", [sequence], [out])
    refused(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "'s' is no tensor")


@pytest.mark.mindspore
def test_bfloat16_is_ours_beside_that_of_mindspore() -> None:
    """MindSpore registers a type of the same name."""
    pytest.importorskip("mindspore")
    assert numpy_type("bfloat16") == ml_dtypes.bfloat16
