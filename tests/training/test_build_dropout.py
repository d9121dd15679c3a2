"""A transformer with Dropout: given the masks that a step drew, its loss and its weights are torch's."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import ampgraph
from ampgraph.api.build_step import build_training_step
from training.small_steps import Runner

WIDTH, HEADS, LENGTH, ROWS = 8, 2, 5, 4


class Masked(nn.Dropout):
    """Dropout by a mask that is given."""

    mask: torch.Tensor | None = None

    def forward(self, x):
        return super().forward(x) if self.mask is None else x * self.mask.reshape(x.shape) / (1 - self.p)


class Transformer(nn.Module):
    """Dropout where BERT has it: of the embedding, of the attention, of both branches."""

    def __init__(self):
        super().__init__()
        self.words, self.norms = nn.Embedding(20, WIDTH), nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.queries, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.drops = nn.ModuleList(Masked(p) for p in (0.1, 0.3, 0.2, 0.5))

    def forward(self, ids):
        x = self.drops[0](self.words(ids))
        heads = self.queries(x).reshape(ids.shape[0], LENGTH, HEADS, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, -1)
        chances = self.drops[1](torch.softmax(q @ k.transpose(-1, -2) / 2, -1))
        mixed = (chances @ v).transpose(1, 2).reshape(ids.shape[0], LENGTH, WIDTH)
        x = self.norms[0](x + self.drops[2](self.mixed(mixed)))
        x = self.norms[1](x + self.drops[3](self.down(nn.functional.gelu(self.up(x)))))
        return self.last(x.mean(1))


def masks_of(step):
    """Adds the masks of a step to its outputs, in the order of the forward."""
    graph = step.model.graph
    found: list[ir.Value] = []
    for node in graph:
        mask = node.inputs[0] if node.op_type == "Where" else None
        maker = None if mask is None else mask.producer()
        if mask is None or maker is None or maker.op_type != "Reshape" or mask.dtype != ir.DataType.BOOL:
            continue
        if mask not in found:
            found.append(mask)
    graph.outputs.extend(found)
    return [mask.name for mask in found]


@pytest.mark.slow
def test_it_trains_as_torch_does_with_the_same_masks(tmp_path):
    torch.manual_seed(3)
    module, random = Transformer(), np.random.default_rng(0)
    ids, labels = random.integers(0, 20, (ROWS, LENGTH)), random.integers(0, 3, ROWS)
    ampgraph.export_for_training(module, (torch.tensor(ids),), tmp_path / "forward.onnx")
    step = build_training_step(tmp_path / "forward.onnx", loss="cross_entropy", optimizer="sgd:lr=0.5", level="O0")
    names, runner = masks_of(step), None
    assert len(names) == 4
    runner, optimizer, seen = Runner(step), torch.optim.SGD(module.parameters(), 0.5), []
    for _ in range(3):
        made = runner({"ids": ids, "labels": labels})
        for drop, name in zip(module.drops, names, strict=True):
            drop.mask = torch.tensor(made[name]).float()
        seen.append(b"".join(made[name].tobytes() for name in names))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.tensor(ids)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        assert made["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert len(set(seen)) == 3
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(runner.state[name], parameter.detach(), rtol=1e-4, atol=1e-5, err_msg=name)
