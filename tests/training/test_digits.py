"""Training on the digits: MLP, CNN with BatchNorm and Dropout, transformer, at every level; low levels strictly."""

import numpy as np
import pytest
import torch

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.models import digits
from ampgraph.models.make_digits_forward import Cnn, Mlp, Transformer
from ampgraph.training.run.trainer import Trainer
from share import FULL

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
