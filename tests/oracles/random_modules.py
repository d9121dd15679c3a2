"""Random compositions of some fifty operators of PyTorch: every one takes and gives tensors of 4 x 8."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F

ROWS, COLUMNS = 4, 8


def _bounded(h):
    return torch.tanh(h)


def _named(space, names, count):
    """Functions by name, looked up when they are called: Apex patches names."""
    if count == 1:
        return {name: lambda h, name=name: getattr(space, name)(h) for name in names.split()}
    return {name: lambda a, b, name=name: getattr(space, name)(a, b) for name in names.split()}


ONE = {
    **_named(F, "relu gelu silu elu hardswish softplus leaky_relu mish", 1),
    **_named(torch, "sigmoid tanh abs neg erf sin cos square", 1),
    "exp": lambda h: _bounded(h).exp(), "sqrt": lambda h: h.abs().sqrt(), "log1p": lambda h: h.abs().log1p(),
    "log": lambda h: (h.abs() + 1).log(), "rsqrt": lambda h: torch.rsqrt(h.abs() + 1),
    "reciprocal": lambda h: (h.abs() + 1).reciprocal(), "pow": lambda h: _bounded(h).pow(3),
    "tan": lambda h: h.tanh().tan(),
    "softmax": lambda h: F.softmax(h, -1), "log_softmax": lambda h: F.log_softmax(h, 0),
    "cumsum": lambda h: h.cumsum(-1),
    "sum": lambda h: h - h.sum(-1, keepdim=True), "mean": lambda h: h - h.mean(0, keepdim=True),
    "amax": lambda h: h - h.amax(-1, keepdim=True), "std": lambda h: h / (h.std(-1, keepdim=True) + 1),
    "norm": lambda h: h / (h.norm(dim=-1, keepdim=True) + 1), "normalize": lambda h: F.normalize(h, dim=-1),
    "logsumexp": lambda h: h - h.logsumexp(-1, keepdim=True), "prod": lambda h: h + _bounded(h).prod(-1, keepdim=True),
    "scalar": lambda h: h * 0.5 + 1.25, "clamp": lambda h: h.clamp(-1, 1), "reshape": lambda h: h.reshape(8, 4).t(),
    "slice": lambda h: torch.cat([h[:, 3:], h[:, :3]], 1), "pad": lambda h: F.pad(h[:, 1:-1], (1, 1)),
    "max_pool": lambda h: F.max_pool1d(h.unsqueeze(0), 3, 1, 1).squeeze(0),
    "avg_pool": lambda h: F.avg_pool1d(h.unsqueeze(0), 3, 1, 1).squeeze(0),
    "interpolate": lambda h: F.interpolate(h[None, :, :4], scale_factor=2.0, mode="nearest")[0],
    "gather": lambda h: h.index_select(0, torch.tensor([3, 1, 2, 0])), "scores": lambda h: (h @ h.t()) @ h / 8,
    "masked": lambda h: h.masked_fill(h > 1, 1.0), "total": lambda h: h * h.mean(),
}  # fmt: skip
"""Of one operand."""
TWO = {
    **_named(torch, "add sub mul maximum minimum atan2", 2),
    "div": lambda a, b: a / (b.abs() + 1), "where": lambda a, b: torch.where(a > 0, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "stack": lambda a, b: torch.stack([a, b]).amax(0), "matmul": lambda a, b: torch.mm(a, b.t()) @ b / 8,
    "einsum": lambda a, b: torch.einsum("ij,kj,kl->il", a, b, a) / 8, "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "bmm": lambda a, b: torch.bmm(a[None], b.t()[None])[0] @ a / 8,
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b.abs() + 1),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None])[0, 0],
    "mse": lambda a, b: a + F.mse_loss(a, b), "cat": lambda a, b: torch.cat([a, b])[2:6],
}  # fmt: skip
"""Of two operands."""


class Unsqueezed(nn.Module):
    """A layer of images or sequences on 4 x 8 as one of them."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, h):
        return self.layer(h.unsqueeze(0)).squeeze(0)


LAYERS = {
    "linear": lambda: nn.Linear(COLUMNS, COLUMNS), "plain_linear": lambda: nn.Linear(COLUMNS, COLUMNS, bias=False),
    "layer_norm": lambda: nn.LayerNorm(COLUMNS), "rms_norm": lambda: nn.RMSNorm(COLUMNS), "prelu": nn.PReLU,
    "group_norm": lambda: nn.GroupNorm(2, COLUMNS), "batch_norm": lambda: nn.BatchNorm1d(COLUMNS),
    "conv": lambda: Unsqueezed(nn.Conv1d(ROWS, ROWS, 3, padding=1)),
}  # fmt: skip
"""With parameters of their own."""


class Composition(nn.Module):
    """Steps that each take what a step before them gave, or the input."""

    def __init__(self, seed, length=12):
        super().__init__()
        draw = random.Random(seed)
        names = sorted([*ONE, *TWO, *LAYERS])
        self.steps = []
        self.layers = nn.ModuleDict()
        for place in range(length):
            name = "linear" if place == 0 else draw.choice(names)
            if name in LAYERS:
                self.layers[str(place)] = LAYERS[name]()
            reach = place + 2  # the parameter, the input and what came before
            near = [max(0, reach - 1 - draw.choice((0, 0, 0, 1, 1, 2, 4))) for _ in range(2)]
            near[0] = max(1, near[0])  # an operator of parameters alone is folded by the exporter
            self.steps.append((name, near if place else [1, 1]))
        self.table = nn.Parameter(torch.randn(ROWS, COLUMNS))

    def forward(self, x):
        made = [self.table, x]
        for place, (name, (a, b)) in enumerate(self.steps):
            if name in LAYERS:
                made.append(self.layers[str(place)](made[a]))
            else:
                made.append(ONE[name](made[a]) if name in ONE else TWO[name](made[a], made[b]))
        return tuple(made[-3:])


def made(seed):
    """A module and its arguments, the same at every call."""
    torch.manual_seed(seed)
    return Composition(seed).eval(), (torch.randn(ROWS, COLUMNS),)
