"""Vision, audio and recurrent architectures with random weights, small: what nobody looked at while the rest was made.

Names -> `export_models.Example`, for cuda_placement/other_exports.py. Needs what export_models.py needs.
"""

from __future__ import annotations

from collections.abc import Callable

import handmade_nets
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


EXAMPLES: dict[str, Callable[[], Example]] = (
    {
        "deit": _transformer("DeiT"),
        "beit": _transformer("Beit", use_relative_position_bias=True, num_labels=10),
        "dinov2": _transformer("Dinov2"),
        "dinov2reg": _transformer("Dinov2WithRegisters"),
        "vitmsn": _transformer("ViTMSN"),
        "ijepa": _transformer("IJepa"),
        "data2vec": _transformer("Data2VecVision", use_relative_position_bias=True),
    }
    | {
        f.__name__: f
        for f in (
            *(
                clip,
                siglip,
                sam,
                segformer,
                mobilevit,
                mobilevitv2,
                convnextv2,
                regnet,
                regnetx,
                resnet18,
                resnetdown,
                bit,
            ),
            *(
                efficientnet,
                mobilenetv2,
                mobilenetv1,
                levit,
                poolformer,
                focalnet,
                pvt,
                swiftformer,
                swinv2,
                cvt,
                hiera,
            ),
            *(detr, rtdetr, yolos, dpt, audioast, wav2vec2, hubert, encodec),
        )
    }
    | handmade_nets.EXAMPLES
)
