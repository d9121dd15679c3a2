"""Transformers and what stands around attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .case import Classified, case, classes, numbers

WIDE, LENGTH, WORDS = 16, 6, 11


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(4, LENGTH, WIDE), classes(3, 4)


def encoder(dropout: float) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDE, 2, 24, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Encoded(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.net, self.head = encoder(dropout), nn.Linear(WIDE, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.net(x, src_key_padding_mask=mask).mean(1)), y)


def padded() -> tuple[torch.Tensor, ...]:
    return (*sequences(), torch.arange(LENGTH) >= torch.tensor([[6], [5], [3], [2]]))


case("TransformerEncoder with a padding mask", padded, lambda: Encoded(0.0))
case("TransformerEncoder with a padding mask and Dropout", padded, lambda: Encoded(0.1), random=True)


class Translated(nn.Module):
    def __init__(self, told: bool) -> None:
        super().__init__()
        self.net = nn.Transformer(WIDE, 2, 1, 1, 24, 0.0, batch_first=True)
        self.words, self.head, self.told = nn.Embedding(WORDS, WIDE), nn.Linear(WIDE, WORDS), told

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        told = {"tgt_is_causal": True, "src_is_causal": False} if self.told else {}
        found = self.net(self.words(source), self.words(target), tgt_mask=mask, **told)
        return F.cross_entropy(self.head(found).transpose(1, 2), target)


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    return classes(WORDS, 4, LENGTH), classes(WORDS, 4, LENGTH, seed=1)


case("nn.Transformer, causal mask, tgt_is_causal given", texts, lambda: Translated(True))
case("nn.Transformer, causal mask", texts, lambda: Translated(False))


class Experts(nn.Module):
    """The two best of four experts, by weights that a router gives."""

    def __init__(self, gathered: bool) -> None:
        super().__init__()
        self.router, self.gathered = nn.Linear(WIDE, 4), gathered
        self.weight, self.head = nn.Parameter(torch.randn(4, WIDE, WIDE) * 0.2), nn.Linear(WIDE, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = x.mean(1)
        best, which = self.router(rows).topk(2, dim=-1)
        share = best.softmax(-1)
        if self.gathered:
            found = torch.einsum("bi,bkij->bkj", rows, self.weight[which])
        else:
            found = torch.einsum("bi,kij->bkj", rows, self.weight)
            share = torch.zeros(rows.shape[0], 4).scatter(1, which, share)
        return F.cross_entropy(self.head(torch.tanh((share[..., None] * found).sum(1))), y)


case("Mixture of experts, dense", sequences, lambda: Experts(False), lr=0.2)
case("Mixture of experts, gathered", sequences, lambda: Experts(True), lr=0.2)


class Mixtral(nn.Module):
    def __init__(self, experts: str | None) -> None:
        super().__init__()
        import transformers as hf

        sizes: dict[str, Any] = {
            "hidden_size": WIDE,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        sizes |= {"num_key_value_heads": 1, "vocab_size": WORDS, "num_local_experts": 4, "num_experts_per_tok": 2}
        given = {} if experts is None else {"experts_implementation": experts}
        config = hf.MixtralConfig(**sizes, max_position_embeddings=16, pad_token_id=0)
        self.model = hf.MixtralForCausalLM._from_config(config, **given)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.model(input_ids=words, use_cache=False).logits
        return F.cross_entropy(scores.transpose(1, 2), labels)


case("Mixtral, experts batched", texts, lambda: Mixtral("batched_mm"))
case("Mixtral, experts grouped (the default)", texts, lambda: Mixtral(None))
case("Mixtral, experts in a loop", texts, lambda: Mixtral("eager"), refused="batched_mm")


@case("wav2vec2", lambda: (numbers(2, 400), classes(3, 2)), fixed=True, lr=0.02)
class Speech(nn.Module):
    """Convolutions over samples, a convolution of positions with weight norm, one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        import transformers as hf

        still: dict[str, Any] = dict.fromkeys(
            ("hidden_dropout", "attention_dropout", "feat_proj_dropout", "layerdrop"), 0.0
        )
        still |= {"num_feat_extract_layers": 2, "attn_implementation": "eager"}
        config = hf.Wav2Vec2Config(
            hidden_size=WIDE, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, conv_dim=(8, 8),
            conv_kernel=(10, 3), conv_stride=(5, 2), num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2, mask_time_prob=0.0, mask_feature_prob=0.0, apply_spec_augment=False,
            activation_dropout=0.0, final_dropout=0.0, **still,
        )  # fmt: skip
        self.model, self.head = hf.Wav2Vec2Model(config), nn.Linear(WIDE, 3)

    def forward(self, sound: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.model(sound).last_hidden_state.mean(1)), y)


@case("torch.utils.checkpoint", sequences)
class Checkpointed(nn.Module):
    """What it would compute again is kept: the graph is flat."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU()), Classified(nn.Linear(WIDE, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(checkpoint(self.one, x, use_reentrant=False).mean(1), y)
        return found
