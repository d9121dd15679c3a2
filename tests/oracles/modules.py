"""Modules whose types under mixed precision are compared: small ones of many kinds, and random compositions."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F


class ConvNet(nn.Module):
    """Convolutions with batch, group and instance norms, pooling and a residual."""

    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.g2 = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(2, 8)
        self.i3, self.up = nn.InstanceNorm2d(8, affine=True), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Linear(4 * 16, 10)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.b1(self.c1(x))), 2)
        h = F.hardswish(self.g2(self.c2(h))) + h
        h = self.up(self.i3(h))
        return F.log_softmax(self.out(F.avg_pool2d(h, 2).flatten(1)), -1), h.mean((2, 3))


class PreNorm(nn.Module):
    """A transformer block of products and a softmax written out, norms first."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.embedding = heads, nn.Embedding(20, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.f1, self.f2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def split(self, h):
        return h.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, ids):
        h = self.embedding(ids)
        a = self.n1(h)
        q, k, v = self.split(self.q(a)), self.split(self.k(a)), self.split(self.v(a))
        w = torch.softmax(q @ k.transpose(-1, -2) / 2.8284, -1)
        h = h + self.o((w @ v).transpose(1, 2).flatten(2))
        h = h + self.f2(F.gelu(self.f1(self.n2(h))))
        return h @ self.embedding.weight.t(), h.mean(1)


class PostNorm(nn.Module):
    """PyTorch's own encoder layer, norms last."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.scale = nn.Parameter(torch.full((16,), 0.5))

    def forward(self, x):
        return self.layer(x) * self.scale


class Decoder(nn.Module):
    """Attention with a causal mask, RMS norms, rotary positions and a gated linear unit."""

    turn: torch.Tensor

    def __init__(self, width=16):
        super().__init__()
        self.embedding, self.qkv, self.o = nn.Embedding(20, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.register_buffer("turn", torch.linspace(0.1, 1.0, 4))

    def rotate(self, h):
        angle = torch.arange(h.shape[-2]).unsqueeze(-1) * self.turn
        cos, sin = angle.cos(), angle.sin()
        a, b = h.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, ids):
        h = self.embedding(ids)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.n1(h)).chunk(3, -1))
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        a = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, attn_mask=mask)
        h = h + self.o(a.transpose(1, 2).flatten(2))
        g = self.n2(h)
        return h + self.down(F.silu(self.gate(g)) * self.up(g))


class MaskedScores(nn.Module):
    """Attention scores that a mask fills with a very negative number."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, lengths):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        keep = torch.arange(x.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
        filled = scores.masked_fill(~keep.unsqueeze(1), float("-inf"))
        added = scores + torch.where(keep, 0.0, -10000.0).unsqueeze(1)
        return filled.softmax(-1) @ x, added.softmax(-1)


class Recurrent(nn.Module):
    """LSTM and GRU, and what follows them."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 8, batch_first=True), nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        h, _ = self.lstm(x)
        h, _ = self.gru(h + 1.0)
        return torch.tanh(self.out(h)), h.sum(-1)


class DetectionHead(nn.Module):
    """Boxes and scores over a grid: sigmoid, exp, anchors, concatenation."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.scores, self.boxes = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 4, 1)
        self.register_buffer("grid", torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")))

    def forward(self, x):
        h = F.leaky_relu(self.norm(self.body(x)), 0.1)
        scores, boxes = self.scores(h).sigmoid(), self.boxes(h)
        centre = (boxes[:, :2].sigmoid() * 2 - 0.5 + self.grid) * 8
        size = boxes[:, 2:].exp() * 16
        corners = torch.cat([centre - size / 2, centre + size / 2], 1)
        best = scores.max(1, keepdim=True).values
        return torch.cat([corners.flatten(2), best.flatten(2)], 1).transpose(1, 2), F.interpolate(h, scale_factor=2.0)


class Losses(nn.Module):
    """Losses as modules, and cross entropy of probabilities written out."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 5)
        self.mse, self.smooth, self.bce = nn.MSELoss(), nn.SmoothL1Loss(), nn.BCEWithLogitsLoss()

    def forward(self, x, y):
        h = self.out(x)
        target = F.one_hot(y, 5).float()
        return (
            self.mse(h, target),
            self.smooth(h, target),
            self.bce(h, target),
            -(F.log_softmax(h, -1) * target).sum(-1).mean(),
            F.nll_loss(F.log_softmax(h, -1), y),
            F.cross_entropy(h, y),
            F.cosine_similarity(h, target, dim=-1).mean(),
        )


class Steps(nn.Module):
    """A loop that is unrolled: types change from one turn to the next."""

    def __init__(self):
        super().__init__()
        self.cell, self.gate, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        state = x
        for turn in range(3):
            new = torch.tanh(self.cell(state))
            gate = torch.sigmoid(self.gate(state)) if turn else 0.5
            state = gate * new + (1 - gate) * state
            if turn == 1:
                state = self.norm(state)
        return state, torch.where(state > 0, new, x)


class InPlace(nn.Module):
    """Operators that write over their first operand, in the type of what they add."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        F.relu_(h)
        h = h.mul_(2.0)
        g = self.second(h)
        g += h
        g.clamp_(min=-1.0, max=1.0)
        h.add_(x)  # stays low, which no file says
        return g.add_(h, alpha=0.5), h


class Embeddings(nn.Module):
    """Tables of words and places, added, scaled and normed; a shared output table."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(20, 8), nn.Embedding(6, 8), nn.LayerNorm(8)
        self.project = nn.Linear(8, 8)

    def forward(self, ids):
        h = self.words(ids) * 2.8284 + self.places(torch.arange(ids.shape[1]))
        h = self.project(self.norm(h))
        return F.linear(h, self.words.weight), torch.cumsum(h, 1), h.norm(dim=-1)


class UNetBlock(nn.Module):
    """Group norm, SiLU and convolution twice, an embedding of time, a skip and an upsampling."""

    def __init__(self):
        super().__init__()
        self.n1, self.c1, self.n2, self.c2 = (
            nn.GroupNorm(2, 4), nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, padding=1),
        )  # fmt: skip
        self.time, self.skip = nn.Linear(6, 8), nn.Conv2d(4, 8, 1)
        self.register_buffer("waves", torch.linspace(0.0, 1.0, 3).exp())

    def forward(self, x, t):
        angle = t.unsqueeze(-1) * self.waves
        e = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        h = self.c1(F.silu(self.n1(x))) + e[:, :, None, None]
        h = self.c2(F.silu(self.n2(h))) + self.skip(x)
        return F.interpolate(h, scale_factor=2.0, mode="nearest"), F.pad(h, (1, 1, 1, 1))


class Contractions(nn.Module):
    """Einsums and products of matrices of several ranks."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 8))
        self.q = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        h = self.q(x)
        a = torch.einsum("btd,bsd->bts", h, x)
        b = torch.einsum("btd,kd->btk", h, self.table)
        c = torch.bmm(a, x) + torch.matmul(x, self.table.t()).sum(-1, keepdim=True)
        d = torch.baddbmm(x, a, h)
        return b, c, d, torch.addmm(self.table[:, :4], self.table, self.table.t()).relu()


class Broadcasts(nn.Module):
    """Numbers, tensors without dimensions and tensors of several ranks beside low ones."""

    def __init__(self):
        super().__init__()
        self.l, self.gain, self.bias = nn.Linear(8, 8), nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.randn(8))

    def forward(self, x):
        h = self.l(x)
        total = x.sum()
        a = h * self.gain + 2
        b = h - total
        c = torch.maximum(h, self.bias)
        d = (h + self.bias).clamp(-1, 1)
        e = torch.lerp(h, h * 2, 0.25)
        f = torch.where(x > 0, h, 0.0) / (h.abs().amax(-1, keepdim=True) + 1e-3)
        return a, b, c, d, e, f, torch.stack([h, x]), h.std(-1), torch.rsqrt(h.pow(2).mean(-1) + 1e-6)


class Activations(nn.Module):
    """Activations and elementwise functions, listed and not."""

    def __init__(self):
        super().__init__()
        self.l, self.p = nn.Linear(8, 8), nn.PReLU(8)

    def forward(self, x):
        h = self.l(x)
        return (
            F.gelu(h), F.gelu(h, approximate="tanh"), F.softplus(h), F.silu(h), F.mish(h), F.elu(h), F.hardsigmoid(h),
            F.softsign(h), self.p(h), h.exp(), h.abs().sqrt(), h.abs().log1p(), h.erf(), h.sin(), h.tan(),
            h.square(), h.reciprocal(), torch.sigmoid(h).prod(-1), F.normalize(h, dim=-1), h.logsumexp(-1),
        )  # fmt: skip


def _ids(*shape):
    return torch.randint(0, 20, shape)


MODULES = {
    "convnet": (ConvNet, lambda: (torch.randn(2, 3, 8, 8),)),
    "pre_norm": (PreNorm, lambda: (_ids(2, 5),)),
    "post_norm": (PostNorm, lambda: (torch.randn(2, 5, 16),)),
    "decoder": (Decoder, lambda: (_ids(2, 5),)),
    "masked_scores": (MaskedScores, lambda: (torch.randn(2, 5, 8), torch.tensor([3, 5]))),
    "recurrent": (Recurrent, lambda: (torch.randn(2, 5, 6),)),
    "detection_head": (DetectionHead, lambda: (torch.randn(2, 4, 4, 4),)),
    "losses": (Losses, lambda: (torch.randn(4, 8), torch.randint(0, 5, (4,)))),
    "steps": (Steps, lambda: (torch.randn(4, 8),)),
    "in_place": (InPlace, lambda: (torch.randn(4, 8),)),
    "embeddings": (Embeddings, lambda: (_ids(2, 5),)),
    "unet_block": (UNetBlock, lambda: (torch.randn(2, 4, 4, 4), torch.rand(2))),
    "contractions": (Contractions, lambda: (torch.randn(2, 4, 8),)),
    "broadcasts": (Broadcasts, lambda: (torch.randn(4, 8),)),
    "activations": (Activations, lambda: (torch.randn(4, 8),)),
}
"""By name: a class, and what makes its arguments."""


def made(name):
    """A module and its arguments, the same at every call."""
    torch.manual_seed(sum(map(ord, name)))
    module, arguments = MODULES[name]
    built = module().eval()
    return built, arguments()


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


def composed(seed):
    """A module and its arguments, the same at every call."""
    torch.manual_seed(seed)
    return Composition(seed).eval(), (torch.randn(ROWS, COLUMNS),)
