"""Generated inputs are what a model may really get: pictures, text, sound, spectra, of the magnitude that it takes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from ampgraph.numerics.inputs.generate import KINDS, Numbers, made
from ampgraph.numerics.inputs.painted import page, pictures
from ampgraph.numerics.inputs.samples import load_samples
from onnx_text import parse

PICTURE = "g (float[1, 3, 32, 48] x) => (float[1, 4, 30, 46] y) {{ {0} }}"
PIXELS = "of 0 to 255"


def drawn(text: str, weights: dict[str, Any], count: int = 3) -> tuple[str, list[Any]]:
    """What is said of the first input, and its samples."""
    samples = load_samples(parse(text, opset=17, **weights), count=count)
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
    ],
)
def test_how_bright_a_picture_is_the_first_operators_say(body: str, size: float, pixels: bool) -> None:
    ends = {"a": np.array([0]), "b": np.array([1])}
    scale = {"most": np.float32(255), "mean": np.full((3, 1, 1), 123, np.float32)}
    note, arrays = drawn(PICTURE.format(body), {"w": kernel(size), **ends, **scale})
    assert (PIXELS in note) == pixels
    assert max(array.max() for array in arrays) == pytest.approx(255 if pixels else 2.5, rel=0.3)
    assert pixels or {round(float(array.min())) for array in arrays} >= {0, -1}


def test_bytes_of_a_picture_are_one() -> None:
    note, arrays = drawn("g (uint8[1, 32, 48, 3] x) => (uint8[1, 32, 48, 3] y) { y = Identity(x) }", {})
    assert note.endswith("pictures of 0 to 255") and len(np.unique(arrays[0])) < 200 < arrays[0].max()


def test_a_line_of_text_has_ink_and_paper_and_letters() -> None:
    for number in range(6):
        text = page(Numbers(number), 48, 240)
        assert (text > 0.9).mean() > 0.4 and 0.05 < (text < 0.6).mean() < 0.4
        columns = (text < 0.6).any(0)
        assert (np.diff(columns.astype(int)) == 1).sum() >= 3  # letters with gaps between them


def test_pictures_are_smooth_with_edges_and_their_channels_agree() -> None:
    for index in range(3):
        array = pictures(Numbers(index), (1, 3, 96, 96), index)[0]
        steps = np.abs(np.diff(array.mean(0), axis=0))
        assert np.median(steps) < 0.1 < steps.max()
        assert np.corrcoef(array.reshape(3, -1)).min() > 0.9
    last = pictures(Numbers(0), (1, 96, 96, 3), 0)[0]
    assert np.array_equal(last.transpose(2, 0, 1), pictures(Numbers(0), (1, 3, 96, 96), 0)[0])


def test_sound_is_loud_and_quiet_with_silence() -> None:
    _, arrays = drawn("g (float[1, samples] wave) => (float[1, n] y) { y = Identity(wave) }", {})
    peaks = [float(np.abs(array).max()) for array in arrays]
    assert arrays[0].shape == (1, 16000) and max(peaks) > 0.8 and min(peaks) < 0.15
    assert not arrays[0][0, -1600:].any()


def test_spectra_are_of_several_scales() -> None:
    note, arrays = drawn("g (float[1, frames, 80] mel) => (float[1, n, 80] y) { y = Identity(mel) }", {})
    assert "spectra" in note and [round(float(array.min())) for array in arrays] == [-1, -11, 0]


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


def test_all_kinds_are_the_same_on_every_machine() -> None:
    shapes = {"sound": (1, 5000), "spectrum": (1, 64, 80), "scaled": (3, 5)}
    blobs = [made(k, Numbers(1), shapes.get(k, (1, 3, 40, 60)), i).tobytes() for k in KINDS for i in range(3)]
    assert hashlib.sha256(b"".join(blobs)).hexdigest()[:16] == "75ad6306ee5cd06b"


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
    ones = {"one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)}
    weights = {name: array for name, array in {**TABLES, **ones}.items() if name in body.replace("(", " ( ")}
    note, arrays = drawn(f"g (float[64, 3] x) => (float[64, 3] y) {{ {body} }}", weights, count=1)
    assert "means that the model takes off" in note
    assert np.all(np.abs(arrays[0].mean(0) - MEANS) <= 0.5 * DEVIATIONS)
    assert np.allclose(arrays[0].std(0), DEVIATIONS, rtol=0.4)


@pytest.mark.parametrize("body", ["y = Sub(m, x)", "y = Add(x, one)", "y = Mul(x, m)"])
def test_other_arithmetic_says_nothing_of_a_table(body: str) -> None:
    note, _ = drawn(f"g (float[8, 3] x) => (float[8, 3] y) {{ {body} }}", {"m": MEANS, "one": np.float32(1)})
    assert "standard normal" in note
