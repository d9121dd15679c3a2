"""One training step beside torch eager's: process CPU milliseconds, one thread each, taken in turns in one run.

    python benchmarks/train_cpu.py [--steps 30] [--profile cnn]

Float32 (O0), Adam, the same weights and batches; the median of the steps. `--profile` prints where ONNX Runtime's time
goes, by operator. Needs torch and onnxscript.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

import ampgraph


class Mlp(nn.Module):
    """784 -> 1024 -> 1024 -> 10."""

    shape, classes, batch = (784,), 10, 64

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Cnn(nn.Module):
    """32 x 32 images, three convolutions with BatchNorm."""

    shape, classes, batch = (3, 32, 32), 10, 32

    def __init__(self) -> None:
        super().__init__()
        sizes = [(3, 32), (32, 64), (64, 64)]
        blocks = [
            layer
            for i, o in sizes
            for layer in (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
        ]
        self.net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Encoder(nn.Module):
    """Two layers of width 128 over 64 tokens."""

    shape, classes, batch = (64, 128), 10, 32
    dropout = 0.0

    def __init__(self) -> None:
        super().__init__()
        layer = [nn.TransformerEncoderLayer(128, 4, 512, self.dropout, "gelu", batch_first=True) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layer), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Dropped(Encoder):
    """The encoder with Dropout, four in a layer."""

    dropout = 0.1


MODELS: dict[str, Any] = {"mlp": Mlp, "cnn": Cnn, "encoder": Encoder, "dropout": Dropped}


def torch_step(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def our_step(path: Path, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
    step = ampgraph.build_training_step(path, loss="cross_entropy", optimizer="adam:lr=1e-3", level="O0", target="cpu")
    trainer = ampgraph.Trainer(step, "cpu", threads=1)
    return step, lambda: trainer.step(batch).loss


def spent(step: Any) -> float:
    start = time.process_time()
    step()
    return 1000 * (time.process_time() - start)


def profile(step: Any, batch: dict[str, np.ndarray]) -> list[tuple[str, float]]:
    """Milliseconds of a step by operator, largest first."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.intra_op_num_threads, options.log_severity_level = True, 1, 3
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/step"
        session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString(), options)
        for _ in range(5):
            session.run(None, {**step.initial_state, **batch})
        events = json.loads(Path(session.end_profiling()).read_text())
    found: Counter[str] = Counter()
    for event in events:
        if event["name"].endswith("_kernel_time"):
            found[event["args"]["op_name"]] += event["dur"] / 5000
    return found.most_common(12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--profile", choices=MODELS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | torch ms | ampgraph ms | ratio |\n|---|---|---|---|")
    for name, make in MODELS.items():
        torch.manual_seed(0)
        module = make().train()
        random = np.random.default_rng(0)
        x = random.standard_normal((make.batch, *make.shape)).astype(np.float32)
        y = random.integers(0, make.classes, make.batch)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "forward.onnx"
            ampgraph.export_for_training(module, (torch.tensor(x),), path, dynamic_batch=False)
            step, ours = our_step(path, {"x": x, "labels": y})
        theirs = torch_step(module, torch.tensor(x), torch.tensor(y))
        times: list[tuple[float, float]] = []
        for number in range(arguments.steps + 3):
            pair = spent(theirs), spent(ours)
            if number >= 3:
                times.append(pair)
        one, two = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {one:.1f} | {two:.1f} | {two / one:.2f} |", flush=True)
        if arguments.profile == name:
            for kind, cost in profile(step, {"x": x, "labels": y}):
                print(f"    {cost:8.2f} ms  {kind}")


if __name__ == "__main__":
    main()
