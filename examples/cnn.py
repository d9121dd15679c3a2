"""A CNN that reads digits: convert it, verify the result on real images, run it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ampgraph

ROOT = Path(__file__).resolve().parents[1]
MODEL, DATA = ROOT / "models" / "digits_cnn.onnx", ROOT / "models" / "digits_heldout.npz"


def main(folder: Path) -> None:
    low = ampgraph.convert(MODEL, level="O2", output=folder / "digits_cnn.O2.onnx")
    found = ampgraph.verify(MODEL, low, data=DATA)
    print(f"verdict {'ok' if found.ok else 'missed'}, outputs {', '.join(output.name for output in found.outputs)}")
    with np.load(DATA) as held:
        logits = ampgraph.run(low, {"image": held["image"]}, strict=True)["logits"]
        print(f"{(np.asarray(logits).argmax(1) == held['labels']).mean():.2%} of {len(held['labels'])} images right")


if __name__ == "__main__":
    build = ROOT / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
