"""Writes the files of a version that every later one has to read: `cd tests && python -m kept.make 0.3`.

Run once for each version, when it is released: a folder that is there is never written again.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ampgraph
from ampgraph.training.run.fitting import FILE, History, OnEpoch
from onnx_text import parse

HOME = Path(__file__).resolve().parent
EPOCHS = 4
RECIPE: dict[str, Any] = {
    "level": "O1",
    "dtype": "bfloat16",
    "policy": "pytorch",
    "fp32": ["op:Tanh", "scope:head.*"],
    "low": ["node, with a comma"],
    "io": ["past_*=low"],
    "dims": {"batch": 4},
    "rewrite": ["exact", "no-half"],
    "opset": "auto",
    "range_margin": 3.0,
}
"""One of each kind of field."""


def trained(folder: Path, checkpoint: Path, resume: bool = False, on_epoch: OnEpoch | None = None) -> History:
    """The step of a folder, over its data."""
    trainer = ampgraph.Trainer(str(folder / "step.onnx"), "cpu", strict=True)
    return trainer.fit(
        str(folder / "data.npz"), epochs=EPOCHS, batch_size=16, seed=3, checkpoint=checkpoint, resume=resume,
        on_epoch=on_epoch,
    )  # fmt: skip


def decided(folder: Path) -> None:
    """A recipe as JSON and as text; a converted file with a node that was asked to stay float32, and says so."""
    recipe = ampgraph.Recipe.of(**RECIPE)
    (folder / "recipe.json").write_text(json.dumps(recipe.to_dict(), indent=1) + "\n", encoding="utf-8")
    (folder / "recipe.txt").write_text(f"{recipe}\n", encoding="utf-8")
    ampgraph.convert(str(folder / "model.onnx"), "O2", fp32=["op:Tanh"], output=folder / "pinned.onnx", check="off")


def main(version: str) -> None:
    """A model with its plan and ranges, a training step, its data, a checkpoint halfway and the losses to the end."""
    folder = HOME / version
    folder.mkdir()
    rng = np.random.default_rng(1)
    w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (3, 2)))
    text = "g (float[N,4] x) => (float[N,2] y) { h = MatMul (x, w)  a = Tanh (h)  y = MatMul (a, v) }"
    onnx.save(parse(text, opset=18, w=w, v=v), folder / "model.onnx")
    x, labels = rng.standard_normal((64, 4)).astype(np.float32), rng.integers(0, 2, 64)
    np.savez(folder / "data.npz", x=x, labels=labels)
    ampgraph.calibrate(str(folder / "model.onnx"), data=[{"x": x}]).write(folder / "ranges.json")
    plan = ampgraph.plan(str(folder / "model.onnx"), "O1")
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    decided(folder)
    step = ampgraph.build_training_step(str(folder / "model.onnx"), loss="cross_entropy", optimizer="adamw", level="O1")
    step.save(folder / "step.onnx")

    def keep(epoch: object) -> None:
        if not (folder / FILE).exists():
            shutil.copy(folder / "run" / FILE, folder / FILE)

    history = trained(folder, folder / "run", on_epoch=keep)
    shutil.rmtree(folder / "run")
    np.save(folder / "losses.npy", history.losses)


if __name__ == "__main__":
    main(sys.argv[1])
