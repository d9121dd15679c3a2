"""Train and export `digits_transformer.onnx`: the eight rows of an image as tokens of a two-layer encoder.

Run as `python -m ampgraph.models.make_digits_transformer [--out DIR]`.
"""

from __future__ import annotations

import torch
from torch import nn

from ampgraph.models import digits

ROWS, COLUMNS, WIDTH, HEADS, HIDDEN, LAYERS = 8, 8, 48, 4, 144, 2


class Attention(nn.Module):
    """Multi-head attention over the rows, without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, rows, width] -> [batch, heads, rows, width / heads]."""
        return x.reshape(-1, ROWS, HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(-1, ROWS, WIDTH))


class Layer(nn.Module):
    """A pre-norm encoder layer: attention, then a GELU feed-forward, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class DigitsTransformer(nn.Module):
    """About 50,000 parameters; the logits come from the mean over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(COLUMNS, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(ROWS, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.embed(image.reshape(-1, ROWS, COLUMNS)) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1))


def main() -> None:
    """Make the model."""
    folder = digits.out_folder("Train and export digits_transformer.onnx.")
    digits.prepare_torch(seed=2)
    digits.make(DigitsTransformer(), folder / "digits_transformer.onnx", epochs=30, lr=4e-3, opset=18)


if __name__ == "__main__":
    main()
