"""Training on the digits: MLP, CNN with BatchNorm and Dropout, transformer, at every level; low levels strictly."""

import numpy as np
import pytest
import torch

import ampgraph
from ampgraph.models import digits
from ampgraph.models.make_digits_forward import Cnn, Mlp, Transformer
from ampgraph.training.build import build_training_step
from ampgraph.training.trainer import Trainer

RUNS = {
    "mlp": (Mlp, "sgd:lr=0.1,momentum=0.9", 8),
    "cnn": (Cnn, "adamw:lr=2e-3", 6),
    "transformer": (Transformer, "adamw:lr=4e-3", 8),
}


@pytest.fixture(scope="module", params=RUNS)
def results(request, tmp_path_factory):
    """Level -> mean training loss of each epoch, accuracy on the held-out images."""
    make, optimizer, epochs = RUNS[request.param]
    digits.prepare_torch(seed=2)
    path = tmp_path_factory.mktemp("digits") / "forward.onnx"
    ampgraph.export_for_training(make(), (torch.zeros(2, 1, 8, 8),), path)
    fit, held = ({"image": image, "labels": labels} for image, labels in digits.load_split())
    found = {}
    for level in ("O0", "O1", "O2", "auto"):
        step = build_training_step(path, loss="cross_entropy", optimizer=optimizer, level=level)
        trainer = Trainer(step, "cpu", strict=level != "O0")
        history = trainer.fit(fit, epochs=epochs, batch_size=64, lr_schedule="cosine:warmup=20")
        assert trainer.updates == epochs * (len(fit["labels"]) // 64)
        found[level] = [epoch.loss for epoch in history.epochs], trainer.evaluate(held)["accuracy"]
    return request.param, found


def test_levels_end_where_float32_ends(results):
    name, found = results
    reference = found["O0"][0][-1]
    assert all(np.isfinite(losses).all() for losses, _ in found.values())
    for level, (losses, _) in found.items():
        assert abs(losses[-1] / reference - 1) < 0.05, f"{name} at {level}: {losses[-1]:.4f}, O0 {reference:.4f}"


def test_the_held_out_digits_are_read(results):
    name, found = results
    for level, (_, accuracy) in found.items():
        assert accuracy >= {"mlp": 0.94, "cnn": 0.98, "transformer": 0.9}[name], f"{name} at {level}: {accuracy}"


def test_low_levels_do_compute_low(results):
    """Else they would be O0."""
    _, found = results
    assert all(found[level][0] != found["O0"][0] for level in ("O1", "O2", "auto"))
