"""Networks of the parity tests that each hold one corner of MindSpore's rules (see ``nets``)."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindir.blocks import normal


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


class RNN(nn.Cell):
    """Its products and ReLUs are no white ones at O1: the rewriter does not see into the loop."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.RNN(4, 4, nonlinearity="relu", batch_first=True), nn.Dense(4, 2)

    def construct(self, x):
        return self.head(self.rnn(x)[0])


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


CELLS = {
    "branches": (Branches, (normal(4, 4),)),
    "early_return": (EarlyReturn, (normal(4, 4),)),
    "cells_in_lists": (CellsInLists, (normal(2, 4),)),
    "encoder_layer": (EncoderLayer, (normal(2, 3, 4),)),
    "rnn": (RNN, (normal(2, 2, 4),)),
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
