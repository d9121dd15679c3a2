"""The trainer: steps against numpy, state that stays and is put back, and what is refused."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale, StaticLossScale
from ampgraph.training.step.optimizers import SGD, Adam
from ampgraph.training.step.training_step import TrainingStep
from training.steps import CLASSES, blobs, linear_step

DATA = blobs()


def batch(start=0, count=16, data=DATA):
    return {name: array[start : start + count] for name, array in data.items()}


def reference(steps, rates):
    """The same regression in numpy, float64."""
    state = linear_step().initial_state
    weight, bias = state["weight"].astype(np.float64), state["bias"].astype(np.float64)
    losses = []
    for number in range(steps):
        x, labels = batch(16 * number).values()
        scores = x @ weight + bias
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        losses.append(-np.log(chances[np.arange(16), labels]).mean())
        error = (chances - np.eye(CLASSES)[labels]) / 16
        weight, bias = weight - rates[number] * x.T @ error, bias - rates[number] * error.sum(0)
    return weight, bias, losses


def test_steps_are_those_of_numpy():
    trainer = Trainer(linear_step(SGD(0.5)))
    losses = [trainer.step(batch(16 * number)).loss for number in range(6)]
    weight, bias, expected = reference(6, [0.5] * 6)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(trainer.state["weight"], weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trainer.state["bias"], bias, rtol=1e-4, atol=1e-6)


def test_learning_rates_come_from_the_table_and_the_last_one_holds():
    trainer = Trainer(linear_step(SGD(0.5)))
    trainer.set_rates(np.array([0.5, 0.1, 0.0], np.float32))
    for number in range(5):
        trainer.step(batch(16 * number))
    weight, _, _ = reference(5, [0.5, 0.1, 0, 0, 0])
    np.testing.assert_allclose(trainer.state["weight"], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_results_are_read_late_and_each_is_its_own():
    trainer = Trainer(linear_step(SGD(0.5), DynamicLossScale(init=4, interval=2), clip=1.0))
    results = [trainer.step(batch(16 * number)) for number in range(6)]
    gc.collect()
    again = Trainer(linear_step(SGD(0.5), DynamicLossScale(init=4, interval=2), clip=1.0))
    for number, late in enumerate(results):
        now = again.step(batch(16 * number))
        assert (late.loss, late.finite, late.scale, late.grad_norm) == (now.loss, now.finite, now.scale, now.grad_norm)
    assert [result.scale for result in results] == [4, 8, 8, 16, 16, 32]
    assert len({result.loss for result in results}) == 6


def test_what_a_step_does_not_compute():
    result = Trainer(linear_step()).step(batch())
    assert (result.finite, result.scale, result.grad_norm) == (True, 1.0, None)
    assert Trainer(linear_step(scale=StaticLossScale(128.0))).step(batch()).scale == 128


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("strict", [False, True])
def test_a_step_that_overflows_changes_the_scale_alone(bad, strict):
    trainer = Trainer(linear_step(Adam(0.1), DynamicLossScale(init=1024), counted=True), strict=strict)
    trainer.step(batch())
    before = trainer.state
    poisoned = batch(16)
    poisoned["x"] = poisoned["x"].copy()
    poisoned["x"][3, 2] = bad
    result = trainer.step(poisoned)
    after = trainer.state
    assert (result.finite, result.scale) == (False, 512)
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"step/scale", "step/counter", "step/iteration"}
    assert trainer.step(batch(16)).finite


def test_only_a_strict_run_sees_an_overflow_in_float16():
    """300 * 300 * 4 is beyond float16, and a plain CPU run computes in float32."""
    big = {"x": np.full((4, 4), 300, np.float32), "labels": np.zeros(4, np.int64)}
    step = linear_step(SGD(0.1), DynamicLossScale(init=2.0**15), low=True)
    assert not Trainer(step, strict=True).step(big).finite


def test_a_batch_may_change_size_and_is_not_kept():
    trainer = Trainer(linear_step())
    given = batch(0, 16)
    kept = {name: array.copy() for name, array in given.items()}
    for count in (16, 3, 7):
        trainer.step({name: array[:count] for name, array in given.items()})
    assert all(np.array_equal(given[name], kept[name]) for name in kept)


def test_state_that_steps_only_read_stays_as_it_was():
    trainer = Trainer(linear_step(Adam(0.1), StaticLossScale(8.0), low=True), strict=True)
    first = trainer.state
    for number in range(4):
        trainer.step(batch(16 * number))
    for entry in trainer.layout.states:
        same = np.array_equal(first[entry.name], trainer.value(entry.name))
        assert same == (not entry.output), entry.name


def test_state_put_back_gives_the_same_steps():
    trainer = Trainer(linear_step(Adam(0.1), DynamicLossScale(interval=2), counted=True))
    trainer.step(batch())
    held = trainer.state
    first = [trainer.step(batch(16 * n)).loss for n in range(3)]
    trainer.load_state(held)
    assert [trainer.step(batch(16 * n)).loss for n in range(3)] == first
    other = Trainer(linear_step(Adam(0.1), DynamicLossScale(interval=2), counted=True))
    other.load_state(held)
    assert [other.step(batch(16 * n)).loss for n in range(3)] == first


def test_a_path_is_as_good_as_a_step(tmp_path):
    step = linear_step(SGD(0.5))
    step.save(tmp_path / "step.onnx")
    assert Trainer(str(tmp_path / "step.onnx")).step(batch()).loss == Trainer(step).step(batch()).loss


WRONG = {
    "missing": (lambda b: b.pop("x"), "no value for input 'x'"),
    "unknown": (lambda b: b.update(y=b["x"]), "no input 'y'"),
    "sizes": (lambda b: b.update(x=b["x"][:, :3]), r"shape \[16, 3\]"),
    "rank": (lambda b: b.update(x=b["x"][0]), r"shape \[4\]"),
    "type": (lambda b: b.update(x=b["x"].astype(np.int32)), "int32 was fed"),
    "beyond float32": (lambda b: b.update(x=b["x"] * np.float64(1e300)), "float32 ends at"),
    "a column": (lambda b: b.update(labels=b["labels"][:, None]), r"labels\[..., 0\]"),
    "one-hot": (lambda b: b.update(labels=np.eye(3, dtype=np.int64)[b["labels"]]), r"labels.argmax\(-1\)"),
    "rows": (lambda b: b.update(labels=b["labels"][:8]), "'batch' is 16 in input 'x' and 8"),
    "too great": (lambda b: b.update(labels=b["labels"] + 1), "label 3 at"),
    "negative": (lambda b: b.update(labels=b["labels"] - 1), "label -1 at"),
    "floats": (lambda b: b.update(labels=b["labels"].astype(np.float32)), "float32 was fed"),
    "no array": (lambda b: b.update(x=[[1], [2, 3]]), "not an array"),
    "nothing": (lambda b: b.update(x=b["x"][:0], labels=b["labels"][:0]), "is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_batch_that_does_not_fit_is_refused_before_it_runs(name):
    change, told = WRONG[name]
    trainer = Trainer(linear_step())
    before, wrong = trainer.state, batch()
    change(wrong)
    with pytest.raises(AmpError, match="AMP503") as found:
        trainer.step(wrong)
    assert re.search(told, str(found.value)) and found.value.hint
    assert all(np.array_equal(before[key], trainer.state[key]) for key in before)
    trainer.step(batch())


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_floats_of_another_size_are_data(dtype):
    given = batch() | {"x": batch()["x"].astype(np.float16)}
    loss = Trainer(linear_step()).step({**given, "x": given["x"].astype(np.float32)}).loss
    assert Trainer(linear_step()).step({**given, "x": given["x"].astype(dtype)}).loss == loss


def test_small_integers_are_labels_and_the_ignored_one_is_let_through():
    small = batch() | {"labels": batch()["labels"].astype(np.uint8)}
    assert Trainer(linear_step()).step(small).loss == Trainer(linear_step()).step(batch()).loss
    ignored = batch()
    ignored["labels"] = np.where(np.arange(16) < 2, -100, ignored["labels"])
    assert Trainer(linear_step()).feeds.checked(ignored)["labels"][0] == -100


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda s: s.pop("weight"), "no 'weight'"),
        (lambda s: s.update(wieght=s["weight"]), "did you mean 'weight'"),
        (lambda s: s.update(weight=s["weight"][:2]), "not float32"),
        (lambda s: s.update(weight=s["weight"].astype(np.float64)), "float64"),
        (lambda s: s.update(weight=[[1], [2, 3]]), "no array"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, told):
    trainer = Trainer(linear_step())
    state = trainer.state
    change(state)
    with pytest.raises(AmpError, match="AMP405") as found:
        trainer.load_state(state)
    assert told in str(found.value) + found.value.hint
    trainer.step(batch())


def test_what_is_no_dictionary_is_told():
    trainer = Trainer(linear_step())
    wrong: list[Any] = [[1], None, 3]
    for use, code in ((trainer.step, "AMP503"), (trainer.evaluate, "AMP503"), (trainer.load_state, "AMP405")):
        for given in wrong:
            with pytest.raises(AmpError, match=code) as found:
                use(given)
            assert found.value.hint
    numbers: list[Any] = [-1, 1.5, True, "2"]
    for threads in numbers:
        with pytest.raises(AmpError, match="AMP325"):
            Trainer(linear_step(), "cpu", threads=threads)


def test_devices_that_are_not_here_or_unknown():
    with pytest.raises(AmpError, match="AMP321"):
        Trainer(linear_step(), "gpx")
    with pytest.raises(AmpError, match="AMP323"):
        Trainer(linear_step(), "cuda", strict=True)


def test_a_model_that_is_no_step(tmp_path):
    step = linear_step()
    TrainingStep(trained_model(step, step.initial_state), step.layout).save(tmp_path / "f.onnx")
    with pytest.raises(AmpError, match="AMP206") as found:
        Trainer(tmp_path / "f.onnx")
    assert "build-step" in found.value.hint


# -- whole steps ------------------------------------------------------------------------------------------------------


def normed(path):
    """Conv, BatchNormalization, pooling, MatMul; no exporter says what is a parameter."""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 1, 3, 3), "scale": (4,), "shift": (4,), "mean": (4,), "variance": (4,), "out": (4, CLASSES)}
    stored = {name: rng.uniform(0.5, 1.0, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "out"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])
    kept = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "normed", [x], [y], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return stored


@pytest.mark.parametrize("level, dtype", [("O0", "float16"), ("O2", "float16"), ("O3", "float16"), ("O3", "bfloat16")])
def test_running_statistics_and_low_state(tmp_path, level, dtype):
    stored = normed(tmp_path / "normed.onnx")
    step = ampgraph.build_training_step(
        tmp_path / "normed.onnx", loss="cross_entropy", optimizer="sgd:lr=0.1,momentum=0.9", level=level, dtype=dtype
    )
    assert step.parameters == ["w", "scale", "shift", "out"]
    trainer, again = (Trainer(step, strict=True, threads=1) for _ in range(2))
    rng = np.random.default_rng(1)
    data = {"x": rng.standard_normal((24, 1, 6, 6)).astype(np.float32), "labels": np.arange(24) % CLASSES}
    for start in (0, 8):
        trainer.step(batch(start, 8, data))
    state = trainer.state
    assert {state[name].dtype.name for name in step.parameters} == {dtype if level == "O3" else "float32"}
    assert not np.array_equal(state["mean"], stored["mean"]) and state["mean"].dtype == np.float32
    trainer.save(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    assert trainer.step(batch(16, 8, data)).loss == again.step(batch(16, 8, data)).loss
    measured = trainer.evaluate(data)
    trainer.export_weights(tmp_path / "trained.onnx")
    scores = ampgraph.run(tmp_path / "trained.onnx", {"x": data["x"]})["y"]
    assert scores.dtype == np.float32 and (scores.argmax(1) == data["labels"]).mean() == measured["accuracy"]
