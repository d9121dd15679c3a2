"""Architectures at the sizes that are deployed, random weights: what a GPU's time is estimated and measured for.

Names -> `export_models.Example`; `export_models.py OUT --larger` exports them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from export_models import Example, Feeds, example, padded, tokens
from torch import nn


def pictures(rows: int, side: int = 224) -> Feeds:
    """So many square pictures."""
    return {"pixel_values": torch.randn(rows, 3, side, side)}


def text(rows: int, length: int, words: int = 30000) -> Feeds:
    """So many rows of tokens, the last of them padded after three quarters."""
    return {"input_ids": tokens(words, rows, length), "attention_mask": padded(rows, length, length * 3 // 4)}


def deit() -> Example:
    config = transformers.DeiTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000)
    return example(transformers.DeiTForImageClassification(config), pictures(8), "logits")


def segformer() -> Example:
    model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=150))
    return example(model, pictures(2, 512), "logits")


def mobilenetv2() -> Example:
    model = transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=1000))
    return example(model, pictures(32), "logits")


def efficientnet() -> Example:
    config = transformers.EfficientNetConfig(
        image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, num_labels=1000
    )
    return example(transformers.EfficientNetForImageClassification(config), pictures(32), "logits")


def resnet18() -> Example:
    config = transformers.ResNetConfig(
        layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], num_labels=1000
    )
    return example(transformers.ResNetForImageClassification(config), pictures(32), "logits")


class UNet(nn.Module):
    """Four scales of two convolutions with norms, joined by skips."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        inputs = (3, *widths)
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(inputs, widths, strict=False))
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(self.block(2 * b, b) for _, b in pairs)
        self.last = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def block(channels: int, width: int) -> nn.Module:
        """Two convolutions over squares of three, each with a stored norm."""
        first = [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*first, nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        h, skips = pixel_values, []
        for number, block in enumerate(self.down):
            h = block(h if number == 0 else nn.functional.max_pool2d(h, 2))
            skips.append(h)
        for grow, block, skip in zip(self.grow, self.up, skips[-2::-1], strict=True):
            h = block(torch.cat([grow(h), skip], 1))
        return self.last(h)


def unet() -> Example:
    return Example(UNet(), pictures(4, 256))


def bertlarge() -> Example:
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 6}
    config = transformers.BertConfig(**sizes, attn_implementation="sdpa")
    return example(transformers.BertModel(config), text(8, 256), "last_hidden_state", opset=20)


def opt() -> Example:
    config = transformers.OPTConfig(num_hidden_layers=6, use_cache=False, attn_implementation="eager")
    return example(transformers.OPTForCausalLM(config), {"input_ids": tokens(50000, 4, 256)}, "logits", use_cache=False)


def qwen2() -> Example:
    config = transformers.Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=6,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=32000,
        use_cache=False,
        attn_implementation="sdpa",
    )
    feeds = {"input_ids": tokens(32000, 1, 1024)}
    return example(transformers.Qwen2ForCausalLM(config), feeds, "logits", opset=20, use_cache=False)


def bart() -> Example:
    config = transformers.BartConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
        attn_implementation="eager",
    )
    feeds = text(4, 128) | {"decoder_input_ids": tokens(30000, 4, 128)}
    return example(transformers.BartModel(config), feeds, "last_hidden_state", use_cache=False)


def wav2vec2() -> Example:
    config = transformers.Wav2Vec2Config(attn_implementation="eager")
    return example(transformers.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 80000)}, "logits")


class Recurrent(nn.Module):
    """Two LSTM layers in both directions and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 512, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(1024, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(x)[0])


def lstm() -> Example:
    return Example(Recurrent(), {"x": torch.randn(16, 200, 128)})


def mlp() -> Example:
    layers = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return Example(nn.Sequential(*layers, nn.Linear(2048, 64)), {"x": torch.randn(512, 2048)})


EXAMPLES: dict[str, Callable[[], Example]] = {
    f.__name__: f
    for f in (deit, segformer, mobilenetv2, efficientnet, resnet18, unet)
    + (bertlarge, opt, qwen2, bart, wav2vec2, lstm, mlp)
}
