"""Export ten real architectures with random weights, one file each with its inputs beside it.

    python benchmarks/export_models.py OUT [bert gpt2 llama vit resnet50 swin convnext t5enc whisperenc cond]

Needs torch, transformers, onnxscript and onnxruntime. Static shapes, torch's dynamo exporter, opset 18 or 20.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers
from torch import nn

Feeds = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Example:
    """A model, its inputs by name in the order of `forward`, and the opset to export to."""

    model: nn.Module
    feeds: Feeds
    opset: int = 18


class Output(nn.Module):
    """Calls a transformers model with named inputs and returns one field of what it gives."""

    def __init__(self, model: nn.Module, names: list[str], field: str, **options: object) -> None:
        super().__init__()
        self.model, self.names, self.field, self.options = model, names, field, options

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.names, values, strict=True))
        return getattr(self.model(**given, **self.options), self.field)


def example(model: nn.Module, feeds: Feeds, field: str, opset: int = 18, **options: object) -> Example:
    """Wrap a transformers model."""
    return Example(Output(model, list(feeds), field, **options), feeds, opset)


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(0, vocabulary, shape)


def padded(rows: int, length: int, used: int) -> torch.Tensor:
    """An attention mask whose last row is padded after `used` tokens."""
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, used:] = 0
    return mask


def image() -> Feeds:
    """One picture of the usual size."""
    return {"pixel_values": torch.randn(1, 3, 224, 224)}


def bert() -> Example:
    config = transformers.BertConfig(num_hidden_layers=4, attn_implementation="sdpa")
    feeds = {"input_ids": tokens(30000, 2, 64), "attention_mask": padded(2, 64, 40)}
    return example(transformers.BertModel(config), feeds, "last_hidden_state", opset=20)


def gpt2() -> Example:
    config = transformers.GPT2Config(n_layer=6, use_cache=False, attn_implementation="eager")
    return example(transformers.GPT2LMHeadModel(config), {"input_ids": tokens(50000, 1, 64)}, "logits", use_cache=False)


def llama() -> Example:
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=16000,
        use_cache=False,
        attn_implementation="sdpa",
    )
    feeds = {"input_ids": tokens(16000, 1, 64)}
    return example(transformers.LlamaForCausalLM(config), feeds, "logits", opset=20, use_cache=False)


def vit() -> Example:
    config = transformers.ViTConfig(num_hidden_layers=6, num_labels=1000)
    return example(transformers.ViTForImageClassification(config), image(), "logits")


def resnet50() -> Example:
    return example(
        transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)), image(), "logits"
    )


def swin() -> Example:
    config = transformers.SwinConfig(num_labels=1000, attn_implementation="eager")
    return example(transformers.SwinForImageClassification(config), image(), "logits")


def convnext() -> Example:
    config = transformers.ConvNextConfig(num_labels=1000)
    return example(transformers.ConvNextForImageClassification(config), image(), "logits")


def t5enc() -> Example:
    config = transformers.T5Config(
        d_model=512,
        d_ff=1024,
        num_layers=6,
        num_heads=8,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        attn_implementation="eager",
    )
    feeds = {"input_ids": tokens(32000, 1, 48), "attention_mask": padded(1, 48, 40)}
    return example(transformers.T5EncoderModel(config), feeds, "last_hidden_state")


def whisperenc() -> Example:
    config = transformers.WhisperConfig(
        encoder_layers=4,
        decoder_layers=1,
        d_model=384,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    encoder = transformers.WhisperModel(config).encoder
    return example(encoder, {"input_features": torch.randn(1, 80, 3000)}, "last_hidden_state")


class Branches(nn.Module):
    """Two branches under one condition, between linear layers and a norm: exports as an If."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(256, 512), nn.Linear(512, 512), nn.Linear(512, 512)
        self.norm, self.last = nn.LayerNorm(512), nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def positive(h: torch.Tensor) -> torch.Tensor:
            return self.left(h) + h

        def negative(h: torch.Tensor) -> torch.Tensor:
            return nn.functional.relu(self.right(h)) - self.left(h)

        h = nn.functional.gelu(self.first(x))
        return self.last(self.norm(torch.cond(x.sum() > 0, positive, negative, (h,))))


def cond() -> Example:
    return Example(Branches(), {"x": torch.randn(8, 256) + 0.1})


EXAMPLES: dict[str, Callable[[], Example]] = {
    f.__name__: f for f in (bert, gpt2, llama, vit, resnet50, swin, convnext, t5enc, whisperenc, cond)
}


def export(name: str, build: Callable[[], Example], folder: Path, batch: int = 1) -> str:
    """Export one model with its inputs, ``batch`` times each; return a line that compares ONNX Runtime with torch."""
    torch.manual_seed(0)
    made = build()
    given = {key: value.repeat(batch, *[1] * (value.ndim - 1)) for key, value in made.feeds.items()}
    module, values = made.model.eval(), tuple(given.values())
    with torch.no_grad():
        want = module(*values).numpy()
    path = folder / f"{name}.onnx"
    program = torch.onnx.export(
        module,
        values,
        dynamo=True,
        input_names=list(given),
        output_names=["out"],
        opset_version=made.opset,
        verbose=False,
    )
    program.save(str(path), external_data=False)
    feeds = {n: v.numpy() for n, v in given.items()}
    np.savez(path.with_suffix(".npz"), **feeds)
    (got,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
    size, error = path.stat().st_size / 2**20, float(np.abs(got - want).max())
    return f"{name}: opset {made.opset}, {size:.1f} MB, largest difference to torch {error:.1e}"


def main() -> None:
    """Export what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {' '.join(EXAMPLES)}")
    parser.add_argument("--larger", action="store_true", help="those of larger_models.py instead")
    parser.add_argument("--batch", type=int, default=1, help="how often each input is repeated along its first axis")
    args = parser.parse_args()
    examples = importlib.import_module("larger_models").EXAMPLES if args.larger else EXAMPLES
    unknown = sorted(set(args.names) - set(examples))
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}; known: {' '.join(examples)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or examples:
        print(export(name, examples[name], args.out, args.batch), flush=True)


if __name__ == "__main__":
    main()
