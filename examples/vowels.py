"""An LSTM on recordings of vowels: which of nine speakers is it? UCI's Japanese Vowels, 640 series of 12 numbers.

    .venv/bin/python examples/vowels.py [WHEEL]

The series come in pip's package aeon; WHEEL is its file. Without one, pip downloads it.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ampgraph

PACKAGE = "aeon==1.6.0"
MEMBER = "aeon/datasets/data/JapaneseVowels/JapaneseVowels_{}.ts"
STEPS, NUMBERS, SPEAKERS = 29, 12, 9


def fetched(folder: Path) -> Path | None:
    """The wheel, after pip has brought it; None where it cannot."""
    found = sorted(folder.glob("aeon-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), PACKAGE]
        subprocess.run(command, check=False, capture_output=True)
        found = sorted(folder.glob("aeon-*.whl"))
    return found[0] if found else None


def series(wheel: Path, part: str) -> dict[str, np.ndarray]:
    """Zeros stand in front of the shorter ones: the last state of the network is that of the last number."""
    with zipfile.ZipFile(wheel) as packed:
        lines = packed.read(MEMBER.format(part)).decode().splitlines()
    rows = [line.split(":") for line in lines if line and line[0] not in "#@"]
    x = np.zeros((len(rows), STEPS, NUMBERS), np.float32)
    for place, row in enumerate(rows):
        numbers = np.array([[float(word) for word in axis.split(",")] for axis in row[:NUMBERS]]).T
        x[place, -len(numbers) :] = numbers
    return {"x": x, "labels": np.array([int(row[NUMBERS]) - 1 for row in rows])}


class Speaker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(NUMBERS, 64, batch_first=True), nn.Linear(64, SPEAKERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def trained(forward: Path, level: str, wheel: Path) -> dict[str, float]:
    """What the series that it has not seen say after 40 epochs."""
    step = ampgraph.build_training_step(forward, loss="cross_entropy", optimizer="adam:lr=5e-3", level=level)
    trainer = ampgraph.Trainer(step, strict=level != "O0")  # strict: a CPU that really rounds to float16
    history = trainer.fit(
        series(wheel, "TRAIN"), validate=series(wheel, "TEST"), epochs=40, batch_size=30, lr_schedule="cosine"
    )
    return {"first": history.epochs[0].loss, "last": history.epochs[-1].loss, **history.epochs[-1].validation}


def main(folder: Path, wheel: Path | None = None) -> None:
    wheel = wheel or fetched(folder)
    if wheel is None:
        raise SystemExit(f"pip cannot download {PACKAGE}: give its wheel")
    torch.manual_seed(0)
    forward = folder / "vowels.onnx"
    ampgraph.export_for_training(Speaker(), (torch.zeros(2, STEPS, NUMBERS),), forward, dynamic_batch=True)
    for level in ("O0", "O2"):
        found = trained(forward, level, wheel)
        print(f"{level} loss {found['first']:.3f} -> {found['last']:.3f}, test accuracy {found['accuracy']:.4f}")


if __name__ == "__main__":
    build = Path(__file__).resolve().parents[1] / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
