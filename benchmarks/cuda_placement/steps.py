"""Nodes of training steps as CUDA would run them: of the whole step and of its update, and what more layers add.

    python benchmarks/cuda_placement/steps.py --python build/cuda_placement/bin/python

The digits CNN, and encoders of 2 and 4 layers (needs torch and onnxscript); AdamW, a clipped norm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import ampgraph  # noqa: E402
from ampgraph.report.fusions import TargetGraph  # noqa: E402
from ampgraph.runtime.optimizing import optimized  # noqa: E402

BATCH = 64
OPTIONS = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0}
DYNAMIC = "dynamic"
WAYS = (("O0", None), ("O0", DYNAMIC), ("O2", None), ("O2", DYNAMIC))


class Encoder(nn.Module):
    """``layers`` of width 64 over 16 tokens."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        made = [nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True) for _ in range(layers)]
        self.layers, self.head = nn.ModuleList(made), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@dataclass(frozen=True)
class Row:
    """A step as CUDA would run it."""

    model: str
    parameters: int
    level: str
    scale: str
    batch: str
    graph: TargetGraph
    update: int  # nodes that the update added
    views: int  # of these, those that launch nothing

    def cells(self) -> list[object]:
        found = self.graph
        on_cpu, copies = found.providers.get("CPU", 0), sum(found.copies.values())
        counts = [found.nodes, sum(found.casts.values()), on_cpu, copies, self.update - self.views]
        return [self.model, self.parameters, self.level, self.scale, self.batch, *counts]


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and files of forward graphs."""
    yield "digits CNN", ROOT / "models" / "digits_cnn_forward.onnx"
    for layers in (2, 4):
        torch.manual_seed(0)
        path = folder / f"encoder{layers}.onnx"
        ampgraph.export_for_training(Encoder(layers), (torch.randn(BATCH, 16, 64),), path)
        yield f"encoder, {layers} layers", path


def measured(name: str, path: Path, level: str, scale: str | None, batch: int | None, python: str) -> Row:
    """One step."""
    step = ampgraph.build_training_step(path, **OPTIONS, level=level, loss_scale=scale, batch=batch)
    found = optimized(ir.to_proto(step.model), python=python)
    update = [node.kind for node in found.nodes if node.name.startswith("step/") and "step/loss" not in node.name]
    views = update.count("Reshape")
    sizes = "any" if batch is None else str(batch)
    count = len(step.parameters)
    return Row(name, count, level, scale or "none", sizes, TargetGraph.from_optimized(found), len(update), views)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="of an environment whose onnxruntime has CUDA")
    args = parser.parse_args()
    head = ["model", "parameters", "level", "loss scale", "batch", "nodes", "casts", "on the CPU", "copies", "update"]
    print("| " + " | ".join(head) + " |", "|---" * len(head) + "|", sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder)):
            for batch in (BATCH, None):
                for level, scale in WAYS if batch else WAYS[::3]:
                    row = measured(name, path, level, scale, batch, args.python)
                    print("| " + " | ".join(map(str, row.cells())) + " |", flush=True)


if __name__ == "__main__":
    main()
