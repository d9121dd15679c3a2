"""More networks of the parity tests: what users have beside the first ones (see ``nets``), and corners of the rules."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindir.blocks import Attention, Block, normal


class GPT(nn.Cell):
    """A decoder: token and position embeddings, a causal mask, an output layer that shares the embedding's table."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.steps = Tensor(np.arange(5, dtype=np.int32))
        self.mask = Tensor(np.triu(np.full((5, 5), -10000.0, np.float32), 1))
        self.blocks = nn.CellList([Block(16, 2), Block(16, 2)])
        self.norm = nn.LayerNorm((16,))
        self.head = nn.Dense(16, 20, has_bias=False)
        self.head.weight = self.tokens.embedding_table

    def construct(self, x):
        y = self.tokens(x) + self.positions(self.steps)
        for block in self.blocks:
            y = block(y, self.mask)
        return self.head(self.norm(y))


class Encoder(nn.Cell):
    """An encoder whose attention mask comes in as 0 and 1."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm((16,))
        self.drop = nn.Dropout(p=0.1)
        self.block = Block(16, 2)
        self.pool = nn.Dense(16, 16, activation="tanh")
        self.head = nn.Dense(16, 2)

    def construct(self, x, mask):
        bias = (1.0 - mask.astype(ms.float32)).reshape((2, 1, 1, 5)) * -10000.0
        y = self.drop(self.norm(self.tokens(x)))
        y = self.block(y, bias)
        return self.head(self.pool(y[:, 0]))


class UNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.down = nn.SequentialCell(nn.Conv2d(2, 4, 3, pad_mode="same"), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.MaxPool2d(2, 2)
        self.middle = nn.SequentialCell(nn.Conv2d(4, 8, 3, pad_mode="same"), nn.BatchNorm2d(8), nn.ReLU())
        self.up = nn.Conv2dTranspose(8, 4, 2, stride=2, pad_mode="valid", has_bias=True)
        self.last = nn.Conv2d(8, 1, 1, has_bias=True)

    def construct(self, x):
        y = self.down(x)
        z = self.up(self.middle(self.pool(y)))
        return ops.sigmoid(self.last(ops.concat((y, z), 1)))


class Upsample(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(4, 2, 3, stride=2, pad_mode="pad", padding=1)
        self.act = nn.LeakyReLU(0.1)

    def construct(self, x):
        y = self.act(self.conv1(x))
        y = ops.interpolate(y, size=(8, 8), mode="bilinear", align_corners=True)
        return ops.interpolate(self.conv2(y), size=(8, 8), mode="nearest")


class Functions(nn.Cell):
    """Functions of ``ops`` with a matrix product before and after."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Dense(6, 6), nn.Dense(6, 4)

    def construct(self, x):
        y = self.inner(x)
        a = ops.exp(y * 0.1) + ops.log(ops.abs(y) + 1.0)
        b = ops.pow(y, 2) / (ops.norm(y) + 1e-6) + ops.sqrt(ops.abs(y))
        c = ops.softmax(a, -1) - ops.mean(b, -1, True) + ops.sum(y, -1, True)
        d = ops.maximum(c, 0.0) + ops.clamp(b, -1.0, 1.0) + ops.cumsum(y, 1)
        return self.outer(d * ops.sigmoid(a) + ops.ones_like(d))


class TwoOutputs(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Dense(6, 8), nn.Dense(8, 3), nn.Dense(8, 2)
        self.argmax = ops.Argmax(-1)

    def construct(self, x, y):
        z = ops.relu(self.body(x)) + self.body(y)
        out = self.left(z)
        return out, (self.right(z), z), self.argmax(out)


class EndsInLayerNorm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Dense(6, 8), nn.LayerNorm((8,))

    def construct(self, x):
        return self.norm(self.body(x))


class EndsInBatchNorm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)

    def construct(self, x):
        return self.norm(self.body(x))


class TwoNorms(nn.Cell):
    """Norms first, in a row, and with one input for two."""

    def __init__(self):
        super().__init__()
        self.norms = nn.SequentialCell(nn.LayerNorm((6,)), nn.LayerNorm((6,)))
        self.batch = nn.BatchNorm1d(6)
        self.other = nn.LayerNorm((6,))
        self.head = nn.Dense(6, 3)

    def construct(self, x):
        y = self.batch(self.norms(x))
        return self.head(y + self.other(y) - self.other(x))


class SharedWeights(nn.Cell):
    """One layer called twice, one weight in two layers, one parameter in a black cell and a white one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(6, 6), nn.Dense(6, 6)
        self.second.weight = self.first.weight
        self.norm, self.head = nn.LayerNorm((6,)), nn.Dense(6, 3)
        self.first.bias = self.norm.beta

    def construct(self, x):
        y = ops.tanh(self.first(x))
        y = ops.tanh(self.first(self.second(y)))
        return self.head(self.norm(y))


class RawParameters(nn.Cell):
    """Parameters used outside every layer: by operators, by a primitive, gathered, returned."""

    def __init__(self):
        super().__init__()
        self.shift = Parameter(Tensor(normal(6)), name="shift")
        self.scale = Parameter(Tensor(normal(6, seed=1)), name="scale")
        self.matrix = Parameter(Tensor(normal(6, 6, seed=2)), name="matrix")
        self.table = Parameter(Tensor(normal(5, 6, seed=3)), name="table")
        self.matmul, self.gather = ops.MatMul(), ops.Gather()
        self.head = nn.Dense(6, 3)

    def construct(self, x, i):
        y = x * self.scale + self.shift
        y = self.matmul(y, self.matrix) + self.gather(self.table, i, 0)
        return self.head(ops.tanh(y) - self.shift), self.scale * 2.0, self.shift


class MatrixProducts(nn.Cell):
    """Every way to write a matrix product."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(6, 6)
        self.head = nn.Dense(6, 3)

    def construct(self, x):
        y = self.inner(x)
        a = ops.matmul(y, y.T)
        b = ops.tanh(a @ y)
        c = y.reshape((1, 2, 6))
        d = ops.bmm(c, c.transpose((0, 2, 1)))
        e = ops.mm(y, ops.transpose(b, (1, 0))) + d.sum(0)
        return self.head(ops.matmul(e, b))


class Casts(nn.Cell):
    """Casts that are there already, to both types and from an integer."""

    def __init__(self):
        super().__init__()
        self.inner, self.middle, self.outer = nn.Dense(6, 6), nn.Dense(6, 6), nn.Dense(6, 3)
        self.cast = ops.Cast()

    def construct(self, x, n):
        y = self.inner(x).astype(ms.float32)
        y = y + self.cast(n, ms.float32) * 0.5
        y = self.middle(ops.tanh(self.cast(y, ms.float16)).astype(ms.float32))
        return self.outer(y * 0.5 + y)


class ToLow(nn.Cell):
    """A cell that the user has set to float16: the file holds its casts."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Dense(6, 6), nn.LayerNorm((6,))
        self.low = nn.Dense(6, 6).to_float(ms.float16)

    def construct(self, x):
        return self.norm(ops.tanh(self.low(ops.tanh(self.inner(x)))))


class ToExact(nn.Cell):
    """A cell that the user has set to float32: in the file it is as any other."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Dense(6, 6), nn.Dense(6, 3)
        self.exact = nn.Dense(6, 6).to_float(ms.float32)

    def construct(self, x):
        return self.outer(ops.tanh(self.exact(ops.tanh(self.inner(x)))))


class Mixer(nn.Cell):
    """A few layers that have rules of their own: PReLU, Dropout, pooling, one-dimensional convolution, pads."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, pad_mode="same", has_bias=True)
        self.prelu = nn.PReLU(4)
        self.average = nn.AvgPool1d(2, 2)
        self.dense = nn.Dense(4, 6, activation="relu", has_bias=False)
        self.attention = Attention(6, 2)
        self.swish, self.hard = nn.SiLU(), nn.HSwish()

    def construct(self, x):
        y = self.average(self.prelu(self.conv(x))).transpose((0, 2, 1))
        y = self.swish(self.dense(y))
        return self.hard(self.attention(y) + ops.stack((y, y), 0).sum(0))


CELLS = {
    "gpt": (GPT, (np.arange(10, dtype=np.int32).reshape(2, 5) % 7,)),
    "encoder": (Encoder, (np.arange(10, dtype=np.int32).reshape(2, 5), np.tri(2, 5, 2).astype(np.int32))),
    "unet": (UNet, (normal(1, 2, 8, 8),)),
    "upsample": (Upsample, (normal(1, 2, 4, 4),)),
    "functions": (Functions, (normal(3, 6),)),
    "two_outputs": (TwoOutputs, (normal(2, 6), normal(2, 6, seed=1))),
    "ends_in_layernorm": (EndsInLayerNorm, (normal(2, 6),)),
    "ends_in_batchnorm": (EndsInBatchNorm, (normal(2, 2, 5, 5),)),
    "two_norms": (TwoNorms, (normal(2, 6),)),
    "shared_weights": (SharedWeights, (normal(2, 6),)),
    "raw_parameters": (RawParameters, (normal(2, 6), np.array([1, 3], np.int32))),
    "matrix_products": (MatrixProducts, (normal(2, 6),)),
    "casts": (Casts, (normal(2, 6), np.array([[1], [3]], np.int32))),
    "to_low": (ToLow, (normal(2, 6),)),
    "to_exact": (ToExact, (normal(2, 6),)),
    "mixer": (Mixer, (normal(2, 3, 8),)),
}
