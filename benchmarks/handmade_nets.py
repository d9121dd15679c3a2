"""Nets written by hand, small, random weights: a U-net of diffusion, a decoder of pictures, recognisers, a vocoder.

Names -> `export_models.Example`, beside the architectures of vision_models.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from export_models import Example
from torch import nn


class Block(nn.Module):
    """A residual block of a diffusion U-net: GroupNorm, SiLU, Conv, with the time added in between."""

    def __init__(self, given: int, made: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(given), norm(made)
        self.conv1, self.conv2 = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.time, self.skip = nn.Linear(64, made), nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        silu = nn.functional.silu
        h = self.conv1(silu(self.norm1(x))) + self.time(silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(silu(self.norm2(h)))


class Attend(nn.Module):
    """Attention over the pixels, behind a norm."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = norm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).flatten(2).transpose(1, 2)).chunk(3, -1)
        made = torch.softmax(q @ k.transpose(1, 2) * c**-0.5, -1) @ v
        return x + self.out(made).transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    """A small U-net of diffusion: sinusoids of the time, two scales, attention in the middle."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.exp(-torch.arange(16) / 16 * 9.2))
        self.embed = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first, self.last = nn.Conv2d(4, 32, 3, padding=1), nn.Conv2d(32, 4, 3, padding=1)
        self.down, self.mid, self.up = Block(32, 64, norm), Block(64, 64, norm), Block(128, 32, norm)
        self.shrink, self.attend, self.norm = nn.Conv2d(64, 64, 3, 2, 1), Attend(64, norm), norm(32)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        angles = step[:, None] * self.frequencies
        t = self.embed(torch.cat([angles.sin(), angles.cos()], -1))
        kept = self.down(self.first(x), t)
        h = self.attend(self.mid(self.shrink(kept), t))
        h = self.up(torch.cat([nn.functional.interpolate(h, scale_factor=2.0), kept], 1), t)
        return self.last(nn.functional.silu(self.norm(h)))


def _unet(norm: Callable[[int], nn.Module]) -> Example:
    return Example(UNet(norm), {"x": torch.randn(1, 4, 16, 16), "step": torch.tensor([37.0])})


def unetgroup() -> Example:
    return _unet(lambda width: nn.GroupNorm(8, width))


def unetinstance() -> Example:
    return _unet(lambda width: nn.InstanceNorm2d(width, affine=True))


class Decoder(nn.Module):
    """MaxPool down; Upsample, ConvTranspose and pixel shuffle up; a sigmoid last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.InstanceNorm2d(32),
            nn.PReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.Hardswish(),
            nn.AvgPool2d(2),
        )
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ELU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.BatchNorm2d(16),
            nn.Mish(),
            nn.Conv2d(16, 12, 1),
            nn.PixelShuffle(2),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


def decoder() -> Example:
    return Example(Decoder(), {"x": torch.randn(1, 3, 64, 64)})


class Recurrent(nn.Module):
    """Convolutions over time, a recurrent net of two directions, a classifier of each step: a recogniser."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(40, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 64, 3, 2, 1), nn.GELU()
        )
        self.net = kind(64, 48, num_layers=2, bidirectional=True, batch_first=True)
        self.norm, self.out = nn.LayerNorm(96), nn.Linear(96, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, _ = self.net(self.conv(x).transpose(1, 2))
        return torch.log_softmax(self.out(self.norm(made)), -1)


def lstm() -> Example:
    return Example(Recurrent(nn.LSTM), {"x": torch.randn(1, 40, 100)})


def gru() -> Example:
    return Example(Recurrent(nn.GRU), {"x": torch.randn(1, 40, 100)})


class Wave(nn.Module):
    """Dilated 1-D convolutions with gates, skips added up, as a vocoder has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 32, 7, padding=3), nn.Conv1d(32, 1, 1)
        self.gates = nn.ModuleList(nn.Conv1d(32, 64, 3, padding=2**i, dilation=2**i) for i in range(4))
        self.outs = nn.ModuleList(nn.Conv1d(32, 64, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, skips = self.first(x), 0.0
        for gate, out in zip(self.gates, self.outs, strict=True):
            a, b = gate(h).chunk(2, 1)
            more, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, skips = (h + more) * 0.7071, skips + skip
        return torch.tanh(self.last(nn.functional.relu(skips)))


def wave() -> Example:
    return Example(Wave(), {"x": torch.randn(1, 1, 400)})


EXAMPLES: dict[str, Callable[[], Example]] = {
    f.__name__: f for f in (unetgroup, unetinstance, decoder, lstm, gru, wave)
}
