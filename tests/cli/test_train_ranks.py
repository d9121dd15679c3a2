"""The train command as torchrun starts it: one report, one checkpoint, and what a killed rank leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.training.run import ranks
from ampgraph.training.run.checkpoint import load
from ampgraph.training.run.fitting import FILE
from ampgraph.training.run.trainer import Trainer
from npz import write_npz
from share import FULL
from training.nets import batches
from training.test_cut import SCALE, bits, built

pytestmark = pytest.mark.slow  # two processes that import torch
whole = pytest.mark.skipif(not FULL, reason="processes that are started again and again: AMPGRAPH_TESTS=full")
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture
def words(tmp_path):
    """What follows ``ampgraph``: 3 steps an epoch of 16 samples."""
    built(optimizer="adamw", level="O2", loss_scale=SCALE).save(tmp_path / "step.onnx")
    feeds = list(batches(3))
    write_npz(tmp_path / "train.npz", {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
    words = ["train", tmp_path / "step.onnx", "--data", tmp_path / "train.npz", "--batch-size", "16", "--strict"]
    return [str(word) for word in words]


def torchrun(words, *options):
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, "-m", "ampgraph", *words]
    path = os.pathsep.join([ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(run, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_two_processes(words, tmp_path):
    made = torchrun([*words, "--epochs", "2", "--checkpoint", str(tmp_path), "--json"], "--nproc-per-node", "2")
    out, err = made.communicate(timeout=300)
    assert made.returncode == 0, err
    report = json.loads(out)  # one rank prints
    assert (report["ranks"], report["steps"]) == (2, 6)
    one = Trainer(words[1], "cpu", strict=True, threads=1, accumulate=2)
    one.fit(words[3], epochs=2, batch_size=16)
    assert bits(one.state) == bits(load(tmp_path / FILE).state)


def processes_of(parent: int) -> dict[int, int]:
    """The processes that torchrun has started, by rank."""
    found: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        try:
            ours = place.name.isdigit() and f"\nPPid:\t{parent}\n" in (place / "status").read_text()
            words = (place / "environ").read_bytes().split(b"\0") if ours else []
        except OSError:
            continue
        found |= {int(word[5:]): int(place.name) for word in words if word.startswith(b"RANK=")}
    return found


@whole
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_killed(words, tmp_path, ranks, lost):
    """torchrun starts all of them again, and they end in the bytes of a training that ran through."""
    words += ["--epochs", "60", "--resume", "--checkpoint"]
    options = ["--nproc-per-node", str(ranks), "--max-restarts", "2"]
    run = torchrun([*words, str(tmp_path / "killed")], *options)
    while not (tmp_path / "killed" / FILE).exists() and run.poll() is None:
        time.sleep(0.05)
    os.kill(processes_of(run.pid)[lost], signal.SIGKILL)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "Traceback" not in err and ("AMP509" in err or lost == 0)
    through = torchrun([*words, str(tmp_path / "through")], *options)
    assert through.communicate(timeout=300) and through.returncode == 0
    assert (tmp_path / "killed" / FILE).read_bytes() == (tmp_path / "through" / FILE).read_bytes()


@whole
def test_a_mistake_is_said_once(words):
    run = torchrun([*words, "--accumulate", "9"], "--nproc-per-node", "2")
    _, err = run.communicate(timeout=300)
    assert run.returncode and err.count("too small for 18 micro-batches") >= 1


def test_processes_that_never_come(monkeypatch):
    """As where one machine of several is not started, or its address is another."""
    monkeypatch.setattr(ranks, "START_LIMIT", timedelta(seconds=1))
    with socket.socket() as held:  # a port at which nobody answers
        held.bind(("127.0.0.1", 0))
        given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(AmpError, match="AMP509.*another process of this training is gone, or cannot be reached"):
            ranks.join_group("auto", "cpu")
