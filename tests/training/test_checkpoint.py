"""Checkpoints: whole or not at all, of this step or refused; a resumed training ends in the same bytes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from onnx import load

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.files import sweep, temporaries
from ampgraph.models import digits
from ampgraph.training.run import checkpoint as files
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale, StaticLossScale
from ampgraph.training.step.optimizers import SGD, Adam, AdamW
from ampgraph.training.step.training_step import TrainingStep
from cli_helpers import MODELS
from training.nets import blobs, linear_step

pytestmark = pytest.mark.slow

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

    late = {f"t{number}": files.LateArray(np.dtype(np.float32), (100, 100), fetch) for number in range(5)}
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


def _in_a_process(code, *words):
    """Runs code with this module's names."""
    tests = Path(__file__).resolve().parents[1]
    head = f"import sys; sys.path[:0] = {[str(tests), str(tests.parent)]}\nfrom training.test_checkpoint import *\n"
    return subprocess.run([sys.executable, "-c", head + code, *words], capture_output=True, text=True, timeout=60)


KILLED_IN_A_SAVE = """
trainer, stage = make_trainer(), sys.argv[2]
for name in "a", FILE:
    trainer.save(sys.argv[1] + "/" + name)
trainer.step({name: array[:16] for name, array in DATA.items()})
end = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
if stage == "fetch":
    real = trainer._binding.get
    trainer._binding.get = lambda name: end() if name == "bias" else real(name)
else:
    setattr(os, stage, end)
trainer.save(sys.argv[1] + "/" + FILE)
"""


@pytest.mark.parametrize("stage", ["fetch", "replace"])
def test_killed_while_a_checkpoint_is_written(tmp_path, stage):
    """The old one stays whole; what was half written is gone when the next training begins there."""
    done = _in_a_process(KILLED_IN_A_SAVE, str(tmp_path), stage)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = set(os.listdir(tmp_path)) - {"a", FILE}
    assert len(left) == 1 and left.pop().startswith(f".{FILE}.")
    assert (tmp_path / "a").read_bytes() == (tmp_path / FILE).read_bytes()
    trainer = make_trainer()
    trainer.load(tmp_path / FILE)
    with pytest.raises(AmpError, match="AMP405.*trainer.save") as found:
        trainer.fit(DATA, **FIT, checkpoint=tmp_path, resume=True)
    assert found.value.hint and set(os.listdir(tmp_path)) == {"a", FILE}


def test_what_a_sweep_leaves(tmp_path):
    """Files of a process that runs, of this one while it writes, and files of others."""
    kept = [f".{FILE}.{os.getppid()}-aa.tmp", f".{FILE}.x-1.tmp", f".other.{os.getpid()}-aa.tmp", "note"]
    gone = [f".{FILE}.{os.getpid()}-aa.tmp", f".{FILE}.{2**22 + 1}-aa.tmp"]
    for name in kept + gone:
        (tmp_path / name).write_text("x")
    with temporaries(tmp_path / FILE) as temporary:
        mine = temporary("")
        mine.write_text("x")
        sweep(tmp_path / FILE)
        assert set(os.listdir(tmp_path)) == {*kept, mine.name}
    assert set(os.listdir(tmp_path)) == set(kept)


def test_two_threads_save_to_one_file(tmp_path):
    errors = []

    def save(number):
        try:
            for _ in range(5):
                files.save(tmp_path / "a", files.Checkpoint("d", {"w": np.full(5_000, number, np.float32)}))
        except AmpError as error:
            errors.append(error)

    save(0)
    threads = [threading.Thread(target=save, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(set(files.load(tmp_path / "a").state["w"])) == 1
    assert not errors and os.listdir(tmp_path) == ["a"]


def test_two_trainings_in_one_folder(tmp_path):
    trainer, other = make_trainer(), make_trainer()
    told = []

    def on_step(done, total, result):
        if done == 8:
            with pytest.raises(AmpError, match="AMP325.*another training that is running") as found:
                other.fit(DATA, **FIT, checkpoint=tmp_path, resume=True)
            told.append(found.value.hint)

    trainer.fit(DATA, **FIT, checkpoint=tmp_path, on_step=on_step)
    assert told[0] and other.updates == 0
    assert other.fit(DATA, **FIT, checkpoint=tmp_path, resume=True).resumed == 18


def test_a_folder_without_locks(tmp_path, monkeypatch):
    def none(*given):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    assert len(make_trainer().fit(DATA, **FIT, checkpoint=tmp_path).epochs) == 3


def test_places_that_cannot_be_written(tmp_path):
    trainer = make_trainer()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "none" / "a", tmp_path / "folder"):
        with pytest.raises(AmpError, match="AMP105"):
            trainer.save(place)
    with pytest.raises(AmpError, match="AMP105"):
        trainer.fit(DATA, **FIT, checkpoint=tmp_path / "file")


def test_after_an_earlier_fit(tmp_path):
    """The learning rates count from the first update of the state, and a resumed training knows where it began."""

    def begun():
        trainer = make_trainer()
        trainer.fit(DATA, epochs=2, batch_size=16, seed=1)
        assert trainer.updates > 5
        return trainer

    whole, cut, again, other = begun(), begun(), make_trainer(), begun()
    whole.fit(DATA, **FIT, checkpoint=tmp_path / "whole")
    with pytest.raises(Killed):
        cut.fit(DATA, **FIT, checkpoint=tmp_path / "cut", on_step=_kill_at(8))
    again.fit(DATA, **FIT, checkpoint=tmp_path / "cut", resume=True)
    other.fit(DATA, **FIT, checkpoint=tmp_path / "other", resume=True)  # nothing is there yet
    assert same(whole.state, again.state) and same(whole.state, other.state)
    names = ("whole", "cut", "other")
    assert len({(tmp_path / name / FILE).read_bytes() for name in names}) == 1


OTHER = {name: array.copy() for name, array in DATA.items()}
OTHER["x"][50, 2] += 1


@pytest.mark.parametrize(
    "change, told",
    [
        ({"seed": 6}, "seed=5, not 6"),
        ({"batch_size": 8}, "batch_size=16, not 8"),
        ({"data": blobs(99)}, "samples=100, not 99"),
        ({"data": OTHER}, "other data"),
        ({"data": {**DATA, "labels": DATA["labels"][::-1]}}, "other data"),
        ({"lr_schedule": "cosine:warmup=3"}, "lr_schedule=cosine:warmup=2,end=0.0, not cosine:warmup=3,end=0.0"),
        ({"lr_schedule": "step:every=5"}, "not step:"),
        ({"lr_schedule": None}, "not none"),
        ({"lr_schedule": [0.1, 0.2]}, "not a table of 2"),
        ({"epochs": 4}, "epochs=3, not 4"),
        ({"epochs": 2}, "epochs=3, not 2"),
    ],
)
def test_going_on_with_another_training_is_refused(tmp_path, change, told):
    given = {"data": DATA, **FIT, "checkpoint": tmp_path}
    with pytest.raises(Killed):
        make_trainer().fit(**given, on_step=_kill_at(8))
    trainer, kept = make_trainer(), (tmp_path / FILE).read_bytes()
    before = trainer.state
    with pytest.raises(AmpError, match="AMP405.*is from a training with") as found:
        trainer.fit(**{**given, **change}, resume=True)
    assert told in str(found.value) and "another folder" in found.value.hint
    assert same(before, trainer.state) and (tmp_path / FILE).read_bytes() == kept


@pytest.mark.parametrize("schedule", [None, "constant:warmup=2", "step:every=4,gamma=0.5", [0.3, 0.2, 0.1]])
def test_going_on_for_longer(tmp_path, schedule):
    """Where no rate depends on the number of epochs, it ends as if it had been that number from the start."""
    more = {"batch_size": 16, "lr_schedule": schedule}
    whole, again = make_trainer(), make_trainer()
    whole.fit(DATA, epochs=4, **more, checkpoint=tmp_path / "whole")
    make_trainer().fit(DATA, epochs=2, **more, checkpoint=tmp_path / "cut")
    again.fit(DATA, epochs=4, **more, checkpoint=tmp_path / "cut", resume=True)
    assert same(whole.state, again.state)
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()


def test_the_digest_of_data():
    def digest(arrays):
        return Trainer(linear_step()).feeds.dataset(arrays).digest()

    turned = {"labels": DATA["labels"].astype(np.uint8), "x": np.asfortranarray(DATA["x"])}
    assert digest(DATA) == digest(turned) != digest(OTHER)


def test_a_place_that_is_none(tmp_path):
    make_trainer().save(tmp_path / "a")
    found = files.load(tmp_path / "a")
    files.save(tmp_path / "a", files.Checkpoint(found.digest, found.state, files.Position(seed="x")))  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP108"):
        make_trainer().load(tmp_path / "a")


def test_a_network_with_batch_norm_and_dropout(tmp_path):
    """Killed in mid-epoch, with overflows before and after: running statistics and random numbers go on too."""
    images, labels = digits.load_split()[0]
    data = {"image": images[:192], "labels": labels[:192]}
    step = ampgraph.build_training_step(
        load(MODELS / "digits_cnn_forward.onnx"),
        loss="cross_entropy",
        optimizer="adamw:lr=2e-3",
        clip_norm=1.0,
        loss_scale="dynamic:init=4294967296,interval=3,backoff=0.0625",
    )
    assert step.layout.of("running") and step.layout.find("counter", "step/iteration")
    given: dict[str, Any] = {"epochs": 2, "batch_size": 32, "lr_schedule": "cosine:warmup=2", "checkpoint_every": 2}
    whole, cut, again = (Trainer(step, strict=True, threads=1) for _ in range(3))
    history = whole.fit(data, **given, checkpoint=tmp_path / "whole")
    with pytest.raises(Killed):
        cut.fit(data, **given, checkpoint=tmp_path / "cut", on_step=_kill_at(9))
    resumed = again.fit(data, **given, checkpoint=tmp_path / "cut", resume=True)
    assert resumed.resumed == 8 and not history.finite.all() and history.finite.any()
    assert same(whole.state, again.state) and history.losses.tobytes() == resumed.losses.tobytes()
    assert (tmp_path / "whole" / FILE).read_bytes() == (tmp_path / "cut" / FILE).read_bytes()


def test_a_scale_that_has_no_inverse_is_told_before_the_first_step():
    trainer = Trainer(linear_step(scale=StaticLossScale(1.0)))
    trainer.load_state({**trainer.state, "step/scale": np.array(1e-39, np.float32)})
    with pytest.raises(AmpError, match="AMP504.*loss scale.*1e-39") as found:
        trainer.fit(DATA, epochs=1, batch_size=16)
    assert found.value.hint and trainer.updates == 0
    Trainer(linear_step(scale=StaticLossScale(3e38))).fit(DATA, epochs=1, batch_size=16)


INFINITE = {**DATA, "x": np.full_like(DATA["x"], np.inf)}
SOME_INFINITE = {**DATA, "x": np.where(np.arange(100)[:, None] < 3, np.inf, DATA["x"]).astype(np.float32)}
GROWS = DynamicLossScale.preset("mindspore-cell", init=2.0**120, interval=1)
FLOOR = "--loss-scale dynamic:floor=1"
LOST: list[tuple[Any, ...]] = [
    (DynamicLossScale(init=1e-30), SOME_INFINITE, "training is lost", FLOOR, (0, 1e-30)),
    (DynamicLossScale.preset("apex", init=1e-30), SOME_INFINITE, "training is lost", FLOOR, (0, 1e-30)),
    # on its way down from a first value that was too great, an epoch may overflow throughout
    (
        DynamicLossScale(init=2.0**14),
        INFINITE,
        r"no step of epoch 3 was finite.*down to 0\.5: training is lost",
        "",
        (15, 17),
    ),
    (None, INFINITE, "the loss is nan.*weights are lost", "", None),
    (GROWS, DATA, "inf: training is lost", "", (1, np.inf)),
]


@pytest.mark.parametrize(("policy", "data", "told", "hint", "scale"), LOST, ids=str)
def test_a_training_that_is_lost_ends(tmp_path, policy, data, told, hint, scale):
    """The checkpoint of before stays; none is written of weights that an infinite inverse has made infinite."""
    trainer = Trainer(linear_step(SGD(0.1 if data is not DATA else 0.0), policy))
    with pytest.raises(AmpError, match=f"AMP504.*{told}") as found:
        trainer.fit(data, epochs=90, batch_size=20, checkpoint=tmp_path)
    assert hint in found.value.hint and (tmp_path / FILE).exists() == (scale is not None)
    if scale is not None:
        kept = files.load(tmp_path / FILE).state
        assert scale[0] < kept["step/scale"] < scale[1] and np.isfinite(kept["weight"]).all()


def test_a_scale_that_recovers_goes_on():
    """Apex without a bound: beyond float32 a step overflows, is skipped, and the scale shrinks."""
    grows = DynamicLossScale.preset("apex", init=2.0**125, interval=1, cap=None)
    trainer = Trainer(linear_step(SGD(0.0), grows))
    scales = []
    history = trainer.fit(DATA, epochs=20, batch_size=16, on_step=lambda done, total, r: scales.append(r.scale))
    assert max(scales) == 2.0**128 and 0 < (~history.finite).sum() < 100


def test_the_scale_costs_no_copy_per_step(monkeypatch):
    trainer, reads = Trainer(linear_step(scale=DynamicLossScale())), []
    binding: Any = trainer._binding
    real = type(binding._scale).numpy

    def numpy(self):
        reads.append(tuple(self.shape()))
        return real(self)

    monkeypatch.setattr(type(binding._scale), "numpy", numpy)
    trainer.fit(blobs(16 * 200), epochs=1, batch_size=16)
    assert len(reads) <= 2 * 200 + 10  # loss and finite of every step, and the scale at every 64th
