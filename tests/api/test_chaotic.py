"""A model that its inputs' own rounding takes beyond the tolerance is named as such, with how much that is."""

import re
import warnings

import numpy as np
import pytest

import ampgraph
from ampgraph.core.verdict import CheckVerdict
from onnx_text import parse

FOLDS = 8  # of the tent map, each of which doubles a difference
FOLD = "b{0} = Abs(a{0})  c{0} = Mul(b{0}, two)  a{1} = Sub(one, c{0})"
CHAOTIC = f"""
agraph (float[4,8] x) => (float[4,8] a{FOLDS}) {{
  p = MatMul(x, w)
  a0 = Tanh(p)
  {"  ".join(FOLD.format(i, i + 1) for i in range(FOLDS))}
}}"""
WEIGHTS = {"w": np.eye(8, dtype=np.float32), "one": np.float32(1), "two": np.float32(2)}
SAID = r"the model is chaotic in itself: rounding its inputs alone changes it by ([0-9.]+)"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(parse(CHAOTIC, WEIGHTS).SerializeToString())
    return file


def verdict_of(caught: warnings.WarningMessage) -> CheckVerdict:
    assert isinstance(caught.message, ampgraph.PrecisionWarning)
    return caught.message.verdict


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_the_check_names_it(path):
    with pytest.warns(ampgraph.PrecisionWarning, match=SAID) as caught:
        ampgraph.convert(path, output=path.parent / "low.onnx", check="auto")
    verdict = verdict_of(caught[0])
    assert verdict.missed and verdict.sensitivity is not None and 0.02 < verdict.sensitivity < 0.5


def test_verify_names_it_where_it_misses_and_only_there(path):
    low = ampgraph.convert(path)
    notes = [note for note in ampgraph.verify(path, low).notes if re.search(SAID, note)]
    assert len(notes) == 1 and notes[0].endswith(f"at 'a{FOLDS}'")
    assert not any(re.search(SAID, note) for note in ampgraph.verify(path, low, tolerance=0.9).notes)


def test_tune_names_it(path):
    found = ampgraph.tune(path, samples=2)
    assert found.patterns and any(re.search(SAID, note) for note in found.notes)


@pytest.mark.usefixtures("check_here")
@pytest.mark.slow
def test_what_is_wrong_by_its_nodes_alone_is_not_chaotic(tmp_path):
    text = "agraph (float[4,64] x) => (float[4,64] y) { a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big) }"
    weights = {"w": np.eye(64, dtype=np.float32), "big": np.full(64, 100, np.float32)}
    source = tmp_path / "model.onnx"
    source.write_bytes(parse(text, weights).SerializeToString())
    with pytest.warns(ampgraph.PrecisionWarning) as caught:
        ampgraph.convert(source, output=tmp_path / "low.onnx", check="auto")
    assert verdict_of(caught[0]).sensitivity is None


def test_verify_says_that_an_output_vanishes():
    text = "agraph (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  y = MatMul(a, w) }"
    for size, said in (1e-4, True), (1e-1, False):
        model = parse(text, w=np.eye(8, dtype=np.float32) * np.float32(size))
        found = ampgraph.verify(model, ampgraph.convert(model), samples=2)
        assert found.ok and any("'y' vanishes in float16" in note for note in found.notes) == said
