"""A training step on a CUDA GPU: O2 and auto beside O0 and beside torch autocast; milliseconds and memory.

    python benchmarks/gpu_train.py [--out FILE.json] [--steps 50] [--width 1024] [--layers 8]
    python benchmarks/gpu_train.py --device cpu --tiny      # tries everything but CUDA; its figures mean nothing

An encoder, cross entropy, Adam (torch's fused one), dynamic loss scale; batches are on the host and travel in each
step, for everyone. Float32 products use TF32 on both sides, which is ONNX Runtime's default. Memory is what each side
took from the device: torch's reserved, the growth of what is used for ONNX Runtime. Milliseconds are the median of the
steps after a warm-up. Needs onnxruntime-gpu, torch with CUDA, onnxscript.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ampgraph


class Encoder(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        made = [nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", True) for _ in range(layers)]
        self.layers, self.head = nn.ModuleList(made), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@dataclass(frozen=True)
class Machine:
    """Where both sides run, for how many steps behind how many to warm up."""

    device: str
    steps: int
    warmup: int
    profile: bool = False

    def timed(self, step: Callable[[], object]) -> float:
        """Median milliseconds; ``step`` returns when the device is done."""
        found = []
        for number in range(self.steps + self.warmup):
            start = time.perf_counter()
            step()
            if number >= self.warmup:
                found.append(1000 * (time.perf_counter() - start))
        return statistics.median(found)

    def free(self) -> int:
        """Bytes of the device that nobody uses; 0 on a CPU."""
        return torch.cuda.mem_get_info()[0] if self.device == "cuda" else 0


def kernels_of(step: Callable[[], object], runs: int = 3, shown: int = 25) -> str:
    """Where a step's time on the device goes, by kernel: torch's profiler sees those of ONNX Runtime too."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(runs):
            step()
        torch.cuda.synchronize()
    found = [(one.self_device_time_total / runs / 1e3, one.count / runs, one.key) for one in profile.key_averages()]
    lines = [f"{milliseconds:9.3f} ms {count:7.1f} {name[:150]}" for milliseconds, count, name in sorted(found)[::-1]]
    return "\n".join([f"{sum(one[0] for one in found):9.3f} ms on the device", *lines[:shown]])


def of_torch(module: nn.Module, x: np.ndarray, y: np.ndarray, low: bool, machine: Machine) -> dict[str, float]:
    device = machine.device
    module = module.to(device)
    optimizer = torch.optim.Adam(module.parameters(), 1e-4, fused=True)
    scaler = torch.amp.GradScaler(device, enabled=low)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def step() -> None:
        images, labels = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16, enabled=low):
            loss = nn.functional.cross_entropy(module(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if device == "cuda":
            torch.cuda.synchronize()

    milliseconds = machine.timed(step)
    if machine.profile:
        print("torch autocast" if low else "torch float32", kernels_of(step), sep="\n")
    return {"ms": milliseconds, "mb": torch.cuda.max_memory_reserved() / 1e6 if device == "cuda" else 0.0}


def of_ampgraph(
    path: Path, x: np.ndarray, y: np.ndarray, level: str, machine: Machine, cuda_graph: bool = False
) -> dict[str, float]:
    step = ampgraph.build_training_step(path, loss="cross_entropy", optimizer="adam:lr=1e-4", level=level)
    free = machine.free()
    trainer = ampgraph.Trainer(step, machine.device, cuda_graph=cuda_graph)
    milliseconds = machine.timed(lambda: trainer.step({"x": x, "labels": y}).loss)
    if machine.profile:
        print(level, kernels_of(lambda: trainer.step({"x": x, "labels": y}).loss), sep="\n")
    return {"ms": milliseconds, "mb": (free - machine.free()) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny encoder and three steps: to try the script")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take the most time, too")
    options = parser.parse_args()
    if options.tiny:
        options.width, options.layers, options.batch, options.steps = 64, 1, 2, 3
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: nothing measured; --device cpu --tiny tries the script")
    machine = Machine(options.device, options.steps, 1 if options.tiny else 10, options.profile)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    module = Encoder(options.width, options.layers).train()
    random = np.random.default_rng(0)
    x = random.standard_normal((options.batch, 128, options.width)).astype(np.float32)
    y = random.integers(0, 10, options.batch)
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forward.onnx"
        ampgraph.export_for_training(module, (torch.tensor(x),), path, dynamic_batch=False)
        for level in ("O0", "O2", "auto"):
            rows[f"ampgraph {level}"] = of_ampgraph(path, x, y, level, machine)
        if machine.device == "cuda":
            rows["O2, CUDA graph"] = of_ampgraph(path, x, y, "O2", machine, cuda_graph=True)
    for low in (False, True):
        rows["torch autocast" if low else "torch float32"] = of_torch(module, x, y, low, machine)
    for name, row in rows.items():
        print(f"{name:16} {row['ms']:8.2f} ms  {row['mb']:8.0f} MB  {rows['ampgraph O0']['ms'] / row['ms']:.2f}x")
    if options.tiny:
        print("a trial: these figures mean nothing")
    if options.out:
        name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        options.out.write_text(json.dumps({"device": name, "tiny": options.tiny, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
