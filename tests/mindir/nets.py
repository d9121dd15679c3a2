"""The networks of the MindSpore parity tests: small, and with the same weights and inputs at every call.

``CELLS`` maps a name to a class and its example inputs; ``build(name)`` gives the network, ``inputs(name)`` the
arrays. Needs mindspore. The classes stand at module level, and their ``construct`` names its first argument ``self``:
MindSpore's O1 reads their source.
"""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindir import nets_more, nets_rules
from mindir.blocks import Block, normal


class MLP(nn.Cell):
    def __init__(self):
        super().__init__()
        self.seq = nn.SequentialCell(nn.Flatten(), nn.Dense(12, 16), nn.ReLU(), nn.Dense(16, 8), nn.ReLU())
        self.head = nn.Dense(8, 4)

    def construct(self, x):
        return self.head(self.seq(x))


class CNN(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, has_bias=True, pad_mode="same")
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(4, 8, 3, pad_mode="same")
        self.bn2 = nn.BatchNorm2d(8)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(8 * 2 * 2, 5)

    def construct(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        return self.head(self.flatten(x))


class Residual(nn.Cell):
    """A residual CNN with three kinds of normalisation and a constant tensor."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, pad_mode="same")
        self.bn = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, pad_mode="same", has_bias=True)
        self.gn = nn.GroupNorm(2, 8)
        self.short = nn.Conv2d(3, 8, 1)
        self.relu = nn.ReLU()
        self.ln = nn.LayerNorm((8,))
        self.mean = ops.ReduceMean()
        self.shift = Tensor(np.linspace(-1, 1, 8, dtype=np.float32))
        self.head = nn.Dense(8, 4)

    def construct(self, x):
        y = self.relu(self.bn(self.conv1(x)))
        y = self.gn(self.conv2(y)) + self.short(x)
        y = self.mean(self.relu(y), (2, 3))
        return self.head(self.ln(y) + self.shift)


class LSTM(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=1, batch_first=True)
        self.head = nn.Dense(8, 3)

    def construct(self, x):
        y, _ = self.lstm(x)
        return self.head(y[:, -1])


class BiLSTM(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Dense(16, 3)

    def construct(self, x, h, c):
        y, (h, c) = self.lstm(x, (h, c))
        return self.head(y), h, c


class LSTMUnrolled(nn.Cell):
    """nn.LSTMCell, the one that is on MindSpore's white list."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)
        self.head = nn.Dense(8, 3)

    def construct(self, x, h, c):
        for step in range(3):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


class GRU(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)
        self.head = nn.Dense(8, 3)

    def construct(self, x):
        y, h = self.gru(x)
        return self.head(y[:, -1]), h


class GRUUnrolled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 8)
        self.head = nn.Dense(8, 3)

    def construct(self, x, h):
        for step in range(3):
            h = self.cell(x[:, step], h)
        return self.head(h)


class RNNUnrolled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(6, 8)
        self.head = nn.Dense(8, 3)

    def construct(self, x, h):
        for step in range(3):
            h = self.cell(x[:, step], h)
        return self.head(h)


class If(nn.Cell):
    """A branch that the data chooses, with weights in both branches."""

    def __init__(self):
        super().__init__()
        self.inner, self.left, self.right = nn.Dense(6, 8), nn.Dense(8, 8), nn.Dense(8, 8)
        self.norm = nn.LayerNorm((8,))
        self.head = nn.Dense(8, 3)

    def construct(self, x):
        y = self.inner(x)
        if y.sum() > 0:
            y = self.left(y)
            y = self.norm(y) * 2.0
        else:
            y = ops.relu(self.right(y)) + 1.0
        return self.head(y)


class While(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(6, 6)
        self.head = nn.Dense(6, 3)

    def construct(self, x, n):
        i = n - n
        while i < n:
            x = ops.tanh(self.inner(x)) + x
            i = i + 1
        return self.head(x)


CELLS: dict[str, tuple[Callable[[], nn.Cell], tuple[np.ndarray, ...]]] = {
    "mlp": (MLP, (normal(2, 3, 4),)),
    "cnn": (CNN, (normal(2, 1, 8, 8),)),
    "residual": (Residual, (normal(2, 3, 6, 6),)),
    "block": (Block, (normal(2, 5, 16),)),
    "lstm": (LSTM, (normal(2, 4, 6),)),
    "bilstm": (BiLSTM, (normal(2, 4, 6), normal(4, 2, 8, seed=1), normal(4, 2, 8, seed=2))),
    "lstm_cell": (LSTMUnrolled, (normal(2, 3, 6), normal(2, 8, seed=1), normal(2, 8, seed=2))),
    "gru": (GRU, (normal(2, 4, 6),)),
    "gru_cell": (GRUUnrolled, (normal(2, 3, 6), normal(2, 8, seed=1))),
    "rnn_cell": (RNNUnrolled, (normal(2, 3, 6), normal(2, 8, seed=1))),
    "if": (If, (normal(2, 6),)),
    "while": (While, (normal(2, 6), np.array(3, np.int32))),
    "dynamic": (CNN, (normal(2, 1, 8, 8),)),
    "dynamic_block": (Block, (normal(2, 5, 16),)),
    **nets_more.CELLS,
    **nets_rules.CELLS,
}
DYNAMIC = {"dynamic": ((None, 1, 8, 8),), "dynamic_block": ((None, None, 16),)}
"""Networks exported with unknown sizes, and the shapes of their inputs."""


def inputs(name: str) -> tuple[np.ndarray, ...]:
    return CELLS[name][1]


def build(name: str) -> nn.Cell:
    """A new network in inference mode; its weights depend on nothing but the order of its parameters."""
    ms.set_seed(1)
    net = CELLS[name][0]()
    net.set_train(False)
    rng = np.random.default_rng(7)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(_weight(parameter, rng), parameter.dtype))
    return net


def _weight(parameter: Parameter, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(parameter.shape).astype(np.float32)
    if parameter.name.endswith("moving_variance"):
        return 0.5 + np.abs(noise)
    if parameter.name.endswith("gamma"):
        return 1 + 0.1 * noise
    if len(parameter.shape) < 2:
        return 0.1 * noise
    return noise / np.sqrt(np.prod(parameter.shape[1:])).astype(np.float32)
