"""What several networks of the parity tests are made of."""

from __future__ import annotations

import numpy as np
from mindspore import nn, ops


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Attention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q, self.k, self.v, self.o = (nn.Dense(width, width) for _ in range(4))
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = nn.Softmax(-1)

    def split(self, x, rows, steps):
        return x.reshape((rows, steps, self.heads, self.size)).transpose((0, 2, 1, 3))

    def construct(self, x, mask=None):
        rows, steps, width = x.shape
        q = self.split(self.q(x), rows, steps)
        k = self.split(self.k(x), rows, steps)
        v = self.split(self.v(x), rows, steps)
        scores = self.scores(q, k) * (self.size**-0.5)
        if mask is not None:
            scores = scores + mask
        y = self.mix(self.softmax(scores), v)
        return self.o(y.transpose((0, 2, 1, 3)).reshape((rows, steps, width)))


class Block(nn.Cell):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.attention = Attention(width, heads)
        self.fc1, self.fc2 = nn.Dense(width, 2 * width), nn.Dense(2 * width, width)
        self.act = nn.GELU()

    def construct(self, x, mask=None):
        x = x + self.attention(self.ln1(x), mask)
        return x + self.fc2(self.act(self.fc1(self.ln2(x))))


class MLP(nn.Cell):
    def __init__(self, first, second, third, last):
        super().__init__()
        self.seq = nn.SequentialCell(
            nn.Flatten(), nn.Dense(first, second), nn.ReLU(), nn.Dense(second, third), nn.ReLU()
        )
        self.head = nn.Dense(third, last)

    def construct(self, x):
        return self.head(self.seq(x))


class CNN(nn.Cell):
    """Of images of 8 x 8."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, has_bias=True, pad_mode="same")
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, pad_mode="same")
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(2 * channels * 2 * 2, classes)

    def construct(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        return self.head(self.flatten(x))
