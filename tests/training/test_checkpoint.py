"""Checkpoints: whole or not at all, of this step or refused, and a resumed training that ends in the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from ampgraph.core.errors import AmpError
from ampgraph.training.run import checkpoint as files
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.optimizers import SGD, Adam, AdamW
from ampgraph.training.step.training_step import TrainingStep
from present import present
from training.fits import DATA, FIT, make_step, make_trainer
from training.steps import linear_step


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        assert present(process.stdout).readline().strip() == "here"
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
    data = Trainer(make_step()).feeds.dataset(DATA).digest()
    assert found.position == files.Position(
        epoch=3,
        batch=0,
        seed=5,
        batch_size=16,
        samples=100,
        past=0,
        epochs=3,
        lr_schedule="cosine:warmup=2,end=0.0",
        data=data,
    )
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


def test_a_byte_that_changed_is_told(tmp_path):
    """Wherever it is: in the size of the header, the header, its checksum, or the numbers."""
    path = tmp_path / "a.safetensors"
    files.save(path, files.Checkpoint("d", {"w": np.arange(300, dtype=np.float32), "n": np.array(3)}))
    whole = path.read_bytes()
    for place in (0, 9, whole.index(b"checksum") + 14, whole.index(b"position"), len(whole) - 1500, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(AmpError, match="AMP108.*damaged") as found:
            files.load(path)
        assert found.value.hint
    path.write_bytes(whole)
    assert files.load(path).state["n"] == 3


def test_the_file_is_that_of_the_library(tmp_path):
    kinds = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    kinds += ["float16", "float32", "float64"]
    state = {f"{kind} \N{GREEK SMALL LETTER ALPHA}": np.arange(6).reshape(2, 3).astype(kind) for kind in kinds}
    state |= {"scalar": np.array(2.5), "none": np.zeros((0, 3), np.float32), "turned": np.arange(6.0).reshape(2, 3).T}
    files.save(tmp_path / "a", files.Checkpoint("d", state))
    tensors = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in state.items()}
    assert same(safetensors.numpy.load_file(tmp_path / "a"), tensors) and same(
        files.load(tmp_path / "a").state, tensors
    )
    few: dict[str, np.ndarray] = {
        "w": np.ones((2, 3), np.float32),
        "b": np.zeros(3, np.float16),
        "n": np.array(5),
        "flags": np.ones(3, bool),
    }
    files.save(tmp_path / "a", files.Checkpoint("d", few))
    with safetensors.safe_open(tmp_path / "a", framework="numpy") as file:
        metadata = file.metadata()
    assert (tmp_path / "a").read_bytes() == safetensors.numpy.save(few, metadata)


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
    alive: list[weakref.ref[np.ndarray]] = []

    def fetch():
        assert not any(ref() is not None for ref in alive)
        array = np.full((100, 100), len(alive), np.float32)
        alive.append(weakref.ref(array))
        return array

    late = {f"t{number}": files.Late(np.dtype(np.float32), (100, 100), fetch) for number in range(5)}
    files.save(tmp_path / "a", files.Checkpoint("d", late))
    assert len(alive) == 5
    assert [float(files.load(tmp_path / "a").state[name].mean()) for name in late] == [0, 1, 2, 3, 4]
    trainer = make_trainer()
    tracemalloc.start()
    trainer.late_state()
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 100_000 and same(trainer.state, {n: np.asarray(a) for n, a in trainer.late_state().items()})


def test_bfloat16_keeps_its_bits(tmp_path):
    state = {"w": np.arange(7, dtype=np.float32).astype(ml_dtypes.bfloat16), "n": np.array(3)}
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
