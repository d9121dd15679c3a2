"""Several micro-batches in one update: that of the whole batch, one check for all, and no state changed half-way."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.models import digits
from ampgraph.training.run.checkpoint import load
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.trainer import Trainer
from cli_helpers import refused
from npz import write_npz
from onnx_text import parse
from present import present
from training.small_steps import BATCH, batches, regression
from training.test_checkpoint import Killed, _kill_at
from training.test_cut import CNN, SCALE, bits

pytestmark = pytest.mark.slow  # a grid: many small cases

FROZEN = ("*running_mean", "*running_var")


def built(model=None, **options):
    return build_training_step(regression() if model is None else model, **{"loss": "loss", **options})


def worst(one, other):
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max(initial=0)) for name in one)


@pytest.mark.parametrize("scale", [None, "static:1024", SCALE])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_update_of_the_whole_batch(scale, parts):
    """16 samples in 3 micro-batches are 5, 5 and 6."""
    step = built(optimizer="sgd:lr=0.1,momentum=0.9", level="O0", loss_scale=scale, clip_norm=0.5)
    whole, shared = Trainer(step, "cpu", threads=1), Trainer(step, "cpu", threads=1, accumulate=parts)
    for batch in batches(8):
        one, other = whole.step(batch), shared.step(batch)
        assert abs(one.loss - other.loss) <= 2.4e-7 and abs(present(one.grad_norm) - present(other.grad_norm)) <= 1e-6
        assert (one.finite, one.scale) == (other.finite, other.scale)
    assert worst(whole.state, shared.state) <= 5e-7


@pytest.mark.slow
def test_a_cnn_of_digits():
    """Statistics of the batch and Dropout are of the micro-batch, so both are off: 2.4e-7 over 12 steps."""
    model = onnx.load(CNN)
    for node in [node for node in model.graph.node if node.op_type == "Dropout"]:
        for reader in model.graph.node:
            reader.input[:] = [node.input[0] if name == node.output[0] else name for name in reader.input]
        model.graph.node.remove(node)
    (image, labels), _ = digits.load_split()
    step = built(model, loss="cross_entropy", optimizer="sgd:lr=0.05", level="O0", freeze=FROZEN)
    whole, shared = Trainer(step, "cpu", threads=1), Trainer(step, "cpu", threads=1, accumulate=4)
    for number in range(12):
        batch = {"image": image[32 * number : 32 * number + 32], "labels": labels[32 * number : 32 * number + 32]}
        assert abs(whole.step(batch).loss - shared.step(batch).loss) <= 2.4e-7


def test_no_two_micro_batches_draw_one_mask():
    """The loss is the part that Dropout keeps: two micro-batches of equal rows keep different elements."""
    model = parse(
        """g (float[N,64] x) => (float loss) {
          y = Mul (x, w) r = Constant <value = float {0.5}> () on = Constant <value = bool {1}> ()
          d = Dropout (y, r, on) s = Mul (d, d) loss = ReduceMean <keepdims = 0> (s) }""",
        w=np.ones(64, np.float32),
    )
    step = built(model, optimizer="sgd:lr=1", level="O0")
    trainer = Trainer(step, "cpu", accumulate=2)
    start = trainer.value("w")
    trainer.step({"x": np.ones((2, 64), np.float32)})
    moved = start - trainer.value("w")
    assert len(np.unique(moved.round(6))) == 3  # kept in none, in one, in both
    assert int(trainer.value("step/iteration")) == 1


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_an_overflow_in_one_micro_batch_skips_the_whole(bad):
    step = built(optimizer="adamw", level="O2", loss_scale=SCALE)
    trainer = Trainer(step, "cpu", strict=True, accumulate=4)
    first, second = batches(2)
    trainer.step(first)
    before = trainer.state
    second["x"][bad * BATCH // 4] *= np.float32(1e30)
    result = trainer.step(second)
    after = trainer.state
    assert (result.finite, result.scale) == (False, 512)
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"step/scale", "step/counter"}
    assert trainer.step(first).finite


def test_labels_that_are_left_out_weigh_nothing():
    """The mean is over the labels that count, whatever micro-batch they are in; one has none."""
    model = parse("g (float[N,4] x) => (float[N,3] y) { y = MatMul (x, w) }", w=np.ones((4, 3), np.float32))
    step = built(model, loss="cross_entropy", optimizer="sgd:lr=1", level="O0")
    x = np.random.default_rng(1).standard_normal((12, 4)).astype(np.float32)
    labels = np.array([0, 1, -100, 2, -100, -100, -100, -100, 1, 1, 2, -100])
    whole, shared = Trainer(step, "cpu"), Trainer(step, "cpu", accumulate=3)
    one, other = (trainer.step({"x": x, "labels": labels}) for trainer in (whole, shared))
    assert abs(one.loss - other.loss) <= 2.4e-7 and worst(whole.state, shared.state) <= 2.4e-7


@pytest.mark.slow
def test_running_statistics_go_through_every_micro_batch():
    step = built(str(CNN), loss="cross_entropy", optimizer="sgd:lr=0", level="O0")
    (image, labels), _ = digits.load_split()
    whole, shared = Trainer(step, "cpu", threads=1), Trainer(step, "cpu", threads=1, accumulate=2)
    shared.step({"image": image[:32], "labels": labels[:32]})
    for rows in (slice(0, 16), slice(16, 32)):
        whole.step({"image": image[rows], "labels": labels[rows]})
    name = "features.1.running_mean"  # in front of any Dropout
    np.testing.assert_allclose(shared.value(name), whole.value(name), rtol=1e-6)


def test_a_step_of_a_fixed_batch_size_takes_it_in_each_part():
    model = parse("g (float[4,4] x) => (float[4,3] y) { y = MatMul (x, w) }", w=np.ones((4, 3), np.float32))
    trainer = Trainer(built(model, loss="mse", optimizer="sgd", level="O0"), "cpu", accumulate=2)
    trainer.step({"x": np.ones((8, 4), np.float32), "labels": np.ones((8, 3), np.float32)})
    assert trainer.feeds.check_batch_size(8) == 8
    with pytest.raises(AmpError, match="takes 8 samples at once, not 4"):
        trainer.feeds.check_batch_size(4)


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "2"])
def test_no_number_of_micro_batches(given):
    with pytest.raises(AmpError, match="AMP325"):
        Trainer(built(optimizer="sgd"), "cpu", accumulate=given)


def test_a_batch_that_is_too_small_or_uneven():
    trainer = Trainer(built(optimizer="sgd", level="O0"), "cpu", accumulate=4)
    batch = {name: array[:3] for name, array in next(batches(1)).items()}
    before = bits(trainer.state)
    with pytest.raises(AmpError, match="AMP503.*a batch of 3 is too small for 4 micro-batches"):
        trainer.step(batch)
    with pytest.raises(AmpError, match="AMP503"):
        trainer.feeds.check_batch_size(3)
    assert bits(trainer.state) == before


@pytest.mark.slow
def test_going_on_ends_in_the_same_bytes(tmp_path):
    step = built(optimizer="adamw", level="O2", loss_scale=SCALE)
    feeds = list(batches(3))
    data = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}

    def trainer(parts=2):
        return Trainer(step, "cpu", strict=True, threads=1, accumulate=parts)

    def fit(one, folder, **more):
        return one.fit(data, epochs=2, batch_size=16, checkpoint=tmp_path / folder, checkpoint_every=1, **more)

    fit(trainer(), "whole")
    with pytest.raises(Killed):
        fit(trainer(), "cut", on_step=_kill_at(4))
    with pytest.raises(AmpError, match="AMP405.*accumulate=2, not 1"):
        fit(trainer(1), "cut", resume=True)
    fit(trainer(), "cut", resume=True)
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()
    fit(trainer(1), "one")
    assert b"accumulate" not in (tmp_path / "one" / FILE).read_bytes()
    assert [load(tmp_path / name / FILE).position.accumulate for name in ("one", "cut")] == [1, 2]


@pytest.mark.slow
def test_on_the_command_line(tmp_path, amp):
    built(optimizer="sgd", level="O0").save(tmp_path / "step.onnx")
    write_npz(tmp_path / "train.npz", next(batches(1)))
    words = ["train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--epochs", 1, "--batch-size", 16]
    status, out, _ = amp(*words, "--accumulate", 4, "--json")
    assert (status, json.loads(out)["steps"]) == (0, 1)
    refused(amp(*words, "--accumulate", 0), "AMP325", "accumulate=0")
