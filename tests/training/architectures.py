"""Gradients of ten architectures against torch in float64; ``python -m training.architectures`` prints the table.

Errors are those of the worst element, relative to the largest gradient of the model.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import ModelProto
from torch import nn
from torch.overrides import TorchFunctionMode

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.training.step.training_step import TrainingStep
from present import present
from training.models import MAKERS, Arrays, batch, make

SCALE = 1024.0
SEEDS = range(8)  # of weights and batches: an error on one input is a lottery ticket
LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class Wide(TorchFunctionMode):
    """What a model does in float32 by name (norms, rotary angles) happens in float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        function = torch.Tensor.double if func is torch.Tensor.float else func
        return function(*map(wide, args), **{key: wide(value) for key, value in (kwargs or {}).items()})


def torch_gradients(module: nn.Module, arrays: Arrays, low: torch.dtype | None = None) -> Arrays:
    """By the module's own type; with ``low`` under autocast, the loss scaled as ours."""
    dtype = next(module.parameters()).dtype
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    labels = tensors.pop("labels")
    inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors.values()]
    module.zero_grad()
    with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
        logits = module(*inputs)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = nn.functional.cross_entropy(wide.flatten(0, -2), labels.flatten())
    (loss * SCALE).backward()
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {name: present(parameter.grad).double().numpy() / SCALE for name, parameter in trained.items()}


def low_gradients(module: nn.Module, arrays: Arrays, low: torch.dtype) -> Arrays:
    """Of a module that is low as a whole, as Apex's O2 makes it: its residual stream too. torch's kernels keep float32
    inside norms and softmax."""
    found = torch_gradients(module.to(low), arrays)
    module.float()
    return found


def true_gradients(module: nn.Module, arrays: Arrays) -> Arrays:
    """In float64, throughout."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():
            return torch_gradients(module, arrays)
    finally:
        torch.set_default_dtype(before)


def export(name: str) -> ModelProto:
    inputs = [torch.tensor(array) for key, array in batch(name).items() if key != "labels"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forward.onnx"
        ampgraph.export_for_training(make(name), inputs, path, check=False)  # gradients are what is compared here
        return onnx.load(path)


class OneByOne(ampgraph.SGD):
    """Not among the optimizers that move parameters together: its slots have the names of the parameters."""


def build(forward: ModelProto, level: str, dtype: str = "float16") -> TrainingStep:
    """A step whose momentum after one update from zero is the gradient, unscaled."""
    optimizer = OneByOne(0.1, momentum=0.9)
    scale = f"static:{SCALE:g}"
    return ampgraph.build_training_step(
        forward, loss="cross_entropy", optimizer=optimizer, level=level, dtype=dtype, loss_scale=scale
    )


class Gradients:
    """The gradients that a step computes in a strict run."""

    def __init__(self, step: TrainingStep) -> None:
        self.slots = {entry.name.removeprefix("momentum/"): entry.output for entry in step.layout.of("slot")}
        self.session = StrictSession(ir.to_proto(step.model), threads=1)

    def __call__(self, module: nn.Module, arrays: Arrays) -> Arrays:
        weights = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
        given = {name: weights[name] for name in self.slots}
        found = self.session.run({**arrays, **given}, outputs=list(self.slots.values()))
        return {name: np.asarray(found[output], np.float64) for name, output in self.slots.items()}


def error(found: Arrays, true: Arrays) -> float:
    """The worst of all elements, relative to the largest."""
    assert found.keys() == true.keys(), found.keys() ^ true.keys()
    largest = max(float(np.abs(array).max()) for array in true.values())
    worst = [float(np.abs(found[name] - array).max()) for name, array in true.items()]
    return max(worst) / largest if np.isfinite(worst).all() else float("inf")


class Measured:
    """The errors of one architecture, each a list over the seeds."""

    def __init__(self, name: str, seeds: Sequence[int] = SEEDS) -> None:
        self.name, self.seeds, self.forward = name, seeds, export(name)
        self.batches = [batch(name, seed) for seed in seeds]

    @functools.cached_property
    def true(self) -> list[Arrays]:
        pairs = zip(self.seeds, self.batches, strict=True)
        return [true_gradients(make(self.name, seed).double(), arrays) for seed, arrays in pairs]

    def _errors(self, gradients: Callable[[nn.Module, Arrays], Arrays]) -> list[float]:
        rows = zip(self.seeds, self.batches, self.true, strict=True)
        return [error(gradients(make(self.name, seed), arrays), true) for seed, arrays, true in rows]

    def ours(self, level: str, dtype: str = "float16") -> list[float]:
        return self._errors(Gradients(build(self.forward, level, dtype)))

    def float32(self) -> list[float]:
        return self._errors(torch_gradients)

    @functools.cache  # noqa: B019
    def apex(self, dtype: str) -> list[float]:
        return self._errors(lambda module, arrays: low_gradients(module, arrays, LOW[dtype]))

    @functools.cache  # noqa: B019
    def autocast(self, dtype: str) -> list[float]:
        return self._errors(lambda module, arrays: torch_gradients(module, arrays, LOW[dtype]))


def main() -> None:
    heads = ["torch float32", "O0"]
    for dtype in LOW:
        heads += [f"{dtype}: autocast", "Apex O2", "O1", "O2"]
    print("|", " | ".join(["worst, or median and worst, of 8", *heads]), "|")
    print("|", " | ".join(["---"] * (len(heads) + 1)), "|")
    for name in MAKERS:
        measured = Measured(name)
        cells = [f"{max(errors):.1e}" for errors in (measured.float32(), measured.ours("O0"))]
        for dtype in LOW:
            rows = [
                measured.autocast(dtype),
                measured.apex(dtype),
                *(measured.ours(level, dtype) for level in ("O1", "O2")),
            ]
            cells += [f"{np.median(e):.1e} {max(e):.1e}" for e in rows]
        print("|", " | ".join([name, *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
