"""Whole training steps as MindSpore's Cells, and how they train: what converted step files are compared with.

``BACKBONES`` maps a name to a network and its optimizer; ``step_cell(name, kind, level)`` is a step of one of the
``KINDS`` around it, at a level of MindSpore's own AMP, with the same weights at every call. Needs mindspore; its parser
reads the source of the classes, so they stand at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, nn, ops

from mindir import training_nets as nets
from mindir.blocks import Attention

OVERFLOW, STEPS = 7, 40


class Residual(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()
        self.head = nn.Dense(128, 10)

    def construct(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)) + x)
        return self.head(self.flatten(self.pool(x)))


class Normed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten, self.fc, self.norm = nn.Flatten(), nn.Dense(64, 32), nn.LayerNorm((32,))
        self.act, self.head = nn.GELU(), nn.Dense(32, 10)

    def construct(self, x):
        return self.head(self.act(self.norm(self.fc(self.flatten(x)))))


class Attentive(nn.Cell):
    """Eight rows of eight pixels look at each other."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.norm = nn.Dense(8, 16), Attention(16, 2), nn.LayerNorm((16,))
        self.flatten, self.head = nn.Flatten(), nn.Dense(128, 10)

    def construct(self, x):
        y = self.embed(x.reshape((x.shape[0], 8, 8)))
        return self.head(self.flatten(self.norm(y + self.attention(y))))


BACKBONES: dict[str, tuple[type[nn.Cell], Callable[[Any], nn.Optimizer]]] = {
    "mlp": (nets.MLP, nets.momentum),
    "cnn": (nets.CNN, nets.adam),
    "residual": (Residual, nets.adam),
    "layernorm": (Normed, nets.adam),
    "attention": (Attentive, nets.adam),
    "transformer": (nets.Transformer, nets.adam),
}


class Finite(nn.TrainOneStepWithLossScaleCell):
    """The cell of MindSpore's with a finite check that every device has."""

    def __init__(self, network, optimizer, scale_sense):
        super().__init__(network, optimizer, scale_sense)
        self.all_of = ops.ReduceAll(False)

    def get_overflow_status(self, status, compute_output):
        finite = self.all_of(ops.IsFinite()(compute_output[0]))
        for gradient in compute_output[1:]:
            finite = ops.logical_and(finite, self.all_of(ops.IsFinite()(gradient)))
        return ops.logical_not(finite)


def criterion() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def backbone(name: str) -> nn.Cell:
    """A network with weights that are the same at every call."""
    ms.set_seed(3)
    net = BACKBONES[name][0]()
    rng = np.random.default_rng(11)
    for parameter in net.get_parameters():
        if len(parameter.shape) > 1:
            noise = rng.standard_normal(parameter.shape) / np.sqrt(np.prod(parameter.shape[1:]))
            parameter.set_data(Tensor(noise.astype(np.float32)))
    return net


def _plain(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return nn.TrainOneStepCell(nn.WithLossCell(net, criterion()), optimizer)


def _scaled(net: nn.Cell, optimizer: nn.Optimizer, make: Any = nn.TrainOneStepWithLossScaleCell) -> nn.Cell:
    return make(nn.WithLossCell(net, criterion()), optimizer, nn.DynamicLossScaleUpdateCell(2**12, 2, 10))


def _finite(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return _scaled(net, optimizer, Finite)


def _amp(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return amp.build_train_network(net, optimizer, criterion(), level="O0")


def _model(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return ms.Model(net, criterion(), optimizer, amp_level="O0")._train_network


KINDS: dict[str, Callable[[nn.Cell, nn.Optimizer], nn.Cell]] = {
    "plain": _plain, "scaled": _scaled, "finite": _finite, "amp": _amp, "model": _model,
}  # fmt: skip


def step_cell(name: str, kind: str, level: str = "O0") -> nn.Cell:
    net = backbone(name)
    if level != "O0":
        net = amp.auto_mixed_precision(net, level)
    return KINDS[kind](net, BACKBONES[name][1](net.trainable_params())).set_train()


def batches(overflow: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of the digits; one of them overflows whatever the scale."""
    found = list(nets.batches(STEPS))
    if overflow:
        found[OVERFLOW] = found[OVERFLOW][0] * np.float32(1e30), found[OVERFLOW][1]
    return found


def trained(cell: nn.Cell, data: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """What each step returns, and all state after the last one by plain names."""
    told = []
    for x, y in data:
        made = cell(Tensor(x), Tensor(y))
        told.append([float(part.asnumpy()) for part in (made if isinstance(made, tuple) else (made,))])
    state = {p.name.replace("_backbone.", "").replace("network.", ""): p.asnumpy() for p in cell.get_parameters()}
    return told, state
