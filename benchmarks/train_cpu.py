"""One training step beside torch eager's: process CPU milliseconds, one thread each, taken in turns in one run.

    python benchmarks/train_cpu.py [--steps 30] [--compile] [--runs] [--profile cnn]

Float32 (O0), Adam, the same weights and batches; the median of the steps. `--compile` adds torch.compile, whose
compiling takes minutes. `--profile` prints where ONNX Runtime's time goes, by operator; `--runs` what the update of
many parameters costs when runs of so many numbers are moved together. Needs torch and onnxscript. Results are in
train_cpu.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from torch import nn

import ampgraph
from ampgraph.training.step import flat_update


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


def compiled_step(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """torch.compile of forward, backward and Adam, each as torch's documents say."""
    forward = torch.compile(module)
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    update = torch.compile(optimizer.step)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        update()
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


def machine() -> str:
    """The processor's name, and what it can do that matters here."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    words = {key.strip(): value.strip() for key, value in rows.items()}
    flags = [flag for flag in ("avx2", "avx512f", "amx_tile") if flag in words.get("flags", "").split()]
    return f"{words.get('model name', platform.processor())} (family {words.get('cpu family', '?')}), {' '.join(flags)}"


def medians(steps: dict[str, Any], count: int) -> dict[str, float]:
    """Milliseconds of each, taken in turns; the first three turns do not count."""
    times: list[dict[str, float]] = []
    for number in range(count + 3):
        row = {name: spent(step) for name, step in steps.items()}
        if number >= 3:
            times.append(row)
    return {name: statistics.median(row[name] for row in times) for name in steps}


def compare(name: str, steps: int, with_compile: bool, profiled: bool) -> None:
    make = MODELS[name]
    torch.manual_seed(0)
    module = make().train()
    random = np.random.default_rng(0)
    x = random.standard_normal((make.batch, *make.shape)).astype(np.float32)
    y = random.integers(0, make.classes, make.batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forward.onnx"
        ampgraph.export_for_training(module, (torch.tensor(x),), path, dynamic_batch=False)
        step, mine = our_step(path, {"x": x, "labels": y})
    rivals = {"eager": torch_step(copy.deepcopy(module), torch.tensor(x), torch.tensor(y)), "ours": mine}
    if with_compile:
        rivals["compile"] = compiled_step(module, torch.tensor(x), torch.tensor(y))
    found = medians(rivals, steps)
    eager, compiled, ours = found["eager"], found.get("compile", float("nan")), found["ours"]
    ratios = f"{ours / eager:.2f} | {ours / compiled:.2f}"
    print(f"| {name} | {eager:.1f} | {compiled:.1f} | {ours:.1f} | {ratios} |", flush=True)
    for kind, cost in profile(step, {"x": x, "labels": y}) if profiled else ():
        print(f"    {cost:8.2f} ms  {kind}")


def many(count: int, size: int) -> onnx.ModelProto:
    """A graph of hardly more than its parameters."""
    sums = [f"m{n} = Mul (x, w{n})  r{n} = ReduceMean <keepdims = 0> (m{n})" for n in range(count)]
    sums.append(f"loss = Sum ({', '.join(f'r{n}' for n in range(count))})")
    text = f'<ir_version: 9, opset_import: ["": 18]> g (float[1] x) => (float loss) {{ {"  ".join(sums)} }}'
    model = onnx.parser.parse_model(text)
    arrays = {f"w{n}": np.ones(size, np.float32) for n in range(count)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def runs(steps: int) -> None:
    """What moves parameters together, and how many numbers at most."""
    limits = (0, 1 << 12, 1 << 15, 1 << 17, 1 << 25)
    print("| parameters | numbers of each |", *(f"runs of {limit} |" for limit in limits))
    print("|---" * (2 + len(limits)) + "|")
    batch = {"x": np.ones(1, np.float32)}
    for count, size in ((26, 64), (140, 64), (140, 1024), (140, 4800), (24, 16384), (24, 65536), (6, 880_000)):
        steppers = {}
        for limit in limits:
            flat_update.ON_CPU = limit
            step = ampgraph.build_training_step(
                many(count, size), loss="loss", optimizer="adam", level="O0", target="cpu"
            )
            trainer = ampgraph.Trainer(step, "cpu", threads=1)
            steppers[str(limit)] = lambda trainer=trainer: trainer.step(batch).loss
        found = medians(steppers, steps)
        print(f"| {count} | {size} |", *(f"{cost:.2f} |" for cost in found.values()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--profile", choices=MODELS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}; onnxruntime {onnxruntime.__version__}, torch {torch.__version__}; process CPU, one thread\n")
    if arguments.runs:
        runs(arguments.steps)
        return
    print("| model | eager ms | compile ms | ampgraph ms | to eager | to compile |\n|---|---|---|---|---|---|")
    for name in MODELS:
        compare(name, arguments.steps, arguments.compile, arguments.profile == name)


if __name__ == "__main__":
    main()
