"""Checkpoints: whole or not at all, of this step or refused, and a resumed training that ends in the same bytes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from ampgraph.errors import AmpError
from ampgraph.training import checkpoint as files
from ampgraph.training.fitting import FILE
from ampgraph.training.loss_scale import DynamicLossScale
from ampgraph.training.optimizers import SGD, Adam, AdamW
from ampgraph.training.step import TrainingStep
from ampgraph.training.trainer import Trainer
from training.steps import blobs, linear_step

DATA = blobs(100)
FIT = {"epochs": 3, "batch_size": 16, "lr_schedule": "cosine:warmup=2", "seed": 5}


def make_step():
    return linear_step(Adam(0.05), DynamicLossScale(init=2.0**17, interval=4), clip=1.0, low=True, counted=True)


def make_trainer():
    return Trainer(make_step(), strict=True, threads=1)


def same(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


class Killed(Exception):
    pass


def _kill_at(number):
    def on_step(done, total, result):
        if done == number:
            raise Killed

    return on_step


@pytest.mark.parametrize("every", [0, 1, 4])
@pytest.mark.parametrize("killed", [3, 6, 9, 17])
def test_a_resumed_training_ends_in_the_same_bytes(tmp_path, every, killed):
    whole = make_trainer()
    expected = whole.fit(DATA, **FIT, checkpoint=tmp_path / "whole", checkpoint_every=every)
    with pytest.raises(Killed):
        make_trainer().fit(DATA, **FIT, checkpoint=tmp_path / "cut", checkpoint_every=every, on_step=_kill_at(killed))
    again = make_trainer()
    history = again.fit(DATA, **FIT, checkpoint=tmp_path / "cut", checkpoint_every=every, resume=True)
    assert same(whole.state, again.state)
    assert history.losses.tobytes() == expected.losses.tobytes()
    assert history.epochs == expected.epochs[len(expected.epochs) - len(history.epochs) :]
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()
    assert expected.finite.sum() < 18, "the training must see an overflow"
    done = killed - 1  # the step that kills is not in a checkpoint yet
    assert history.resumed == done // 6 * 6 + (done % 6 // every * every if every else 0)


def test_a_process_killed_in_mid_epoch(tmp_path):
    """SIGKILL, from outside of Python."""
    code = (
        "import sys, time; sys.path[:0] = sys.argv[2:]\n"
        "from training.test_checkpoint import *\n"
        "def told(done, total, result):\n"
        "    if done == 9: print('here', flush=True); time.sleep(60)\n"
        "make_trainer().fit(DATA, **FIT, checkpoint=sys.argv[1], checkpoint_every=2, on_step=told)\n"
    )
    tests = Path(__file__).resolve().parents[1]
    words = [sys.executable, "-c", code, str(tmp_path), str(tests), str(tests.parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "here"
        process.send_signal(signal.SIGKILL)
    assert os.listdir(tmp_path) == [FILE]
    again, whole = make_trainer(), make_trainer()
    assert again.fit(DATA, **FIT, checkpoint=tmp_path, resume=True).resumed == 8
    whole.fit(DATA, **FIT)
    assert same(whole.state, again.state)


def test_what_a_file_holds_and_that_it_is_safetensors(tmp_path):
    trainer = make_trainer()
    trainer.fit(DATA, **FIT, checkpoint=tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / FILE)
    state = trainer.state
    assert set(tensors) == set(state) | {"history/losses", "history/finite"}
    assert same(state, {name: tensors[name] for name in state})
    found = files.load(tmp_path / FILE)
    assert found.position == files.Position(epoch=3, batch=0, seed=5, batch_size=16, samples=100)
    assert found.digest == trainer.digest


def test_saved_and_loaded(tmp_path):
    one, other = make_trainer(), make_trainer()
    batch = {name: array[:16] for name, array in DATA.items()}
    one.set_rates(np.array([0.1, 0.2, 0.3], np.float32))
    one.step(batch)
    one.save(tmp_path / "a.safetensors")
    other.load(tmp_path / "a.safetensors")
    assert same(one.state, other.state)
    one.step(batch), other.step(batch)
    assert same(one.state, other.state)


def test_bfloat16_keeps_its_bits(tmp_path):
    state = {"w": np.arange(7, dtype=np.float32).astype(ml_dtypes.bfloat16), "n": np.int64(3)}
    files.save(tmp_path / "a", files.Checkpoint("d", state))
    found = files.load(tmp_path / "a").state
    assert found["w"].dtype == ml_dtypes.bfloat16 and same({k: np.asarray(v) for k, v in state.items()}, found)


def test_the_digest_follows_the_graph_and_not_the_state(tmp_path):
    step = make_step()
    step.save(tmp_path / "step.onnx")
    digest = files.digest(step)
    assert files.digest(TrainingStep.load(tmp_path / "step.onnx")) == digest
    step.model.graph.initializers["weight"].const_value.numpy()[:] = 0
    assert files.digest(step) == digest
    others = [
        linear_step(SGD(0.1)),
        linear_step(AdamW(0.05)),
        linear_step(Adam(0.06)),
        linear_step(Adam(0.05), clip=2.0),
    ]
    assert len({digest, *map(files.digest, others)}) == 5


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_step_is_refused(tmp_path):
    make_trainer().save(tmp_path / "a")
    other = Trainer(linear_step(SGD(0.1)))
    before = other.state
    with pytest.raises(AmpError, match="AMP405") as found:
        other.load(tmp_path / "a")
    assert "another training step" in str(found.value) and found.value.hint
    assert same(before, other.state)


@pytest.mark.parametrize("change", [{"seed": 6}, {"batch_size": 8}, {"data": blobs(99)}])
def test_going_on_with_other_data_or_batches_is_refused(tmp_path, change):
    given = {"data": DATA, **FIT, "checkpoint": tmp_path}
    make_trainer().fit(**given)
    with pytest.raises(AmpError, match="AMP405") as found:
        make_trainer().fit(**{**given, **change}, resume=True)
    assert "from a training with" in str(found.value) and found.value.hint


def test_an_earlier_training_is_not_overwritten(tmp_path):
    make_trainer().fit(DATA, **FIT, checkpoint=tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(AmpError, match="AMP325") as found:
        make_trainer().fit(DATA, **FIT, checkpoint=tmp_path)
    assert "--resume" in found.value.hint and (tmp_path / FILE).read_bytes() == before


def test_nothing_is_left_to_train(tmp_path):
    first, again = make_trainer(), make_trainer()
    first.fit(DATA, **FIT, checkpoint=tmp_path)
    history = again.fit(DATA, **FIT, checkpoint=tmp_path, resume=True)
    assert (history.epochs, history.resumed, len(history.losses)) == ([], 18, 18)
    assert same(first.state, again.state)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def _empty(path):
    path.write_bytes(b"")


def _other(path):
    safetensors.numpy.save_file({"w": np.zeros(3)}, path)


def _text(path):
    path.write_text("no checkpoint " * 100)


def _folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage, code",
    [
        (_cut, "AMP108"),
        (_empty, "AMP108"),
        (_other, "AMP108"),
        (_text, "AMP108"),
        (_folder, "AMP101"),
        (None, "AMP101"),
    ],
)
def test_a_file_that_is_no_checkpoint(tmp_path, damage, code):
    trainer = make_trainer()
    trainer.save(tmp_path / "a")
    if damage is None:
        (tmp_path / "a").unlink()
    else:
        damage(tmp_path / "a")
    before = trainer.state
    with pytest.raises(AmpError, match=code) as found:
        trainer.load(tmp_path / "a")
    assert found.value.hint and same(before, trainer.state)


@pytest.mark.parametrize("stage", ["open", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch, stage):
    trainer = make_trainer()
    trainer.save(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    trainer.step({name: array[:16] for name, array in DATA.items()})

    def full(*args, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "open", full, raising=False) if stage == "open" else patch.setattr(os, stage, full)
        with pytest.raises(AmpError, match="AMP105") as found:
            trainer.save(tmp_path / "a")
    assert "the disk is full: the old checkpoint is still there" in str(found.value)
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == before
    trainer.save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() != before


def test_a_file_that_the_system_refuses_half_way(tmp_path):
    """A real limit on the size of files, in a process of its own."""
    code = (
        "import resource, sys; sys.path[:0] = sys.argv[2:]\n"
        "from training.test_checkpoint import *\n"
        "trainer = make_trainer(); trainer.save(sys.argv[1] + '/a')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "try: trainer.save(sys.argv[1] + '/a')\n"
        "except AmpError as error: print(error.code, error.message)\n"
    )
    tests = Path(__file__).resolve().parents[1]
    words = [sys.executable, "-c", code, str(tmp_path), str(tests), str(tests.parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("AMP105 the disk is full"), done.stderr
    assert os.listdir(tmp_path) == ["a"]
    make_trainer().load(tmp_path / "a")


def test_places_that_cannot_be_written(tmp_path):
    trainer = make_trainer()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "none" / "a", tmp_path / "folder"):
        with pytest.raises(AmpError, match="AMP105"):
            trainer.save(place)
    with pytest.raises(AmpError, match="AMP105"):
        trainer.fit(DATA, **FIT, checkpoint=tmp_path / "file")
