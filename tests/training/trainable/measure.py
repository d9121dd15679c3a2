"""Runs a case: four steps of plain descent at O0 beside torch, four at O2 in a strict run."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.forward.torch_export import ExportedForward

from .case import Case

STEPS = 4
NEAR = 1.5e-5  # of losses at O0, relative to the larger of 1 and torch's
SCALE = "static:256"  # four steps are too few for a scale that starts with skipping them


@dataclass(frozen=True)
class Measured:
    """``away``: the largest difference of losses at O0; ``low``: the losses at O2. ``refused``: the whole error."""

    name: str
    away: float = 0.0
    losses: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    nodes: int = 0
    refused: str = ""

    def trains(self, case: Case) -> bool:
        same = self.away <= NEAR or case.random
        return not self.refused and same and self.low[-1] < self.low[0]

    def as_expected(self, case: Case) -> bool:
        """It trains, or it is refused in one line that says what to do instead."""
        if not case.refused:
            return self.trains(case)
        return case.refused in self.refused.partition("hint: ")[2] and len(self.refused.splitlines()) <= 2


def made(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make().train()


def by_torch(case: Case) -> list[float]:
    module, batch, losses = copy.deepcopy(made(case)), case.batch(), []
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=case.lr)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def measure(case: Case) -> Measured:
    """Raises what is no AmpError."""
    with tempfile.TemporaryDirectory() as folder:
        path, module = Path(folder) / "forward.onnx", made(case)
        try:
            forward = ampgraph.export_for_training(module, case.batch(), path, dynamic_batch=not case.fixed)
            steps = {level: _step(case, forward, level) for level in ("O0", "O2")}
        except AmpError as error:
            return Measured(case.name, refused=str(error))
        names, arrays = forward.inputs, [value.numpy() for value in case.batch()]
        feeds = dict(zip(names, arrays, strict=True))
        found = {}
        for level, step in steps.items():
            trainer = ampgraph.Trainer(step, strict=level == "O2", threads=1)
            found[level] = tuple(trainer.step(feeds).loss for _ in range(STEPS))
    wanted = by_torch(case)
    away = max(abs(ours - theirs) / max(1, abs(theirs)) for ours, theirs in zip(found["O0"], wanted, strict=True))
    nodes = len(list(steps["O0"].model.graph.all_nodes()))
    return Measured(case.name, away, found["O0"], found["O2"], nodes)


def _step(case: Case, forward: ExportedForward, level: str) -> ampgraph.TrainingStep:
    optimizer, scale = f"sgd:lr={case.lr}", SCALE if level == "O2" else "default"
    return ampgraph.build_training_step(
        forward, loss=forward.outputs[0], optimizer=optimizer, level=level, loss_scale=scale
    )
