"""Writes a hard model and its inputs: ``python -m hard_models t5 FOLDER`` (with ``tests`` on the path)."""

import sys
from pathlib import Path

import onnx

from hard_models import HARD_MODELS
from npz import write_npz

name, folder = sys.argv[1], Path(sys.argv[2])
(folder / f"{name}_samples").mkdir(parents=True, exist_ok=True)
onnx.save(HARD_MODELS[name].build(), folder / f"{name}.onnx")
for number, feeds in enumerate(HARD_MODELS[name].feeds()):
    write_npz(folder / f"{name}_samples" / f"{number:02}.npz", feeds)
