"""Vision, audio and recurrent architectures with random weights, small: what nobody looked at while the rest was made.

Names -> `export_models.Example`, for cuda_placement/other_exports.py. Needs what export_models.py needs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from export_models import Example, example
from torch import nn

WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
"""Of a transformer."""


def picture(side: int = 64) -> dict[str, torch.Tensor]:
    """One picture."""
    return {"pixel_values": torch.randn(1, 3, side, side)}


def classifier(kind: str, field: str = "logits", side: int = 64, ending: str = "ForImageClassification") -> Callable:
    """An example of a kind of transformers by its configuration; ``more``: what is set in it."""

    def build(**more: object) -> Example:
        config = getattr(transformers, kind + "Config")(**more)
        return example(getattr(transformers, kind + ending)(config), picture(side), field)

    return build


def _transformer(kind: str, ending: str = "ForImageClassification", field: str = "logits", **more: object) -> Callable:
    return lambda: classifier(kind, field, ending=ending)(**(WIDE | {"image_size": 64, "patch_size": 16} | more))


def clip() -> Example:
    config = transformers.CLIPVisionConfig(**WIDE, image_size=64, patch_size=16)
    return example(transformers.CLIPVisionModel(config), picture(), "pooler_output")


def siglip() -> Example:
    config = transformers.SiglipVisionConfig(**WIDE, image_size=64, patch_size=16)
    return example(transformers.SiglipVisionModel(config), picture(), "pooler_output")


def sam() -> Example:
    config = transformers.SamVisionConfig(
        hidden_size=64,
        output_channels=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_dim=128,
        image_size=64,
        patch_size=8,
        window_size=4,
        global_attn_indexes=[1],
    )
    return example(transformers.SamVisionModel(config), picture(), "last_hidden_state")


def segformer() -> Example:
    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], num_attention_heads=[1, 2, 4, 4], decoder_hidden_size=64
    )
    return example(transformers.SegformerForSemanticSegmentation(config), picture(), "logits")


def mobilevit() -> Example:
    config = transformers.MobileViTConfig(
        hidden_sizes=[48, 64, 80], neck_hidden_sizes=[16, 32, 48, 64, 80, 96, 160], image_size=128
    )
    return example(transformers.MobileViTForImageClassification(config), picture(128), "logits")


def mobilevitv2() -> Example:
    config = transformers.MobileViTV2Config(width_multiplier=0.5)
    return example(transformers.MobileViTV2ForImageClassification(config), picture(128), "logits")


def convnextv2() -> Example:
    return classifier("ConvNextV2")(depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 48, 64])


def regnet() -> Example:
    return classifier("RegNet")(depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 96, 128], embedding_size=16, groups_width=16)


def regnetx() -> Example:
    return classifier("RegNet")(
        depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 96, 128], embedding_size=16, groups_width=16, layer_type="x"
    )


def resnet18() -> Example:
    return classifier("ResNet")(
        layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[16, 32, 48, 64], embedding_size=16
    )


def resnetdown() -> Example:
    return classifier("ResNet")(depths=[1, 1, 1, 1], hidden_sizes=[32, 48, 64, 96], downsample_in_first_stage=True)


def bit() -> Example:
    return classifier("Bit")(depths=[1, 1, 1, 1], hidden_sizes=[32, 64, 96, 128], embedding_size=32, num_groups=8)


def efficientnet() -> Example:
    return classifier("EfficientNet")(width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=1280)


def mobilenetv2() -> Example:
    return classifier("MobileNetV2", side=96)(depth_multiplier=0.35)


def mobilenetv1() -> Example:
    return classifier("MobileNetV1", side=96)(depth_multiplier=0.25)


def levit() -> Example:
    return classifier("Levit", side=224)(hidden_sizes=[64, 96, 128], key_dim=[16, 16, 16], depths=[1, 1, 1])


def poolformer() -> Example:
    return classifier("PoolFormer")(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64])


def focalnet() -> Example:
    return classifier("FocalNet")(image_size=64, embed_dim=32, depths=[1, 1, 1, 1])


def pvt() -> Example:
    return classifier("PvtV2")(
        image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], num_attention_heads=[1, 2, 4, 4]
    )


def swiftformer() -> Example:
    return classifier("SwiftFormer")(depths=[1, 1, 2, 1], embed_dims=[16, 32, 48, 64])


def swinv2() -> Example:
    return classifier("Swinv2")(image_size=64, embed_dim=32, depths=[1, 2, 1], num_heads=[2, 2, 2], window_size=4)


def cvt() -> Example:
    return classifier("Cvt")(embed_dim=[16, 32, 64], num_heads=[1, 2, 4], depth=[1, 1, 2])


def hiera() -> Example:
    return classifier("Hiera")(image_size=[64, 64], embed_dim=32, depths=[1, 1, 2, 1], num_heads=[1, 1, 2, 2])


def _backbone() -> object:
    return transformers.ResNetConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[32, 48, 64, 96],
        embedding_size=16,
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


def detr() -> Example:
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=_backbone(),
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_queries=20,
    )
    return example(transformers.DetrForObjectDetection(config), picture(), "logits")


def rtdetr() -> Example:
    backbone = transformers.RTDetrResNetConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[32, 48, 64, 96],
        embedding_size=16,
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[48, 64, 96],
        encoder_hidden_dim=64,
        d_model=64,
        num_queries=20,
        decoder_layers=2,
        decoder_attention_heads=4,
        encoder_attention_heads=4,
        decoder_in_channels=[64, 64, 64],
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        anchor_image_size=[64, 64],
    )
    return example(transformers.RTDetrForObjectDetection(config), picture(), "logits")


def yolos() -> Example:
    config = transformers.YolosConfig(**WIDE, image_size=[64, 64], patch_size=16, num_detection_tokens=10)
    return example(transformers.YolosForObjectDetection(config), picture(), "logits")


def dpt() -> Example:
    config = transformers.DPTConfig(
        **(WIDE | {"num_hidden_layers": 4}),
        image_size=64,
        patch_size=16,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 32, 48, 64],
        fusion_hidden_size=32,
    )
    return example(transformers.DPTForDepthEstimation(config), picture(), "predicted_depth")


def audioast() -> Example:
    config = transformers.ASTConfig(**WIDE, max_length=128, num_mel_bins=32)
    return example(transformers.ASTForAudioClassification(config), {"input_values": torch.randn(1, 128, 32)}, "logits")


def wav2vec2() -> Example:
    config = transformers.Wav2Vec2Config(**WIDE, conv_dim=(32,) * 7, num_conv_pos_embeddings=16, vocab_size=32)
    return example(transformers.Wav2Vec2ForCTC(config), {"input_values": torch.randn(1, 8000)}, "logits")


def hubert() -> Example:
    config = transformers.HubertConfig(
        **WIDE,
        conv_dim=(32,) * 7,
        num_conv_pos_embeddings=16,
        vocab_size=32,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
    )
    return example(transformers.HubertForCTC(config), {"input_values": torch.randn(1, 8000)}, "logits")


def encodec() -> Example:
    config = transformers.EncodecConfig(
        num_filters=8, hidden_size=32, upsampling_ratios=[4, 2], norm_type="weight_norm"
    )
    model = transformers.EncodecModel(config)
    return Example(nn.Sequential(model.encoder, model.decoder), {"x": torch.randn(1, 1, 1600)})


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
    "deit": _transformer("DeiT"),
    "beit": _transformer("Beit", use_relative_position_bias=True, num_labels=10),
    "dinov2": _transformer("Dinov2"),
    "dinov2reg": _transformer("Dinov2WithRegisters"),
    "vitmsn": _transformer("ViTMSN"),
    "ijepa": _transformer("IJepa"),
    "data2vec": _transformer("Data2VecVision", use_relative_position_bias=True),
} | {
    f.__name__: f
    for f in (
        *(clip, siglip, sam, segformer, mobilevit, mobilevitv2, convnextv2, regnet, regnetx, resnet18, resnetdown, bit),
        *(efficientnet, mobilenetv2, mobilenetv1, levit, poolformer, focalnet, pvt, swiftformer, swinv2, cvt, hiera),
        *(detr, rtdetr, yolos, dpt, audioast, wav2vec2, hubert, encodec),
        *(unetgroup, unetinstance, decoder, lstm, gru, wave),
    )
}
