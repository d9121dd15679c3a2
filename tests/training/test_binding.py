"""State on the device: bound once, one step whole or none, Ctrl-C between steps, and no room for it."""

from __future__ import annotations

import os
import signal
import threading
import weakref

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import Adam
from onnx_text import parse
from training.steps import blobs, linear_step

DATA = blobs()


def batch(number=0):
    return {name: array[16 * number : 16 * number + 16] for name, array in DATA.items()}


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
        trainer.step(batch()), trainer.step(batch(1))
        with monkeypatch.context() as patch:
            session = Session(trainer._binding._session, **{when: lambda: signal.raise_signal(signal.SIGINT)})
            patch.setattr(trainer._binding, "_session", session)
            if (when, kind) == ("before", TooLong):  # no way to tell it from a fault of the runtime
                with pytest.raises(AmpError, match="AMP504"):
                    trainer.step(batch(2))
                return
            with pytest.raises(kind):
                trainer.step(batch(2))
    finally:
        signal.signal(signal.SIGINT, before)
    for number in range(steps):
        reference.step(batch(number))
    assert same(trainer.state, reference.state)
    assert trainer.step(batch(3)).loss == reference.step(batch(3)).loss


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
        patch.setattr(trainer._binding, "_taken", broken)
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
        trainer.step(batch(number))
    assert np.array_equal(held, trainer.value("weight")) and trainer.value("step/last_rate") == 2


# -- putting a state --------------------------------------------------------------------------------------------------


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


# -- what a step copies -----------------------------------------------------------------------------------------------


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
        results = [trainer.step(batch(number)) for number in range(5)]
        assert made == [(16, 4), (16,)] * 5
        assert bound == ["x", "labels", "step/scale"] * 5 and not read
        assert np.isfinite([result.loss for result in results]).all() and len(read) == 5
    for entry in trainer.layout.states:
        if entry.name != "step/scale":
            assert trainer._binding.held(entry.name).data_ptr() in places[entry.name], entry.name
            assert len(places[entry.name]) == 1 + bool(entry.output and entry.name not in trainer._binding.in_place)


# -- names ------------------------------------------------------------------------------------------------------------


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
