"""Checkpoints while they are written: a full disk, a kill, two writers, leftovers of others."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.core.files import sweep, temporaries
from ampgraph.training.run import checkpoint as files
from ampgraph.training.run.fitting import FILE
from training.fits import DATA, FIT, make_trainer


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


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fetch", "fsync", "replace"])
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


@pytest.mark.slow
def test_a_file_that_the_system_refuses_half_way(tmp_path):
    """A real limit on the size of files, in a process of its own."""
    code = (
        "import resource\n"
        "trainer = make_trainer(); trainer.save(sys.argv[1] + '/a')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        "try: trainer.save(sys.argv[1] + '/a')\n"
        "except AmpError as error: print(error.code, error.message)\n"
    )
    done = _in_a_process(code, str(tmp_path))
    assert done.stdout.startswith("AMP105 cannot be written: File too large: the old checkpoint"), done.stderr
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
