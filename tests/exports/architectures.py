"""Small models of the architectures that people export, built and exported by torch with random weights."""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Decomposed by the exporter, as in Llama and T5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Causal, with a rotary embedding computed from positions and a finite mask."""

    frequency: torch.Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads = heads
        size = width // heads
        self.register_buffer("frequency", 1.0 / 10000 ** (torch.arange(0, size, 2).float() / size))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        angle = torch.arange(length)[:, None].float() * self.frequency
        angle = torch.cat((angle, angle), -1)
        half = q.shape[-1] // 2

        def rotate(t):
            return t * angle.cos() + torch.cat((-t[..., half:], t[..., :half]), -1) * angle.sin()

        scores = rotate(q) @ rotate(k).transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        mixed = torch.softmax(scores + mask, -1) @ v
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class Decoder(nn.Module):
    """A Llama: tied embedding, RMSNorm, rotary attention, gated feed-forward."""

    def __init__(self, width: int = 64, layers: int = 2, words: int = 500) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": RMSNorm(width),
                    "attention": Attention(width, 4),
                    "norm2": RMSNorm(width),
                    "gate": nn.Linear(width, 2 * width, bias=False),
                    "up": nn.Linear(width, 2 * width, bias=False),
                    "down": nn.Linear(2 * width, width, bias=False),
                }
            )
            for _ in range(layers)
        )
        self.norm = RMSNorm(width)

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.blocks:
            assert isinstance(b, nn.ModuleDict)
            x = x + b["attention"](b["norm1"](x))
            y = b["norm2"](x)
            x = x + b["down"](nn.functional.silu(b["gate"](y)) * b["up"](y))
        return self.norm(x) @ self.embed.weight.T


class VisionTransformer(nn.Module):
    """Patches by a convolution, LayerNorm, an encoder with GELU, a linear head."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.encoder(x)).mean(1))


class ResidualNet(nn.Module):
    """Convolutions with batch norm, residuals and a pooled head, as ResNet."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.stem(image)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Branching(nn.Module):
    """A condition on the data, exported as If."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        h = nn.functional.gelu(self.a(x))
        h = torch.cond(x.sum() > 0, lambda h: self.b(h) + h, lambda h: torch.relu(self.c(h)) - h, (h,))
        return self.norm(h)


def architectures() -> dict[str, tuple[nn.Module, torch.Tensor, str, int]]:
    """name -> (module, example input, input name, opset)."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 32, 32)
    return {
        "decoder": (Decoder(), torch.randint(0, 500, (2, 12)), "ids", 20),
        "vision": (VisionTransformer(), image, "image", 18),
        "residual": (ResidualNet(), image, "image", 18),
        "branching": (Branching(), torch.randn(4, 64), "x", 18),
    }
