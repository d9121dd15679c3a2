"""Networks of images and volumes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .case import Classified, case, classes, numbers


def images(channels: int = 3, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(4, channels, size, size), classes(3, 4)


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]


class UNet(nn.Module):
    """One level down, one up, the skip joined; a class for each pixel."""

    def __init__(self, up: nn.Module) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.up, self.out = up, nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = F.relu(self.down(x))
        deep = self.up(F.relu(self.deep(first)))
        return F.cross_entropy(self.out(torch.cat([first, deep], 1)), y)


def pixels() -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(4, 3, 8, 8), classes(3, 4, 8, 8)


case("UNet, ConvTranspose2d", pixels, lambda: UNet(nn.ConvTranspose2d(8, 8, 2, stride=2)), lr=0.2)
case("UNet, bilinear", pixels, lambda: UNet(nn.Upsample(scale_factor=2, mode="bilinear")), lr=0.2)


@case("DDPM block", lambda: (numbers(4, 8, 8, 8), classes(100, 4), numbers(4, 8, 8, 8, seed=1)))
class Diffusion(nn.Module):
    """Group norms, SiLU, the time in sines and cosines, attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.again = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.time, self.qkv = nn.Linear(8, 8), nn.Conv2d(8, 24, 1)

    def forward(self, x: torch.Tensor, step: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        angles = step[:, None] * torch.exp(-torch.arange(4) * 2.0)
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        hidden = x + self.conv(F.silu(self.norm(x))) + time[:, :, None, None]
        q, k, v = self.qkv(self.again(hidden)).flatten(2).transpose(1, 2).chunk(3, 2)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return F.mse_loss(hidden + mixed, noise)


case(
    "Conv3d",
    lambda: (numbers(4, 1, 4, 6, 6), classes(3, 4)),
    lambda: Classified(nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(16, 3))),
)
case(
    "PixelShuffle",
    lambda: (numbers(4, 3, 6, 6), classes(3, 4, 12, 12)),
    lambda: Classified(nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.PixelShuffle(2))),
    lr=0.2,
)
case("PReLU", images, lambda: Classified(nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(8), *head(8))), lr=0.2)
case(
    "GroupNorm", images, lambda: Classified(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), *head(8)))
)
case(
    "Adaptive pooling to 3 x 3",
    images,
    lambda: Classified(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    ),
    lr=0.2,
)
case(
    "LocalResponseNorm",
    images,
    lambda: Classified(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.LocalResponseNorm(5), *head(8))),
    lr=0.2,
)


class Generator(nn.Sequential):
    def __init__(self) -> None:
        first = [nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU()]
        super().__init__(*first, nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), nn.Tanh())


class Discriminator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4), nn.Flatten())


@case("DCGAN: generator through its discriminator", lambda: (numbers(4, 6, 1, 1),))
class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made, self.judged = Generator(), Discriminator()

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        scores = self.judged(self.made(noise))
        return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


@case("DCGAN: discriminator, fakes detached", lambda: (numbers(4, 6, 1, 1), numbers(4, 1, 8, 8)))
class Judged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made, self.judged = Generator(), Discriminator()
        self.made.requires_grad_(False)

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        good, bad = self.judged(real), self.judged(self.made(noise).detach())
        ones, none = torch.ones_like(good), torch.zeros_like(bad)
        return F.binary_cross_entropy_with_logits(good, ones) + F.binary_cross_entropy_with_logits(bad, none)


@case("Spatial transformer: affine_grid, grid_sample", images, lr=0.2)
class Moved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.where, self.net = nn.Linear(3, 6), Classified(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *head(8)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        turn = self.where(x.mean((2, 3))).view(-1, 2, 3) * 0.2 + torch.eye(2, 3)
        found: torch.Tensor = self.net(F.grid_sample(x, F.affine_grid(turn, list(x.shape), align_corners=False)), y)
        return found


@case("Deformable convolution by grid_sample", images, lr=0.2)
class Deformed(nn.Module):
    """An offset for each pixel; zeros beyond the border, corners aligned."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.net = nn.Conv2d(3, 2, 3, padding=1), nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *head(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        line = torch.linspace(-1, 1, 8)
        base = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
        grid = base + 0.3 * self.offset(x).permute(0, 2, 3, 1)
        return F.cross_entropy(self.net(F.grid_sample(x, grid, padding_mode="zeros", align_corners=True)), y)


case(
    "SyncBatchNorm",
    images,
    lambda: Classified(nn.Sequential(nn.Conv2d(3, 8, 3), nn.SyncBatchNorm(8), nn.ReLU(), *head(8))),
    refused="convert_sync_batchnorm",
)
case(
    "weight_norm",
    images,
    lambda: Classified(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3)), nn.ReLU(), *head(8))),
    lr=0.2,
)
case(
    "spectral_norm",
    images,
    lambda: Classified(nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)), nn.ReLU(), *head(8))),
    lr=0.2,
)
case(
    "spectral_norm, the older form",
    images,
    lambda: Classified(nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 8, 3)), nn.ReLU(), *head(8))),
    refused="parametrizations.spectral_norm",
)


@case("rfft2, irfft2: a Fourier layer", images, lr=0.2)
class Fourier(nn.Module):
    """Four low frequencies, each with weights of its own (real and imaginary part)."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = (nn.Parameter(torch.randn(3, 8, 4, 4) * 0.1) for _ in range(2))
        self.head = nn.Sequential(*head(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        low = torch.fft.rfft2(x)[:, :, :4, :4]
        turned = [(low.real, self.real), (low.imag, self.imaginary), (low.real, self.imaginary), (low.imag, self.real)]
        one, two, three, four = (torch.einsum("bixy,ioxy->boxy", part, weight) for part, weight in turned)
        real, imaginary = one - two, three + four
        back = torch.fft.irfft2(torch.complex(real, imaginary), s=(8, 8))
        return F.cross_entropy(self.head(F.relu(back)), y)
