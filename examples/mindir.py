"""A MindIR file: converted and explained without mindspore, run where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

import ampgraph

ROOT = Path(__file__).resolve().parents[1]
MODEL, DATA = ROOT / "models" / "digits_cnn.mindir", ROOT / "models" / "digits_heldout.npz"


def main(folder: Path) -> None:
    low = ampgraph.convert(MODEL, level="O2", output=folder / "digits_cnn.O2.mindir")
    for found in ampgraph.explain_all(MODEL, "op:Conv2D"):
        print(f"{found.node} is {found.precision}: {found.slots[0].reason}")
    if importlib.util.find_spec("mindspore") is None:
        print("mindspore is not installed: pip install '.[mindspore]' to run it")
        return
    with np.load(DATA) as held:
        (logits,) = ampgraph.run(low, {"image": held["image"]}).values()
        print(f"{(np.asarray(logits).argmax(1) == held['labels']).mean():.2%} right")


if __name__ == "__main__":
    build = ROOT / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
