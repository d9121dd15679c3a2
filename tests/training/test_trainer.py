"""The trainer: steps, fit and evaluation, state on the device, and what is refused."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale, StaticLossScale
from ampgraph.training.step.optimizers import SGD, Adam
from ampgraph.training.step.packed_forward import FORWARD
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse
from training.nets import CLASSES, blobs, linear_step

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
    "is not an array": (lambda b: b.update(x=[[1], [2, 3]]), "not an array"),
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
        (lambda s: s.update(weight=[[1], [2, 3]]), "is not an array"),
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


def make_trainer():
    return Trainer(linear_step(Adam(0.1), DynamicLossScale(init=1024, interval=2), counted=True), "cpu", threads=1)


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


class Session:
    """The real session; ``before`` and ``after`` are called around a run."""

    def __init__(self, real, before=lambda: None, after=lambda: None):
        self.real, self.before, self.after = real, before, after

    def run_with_iobinding(self, binding):
        self.before()
        self.real.run_with_iobinding(binding)
        self.after()


class Ended(BaseException):
    pass


def end(number, frame):
    raise Ended


class TooLong(Exception):
    """An error like the runtime's own, from a handler of a signal."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Ended, TooLong])
@pytest.mark.parametrize("when, steps", [("before", 2), ("after", 3)])
def test_a_signal_at_a_step_leaves_it_whole_or_not_begun(monkeypatch, when, steps, kind):
    trainer, reference = make_trainer(), make_trainer()
    assert trainer._binding.in_place and len(trainer._binding.in_place) < len(trainer.layout.states)

    def handler(number, frame):
        raise kind

    before = signal.signal(signal.SIGINT, handler)
    try:
        trainer.step(batch()), trainer.step(batch(16))
        with monkeypatch.context() as patch:
            session = Session(trainer._binding._session, **{when: lambda: signal.raise_signal(signal.SIGINT)})
            patch.setattr(trainer._binding, "_session", session)
            if (when, kind) == ("before", TooLong):  # no way to tell it from a fault of the runtime
                with pytest.raises(AmpError, match="AMP504"):
                    trainer.step(batch(32))
                return
            with pytest.raises(kind):
                trainer.step(batch(32))
    finally:
        signal.signal(signal.SIGINT, before)
    for number in range(steps):
        reference.step(batch(16 * number))
    assert same(trainer.state, reference.state)
    assert trainer.step(batch(48)).loss == reference.step(batch(48)).loss


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_fit_leaves_a_state_that_can_be_saved(tmp_path):
    """A signal from outside, at any moment; the state is that after some whole number of steps."""
    trainer, reference, seen = make_trainer(), make_trainer(), []

    def on_step(done, total, result):
        seen.append(done)
        if done == 20:
            threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(DATA, epochs=100000, batch_size=16, on_step=on_step)
    trainer.save(tmp_path / "checkpoint")
    reference.load(tmp_path / "checkpoint")
    steps = int(trainer.value("step/iteration"))
    assert steps in (seen[-1], seen[-1] + 1)
    again = make_trainer()
    epochs = -(-steps // 6)
    with pytest.raises(Ended):
        again.fit(DATA, epochs=epochs + 1, batch_size=16, on_step=lambda done, *rest: done == steps and end(0, None))
    assert same(reference.state, again.state)


def test_a_second_signal_at_once_makes_the_state_unreadable(monkeypatch, tmp_path):
    """While the first is dealt with: nothing is read or saved that may be half of a step."""
    trainer, reference = make_trainer(), make_trainer()
    held = trainer.state

    def broken(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer._binding, "_session", Session(trainer._binding._session, after=broken))
        patch.setattr(trainer._binding, "_advance", broken)
        with pytest.raises(KeyboardInterrupt):
            trainer.step(batch())
    for use in (lambda: trainer.state, lambda: trainer.save(tmp_path / "a"), lambda: trainer.step(batch())):
        with pytest.raises(AmpError, match="AMP504") as found:
            use()
        assert "half-way" in str(found.value) and found.value.hint
    assert not list(tmp_path.iterdir())
    trainer.load_state(held)
    assert trainer.step(batch()).loss == reference.step(batch()).loss


def test_a_step_that_stops_half_way_leaves_no_half_state(monkeypatch):
    trainer = make_trainer()
    held = trainer.state

    class Broken:
        def run_with_iobinding(self, binding):
            raise RuntimeError("Failed to allocate memory for requested buffer")

    with monkeypatch.context() as patch:
        patch.setattr(trainer._binding, "_session", Broken())
        with pytest.raises(AmpError, match="AMP504") as found:
            trainer.step(batch())
    assert "out of memory" in str(found.value) and trainer._binding.in_place
    for use in (lambda: trainer.state, lambda: trainer.step(batch())):
        with pytest.raises(AmpError, match="AMP504") as found:
            use()
        assert "half-way" in str(found.value) and found.value.hint
    trainer.load_state(held)
    assert trainer.step(batch()).loss == make_trainer().step(batch()).loss


def test_steps_in_another_thread():
    trainer, reference, found = make_trainer(), make_trainer(), []
    thread = threading.Thread(target=lambda: found.append(trainer.step(batch()).loss))
    thread.start()
    thread.join()
    assert found == [reference.step(batch()).loss]


def test_a_fault_of_the_runtime_itself():
    """A row of the table that is not there: the runtime finds it when the step is under way."""
    trainer, reference = make_trainer(), make_trainer()
    held = trainer.state
    trainer.load_state({**held, "step/count": np.array(5), "step/last_rate": np.array(7)})
    with pytest.raises(AmpError, match="AMP504.*ONNX Runtime stopped.*indices") as found:
        trainer.step(batch())
    assert "load the last checkpoint" in found.value.hint
    with pytest.raises(AmpError, match="AMP504.*half-way"):
        trainer.step(batch())
    trainer.load_state(held)
    assert trainer.step(batch()).loss == reference.step(batch()).loss


@pytest.mark.parametrize("counter", [-1, 2, 2000])
def test_a_counter_that_no_step_reaches_is_refused(counter: int) -> None:
    trainer = make_trainer()
    held = trainer.state
    with pytest.raises(AmpError, match="AMP405.*'step/counter' is .*every 2 steps"):
        trainer.load_state({**held, "step/counter": np.array(counter, np.int32)})
    trainer.load_state({**held, "step/counter": np.array(1, np.int32)})
    assert trainer.step(batch()).finite and trainer.scale == 2 * 1024


@pytest.mark.parametrize("at", [1, 2, 3])
def test_learning_rates_are_all_taken_or_none(monkeypatch, at):
    trainer, calls = make_trainer(), []
    binding = type(trainer._binding._bindings[0])
    real = binding.bind_ortvalue_input

    def bind(self, name, value):
        calls.append(name)
        if len(calls) == at:
            raise KeyboardInterrupt
        real(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(binding, "bind_ortvalue_input", bind)
        with pytest.raises(KeyboardInterrupt):
            trainer.set_rates([0.0, 0.0, 0.0])
    held = trainer.value("weight")
    for number in range(4):
        trainer.step(batch(16 * number))
    assert np.array_equal(held, trainer.value("weight")) and trainer.value("step/last_rate") == 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("Failed to allocate memory for requested buffer of 9")])
@pytest.mark.parametrize("at", [1, 4, 12])
def test_no_room_for_a_state(monkeypatch, error, at):
    trainer, calls = make_trainer(), []
    trainer.step(batch())
    held, real = trainer.state, trainer._binding.value

    def value(array):
        calls.append(array)
        if len(calls) == at:
            raise error
        return real(array)

    with monkeypatch.context() as patch:
        patch.setattr(trainer._binding, "value", value)
        with pytest.raises(AmpError, match="AMP504.*out of memory on cpu") as found:
            trainer.load_state(held)
    assert found.value.hint and len(calls) == at
    for use in (lambda: trainer.state, lambda: trainer.step(batch()), lambda: trainer.set_rates([0.1])):
        with pytest.raises(AmpError, match="AMP504.*not taken") as found:
            use()
        assert found.value.hint
    trainer.load_state(held)
    assert same(trainer.state, held)


def test_no_room_at_the_start(monkeypatch):
    def full(*given):
        raise RuntimeError("Failed to allocate memory for requested buffer of size 123")

    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", full)
    with pytest.raises(AmpError, match="AMP504.*out of memory") as found:
        make_trainer()
    assert found.value.hint


def test_the_old_state_is_dropped_before_the_new_one_is_made(monkeypatch):
    trainer = make_trainer()
    held, real, alive = trainer.state, trainer._binding.value, []
    old = [weakref.ref(value) for places in trainer._binding._places.values() for value in places]
    old += [weakref.ref(binding) for binding in trainer._binding._bindings]

    def value(array):
        alive.append(sum(ref() is not None for ref in old))
        return real(array)

    monkeypatch.setattr(trainer._binding, "value", value)
    trainer.load_state(held)
    assert len(alive) > len(held) and not any(alive)


def test_state_is_bound_once_and_only_the_batch_is_copied(monkeypatch):
    trainer = make_trainer()
    places = {name: {value.data_ptr() for value in two} for name, two in trainer._binding._places.items()}
    made, bound, read = [], [], []
    values, binding = onnxruntime.OrtValue, type(trainer._binding._bindings[0])
    real_make, real_bind, real_read = values.ortvalue_from_numpy, binding.bind_ortvalue_input, values.numpy

    def make(array, *given):
        made.append(array.shape)
        return real_make(array, *given)

    def bind(self, name, value):
        bound.append(name)
        real_bind(self, name, value)

    def read_back(self):
        read.append(self)
        return real_read(self)

    with monkeypatch.context() as patch:
        patch.setattr(values, "ortvalue_from_numpy", make)
        patch.setattr(binding, "bind_ortvalue_input", bind)
        patch.setattr(values, "numpy", read_back)
        patch.setattr(trainer._binding._session, "io_binding", None)  # nothing is bound anew
        results = [trainer.step(batch(16 * number)) for number in range(5)]
        assert made == [(16, 4), (16,)] * 5
        assert bound == ["x", "labels", "step/scale"] * 5 and not read
        assert np.isfinite([result.loss for result in results]).all() and len(read) == 5
    for entry in trainer.layout.states:
        if entry.name != "step/scale":
            assert trainer._binding.held(entry.name).data_ptr() in places[entry.name], entry.name
            assert len(places[entry.name]) == 1 + bool(entry.output and entry.name not in trainer._binding.in_place)


@pytest.mark.parametrize("name", ["step/scale", "step/count", "step/learning_rates", "step/last_rate"])
def test_a_parameter_may_bear_a_name_of_the_state(name):
    model = parse("""g (float[N,4] x) => (float[N,2] y) { y = MatMul (x, w) }""", opset=20)
    model.graph.node[0].input[1] = name
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 2), np.float32), name))
    step = ampgraph.build_training_step(
        model, loss="mse", optimizer="sgd:lr=0.1", level="O0", loss_scale="dynamic:init=8,interval=1"
    )
    trainer = Trainer(step, "cpu")
    given = {"x": np.ones((3, 4), np.float32), "labels": np.zeros((3, 2), np.float32)}
    first, second = trainer.step(given), trainer.step(given)
    assert (first.loss, first.scale, second.scale, trainer.scale) == (16, 16, 32, 32)
    assert second.loss < first.loss and trainer.value(name).shape == (4, 2) and trainer.updates == 2
    trainer.set_rates([0.0])
    held = trainer.value(name)
    trainer.step(given)
    assert np.array_equal(held, trainer.value(name)) and trainer.learning_rate == np.float32(0.1)
