"""Networks that are trained on the digits, whole steps of them, and MindSpore's own training.

``LOSSES`` and ``BACKBONES`` map a name to a network and its optimizer; ``loss_net(name, level)`` gives forward and loss
as one Cell, ``step_cell(name, kind, level)`` a step of one of the ``KINDS``, at a level of its own AMP, with the
same weights at every call. Needs mindspore, whose parser reads the source of the classes: they stand at module level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, nn, ops

from mindir.blocks import CNN, MLP, Attention, Block

BATCH, STEPS = 64, 46


class Transformer(nn.Cell):
    """Eight rows of eight pixels as a sequence."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Dense(8, 32)
        self.block = Block(32, 4)
        self.mean = ops.ReduceMean()
        self.head = nn.Dense(32, 10)

    def construct(self, x):
        y = self.block(self.embed(x.reshape((x.shape[0], 8, 8))))
        return self.head(self.mean(y, 1))


class Branches(nn.Cell):
    """Tuples, slices and a join between convolutions: what a cut has to carry."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 1, dilation=1)
        self.head = nn.Dense(512, 10)

    def construct(self, x):
        top, bottom = ops.split(x, 4, 2)
        joined = ops.concat([self.norm(top), bottom], 2)
        y = ops.concat([self.conv1(joined), ops.relu(x) * 2, self.conv2(x)[:, :3]], 1)
        return self.head(y.reshape((y.shape[0], -1)))


class Strided(nn.Cell):
    """Grouped, padded and strided convolutions, an overlapping pool, dropout, and batch norm over vectors."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, pad_mode="pad", padding=(1, 0, 1, 0), stride=(1, 2), has_bias=True)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="same")
        self.conv2 = nn.Conv2d(4, 8, 3, group=4, dilation=2)
        self.dropout = nn.Dropout(p=0.3)
        self.fc, self.bn, self.head = nn.Dense(64, 16), nn.BatchNorm1d(16), nn.Dense(16, 10)

    def construct(self, x):
        y = self.dropout(self.conv2(self.pool(self.conv1(x))))
        return self.head(self.bn(self.fc(y.reshape((y.shape[0], -1)))))


class Conditional(nn.Cell):
    """A branch behind a convolution that the data chooses."""

    def __init__(self):
        super().__init__()
        self.conv, self.left, self.right = nn.Conv2d(1, 4, 3), nn.Dense(256, 10), nn.Dense(256, 10)

    def construct(self, x):
        y = self.conv(x).reshape((x.shape[0], 256))
        if y.sum() > 0:
            return self.left(y) * 2
        return ops.tanh(self.right(y))


class ConditionalConvolution(nn.Cell):
    """A convolution inside a branch, which cannot be cut out."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 1, 3), nn.Dense(64, 10)

    def construct(self, x):
        if x.sum() > 0:
            x = self.conv(x)
        return self.head(x.reshape((x.shape[0], 64)))


class WithLoss(nn.Cell):
    """Forward and loss, as nn.WithLossCell has them."""

    def __init__(self, backbone):
        super().__init__()
        self._backbone = backbone
        self._loss_fn = nn.CrossEntropyLoss()

    def construct(self, x, y):
        return self._loss_fn(self._backbone(x), y)


def momentum(parameters: Any) -> nn.Optimizer:
    return nn.Momentum(parameters, 0.05, 0.9)


def adam(parameters: Any) -> nn.Optimizer:
    return nn.Adam(parameters, 2e-3)


LOSSES: dict[str, tuple[Callable[[], nn.Cell], Callable[[Any], nn.Optimizer]]] = {
    "mlp": (partial(MLP, 64, 64, 32, 10), momentum),
    "cnn": (partial(CNN, 8, 10), momentum),
    "transformer": (Transformer, adam),
    "branches": (Branches, momentum),
    "strided": (Strided, momentum),
    "conditional": (Conditional, momentum),
    "conditional_convolution": (ConditionalConvolution, momentum),
}


def weighted(net: nn.Cell) -> nn.Cell:
    """The network with weights that are the same at every call."""
    rng = np.random.default_rng(11)
    for parameter in net.get_parameters():
        if len(parameter.shape) > 1:
            noise = rng.standard_normal(parameter.shape) / np.sqrt(np.prod(parameter.shape[1:]))
            parameter.set_data(Tensor(noise.astype(np.float32)))
    return net


def loss_net(name: str, level: str = "O0") -> nn.Cell:
    """Forward and loss in training mode, as MindSpore's own AMP makes the whole of it at another level than O0."""
    ms.set_seed(3)
    net = weighted(WithLoss(LOSSES[name][0]()))
    return (net if level == "O0" else amp.auto_mixed_precision(net, level)).set_train(True)


def batches(count: int = STEPS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of the digits: images [64, 1, 8, 8] float32 in 0..1, labels [64] int32."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(5).permutation(len(data.target))
    for step in range(count):
        rows = order[np.arange(step * BATCH, (step + 1) * BATCH) % len(order)]
        yield (data.images[rows, None] / 16).astype(np.float32), data.target[rows].astype(np.int32)


def export(net: nn.Cell, path: str) -> None:
    x, y = next(batches(1))
    ms.export(net, Tensor(x), Tensor(y), file_name=path, file_format="MINDIR")


def own_training(net: nn.Cell, optimizer: Any, scaler: Any, data: Any) -> tuple[list[Any], dict[str, np.ndarray]]:
    """MindSpore's training of a Cell as its documentation writes it; (loss, finite, scale) by step and parameters."""
    optimizer = optimizer(net.trainable_params())

    def forward(x, y):
        loss = net(x, y)
        return scaler.scale(loss), loss

    gradients = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)

    @ms.jit
    def step(x, y):
        (_, loss), grads = gradients(x, y)
        grads = scaler.unscale(grads)
        finite = amp.all_finite(grads)
        if finite:
            optimizer(grads)
        scaler.adjust(finite)
        return loss, finite, scaler.scale_value * 1.0

    told = [[float(part.asnumpy()) for part in step(Tensor(x), Tensor(y))] for x, y in data]
    return told, {p.name: p.asnumpy().copy() for p in net.get_parameters()}


OVERFLOW = 7


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


BACKBONES: dict[str, tuple[Callable[[], nn.Cell], Callable[[Any], nn.Optimizer]]] = {
    "mlp": (partial(MLP, 64, 64, 32, 10), momentum),
    "cnn": (partial(CNN, 8, 10), adam),
    "residual": (Residual, adam),
    "layernorm": (Normed, adam),
    "attention": (Attentive, adam),
    "transformer": (Transformer, adam),
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


def _plain(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return nn.TrainOneStepCell(nn.WithLossCell(net, criterion()), optimizer)


def _scaled(net: nn.Cell, optimizer: nn.Optimizer, make: Any = nn.TrainOneStepWithLossScaleCell) -> nn.Cell:
    return make(nn.WithLossCell(net, criterion()), optimizer, nn.DynamicLossScaleUpdateCell(2**12, 2, 10))


def _amp(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return amp.build_train_network(net, optimizer, criterion(), level="O0")


def _model(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return ms.Model(net, criterion(), optimizer, amp_level="O0")._train_network


KINDS: dict[str, Callable[[nn.Cell, nn.Optimizer], nn.Cell]] = {
    "plain": _plain, "scaled": _scaled, "finite": partial(_scaled, make=Finite), "amp": _amp, "model": _model,
}  # fmt: skip


def step_cell(name: str, kind: str, level: str = "O0") -> nn.Cell:
    ms.set_seed(3)
    net = weighted(BACKBONES[name][0]())
    net = net if level == "O0" else amp.auto_mixed_precision(net, level)
    return KINDS[kind](net, BACKBONES[name][1](net.trainable_params())).set_train()


def step_batches(overflow: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of the digits; one of them overflows whatever the scale."""
    found = list(batches(STEPS))
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
