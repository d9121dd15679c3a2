"""The networks of the MindSpore parity tests: small, and with the same weights and inputs at every call.

``CELLS`` maps a name to a class and its example inputs; ``build(name)`` gives the network, ``inputs(name)`` the
arrays. Needs mindspore. The classes stand at module level, and their ``construct`` names its first argument ``self``:
MindSpore's O1 reads their source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindir.blocks import CNN, MLP, Attention, Block, normal


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


class Recurrent(nn.Cell):
    """A layer with a state. Its products are no white ones at O1: the rewriter does not see into the loop."""

    def __init__(self, layer, head):
        super().__init__()
        self.layer, self.head = layer, head

    def construct(self, x):
        y, _ = self.layer(x)
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


class Unrolled(nn.Cell):
    """A cell with one state."""

    def __init__(self, kind):
        super().__init__()
        self.cell = kind(6, 8)
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


class EndsInNorm(nn.Cell):
    def __init__(self, body, norm):
        super().__init__()
        self.body, self.norm = body, norm

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


class Branches(nn.Cell):
    """An outer value that a branch needs in both types; weights used inside and outside; a branch that does nothing."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Dense(4, 4), nn.Dense(4, 4), nn.LayerNorm((4,))

    def construct(self, x):
        y = self.a(x)
        if x.sum() > 0:
            z = self.b(y)
            z = z + y
        else:
            z = self.a(y) * 2
        if z.sum() > 0:
            z = self.norm(z)
        return ops.relu(z) + self.b(x), z


class EarlyReturn(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x):
        y = self.a(x)
        if y.sum() > 0:
            return self.b(y)
        return y


class CellsInLists(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4)])
        self.norms = nn.CellList([nn.LayerNorm((4,)), nn.LayerNorm((4,))])

    def construct(self, x):
        for layer, norm in zip(self.layers, self.norms):  # noqa: B905 - a graph-mode zip takes no keywords
            x = norm(ops.relu(layer(x)))
        for layer in self.layers:
            x = layer(x)
        return self.layers[0](x)


class EncoderLayer(nn.Cell):
    """MindSpore's own layer: weights split and passed to functions, MatMulExt."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def construct(self, x):
        return self.layer(x)


class LowNorms(nn.Cell):
    """Norms of float16 values at auto: LayerNorm and GroupNorm round their weights, BatchNorm does not."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(normal(4, 4)), name="weight")
        self.matmul = ops.MatMul()
        self.ln, self.bn, self.gn = nn.LayerNorm((4,)), nn.BatchNorm1d(4), nn.GroupNorm(2, 4)

    def construct(self, x):
        y = self.matmul(x, self.weight)
        return self.ln(y), self.bn(y), self.gn(y.reshape((2, 4, 2, 1)))


class Promotion(nn.Cell):
    """Operators that meet a float16 and a float32 value at auto."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(normal(4, 4)), name="weight")
        self.bias = Parameter(Tensor(normal(4, seed=1)), name="bias")
        self.shift = Tensor(normal(4, seed=2))
        self.matmul, self.biasadd, self.addn = ops.MatMul(), ops.BiasAdd(), ops.AddN()

    def construct(self, x):
        y = self.matmul(x, self.weight)
        a = y * x, y + x, x - y, y / x, ops.maximum(y, x), ops.select(x > 0, y, x)
        b = ops.concat((y, x), 0), ops.concat((y, y), 1), self.addn((y, x)), self.biasadd(y, self.bias)
        c = y + 1.5, 2.0 - y, y * 0.3, y / 3.0, ops.maximum(y, 0.1), ops.gelu(y), y + self.shift, y * self.shift
        d = ops.masked_fill(y, x > 0, -1e4), y > x, y > 0.5, ops.square(y), ops.exp(y), y.sum(), y.mean(), y[0]
        return a, b, c, d


class ExactValues(nn.Cell):
    """Values that stay float32 at O2 until they enter a cell."""

    def __init__(self):
        super().__init__()
        self.ln, self.dense, self.act, self.gn = nn.LayerNorm((4,)), nn.Dense(4, 4), nn.Sigmoid(), nn.GroupNorm(2, 4)

    def construct(self, x, k):
        y = k.astype(ms.float32) * 0.5
        a = self.ln(y), self.dense(y), self.act(y), self.gn(y.reshape((2, 4, 1, 1)))
        return a, ops.tanh(y), self.act(y + self.dense(x)), y


class ThreeDimensions(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv3d(1, 2, 3, has_bias=True), nn.Conv1dTranspose(2, 2, 3, has_bias=True)
        self.norm, self.table = nn.BatchNorm3d(2), nn.Embedding(4, 2, use_one_hot=True)

    def construct(self, x, i):
        return self.up(self.norm(self.conv(x)).sum((2, 3))) + self.table(i).sum()


class Inputs(nn.Cell):
    """An input that is returned as it is, one that nobody reads, an integer one."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x, unread, i, same):
        return self.dense(x), i + 1, same


class MadeConstants(nn.Cell):
    """Constants made in the network in float32: in the file they look like the network's own tensors."""

    def __init__(self):
        super().__init__()
        self.dense, self.head = nn.Dense(6, 6), nn.Dense(6, 3)

    def construct(self, x):
        y = self.dense(x) + ops.ones((6,), ms.float32)
        return self.head(y + ops.arange(6).astype(ms.float32))


class FunctionsOfParameters(nn.Cell):
    """A parameter handed to a function is not cast at O2, one handed to a primitive is: the operator tells which."""

    def __init__(self):
        super().__init__()
        self.shift = Parameter(Tensor(normal(1, 1, 4)), name="shift")
        self.head = nn.Dense(4, 3)

    def construct(self, x):
        y = ops.concat((ops.tile(self.shift, (2, 1, 1)), x), 1)
        return self.head(y * ops.exp(self.shift))


class Tabled(nn.Cell):
    """A bias that a function makes of two parameters, as window attention does."""

    def __init__(self):
        super().__init__()
        self.index = Parameter(Tensor(np.eye(4, dtype=np.float32)), name="index")
        self.table = Parameter(Tensor(normal(4, 4)), name="table")
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        return self.dense(x) + ops.matmul(self.index, self.table)


class OwnNorm(nn.LayerNorm):
    """A class of the user's own, derived from a black one."""


class LateCells(nn.Cell):
    """Cells that come into a list later: the names of their parameters leave out the list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList()
        for cell in (Tabled(), OwnNorm((4,)), Tabled()):
            self.layers.append(cell)

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class NestedLists(nn.Cell):
    """The rewriter of O1 follows a loop over a list, and into none that is in a list or a dictionary."""

    def __init__(self):
        super().__init__()
        pairs = [nn.SequentialCell([Tabled(), nn.Dense(4, 4)]), nn.SequentialCell([nn.Dense(4, 4)])]
        self.chains = nn.CellList(pairs)
        self.stages = nn.CellList([nn.CellList([nn.Dense(4, 4), Tabled()]), nn.CellList([nn.Dense(4, 4)])])
        self.named = nn.CellDict({"first": nn.Dense(4, 4), "second": nn.Dense(4, 4)})
        self.last = nn.Dense(4, 4)

    def construct(self, x):
        for chain in self.chains:
            x = chain(x)
        for stage in self.stages:
            for layer in stage:
                x = layer(x)
        for layer in self.named.values():
            x = layer(x)
        return self.last(x)


class Source(nn.Cell):
    """What the rewriter of O1 does not find in the source of a class."""

    def __init__(self):
        super().__init__()
        self.layers, self.first, self.last = nn.CellList([nn.Dense(4, 4)]), nn.Dense(4, 4), nn.Dense(4, 4)

    def begin(self, x):
        return ops.relu(self.first(x))

    def construct(self, x):
        return self.last(self.begin(x))


class Inheriting(Source):
    """A method of another class, a cell by its index, and one in an expression: all float32 at O1."""

    def construct(self, x):
        layer = self.layers[0]
        y = layer(self.begin(x))
        y = self.layers[0](y) if self.first is not None else y
        return self.last(y)


CELLS: dict[str, tuple[Callable[[], nn.Cell], tuple[np.ndarray, ...]]] = {
    "mlp": (partial(MLP, 12, 16, 8, 4), (normal(2, 3, 4),)),
    "cnn": (partial(CNN, 4, 5), (normal(2, 1, 8, 8),)),
    "residual": (Residual, (normal(2, 3, 6, 6),)),
    "block": (Block, (normal(2, 5, 16),)),
    "lstm": (lambda: Recurrent(nn.LSTM(6, 8, batch_first=True), nn.Dense(8, 3)), (normal(2, 4, 6),)),
    "bilstm": (BiLSTM, (normal(2, 4, 6), normal(4, 2, 8, seed=1), normal(4, 2, 8, seed=2))),
    "lstm_cell": (LSTMUnrolled, (normal(2, 3, 6), normal(2, 8, seed=1), normal(2, 8, seed=2))),
    "gru": (lambda: Recurrent(nn.GRU(6, 8, batch_first=True), nn.Dense(8, 3)), (normal(2, 4, 6),)),
    "gru_cell": (partial(Unrolled, nn.GRUCell), (normal(2, 3, 6), normal(2, 8, seed=1))),
    "rnn_cell": (partial(Unrolled, nn.RNNCell), (normal(2, 3, 6), normal(2, 8, seed=1))),
    "if": (If, (normal(2, 6),)),
    "while": (While, (normal(2, 6), np.array(3, np.int32))),
    "dynamic": (partial(CNN, 4, 5), (normal(2, 1, 8, 8),)),
    "dynamic_block": (Block, (normal(2, 5, 16),)),
    "gpt": (GPT, (np.arange(10, dtype=np.int32).reshape(2, 5) % 7,)),
    "encoder": (Encoder, (np.arange(10, dtype=np.int32).reshape(2, 5), np.tri(2, 5, 2).astype(np.int32))),
    "unet": (UNet, (normal(1, 2, 8, 8),)),
    "upsample": (Upsample, (normal(1, 2, 4, 4),)),
    "functions": (Functions, (normal(3, 6),)),
    "two_outputs": (TwoOutputs, (normal(2, 6), normal(2, 6, seed=1))),
    "ends_in_layernorm": (lambda: EndsInNorm(nn.Dense(6, 8), nn.LayerNorm((8,))), (normal(2, 6),)),
    "ends_in_batchnorm": (lambda: EndsInNorm(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), (normal(2, 2, 5, 5),)),
    "two_norms": (TwoNorms, (normal(2, 6),)),
    "shared_weights": (SharedWeights, (normal(2, 6),)),
    "raw_parameters": (RawParameters, (normal(2, 6), np.array([1, 3], np.int32))),
    "matrix_products": (MatrixProducts, (normal(2, 6),)),
    "casts": (Casts, (normal(2, 6), np.array([[1], [3]], np.int32))),
    "to_low": (ToLow, (normal(2, 6),)),
    "to_exact": (ToExact, (normal(2, 6),)),
    "mixer": (Mixer, (normal(2, 3, 8),)),
    "branches": (Branches, (normal(4, 4),)),
    "early_return": (EarlyReturn, (normal(4, 4),)),
    "cells_in_lists": (CellsInLists, (normal(2, 4),)),
    "encoder_layer": (EncoderLayer, (normal(2, 3, 4),)),
    "rnn": (lambda: Recurrent(nn.RNN(4, 4, nonlinearity="relu", batch_first=True), nn.Dense(4, 2)), (normal(2, 2, 4),)),
    "low_norms": (LowNorms, (normal(4, 4),)),
    "promotion": (Promotion, (normal(4, 4),)),
    "exact_values": (ExactValues, (normal(2, 4), np.ones((2, 4), np.int32))),
    "three_dimensions": (ThreeDimensions, (normal(1, 1, 4, 4, 4), np.array([0, 1], np.int32))),
    "inputs": (Inputs, (normal(2, 4), normal(3), np.array([1], np.int32), normal(2, seed=1))),
    "made_constants": (MadeConstants, (normal(2, 6),)),
    "late_cells": (LateCells, (normal(4, 4),)),
    "nested_lists": (NestedLists, (normal(4, 4),)),
    "inheriting": (Inheriting, (normal(4, 4),)),
    "functions_of_parameters": (FunctionsOfParameters, (normal(2, 2, 4),)),
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
