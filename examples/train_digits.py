"""Training on digits: forward graph, loss, gradients and optimizer as one graph, which ONNX Runtime runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ampgraph

ROOT = Path(__file__).resolve().parents[1]
FORWARD, DATA = ROOT / "models" / "digits_cnn_forward.onnx", ROOT / "models" / "digits_train.npz"
EPOCHS, BATCH = 2, 64


def main(folder: Path) -> None:
    step = ampgraph.build_training_step(
        FORWARD, loss="cross_entropy", optimizer=ampgraph.AdamW(lr=2e-3), level="O2", output=folder / "step.onnx"
    )
    trainer = ampgraph.Trainer(step)
    rng = np.random.default_rng(0)
    with np.load(DATA) as held:
        image, labels = held["image"], held["labels"]
    for epoch in range(EPOCHS):
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            result = trainer.step({"image": image[rows], "labels": labels[rows]})
        print(f"epoch {epoch + 1}: loss {result.loss:.3f}, scale {result.scale:g}, finite {bool(result.finite)}")
    trainer.save(folder / "digits.safetensors")


if __name__ == "__main__":
    build = ROOT / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
