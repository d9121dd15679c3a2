"""A set that is larger than memory: what is allocated is counted, and does not grow with the file."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run import dataset
from ampgraph.training.run.normalized import Normalized
from ampgraph.training.run.step_inputs import StepInputs
from onnx_text import parse

WIDTH, BATCH = 1024, 16


def sparse(folder, samples):
    """Files of a set of float32 rows, all of them a hole."""
    folder.mkdir()
    for name, shape, dtype in (("x", (samples, WIDTH), np.float32), ("labels", (samples,), np.uint8)):
        with open(folder / f"{name}.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": dtype().dtype.str, "fortran_order": False, "shape": shape}
            )
            file.truncate(file.tell() + int(np.prod(shape)) * dtype().itemsize)
    return folder


def allocated(folder):
    """The most bytes that checking, hashing and an epoch's first batches hold at once."""
    head = f"g (float[N,{WIDTH}] x) => (float[N,3] y) {{ y = MatMul (x, w) }}"
    model = parse(head, w=np.zeros((WIDTH, 3), np.float32))
    feeds = StepInputs(build_training_step(model, loss="cross_entropy", optimizer="sgd", level="O0"))
    tracemalloc.start()
    try:
        made = feeds.dataset(Normalized(folder, 1 / 255, 0.5))
        made.digest()
        order = made.shuffled(BATCH, 0, 0)
        assert all(next(order)["x"].shape == (BATCH, WIDTH) for _ in range(20))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """16 and 64 MiB by pieces of 1 MiB: what more is held is the order of the samples, 8 bytes for each."""
    monkeypatch.setattr(dataset, "PIECE", 1 << 20)
    peaks = [allocated(sparse(tmp_path / f"{samples}", samples)) for samples in (4096, 16384)]
    assert peaks[1] < 8 << 20 and peaks[1] - peaks[0] < 16 * (16384 - 4096), peaks
