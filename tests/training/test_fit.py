"""Evaluation and fit: what they tell, their order, and what cannot be trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import SGD, Adam
from ampgraph.training.step.packed_forward import FORWARD
from onnx_text import parse
from training.steps import blobs, linear_step

DATA = blobs()


def test_evaluation_is_that_of_numpy_and_of_the_exported_model(tmp_path):
    trainer = Trainer(linear_step(SGD(0.5), low=True))
    trainer.fit(DATA, epochs=3, batch_size=16)
    held_out = blobs(50, 1)
    found = trainer.evaluate(held_out, batch_size=16)
    state = trainer.state
    scores = (held_out["x"] @ state["weight"] + state["bias"]).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    right = scores.argmax(1) == held_out["labels"]
    assert found["samples"] == 50 and found["accuracy"] == right.mean()
    assert found["loss"] == pytest.approx(-logs[np.arange(50), held_out["labels"]].mean(), rel=1e-5)
    trainer.export_weights(tmp_path / "trained.onnx")
    outputs = ampgraph.run(tmp_path / "trained.onnx", {"x": held_out["x"]})
    np.testing.assert_allclose(outputs["logits"], scores, rtol=1e-5, atol=1e-5)
    ampgraph.convert(tmp_path / "trained.onnx", output=tmp_path / "low.onnx")


def test_a_label_that_a_graph_of_unknown_width_has_not_got():
    model = parse(
        """g (float[N,4] x, int64[2] sizes) => (float[N,C] y) { a = MatMul (x, w)  y = Reshape (a, sizes) }""", opset=20
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    trainer = Trainer(ampgraph.build_training_step(model, loss="cross_entropy", optimizer="sgd", level="O0"), "cpu")
    data = {"x": np.ones((2, 4), np.float32), "sizes": np.array([2, 3]), "labels": np.array([0, 9])}
    with pytest.raises(AmpError, match="AMP503.*label 9") as found:
        trainer.evaluate(data)
    assert "0 to 2" in found.value.hint


def test_fit_learns_and_tells_every_epoch():
    trainer = Trainer(linear_step(Adam(0.05), DynamicLossScale(), clip=1.0))
    steps: list[Any] = []
    epochs: list[Any] = []
    history = trainer.fit(
        blobs(100),
        epochs=8,
        batch_size=16,
        validate=blobs(60, 1),
        on_step=lambda done, total, result: steps.append((done, total)),
        on_epoch=epochs.append,
    )
    assert steps == [(n, 48) for n in range(1, 49)]
    assert epochs == history.epochs and [epoch.number for epoch in epochs] == list(range(1, 9))
    assert history.dropped == 4 and len(history.losses) == 48 and history.finite.all()
    assert epochs[0].loss == pytest.approx(float(history.losses[:6].mean(dtype=np.float64)), rel=1e-6)
    assert epochs[-1].loss < epochs[0].loss / 2 and epochs[-1].validation["accuracy"] > 0.9


def test_a_second_fit_has_its_whole_schedule():
    trainer = Trainer(linear_step(SGD(0.5)))
    trainer.fit(DATA, epochs=1, batch_size=16)
    trainer.fit(DATA, epochs=2, batch_size=16, lr_schedule="cosine")
    table = trainer.value("step/learning_rates")
    assert trainer.updates == 18 and len(table) == 18
    assert (table[:7] == 0.5).all() and table[7] < 0.5 and table[-1] < 0.01


def test_a_step_without_a_forward_graph_trains_but_is_not_validated():
    step = linear_step()
    del step.model.metadata_props[FORWARD]
    trainer = Trainer(step)
    with pytest.raises(AmpError, match="AMP206"):
        trainer.fit(DATA, epochs=1, batch_size=16, validate=DATA)
    assert trainer.updates == 0
    assert len(trainer.fit(DATA, epochs=1, batch_size=16).losses) == 6


def test_numbers_of_numpy_are_numbers():
    rate: Any = np.float32(0.5)
    threads: Any = np.int64(1)
    of_numpy: dict[str, Any] = {"epochs": np.int64(2), "batch_size": np.int32(16), "seed": np.uint8(3)}
    one, other = Trainer(linear_step(SGD(rate))), Trainer(linear_step(SGD(0.5)), "cpu", threads=threads)
    one.fit(DATA, **of_numpy)
    other.fit(DATA, epochs=2, batch_size=16, seed=3)
    assert np.array_equal(one.state["weight"], other.state["weight"])


def test_the_order_of_samples_follows_from_the_seed():
    def weights(seed):
        trainer = Trainer(linear_step(SGD(0.5)))
        trainer.fit(DATA, epochs=2, batch_size=16, seed=seed)
        return trainer.state["weight"].tobytes()

    assert weights(0) == weights(0) != weights(1)


def test_steps_that_overflow_too_often_end_the_training():
    data = DATA | {"x": np.full_like(DATA["x"], np.inf)}
    trainer = Trainer(linear_step(scale=DynamicLossScale(patience=5)))
    with pytest.raises(AmpError, match="AMP504") as found:
        trainer.fit(data, epochs=2, batch_size=16)
    assert "6 steps in a row" in str(found.value)


@pytest.mark.parametrize(
    "change, code, told",
    [
        ({"epochs": 0}, "AMP325", "epochs=0"),
        ({"seed": -1}, "AMP325", "seed=-1"),
        ({"resume": True}, "AMP325", "no checkpoint"),
        ({"batch_size": 0}, "AMP503", "batch size 0"),
        ({"batch_size": 97}, "AMP503", "96 samples do not fill"),
        ({"epochs": 1.0}, "AMP325", "epochs=1.0"),
        ({"epochs": True}, "AMP325", "epochs=True"),
        ({"lr_schedule": "cosine:warmup=99"}, "AMP324", "takes all 6 updates"),
        ({"lr_schedule": "step:every=1,gamma=1e30"}, "AMP324", "update 3 is beyond"),
        ({"lr_schedule": ["a"]}, "AMP324", "one row of numbers"),
        ({"data": {"x": DATA["x"]}}, "AMP503", "'labels'"),
        ({"data": DATA | {"labels": DATA["labels"][:5]}}, "AMP503", "96 samples and 'labels' 5"),
        ({"data": DATA | {"labels": DATA["labels"] + 1}}, "AMP503", "label 3"),
        ({"data": DATA | {"x": DATA["x"][:, :2]}}, "AMP503", "shape"),
        ({"validate": {"x": DATA["x"]}}, "AMP503", "'labels'"),
        ({"data": [1, 2]}, "AMP503", "a batch of data is a int"),
    ],
)
def test_what_cannot_be_trained_is_told_before_the_first_step(change, code, told):
    trainer = Trainer(linear_step())
    before = trainer.state
    with pytest.raises(AmpError, match=code) as found:
        trainer.fit(**{"data": DATA, "epochs": 1, "batch_size": 16, **change})
    assert told in str(found.value) and found.value.hint
    assert all(np.array_equal(before[key], trainer.state[key]) for key in before)
