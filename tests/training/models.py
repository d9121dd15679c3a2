"""Ten architectures as people train them: transformers' classes, small, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

hf: Any = transformers  # whose configurations take any field, which its types do not say
WORDS, CLASSES, LENGTH = 60, 10, 8
ROWS = (3, 2, 5, 4)  # of a batch, by seed: the first is what is exported
Arrays = dict[str, np.ndarray]


class Logits(nn.Module):
    """A model that takes its inputs in the order of the names, and gives its logits."""

    def __init__(self, model: nn.Module, result: str = "logits") -> None:
        super().__init__()
        self.model, self.result = model, result

    def call(self, **inputs: torch.Tensor) -> torch.Tensor:
        extra = {"use_cache": False} if hasattr(self.model.config, "use_cache") else {}
        return getattr(self.model(**inputs, **extra), self.result)


class OfText(Logits):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.call(input_ids=input_ids)


class OfMaskedText(Logits):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.call(input_ids=input_ids, attention_mask=attention_mask)


class OfImages(Logits):
    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.call(pixel_values=pixel_values)


class OfTwoTexts(Logits):
    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return self.call(input_ids=input_ids, decoder_input_ids=decoder_input_ids)


class OfSpeech(Logits):
    def forward(self, input_features: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        return self.call(input_features=input_features, decoder_input_ids=decoder_input_ids)


class OfImagesAndText(Logits):
    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.call(input_ids=input_ids, pixel_values=pixel_values)


NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def bert() -> nn.Module:
    config = hf.BertConfig(vocab_size=WORDS, max_position_embeddings=16, type_vocab_size=2, **SIZES, **NONE)
    return OfMaskedText(hf.BertForMaskedLM(config))


def gpt2() -> nn.Module:
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = hf.GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, **still, **IDS)
    return OfText(hf.GPT2LMHeadModel(config))


def llama() -> nn.Module:
    config = hf.LlamaConfig(vocab_size=WORDS, max_position_embeddings=16, num_key_value_heads=1, **SIZES, **IDS)
    return OfText(hf.LlamaForCausalLM(config))


def vit() -> nn.Module:
    return OfImages(
        hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=8, num_labels=CLASSES, **SIZES, **NONE))
    )


def resnet() -> nn.Module:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=CLASSES, layer_type="basic"
    )
    return OfImages(hf.ResNetForImageClassification(config))


def convnext() -> nn.Module:
    config = hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=CLASSES, patch_size=2)
    return OfImages(hf.ConvNextForImageClassification(config))


def swin() -> nn.Module:
    shape = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}
    return OfImages(
        hf.SwinForImageClassification(hf.SwinConfig(drop_path_rate=0.0, num_labels=CLASSES, **shape, **NONE))
    )


def t5() -> nn.Module:
    sizes = {
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 48,
        "num_layers": 1,
        "num_heads": 2,
        "relative_attention_num_buckets": 8,
    }
    config = hf.T5Config(
        vocab_size=WORDS, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **sizes
    )
    return OfTwoTexts(hf.T5ForConditionalGeneration(config))


def clip() -> nn.Module:
    text = dict(SIZES, num_hidden_layers=1, vocab_size=WORDS, max_position_embeddings=LENGTH, **IDS)
    vision = dict(SIZES, num_hidden_layers=1, image_size=16, patch_size=8)
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return OfImagesAndText(hf.CLIPModel(config), "logits_per_image")


def whisper() -> nn.Module:
    sizes = {"d_model": 32, "num_mel_bins": 8, "max_source_positions": LENGTH, "max_target_positions": 16}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 48}
    config = hf.WhisperConfig(vocab_size=WORDS, decoder_start_token_id=3, dropout=0.0, **sizes, **IDS)
    return OfSpeech(hf.WhisperForConditionalGeneration(config))


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "BERT": bert, "GPT-2": gpt2, "Llama": llama, "ViT": vit, "ResNet": resnet, "ConvNeXt": convnext, "Swin": swin,
    "T5": t5, "CLIP": clip, "Whisper": whisper,
}  # fmt: skip


def make(name: str, seed: int = 0) -> nn.Module:
    """The model in training mode. Dropout is 0: torch's random numbers are not ours. ``GPT-2/eager``: its attention."""
    name, _, attention = name.partition("/")
    torch.manual_seed(seed)
    module = MAKERS[name]().train()
    if attention:
        wrapped: Any = module.model
        wrapped.set_attn_implementation(attention)
    for parameter in module.parameters():  # what starts out as zeros or ones, and all alike, gets values of its own
        if parameter.requires_grad:
            parameter.data += torch.randn_like(parameter) * 0.05
    return module


def batch(name: str, seed: int = 0) -> Arrays:
    """Inputs in the order of the module's forward, and labels."""
    name = name.partition("/")[0]
    rng, rows = np.random.default_rng(seed), ROWS[seed % len(ROWS)]

    def words() -> np.ndarray:
        return rng.integers(3, WORDS, (rows, LENGTH))

    def image() -> np.ndarray:
        return rng.standard_normal((rows, 3, 16, 16)).astype(np.float32)

    mask = np.ones((rows, LENGTH), np.int64)
    mask[1, 5:] = 0
    text: dict[str, Any] = {
        "BERT": lambda: {"input_ids": words(), "attention_mask": mask},
        "GPT-2": lambda: {"input_ids": words()},
        "Llama": lambda: {"input_ids": words()},
        "T5": lambda: {"input_ids": words(), "decoder_input_ids": words()},
        "CLIP": lambda: {"input_ids": words(), "pixel_values": image()},
        "Whisper": lambda: {
            "input_features": rng.standard_normal((rows, 8, 2 * LENGTH)).astype(np.float32),
            "decoder_input_ids": words(),
        },
    }
    inputs = text[name]() if name in text else {"pixel_values": image()}
    if name == "CLIP":
        return {**inputs, "labels": np.arange(rows)}
    per_word = name in ("BERT", "GPT-2", "Llama", "T5", "Whisper")
    labels = rng.integers(0, WORDS, (rows, LENGTH)) if per_word else rng.integers(0, CLASSES, rows)
    return {**inputs, "labels": labels}
