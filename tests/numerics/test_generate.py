"""Generated inputs: seeded, the same everywhere, and such that the model runs on them."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

import ampgraph
from ampgraph.core.errors import AmpError, NoMemory
from ampgraph.numerics.inputs import painted
from ampgraph.numerics.inputs.generate import HIDDEN, KINDS, draw_kind, numpy_type
from ampgraph.numerics.inputs.painted import RandomNumbers, draw_pictures, paint_page
from ampgraph.numerics.inputs.roles import Reading
from ampgraph.numerics.inputs.samples import Samples, load_samples, propose_sizes
from ampgraph.numerics.inputs.sizes import GraphInput, Sizes, _evaluate
from ampgraph.numerics.inputs.states import CachePair, ReachedStates
from ampgraph.numerics.strict.session import StrictSession
from needs import needs_runtime
from onnx_text import parse

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


def test_numbers_are_seeded() -> None:
    text = "g (float[n, 3] x) => (float[n, 3] y) { y = Identity(x) }"
    found = generated(text, count=3)
    assert found.generated and found.notes[0] == "inputs were generated: 3 samples, seed 0"
    blobs = [[item["x"].tobytes() for item in load_samples(parse(text), None, 3, seed)] for seed in (0, 0, 1)]
    assert blobs[0] == blobs[1]
    assert len({*blobs[0], *blobs[2]}) == 6
    assert hashlib.sha256(b"".join(blobs[0])).hexdigest()[:16] == "27ce74b265b63e64"
    # a sample does not depend on how many there are
    text = "g (float[n, 3] x) => (float[n, 3] y) { y = Identity(x) }"
    few, many = (list(load_samples(parse(text), count=count)) for count in (2, 5))
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(few, many, strict=False))
    # normal numbers are about normal
    array = RandomNumbers(0, 0, 0).normal((100_000,))
    assert array.dtype == np.float32
    assert abs(float(array.mean())) < 0.02 and abs(float(array.std()) - 1) < 0.02
    assert 0.65 < float((np.abs(array) < 1).mean()) < 0.72


@given(st.integers(-50, 50), st.integers(0, 90), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_integers_are_within_their_bounds(first: int, span: int, seed: int) -> None:
    array = RandomNumbers(seed).integers(first, first + span, (64,))
    assert first <= array.min() and array.max() <= first + span


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_sizes_and_what_cannot_be_generated() -> None:
    text = "g (float[n, m] x, float[m, n] z) => (float[n, n] y) { y = MatMul(x, z) }"
    found = generated(text, count=2, dims={"n": 5})
    item = next(iter(found))
    assert item["x"].shape[0] == 5 == item["z"].shape[1] and item["x"].shape[1] == item["z"].shape[0]
    assert "[5, " in told(found, "x")
    # what cannot be generated
    refused(parse("g (string[2] words) => (string[2] y) { y = Identity(words) }"), "'words' holds text")
    refused(parse("g (float[100000, 100000] x) => (float[n, m] y) { y = Relu(x) }"), "too large")
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["s"], ["y"])], "g", [sequence], [out])
    refused(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "'s' is not a tensor")


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
    # indices that are shifted and cast stay within their table
    text = """g (int32[n, m] ids) => (float[n, m, 4] y) {
        wide = Cast <to = 7> (ids)  up = Unsqueeze(wide, zero)  low = Squeeze(up, zero)
        shifted = Sub(low, three)  y = Gather(table, shifted) }"""
    found = generated(text, {"table": TABLE, "three": np.int64(3), "zero": np.array([0])}, count=8)
    drawn = np.concatenate([item["ids"].ravel() for item in found])
    assert (drawn.min(), drawn.max()) == (3, 9)
    # an index of two tables fits the smaller
    text = "g (int64[n] ids) => (float[n, 4] y) { a = Gather(table, ids)  b = Gather(small, ids)  y = Add(a, b) }"
    found = generated(text, {"table": TABLE, "small": TABLE[:3]}, count=4)
    assert max(int(item["ids"].max()) for item in found) == 2
    # one hot by equality draws from what it is compared with
    text = """g (int64[n, m] bytes) => (float[n, m, 5] y) {
        up = Unsqueeze(bytes, last)  same = Equal(up, range)  y = Cast <to = 1> (same) }"""
    found = generated(text, {"range": np.arange(5), "last": np.array([-1])}, count=8)
    assert {int(v) for item in found for v in item["bytes"].ravel()} == set(range(5))


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


MASKED = """g (float[2, 4, 4] scores, int64[2, 4] attention_mask) => (float[2, 4, 4] y) {
    up = Unsqueeze(attention_mask, one)  float = Cast <to = 1> (up)  hidden = Sub(unit, float)
    added = Mul(hidden, lowest)  sum = Add(scores, added)  y = Softmax(sum) }"""


def test_masks() -> None:
    weights = {"one": np.array([1]), "unit": np.float32(1), "lowest": np.float32(-3.4e38)}
    found = generated(MASKED, weights, count=8)
    masks = [item["attention_mask"] for item in found]
    assert all((mask == 1).all() for mask in masks[::2])
    assert all((np.diff(mask, axis=1) <= 0).all() and (mask[:, 0] == 1).all() for mask in masks)
    assert any((mask == 0).any() for mask in masks)
    # a mask that hides where it is one
    text = """g (float[2, 4] scores, bool[2, 4] key_padding) => (float[2, 4] y) {
        sum = Where(key_padding, lowest, scores)  y = Softmax(sum) }"""
    found = generated(text, {"lowest": np.float32(-1e9)}, count=8)
    masks = [item["key_padding"] for item in found]
    assert not any(mask[:, 0].any() for mask in masks) and any(mask.any() for mask in masks)
    # a float mask that is added hides a tail
    text = """g (float[2, 4, 4] q, float[2, 4, 4] k, float[2, 1, 4] bias) => (float[2, 4, 4] y) {
        scores = MatMul(q, k)  sum = Add(scores, bias)  y = Softmax(sum) }"""
    found = generated(text, count=8)
    assert {float(v) for item in found for v in item["bias"].ravel()} == {0.0, HIDDEN}
    assert "standard normal" in told(found, "q")


@pytest.mark.parametrize("hides", [False, True], ids=["one keeps", "one hides"])
def test_a_mask_that_is_subtracted(hides: bool) -> None:
    """Numbers up to 9 in its place would be infinite scores, and the model could not be checked."""
    text = MASKED.replace("attention_mask", "kept").replace("Add(scores", "Sub(scores")
    text = text.replace("Sub(unit, float)", "Identity(float)") if hides else text
    found = generated(text, {"one": np.array([1]), "unit": np.float32(1), "lowest": np.float32(3.4e38)}, count=8)
    masks = [item["kept"] != hides for item in found]
    assert all(mask[:, 0].all() for mask in masks) and any(not mask.all() for mask in masks)


def test_what_bounds_inputs() -> None:
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
    # positions without a table count up
    found = generated("g (int64[2, 6] position_ids) => (float[2, 6] y) { y = Cast <to = 1> (position_ids) }", count=1)
    assert next(iter(found))["position_ids"].tolist() == [list(range(6))] * 2
    # limits let through what lies between
    text = """g (float[4] x, float low, float high) => (float[4] y) {
        above = GreaterOrEqual(x, low)  below = LessOrEqual(x, high)  kept = And(above, below)
        y = Where(kept, x, zero) }"""
    first = next(iter(generated(text, {"zero": np.float32(0)}, count=1)))
    assert (first["low"].tolist(), first["high"].tolist()) == (0.0, 1e4) and first["low"].shape == ()
    # arguments of logarithms are positive
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


@pytest.mark.mindspore
def test_bfloat16_is_ours_beside_that_of_mindspore() -> None:
    """MindSpore registers a type of the same name."""
    pytest.importorskip("mindspore")
    assert numpy_type("bfloat16") == ml_dtypes.bfloat16


# Generated inputs are what a model may really get: pictures, text, sound, spectra, of the magnitude that it takes.

PICTURE = "g (float[1, 3, 32, 48] x) => (float[1, 4, 30, 46] y) {{ {0} }}"
PIXELS = "of 0 to 255"


def drawn(text: str, weights: dict[str, Any], count: int = 3) -> tuple[str, list[Any]]:
    """What is said of the first input, and its samples."""
    samples = load_samples(parse(text, known=weights), count=count)
    return samples.notes[1], [next(iter(item.values())) for item in samples]


def kernel(size: float) -> Any:
    return np.full((4, 3, 3, 3), size / 27**0.5, np.float32)


@pytest.mark.parametrize(
    ("body", "size", "pixels"),
    [
        ("y = Conv(x, w)", 1.0, False),
        ("y = Conv(x, w)", 0.01, True),  # a product that makes ones of numbers around a hundred
        ("s = Div(x, most)  y = Conv(s, w)", 1.0, True),
        ("s = Sub(x, mean)  y = Conv(s, w)", 1.0, True),
        ("s = Slice(x, a, b)  p = Concat <axis = 1> (s)  y = Conv(p, w)", 0.01, True),
        ("p = AveragePool <kernel_shape = [2, 2]> (x)  d = Div(p, most)  y = Conv(d, w)", 1, True),
    ],
)
def test_how_bright_a_picture_is_the_first_operators_say(body: str, size: float, pixels: bool) -> None:
    ends = {"a": np.array([0]), "b": np.array([1])}
    scale = {"most": np.float32(255), "mean": np.full((3, 1, 1), 123, np.float32)}
    note, arrays = drawn(PICTURE.format(body), {"w": kernel(size), **ends, **scale})
    assert (PIXELS in note) == pixels
    assert max(array.max() for array in arrays) == pytest.approx(255 if pixels else 2.5, rel=0.3)
    assert pixels or {round(float(array.min())) for array in arrays} >= {0, -1}


def test_pictures() -> None:
    note, arrays = drawn("g (uint8[1, 32, 48, 3] x) => (uint8[1, 32, 48, 3] y) { y = Identity(x) }", {})
    assert note.endswith("pictures of 0 to 255") and len(np.unique(arrays[0])) < 200 < arrays[0].max()
    # a line of text has ink and paper and letters
    for number in range(6):
        text = paint_page(RandomNumbers(number), 48, 240)
        assert (text > 0.9).mean() > 0.4 and 0.05 < (text < 0.6).mean() < 0.4
        columns = (text < 0.6).any(0)
        assert (np.diff(columns.astype(int)) == 1).sum() >= 3  # letters with gaps between them
    # pictures are smooth with edges and their channels agree
    for index in range(3):
        array = draw_pictures(RandomNumbers(index), (1, 3, 96, 96), index)[0]
        steps = np.abs(np.diff(array.mean(0), axis=0))
        assert np.median(steps) < 0.1 < steps.max()
        assert np.corrcoef(array.reshape(3, -1)).min() > 0.9
    last = draw_pictures(RandomNumbers(0), (1, 96, 96, 3), 0)[0]
    assert np.array_equal(last.transpose(2, 0, 1), draw_pictures(RandomNumbers(0), (1, 3, 96, 96), 0)[0])


def test_sounds_and_spectra() -> None:
    _, arrays = drawn("g (float[1, samples] wave) => (float[1, n] y) { y = Identity(wave) }", {})
    peaks = [float(np.abs(array).max()) for array in arrays]
    assert arrays[0].shape == (1, 16000) and max(peaks) > 0.8 and min(peaks) < 0.15
    assert not arrays[0][0, -1600:].any()
    # spectra are of several scales
    note, arrays = drawn("g (float[1, frames, 80] mel) => (float[1, n, 80] y) { y = Identity(mel) }", {})
    assert "spectra" in note and [round(float(array.min())) for array in arrays] == [-1, -11, 0]
    # all kinds are the same on every machine
    shapes = {"sound": (1, 5000), "spectrum": (1, 64, 80), "scaled": (3, 5)}
    blobs = [
        draw_kind(k, RandomNumbers(1), shapes.get(k, (1, 3, 40, 60)), i).tobytes() for k in KINDS for i in range(3)
    ]
    assert hashlib.sha256(b"".join(blobs)).hexdigest()[:16] == "cc6070219f43118d"


def waves(frequencies: int, window: bool = True) -> Any:
    """A Fourier basis of 128 samples, real parts then imaginary ones."""
    place = np.arange(128)
    turn = np.exp(-2j * np.pi * np.outer(np.arange(1, frequencies + 1), place) / 128)
    return (np.concatenate([turn.real, turn.imag]) * (np.hanning(128) if window else 1)).astype(np.float32)


@pytest.mark.parametrize(
    ("body", "weights", "sound"),
    [
        ("p = Pad(x, ends)  y = Conv <strides=[64]> (p, w)", waves(40)[:, None], True),
        ("t = Identity(x)  y = MatMul(t, w)", waves(40, window=False).T, True),
        ("y = MatMul(x, w)", np.random.default_rng(0).normal(size=(128, 80)).astype(np.float32), False),
        ("y = MatMul(x, w)", np.eye(128, dtype=np.float32), False),  # all frequencies
        ("y = MatMul(x, w)", waves(40)[:, :32].T, False),  # no wave of so few numbers is sure
    ],
)
def test_what_a_fourier_transform_reads_is_sound(body: str, weights: Any, sound: bool) -> None:
    size = 576 if "Pad" in body else len(weights)
    ends = {"ends": np.array([0, 0, 64, 0, 0, 64])} if "Pad" in body else {}
    note, arrays = drawn(f"g (float[1, 1, {size}] x) => (float[a, b, c] y) {{ {body} }}", {"w": weights, **ends})
    assert ("speech-like" in note) == sound and arrays[0].shape == (1, 1, size)


def test_rows_of_several_inputs_are_one_batch() -> None:
    text = """g (float[a, 8] x, float[b, 8] z) => (float[n, 4, 8] y) {
      s = Add(x, z)  r = Neg(s)  y = Reshape(r, size)
    }"""
    model = parse(text, size=np.array([-1, 4, 8]))  # four rows at a time
    session = ort.InferenceSession(model.SerializeToString())

    def run(feeds: Any) -> Any:
        try:
            return dict(zip(["y"], session.run(["y"], feeds), strict=True))
        except Exception as error:
            raise AmpError("AMP504", str(error)) from error

    fed = next(iter(load_samples(model, count=1).fit_to(run)))
    assert len(fed["x"]) == len(fed["z"]) and len(fed["x"]) % 4 == 0


@pytest.mark.parametrize(
    ("state", "after"), [("state", "stateN"), ("h", "hn"), ("hidden.1", "hidden"), ("init_c", "c_out")]
)
def test_states_are_those_that_the_model_reaches(state: str, after: str) -> None:
    model = parse("g (float[1, 4] x, float[1, 4] a) => (float[1, 4] y, float[1, 4] b) { y = Neg(x)  b = Add(a, x) }")
    model.graph.input[1].name = model.graph.node[1].input[0] = state
    model.graph.output[1].name = model.graph.node[1].output[0] = after
    samples = load_samples(model, count=4)
    session = ort.InferenceSession(model.SerializeToString())

    def run(feeds: Any) -> Any:
        return dict(zip(["y", after], session.run(["y", after], feeds), strict=True))

    fitted = samples.fit_to(run)
    assert fitted.notes[-1] == f"'{state}': zero at first, then what the model makes of the sample before"
    for _ in range(2):  # as often as asked for
        whole = np.zeros((1, 4), np.float32)
        for feeds in fitted:
            assert np.array_equal(feeds[state], whole)
            whole = whole + feeds["x"]
    for asked, given_out in ((1, 1), (3, 3), (9, 4), (0, 0)):
        first = fitted.first(asked)
        assert len(first) == len(list(first)) == len(list(first)) == given_out


def test_states_whose_outputs_are_called_anything_are_paired_by_order() -> None:
    text = """g (float[1, 4] x, float[1, 4] state_in_0, float[1, 2] state_in_1, float[1, 4] state_in_2)
              => (float[1, 1] y, float[1, 4] id_1, float[1, 2] id_2, float[1, 4] id_3) {
      y = ReduceSum (x, one)  id_1 = Add (state_in_0, x)  id_2 = Neg (state_in_1)  id_3 = Sub (state_in_2, x) }"""
    model = parse(text, {"one": np.array([1])}, opset=17)
    ports = load_samples(model, count=2).fit_to(StrictSession(model).run)
    assert ports.notes[-1].startswith("'state_in_0' and 'state_in_1' and 'state_in_2': zero at first")
    first, second = ports
    assert np.array_equal(second["state_in_0"], first["x"]) and np.array_equal(second["state_in_2"], -first["x"])
    # one output of their shapes more leaves open which
    for body, output in (("z = Neg (x)", "float[1, 4] z, float[1, 1] y"), ("", "float[1, 1] y")):
        other = text.replace("float[1, 1] y", output).replace("y = ReduceSum", f"{body}  y = ReduceSum")
        assert (load_samples(parse(other, {"one": np.array([1])}, opset=17), count=2)._states == ()) == bool(body)


def test_each_state_is_computed_once_and_has_the_type_of_its_input() -> None:
    ran = list[Any]()

    def run(feeds: Any) -> Any:
        ran.append(feeds)
        return {"out": feeds["state"].astype(np.float32) + 40000}

    given = [{"state": np.full(2, number, np.float16)} for number in range(1, 5)]
    states = ReachedStates(given, [CachePair("state", "out", None)], run)
    for _ in range(2):
        found = [feeds["state"] for feeds in states]
        # 80,000 is beyond float16: there the sample keeps its own
        assert [float(one[0]) for one in found] == [0, 40000, 3, 40000] and {one.dtype for one in found} == {
            given[0]["state"].dtype
        }
    assert len(ran) == 4  # one for each, and whether zero is a state


def test_a_model_that_takes_no_zero_starts_from_a_generated_state() -> None:
    given = [{"x": np.full(1, 2, np.float32), "state": np.full(1, number, np.float32)} for number in (4, 5)]
    pairs = [CachePair("state", "out", None)]

    def run(feeds: Any) -> Any:
        with np.errstate(divide="ignore"):
            return {"out": feeds["x"] / feeds["state"]}

    assert [float(feeds["state"][0]) for feeds in ReachedStates(given, pairs, run)] == [4, 0.5]


def test_what_is_no_state_stays() -> None:
    grows = "g (float[1, 4] past) => (float[1, 5] present) { present = Concat <axis=1> (past, one) }"
    picture = "g (float[1, 4] x) => (float[1, 4] x_out) { x_out = Neg(x) }"
    for text, stored in ((grows, {"one": np.ones((1, 1), np.float32)}), (picture, {})):
        samples = load_samples(parse(text, stored), count=3)
        assert samples.fit_to(lambda feeds: {}) is samples


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("float[1, 3, 64, 64] frame", "pictures"),
        ("float[frames, 3, 64, 64] x", "pictures"),
        ("float[1, 3, frames, 160] x", "spectra"),
        ("float[1, 80, 100] input_features", "spectra"),
        ("float[1, 3, 64, 64] features", "pictures"),
        ("float[1, 64] features", "standard normal"),
    ],
)
def test_names_and_shapes_say_what_an_input_is(text: str, word: str) -> None:
    name = text.split()[-1]
    assert word in drawn(f"g ({text}) => (float[n] y) {{ y = Identity({name}) }}", {})[0]


MEANS, DEVIATIONS = np.array([1e6, -40.0, 0.5], np.float32), np.array([3e5, 8.0, 0.1], np.float32)
TABLES = {"m": MEANS, "s": DEVIATIONS, "v": DEVIATIONS**2, "g": 1 / DEVIATIONS, "b": -MEANS / DEVIATIONS}


@pytest.mark.parametrize(
    "body",
    [
        "d = Sub(x, m)  y = Div(d, s)",
        "p = Mul(g, x)  y = Add(b, p)",
        "y = BatchNormalization(x, one, zero, m, v)",
    ],
)
def test_rows_of_a_table_have_the_means_and_deviations_that_the_model_expects(body: str) -> None:
    weights = {**TABLES, "one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)}
    note, arrays = drawn(f"g (float[64, 3] x) => (float[64, 3] y) {{ {body} }}", weights, count=1)
    assert "means that the model takes off" in note
    assert np.all(np.abs(arrays[0].mean(0) - MEANS) <= 0.5 * DEVIATIONS)
    assert np.allclose(arrays[0].std(0), DEVIATIONS, rtol=0.4)


@pytest.mark.parametrize("edge", [8, 64])
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("d = Sub(x, m)  y = Div(d, s)", ()),
        ("d = Sub(x, m)  y = Div(d, s)", (1,)),
        ("d = Sub(x, m)  y = Mul(d, g)", (1, 1, 1)),
        ("d = Sub(x, m)  y = Div(d, s)", (3, 1, 1)),
        ("d = Sub(x, m)  y = Mul(d, g)", (1, 3, 1, 1)),
        ("y = BatchNormalization(x, one, zero, m, v)", (3,)),
    ],
)
def test_pictures_of_a_sensor_have_the_mean_and_deviation_that_the_model_expects(
    body: str, shape: tuple[int, ...], edge: int
) -> None:
    numbers = {"m": 20005, "s": 24645, "g": 1 / 24645, "v": 24645**2, "one": 1, "zero": 0}
    weights = {name: np.full(shape, n, np.float32) for name, n in numbers.items()}
    size = f"float[2, 3, {edge}, {edge}]"
    note, arrays = drawn(f"g ({size} x) => ({size} y) {{ {body} }}", weights, count=1)
    assert "means that the model takes off" in note
    assert abs(arrays[0].mean() - 20005) <= 0.2 * 24645
    assert np.allclose(arrays[0].std(), 24645, rtol=0.2)


@pytest.mark.parametrize(
    ("mean", "deviation", "word"),
    [
        ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375], "pictures of 0 to 255"),
        ([127.5] * 3, [127.5001] * 3, "pictures of 0 to 255"),
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], "pictures: of 0 to 1"),
    ],
)
def test_pictures_of_bytes_stay_pictures(mean: list[float], deviation: list[float], word: str) -> None:
    weights = {"m": np.array(mean, np.float32).reshape(3, 1, 1), "s": np.array(deviation, np.float32).reshape(3, 1, 1)}
    size = "float[1, 3, 64, 64]"
    assert word in drawn(f"g ({size} x) => ({size} y) {{ d = Sub(x, m)  y = Div(d, s) }}", weights)[0]


@pytest.mark.parametrize("body", ["y = Sub(m, x)", "y = Add(x, one)", "y = Mul(x, m)"])
def test_other_arithmetic_says_nothing_of_a_table(body: str) -> None:
    note, _ = drawn(f"g (float[8, 3] x) => (float[8, 3] y) {{ {body} }}", {"m": MEANS, "one": np.float32(1)})
    assert "standard normal" in note


def test_a_table_of_positions_is_no_mean() -> None:
    size = "float[1, 4, 3]"
    text = f"g ({size} x) => ({size} y) {{ y = Add(x, m) }}"
    assert "standard normal" in drawn(text, {"m": np.arange(12, dtype=np.float32).reshape(1, 4, 3)})[0]


# Sizes that were guessed wrongly are learnt from what a run fails with.

HEIGHT = "g (float[N, 3, h, w] x) => (float[a, b, c] y) { p = Conv <strides = [8, 8]> (x, k)  y = Squeeze(p, axis) }"
NAMES = "g (float[batch, n, width] x, int64[batch, n, width] i) => (float[b, c, d] y) {{ {0} }}"


def shapes(text: str, weights: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    model = parse(text, known=weights)
    samples = load_samples(model, count=1).fit_to(StrictSession(model).run)
    return {name: array.shape for name, array in next(iter(samples)).items()}


def test_sizes_are_learnt() -> None:
    for text in (HEIGHT, HEIGHT.replace("y = Squeeze", "[memory] y = Squeeze")):  # a node's name is no want of memory
        found = shapes(text, {"k": np.ones((2, 3, 8, 8), np.float32), "axis": np.array([2])})
        assert found["x"] == (1, 3, 8, 256)
    # a number that the model asks for is given
    model = parse(PADDED, sixteen=np.array(16000), wide=np.array([0, 40, 0, 40]))
    assert [sample["rate"] for sample in load_samples(model, count=2)] == [16000, 16000]
    # one name for two sizes
    weights = {"w": np.ones((24, 4), np.float32), "table": np.ones((9, 4), np.float32), "one": np.array([2])}
    body = "a = MatMul(x, w)  g = Gather(table, i)  s = ReduceSum <keepdims = 0> (g, one)  y = Add(a, s)"
    found = shapes(NAMES.format(body), weights)
    assert found["x"] == (1, 16, 24) and found["i"] == (1, 16, 16)
    # what no size mends is said
    with pytest.raises(AmpError, match="no generated input fits") as caught:
        shapes("g (float[N, m] x) => (float[a, b] y) { y = Gather <axis = 1> (x, far) }", {"far": np.array([5000])})
    assert caught.value.code == "AMP504" and "--dim" in caught.value.hint
    # verbs run on sizes that were learnt
    model = parse(HEIGHT, k=np.ones((2, 3, 8, 8), np.float32), axis=np.array([2]))
    assert ampgraph.calibrate(model, count=1).samples == 1
    assert ampgraph.verify(model, ampgraph.convert(model), samples=1).samples == 1
    # numbers of a message come before others
    message = "Status Message: /a/b.h:51 Dimension of input 2 must be 1 instead of 4. shape={1,288,4,16}"
    proposed = list(propose_sizes(message, {("x", 2): 128, ("x", 0): 1}))
    assert {("x", 2): 32} in proposed[:8] and all(("x", 2) in change for change in proposed[:8])


def test_sides_of_a_square_picture_are_learnt_together() -> None:
    text = """g (float[N, c, h, w] x) => (float[a, b] y) {{ {0} p = Conv <strides = [8, 8]> ({1}, k)
      q = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (p)  f = Flatten (q)  y = Gemm (f, m) }}"""
    weights = {"k": np.ones((4, 3, 8, 8), np.float32), "m": np.ones((4 * 5 * 5, 2), np.float32)}
    side = shapes(text.format("", "x"), weights)["x"]
    assert side[:2] == (1, 3) and side[2] == side[3] and side[2] // 16 == 5
    last = shapes(text.format("t = Transpose <perm = [0, 3, 1, 2]> (x)", "t"), weights)["x"]
    assert last == (1, *side[2:], 3)


@pytest.mark.parametrize(("text", "weights", "shape"), [
    # a side: 256 / 8 = 32, where 40 are wanted
    ("(float[N, 3, h, w] x) => (float[1, 2, 2, 40, 40] y) { p = Conv <strides = [8, 8]> (x, k)  y = Reshape (p, s) }",
     {"k": np.ones((4, 3, 8, 8), np.float32), "s": np.array([1, 2, 2, 40, 40])}, (1, 3, 320, 320)),
    ("(float[n] x) => (float[280, 280, 4] y) { y = Reshape (x, s) }", {"s": np.array([280, 280, 4])}, (313_600,)),
    ("(float[1, t, 8] x, float[1, t] m) => (float[r, c] y) { u = Unsqueeze (m, a) z = Mul (x, u) y = Reshape (z, s) }",
     {"s": np.array([200, 4]), "a": np.array([2])}, (1, 100, 8)),
])  # fmt: skip
def test_sizes_that_a_reshape_wants_are_learnt(text: str, weights: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert shapes(f"g {text}", weights)["x"] == shape


def test_a_size_reaches_the_last_part_that_is_taken() -> None:
    """A part that begins behind the end is empty: a mean of it is anything."""
    parts = " ".join(
        f"p{i} = Slice (x, s{i}, s{i + 1}, axis)  m{i} = ReduceMean <axes = [1], keepdims = 1> (p{i})" for i in range(4)
    )
    text = f"g (float[1, steps, 3] x) => (float[1, 4, 3] y) {{ {parts} y = Concat <axis = 1> (m0, m1, m2, m3) }}"
    bounds = {f"s{i}": np.array([32 * i]) for i in range(5)}
    assert shapes(text, {**bounds, "axis": np.array([1])})["x"] == (1, 128, 3)
    near = {**bounds, "s1": np.array([4]), "s2": np.array([8]), "s3": np.array([9])}  # all begin within the guess
    assert shapes(text, {**near, "axis": np.array([1])})["x"] == (1, 16, 3)


def test_a_number_that_multiplies_a_size_is_one() -> None:
    text = """g (float[1, 3, h, w] x, int64 times) => (float[1, 3, a, b] y) {
      s = Shape (x)  q = Slice (s, two, four)  n = Mul (q, times)  t = Concat <axis = 0> (front, n)
      y = Resize <mode = "nearest"> (x, , , t) }"""
    weights = {"two": np.array([2]), "four": np.array([4]), "front": np.array([1, 3])}
    assert all(one["times"] == 1 for one in generated(text, weights, count=3))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("mean", [40.0, 0.5])
def test_a_mean_that_is_taken_off_tells_pictures_of_bytes(mean: float, listed: bool) -> None:
    """Also where the file lists all that it stores as inputs."""
    text = "g (float[1, 1, 32, 32] x) => (float[1, 2, 30, 30] y) { c = Sub (x, mean)  y = Conv (c, k) }"
    model = parse(text, mean=np.full((1, 1, 1, 1), mean, np.float32), k=np.ones((2, 1, 3, 3), np.float32))
    for stored in model.graph.initializer if listed else ():
        model.graph.input.append(helper.make_tensor_value_info(stored.name, TensorProto.FLOAT, stored.dims))
    assert (max(one["x"].max() for one in load_samples(model, count=3)) > 100) == (mean > 1)


def test_a_picture_of_one_channel_and_a_step_of_time() -> None:
    text = """g (float[1, 64, 64] x, float[1] dt) => (float[1, 2, 62, 62] y) {
      u = Unsqueeze (x, axis)  r = Reshape (u, shape)  c = Conv (r, k)  y = Mul (c, dt) }"""
    weights = {"axis": np.array([3]), "shape": np.array([1, 1, 64, 64]), "k": np.ones((2, 1, 3, 3), np.float32)}
    found = generated(text, weights, count=3)
    assert "pictures" in told(found, "x") and all(item["x"].shape == (1, 64, 64) for item in found)
    assert all(1 / 32 <= float(item["dt"][0]) < 1 / 16 for item in found)


def test_whole_numbers_that_count_rows_stay_those_of_the_first_sample() -> None:
    samples = load_samples(
        parse("g (float[1, 4] x, int64[1] n) => (float[1, 4] y, int64[1] m) { y = Neg(x)  m = Neg(n) }")
    )
    fine = int(next(iter(samples))["n"][0])

    def run(feeds: Any) -> Any:
        if int(feeds["n"][0]) != fine:
            raise AmpError("AMP504", "as many rows as it says")
        return {}

    assert {int(feeds["n"][0]) for feeds in samples} != {fine}
    fitted = list(samples.fit_to(run))
    assert {int(feeds["n"][0]) for feeds in fitted} == {fine} and len({feeds["x"].tobytes() for feeds in fitted}) == 8


PADDED = """g (float[b, n] x, float[b, m] s, int64 rate) => (float[b, t] y) {
  is = Equal(rate, sixteen)
  y = If (is) <then_branch = then () => (float[b, t] p) { w = Pad <mode = "reflect"> (x, wide)  p = Add(w, s) },
               else_branch = other () => (float[b, t] q) { q = Add(x, s) }> }"""


@needs_runtime("a reflected Pad wider than its input reads what lies beside it")
def test_a_failure_further_on_in_a_body_is_a_step_forward() -> None:
    """The padding wants more than is guessed, and the addition behind it another size beside it."""
    found = shapes(PADDED, {"sixteen": np.array(16000), "wide": np.array([0, 40, 0, 40])})
    assert found["x"][1] > 40 and found["s"][1] in (1, found["x"][1] + 80)


@pytest.mark.parametrize(("last", "size"), [("Softmax", (48, 240)), ("Relu", (256, 256))])
def test_a_reader_of_text_gets_a_line(last: str, size: tuple[int, int]) -> None:
    text = f"""g (float[N, 3, h, w] x) => (float[N, t, 26] y) {{
      c = Conv <strides = [8, 8]> (x, k)  p = ReduceMean <axes = [2], keepdims = 0> (c)
      q = Transpose <perm = [0, 2, 1]> (p)  l = MatMul (q, letters)  y = {last} (l) }}"""
    found = shapes(text, {"k": np.ones((8, 3, 8, 8), np.float32), "letters": np.ones((8, 26), np.float32)})
    assert found["x"] == (1, 3, *size)


# -- what the parts take and give -------------------------------------------------------------------------------------


def test_sines_and_numbers_of_generated_inputs() -> None:
    """A quarter of a turn is the least: the sign is turned. Both ends of a range are drawn."""
    assert painted._sine(np.arange(5) * painted.TURN // 4).tolist() == [0, -1, 0, 1, 0]
    numbers = RandomNumbers(3)
    assert {*numbers.integers(2, 4, (60,)).tolist()} == {2, 3, 4} and numbers.integers(5, 2, (3,)).tolist() == [5] * 3
    assert numbers.normal(()).shape == () and numbers.uniform((0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8 + 2*16", 40), ("9//2 - 1", 3), ("7/2*2", 6), ("8/0", None), ("(8 + 1)*2", None), ("- 3 + 5", 2)],
)
def test_arithmetic_in_the_name_of_a_dimension(text: str, size: int | None) -> None:
    assert _evaluate(text) == size


def test_a_range_is_narrowed_to_whole_numbers_from_zero_on() -> None:
    reading = Reading()
    assert not reading.bounded
    reading.narrow(0.5, 8.5, "t")
    reading.narrow(-3, 20, "wider")
    assert (reading.first, reading.last, reading.table, reading.bounded) == (1, 8, "t", True)
    reading.narrow(0, -1, "empty")
    assert (reading.first, reading.last, reading.table) == (1, 0, "empty")


def test_floats_that_are_steps_indices_and_masks() -> None:
    """A name says that a float is a time step; the graph that it becomes an index, or that it is a mask."""
    steps = generated("g (float[4] timestep) => (float[4] y) { y = Neg (timestep) }")
    assert all((one["timestep"] % 1 == 0).all() and 0 <= one["timestep"].min() <= 999 for one in steps)
    text = "g (float[5] at) => (float[5, 4] y) { i = Cast <to = 7> (at)  y = Gather (table, i) }"
    indexed = generated(text, {"table": TABLE})
    assert "whole numbers up to 6" in told(indexed, "at") and max(one["at"].max() for one in indexed) <= 6
    masked = generated("g (float[2, 8] my_mask) => (float[2, 8] y) { y = Neg (my_mask) }")
    assert [set(np.unique(one["my_mask"])) <= {0.0, 1.0} for one in masked] == [True] * len(masked)


def test_wide_samples_can_be_left_out() -> None:
    drawn = load_samples(parse("g (float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }"), None, count=6)
    wide = [drawn.is_wide(index) for index in range(6)]
    assert wide == [False, True, False] * 2
    usual = drawn.without_wide()
    assert len(usual) == len(list(usual)) == 4 and not any(usual.is_wide(index) for index in range(4))
    kept = [one["x"].tobytes() for one, wider in zip(drawn, wide, strict=True) if not wider]
    assert [one["x"].tobytes() for one in usual] == kept and usual.without_wide() is usual
    assert [len(drawn.first(number)) for number in (2, 9)] == [2, 6] == [len(list(drawn.first(n))) for n in (2, 9)]


def test_a_run_that_fails_for_another_reason_is_no_search_for_sizes() -> None:
    """Only AMP504 says that a size may be wrong; want of memory is none either."""
    drawn = load_samples(parse("g (float[n, 3] x) => (float[n, 3] y) { y = Neg (x) }"), None)
    for error in (AmpError("AMP503", "x"), NoMemory("out of memory")):

        def run(feeds: Any, error: AmpError = error) -> Any:
            raise error

        with pytest.raises(AmpError) as caught:
            drawn.fit_to(run)
        assert caught.value is error


def test_a_table_before_a_scaler_of_scikit_learn() -> None:
    means, deviations = np.array([9.0, 7000.0, 1e-5]), np.array([1.0, 500.0, 1e-6])
    scaler = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=means, scale=1 / deviations)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([scaler], "g", [x], [y]), opset_imports=opsets, ir_version=8)
    drawn = load_samples(model, None, count=1)
    (one,) = drawn
    assert (np.abs(one["x"] - means) < 6 * deviations).all()
