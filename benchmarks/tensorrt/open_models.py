"""Larger models with open batch and length, random weights: encoders, a decoder with its cache, convolutions.

    python benchmarks/tensorrt/open_models.py OUT [NAME ...]
    python benchmarks/tensorrt/whole_models.py OUT/*.onnx --dim batch=1:2:8 --dim length=1:64:256 --dim past=1:64:512

Writes OUT/NAME.onnx with a sample beside it, OUT/NAME.npz. Needs what ../export_models.py needs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from export_models import Feeds, Output, padded, tokens  # noqa: E402
from torch import nn  # noqa: E402

WORDS, ROWS, LENGTH, PAST = 8000, 2, 64, 32
Axes = dict[str, dict[int, str]]


@dataclass(frozen=True)
class Open:
    """A model, its inputs by name, and the names of their open dimensions. ``dynamo``: by which exporter."""

    model: nn.Module
    feeds: Feeds
    axes: Axes
    dynamo: bool = False
    outputs: tuple[str, ...] = ("out",)


class WithCache(nn.Module):
    """A decoder that takes keys and values of what it has read, and gives them with those of what it reads now."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        return made.logits, *(part for one in made.past_key_values.layers for part in (one.keys, one.values))


def bert(dynamo: bool = False) -> Open:
    """BERT-base but for its words."""
    model = transformers.BertModel(transformers.BertConfig(vocab_size=WORDS), add_pooling_layer=False)
    feeds = {"ids": tokens(WORDS, ROWS, LENGTH), "mask": padded(ROWS, LENGTH, 40)}
    axes = {name: {0: "batch", 1: "length"} for name in (*feeds, "out")}
    names = ["input_ids", "attention_mask"]
    return Open(Output(model, names, "last_hidden_state"), feeds, axes, dynamo)


def llama() -> Open:
    """A decoder with grouped queries, rotated positions and a cache."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=2,
    )  # fmt: skip
    names = [f"past.{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    past = {name: torch.randn(ROWS, 2, PAST, 64) for name in names}
    made = tuple(name.replace("past", "present") for name in names)
    feeds = {"ids": tokens(WORDS, ROWS, 1), "mask": torch.ones(ROWS, PAST + 1, dtype=torch.int64), **past}
    axes: Axes = {"ids": {0: "batch"}, "mask": {0: "batch", 1: "total"}, "out": {0: "batch"}}
    axes |= {name: {0: "batch", 2: "past"} for name in names} | {name: {0: "batch", 2: "total"} for name in made}
    return Open(WithCache(transformers.LlamaForCausalLM(config)), feeds, axes, outputs=("out", *made))


def pictures(kind: str, **more: object) -> Open:
    """A model of pictures, many at once."""
    config = getattr(transformers, f"{kind}Config")(**more)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    axes = {name: {0: "batch"} for name in ("pixels", "out")}
    return Open(Output(model, ["pixel_values"], "logits"), {"pixels": torch.randn(ROWS, 3, 224, 224)}, axes)


MODELS: dict[str, Callable[[], Open]] = {
    "bert_open": bert,
    "bert_open_dynamo": lambda: bert(dynamo=True),
    "llama_cache": llama,
    "resnet50_open": lambda: pictures("ResNet"),
    "vit_open": lambda: pictures("ViT", num_hidden_layers=6),
}


def export(name: str, folder: Path) -> None:
    """Writes one model and its sample."""
    torch.manual_seed(0)
    made = MODELS[name]()
    path, values = folder / f"{name}.onnx", tuple(made.feeds.values())
    words = {"input_names": list(made.feeds), "output_names": list(made.outputs)}
    if made.dynamo:
        sizes = {size: torch.export.Dim(size, min=1, max=512) for size in ("batch", "length")}
        shapes = {"values": tuple({axis: sizes[of] for axis, of in made.axes[name].items()} for name in made.feeds)}
        program = torch.onnx.export(
            made.model.eval(), values, dynamo=True, dynamic_shapes=shapes, opset_version=20, verbose=False, **words
        )
        program.save(str(path))
    else:
        options = {"dynamo": False, "opset_version": 17, "dynamic_axes": made.axes}
        torch.onnx.export(made.model.eval(), values, str(path), **options, **words)
    np.savez(path.with_suffix(".npz"), **{one: value.numpy() for one, value in made.feeds.items()})


def main() -> None:
    """Exports what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or MODELS:
        export(name, args.out)
        print(f"{name}: {(args.out / f'{name}.onnx').stat().st_size / 2**20:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
