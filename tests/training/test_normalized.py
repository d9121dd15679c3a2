"""Normalised data: the arithmetic, by channel too, from every source, and what cannot be normalised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run.normalized import Normalized, normalized
from ampgraph.training.run.step_inputs import StepInputs
from cli_helpers import refused
from onnx_text import parse

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 3, 4, 5)).astype(np.uint8)
LABELS = RNG.integers(0, 3, 20)
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def step_of(*sizes):
    """A step that takes samples of some sizes and means over all axes but the last."""
    axes = ", ".join(str(axis) for axis in range(1, len(sizes)))
    shape = ", ".join(map(str, sizes))
    body = "m = ReduceMean <keepdims = 0> (x, axes)  y = MatMul (m, w)" if axes else "y = MatMul (x, w)"
    given = f"<int64[{len(sizes) - 1}] axes = {{{axes}}}>" if axes else ""
    text = f"g (float[N,{shape}] x) => (float[N,3] y) {given} {{ {body} }}"
    return build_training_step(
        parse(text, w=np.full((sizes[-1], 3), 0.5, np.float32)), loss="cross_entropy", optimizer="sgd", level="O0"
    )


def rows_of(data, *sizes):
    return next(iter(StepInputs(step_of(*sizes)).dataset(data).in_order(20, whole=True)))["x"]


def expected():
    """As torchvision does: to [0, 1], then by channel."""
    wide = IMAGES.astype(np.float64) / 255
    return (wide - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))


@pytest.mark.parametrize("source", ["arrays", "npy", "npz", "batches", "tensors"])
def test_pixels_become_what_torchvision_makes_of_them(source, tmp_path):
    arrays: dict[str, np.ndarray] = {"x": IMAGES, "labels": LABELS}
    if source == "npy":
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", x=IMAGES, labels=LABELS) if source == "npz" else None
    rows = [arrays, tmp_path, tmp_path / "all.npz", [arrays], [(torch.tensor(IMAGES), torch.tensor(LABELS))]]
    data = dict(zip(["arrays", "npy", "npz", "batches", "tensors"], rows, strict=True))[source]
    found = rows_of(ampgraph.Normalized(data, 1 / 255, MEAN, STD), 3, 4, 5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(), atol=1e-6)


def test_channels_are_axis_1_or_the_last():
    last = {"x": np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1)), "labels": LABELS}
    found = rows_of(Normalized(last, 1 / 255, MEAN, STD), 4, 5, 3)
    np.testing.assert_allclose(found.transpose(0, 3, 1, 2), expected(), atol=1e-6)
    for sizes, words in (((3, 4, 3), "two axes have"), ((4, 3, 5), "neither axis 1 nor the last")):
        with pytest.raises(AmpError, match=f"AMP325.*3 channels.*{words}"):
            rows_of(Normalized({"x": np.zeros((20, *sizes), np.uint8), "labels": LABELS}, 1, MEAN), *sizes)


def test_channels_that_come_last_are_not_read_as_first():
    with pytest.raises(AmpError, match="AMP503.*'x'"):
        rows_of({"x": IMAGES.transpose(0, 2, 3, 1), "labels": LABELS}, 3, 4, 5)
    flat = rows_of({"x": IMAGES.reshape(20, 3, 20), "labels": LABELS}, 3, 4, 5)
    np.testing.assert_array_equal(flat, IMAGES)


def test_a_checkpoint_knows_how_its_data_was_normalised(tmp_path):
    data = {"x": IMAGES, "labels": LABELS}
    fit = {"epochs": 1, "batch_size": 10, "checkpoint": tmp_path}
    ampgraph.Trainer(step_of(3, 4, 5), "cpu").fit(Normalized(data, 1 / 255), **fit)
    trainer = ampgraph.Trainer(step_of(3, 4, 5), "cpu")
    assert not trainer.fit(Normalized(data, 1 / 255), resume=True, **fit).epochs
    for other in (data, Normalized(data, 1 / 256), Normalized(data, 1 / 255, 0.5)):
        with pytest.raises(AmpError, match="AMP405.*other data"):
            trainer.fit(other, resume=True, **fit)
    measured = trainer.evaluate(Normalized(data, 1 / 255))
    assert measured["loss"] < trainer.evaluate(data)["loss"]


def test_two_inputs_are_named():
    text = "g (float[N,3] a, float[N,3] b) => (float[N,3] y) { c = Add (a, b)  y = MatMul (c, w) }"
    step = build_training_step(parse(text, w=np.eye(3, dtype=np.float32)), loss="cross_entropy", optimizer="sgd")
    feeds = StepInputs(step)
    data = {"a": np.ones((4, 3), np.float32), "b": np.ones((4, 3), np.float32), "labels": np.zeros(4, np.int64)}
    made = feeds.dataset(Normalized(Normalized(data, 2.0, input="a"), mean=0.5, std=0.25, input="b"))
    [rows] = made.in_order(4, whole=True)
    assert rows["a"].max() == rows["b"].min() == 2
    for name, words in (("", "2 inputs can be normalised: a, b"), ("labels", "'labels' is no float32 input")):
        with pytest.raises(AmpError, match=f"AMP325.*{words}"):
            feeds.dataset(Normalized(data, 2.0, input=name))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"scale": 0}, "scale=0 is no factor"),
        ({"scale": float("nan")}, "scale=nan is no factor"),
        ({"std": 0}, "std=0 divides"),
        ({"std": (1.0, -1.0)}, "std=-1 divides"),
        ({"mean": "0.5"}, "mean='0.5' is neither"),
        ({"mean": ()}, r"mean=\(\) is neither"),
        ({"mean": (1, 2), "std": (1, 2, 3)}, "2 means and 3 deviations"),
    ],
)
def test_numbers_that_make_no_sense(given, words):
    with pytest.raises(AmpError, match=f"AMP325.*{words}") as caught:
        Normalized({}, **given)
    assert caught.value.hint


def test_the_words_of_a_command_line():
    assert normalized("d", ["0.1307,0.3081"], ["1/255"]) == Normalized("d", 1 / 255, 0.1307, 0.3081)
    assert normalized("d", ["x = 1 2,3 4"], []) == Normalized("d", 1.0, (1, 2), (3, 4), "x")
    assert normalized("d", ["a=1,2"], ["b=3"]) == Normalized(Normalized("d", 3.0, input="b"), 1.0, 1.0, 2.0, "a")
    assert normalized("d", [], []) == "d"
    for words, told in ((["0.5"], "not MEAN,STD"), (["=1,2"], "names no input"), (["1,two"], "'two' is not a number")):
        with pytest.raises(AmpError, match=f"AMP325.*{told}"):
            normalized("d", words, [])
    with pytest.raises(AmpError, match="AMP325.*'1/0' is not a number"):
        normalized("d", [], ["1/0"])


@pytest.mark.slow
def test_on_the_command_line(tmp_path, amp):
    step_of(3, 4, 5).save(tmp_path / "step.onnx")
    np.savez(tmp_path / "d.npz", x=IMAGES, labels=LABELS)
    words = ("train", tmp_path / "step.onnx", "--data", tmp_path / "d.npz", "--epochs", 1, "--batch-size", 10, "--json")
    losses = [amp(*words, *more) for more in ((), ("--scale", "1/255", "--normalize", "0.49 0.48 0.45,0.25"))]
    assert all(status == 0 for status, _, _ in losses) and losses[0][1] != losses[1][1]
    refused(amp(*words, "--normalize", "0.5"), "AMP325", "MEAN,STD")
