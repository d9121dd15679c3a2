"""Architectures of transformers beside the ten, small and with random weights: language, audio, states with a past.

`cuda_placement/other_exports.py --models language` exports them, by either exporter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import transformers
from export_models import Example, Feeds
from torch import nn

WORDS = 1000
ROWS, LENGTH, USED = 2, 24, 17
HIDDEN, HEADS, INNER = 64, 4, 128
USUAL = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "vocab_size": WORDS,
}
BART = {
    "d_model": HIDDEN,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "vocab_size": WORDS,
}


def tokens(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    """Random tokens, none of them special."""
    return torch.randint(5, WORDS, (rows, length))


def padding(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    """A mask whose last row ends early."""
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, USED:] = 0
    return mask


def text() -> Feeds:
    """Tokens and their padding."""
    return {"input_ids": tokens(), "attention_mask": padding()}


def alone() -> Feeds:
    """Tokens without padding."""
    return {"input_ids": tokens()}


def pair() -> Feeds:
    """What an encoder and a decoder read."""
    return text() | {"decoder_input_ids": tokens(length=8)}


def encoded() -> Feeds:
    """What a decoder reads beside the encoder's last states."""
    states = torch.randn(ROWS, LENGTH, HIDDEN)
    return {"input_ids": tokens(length=8), "encoder_hidden_states": states, "encoder_attention_mask": padding()}


def sound() -> Feeds:
    """A wave."""
    return {"input_values": torch.randn(ROWS, 4000)}


def spectrum() -> Feeds:
    """A spectrum for an encoder, and tokens for a decoder."""
    return {"input_features": torch.randn(ROWS, 80, 120), "decoder_input_ids": tokens(length=8)}


@dataclass(frozen=True)
class Made:
    """How a model is made, what it reads, and which field of its answer is taken."""

    model: str
    config: str
    settings: dict[str, object] = field(default_factory=dict)
    feeds: Callable[[], Feeds] = text
    taken: str = "last_hidden_state"


def encoder(name: str, **more: object) -> Made:
    """An encoder whose settings have the usual names."""
    return Made(f"{name}Model", f"{name}Config", USUAL | more)


def decoder(name: str, usual: dict[str, object] = USUAL, **more: object) -> Made:
    """A language model that reads tokens and padding."""
    return Made(f"{name}ForCausalLM", f"{name}Config", usual | more, taken="logits")


GROUPED = {"num_key_value_heads": 2, "pad_token_id": 0}
SMALL_WAVE = {
    **USUAL,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
WHISPER = BART | {"num_mel_bins": 80, "max_source_positions": 60, "max_target_positions": 40, "pad_token_id": 0}
WHISPER |= {"decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"d_model": HIDDEN, "d_kv": 16, "d_ff": INNER, "num_layers": 2, "num_heads": HEADS, "vocab_size": WORDS}
T5 |= {"decoder_start_token_id": 0, "attn_implementation": "eager"}
WITH_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
STATES = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": WORDS, "state_size": 8}
FUNNEL = {
    "block_sizes": [1, 1],
    "d_model": HIDDEN,
    "n_head": HEADS,
    "d_head": 16,
    "d_inner": INNER,
    "vocab_size": WORDS,
}

MODELS: dict[str, Made] = {
    "distilbert": Made(
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "hidden_dim": INNER, "vocab_size": WORDS},
    ),
    "roberta": encoder("Roberta"),
    "albert": encoder("Albert", embedding_size=32),
    "electra": encoder("Electra", embedding_size=32),
    "deberta2": encoder(
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        position_buckets=16,
    ),
    "mpnet": encoder("MPNet"),
    "modernbert": encoder("ModernBert", pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
    "nomic": encoder("NomicBert"),
    "xlm": Made("XLMModel", "XLMConfig", {"emb_dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "vocab_size": WORDS}),
    "xlnet": Made(
        "XLNetModel",
        "XLNetConfig",
        {"d_model": HIDDEN, "n_layer": 2, "n_head": HEADS, "d_inner": INNER, "vocab_size": WORDS},
    ),
    "funnel": Made("FunnelModel", "FunnelConfig", FUNNEL),
    "longformer": encoder("Longformer", attention_window=8),
    "squeezebert": encoder("SqueezeBert", embedding_size=HIDDEN),
    "fnet": Made("FNetModel", "FNetConfig", USUAL, alone),
    "convbert": encoder("ConvBert", embedding_size=HIDDEN),
    "layoutlm": encoder("LayoutLM"),
    "esm": encoder("Esm", pad_token_id=1, mask_token_id=4, position_embedding_type="rotary"),
    "cliptext": Made("CLIPTextModel", "CLIPTextConfig", USUAL),
    "siglip": Made("SiglipTextModel", "SiglipTextConfig", USUAL),
    "gptneo": decoder(
        "GPTNeo",
        {"hidden_size": HIDDEN, "num_layers": 2, "num_heads": HEADS, "intermediate_size": INNER, "vocab_size": WORDS},
        attention_types=[[["global", "local"], 1]],
        window_size=8,
    ),
    "gptneox": decoder("GPTNeoX"),
    "gptj": decoder(
        "GPTJ", {"n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "vocab_size": WORDS}, rotary_dim=8, n_positions=64
    ),
    "codegen": decoder(
        "CodeGen", {"n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "vocab_size": WORDS}, rotary_dim=8, n_positions=64
    ),
    "bigcode": decoder("GPTBigCode", {"n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "vocab_size": WORDS}),
    "opt": Made(
        "OPTForCausalLM",
        "OPTConfig",
        {**USUAL, "ffn_dim": INNER, "word_embed_proj_dim": HIDDEN, "max_position_embeddings": 64},
        taken="logits",
    ),
    "bloom": decoder("Bloom", {"hidden_size": HIDDEN, "n_layer": 2, "n_head": HEADS, "vocab_size": WORDS}),
    "falcon": decoder("Falcon"),
    "mpt": decoder("Mpt", {"d_model": HIDDEN, "n_layers": 2, "n_heads": HEADS, "vocab_size": WORDS}),
    "mistral": decoder("Mistral", sliding_window=8, **GROUPED),
    "gemma": decoder("Gemma", head_dim=16, **GROUPED),
    "gemma2": decoder("Gemma2", head_dim=16, sliding_window=8, **GROUPED),
    "gemma3": Made(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **USUAL,
            **GROUPED,
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        taken="logits",
    ),
    "qwen2": decoder("Qwen2", **GROUPED),
    "qwen3": decoder("Qwen3", head_dim=16, **GROUPED),
    "qwen3moe": decoder(
        "Qwen3Moe", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, **GROUPED
    ),
    "phi": decoder("Phi", pad_token_id=0),
    "phi3": decoder("Phi3", **GROUPED),
    "olmo": decoder("Olmo", **GROUPED),
    "olmo2": decoder("Olmo2", **GROUPED),
    "cohere": decoder("Cohere", **GROUPED),
    "stablelm": decoder("StableLm", **GROUPED),
    "starcoder2": decoder("Starcoder2", **GROUPED),
    "granite": decoder("Granite", **GROUPED),
    "glm": decoder("Glm", head_dim=16, **GROUPED),
    "smollm3": decoder("SmolLM3", **GROUPED),
    "gptoss": decoder("GptOss", head_dim=16, **WITH_EXPERTS, **GROUPED),
    "mixtral": decoder("Mixtral", **WITH_EXPERTS, **GROUPED),
    "mamba": Made("MambaForCausalLM", "MambaConfig", STATES, alone, "logits"),
    "mamba2": Made(
        "Mamba2ForCausalLM", "Mamba2Config", {**STATES, "num_heads": 8, "head_dim": 16, "n_groups": 1}, alone, "logits"
    ),
    "rwkv": Made("RwkvForCausalLM", "RwkvConfig", {**USUAL, "attention_hidden_size": HIDDEN}, alone, "logits"),
    "bart": Made("BartForConditionalGeneration", "BartConfig", BART, pair, "logits"),
    "mbart": Made("MBartForConditionalGeneration", "MBartConfig", BART, pair, "logits"),
    "pegasus": Made("PegasusForConditionalGeneration", "PegasusConfig", BART, pair, "logits"),
    "marian": Made(
        "MarianMTModel", "MarianConfig", {**BART, "pad_token_id": 0, "decoder_start_token_id": 0}, pair, "logits"
    ),
    "m2m": Made("M2M100ForConditionalGeneration", "M2M100Config", BART, pair, "logits"),
    "blenderbot": Made("BlenderbotForConditionalGeneration", "BlenderbotConfig", BART, pair, "logits"),
    "t5": Made("T5ForConditionalGeneration", "T5Config", T5, pair, "logits"),
    "mt5": Made("MT5ForConditionalGeneration", "MT5Config", T5, pair, "logits"),
    "longt5": Made("LongT5ForConditionalGeneration", "LongT5Config", {**T5, "local_radius": 7}, pair, "logits"),
    "bertdecoder": Made(
        "BertLMHeadModel", "BertConfig", {**USUAL, "is_decoder": True, "add_cross_attention": True}, encoded, "logits"
    ),
    "whisper": Made("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, spectrum, "logits"),
    "speech2text": Made(
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        {
            **BART,
            "input_feat_per_channel": 80,
            "max_source_positions": 200,
            "conv_channels": 64,
            "decoder_start_token_id": 1,
        },
        lambda: {"input_features": torch.randn(ROWS, 120, 80), "decoder_input_ids": tokens(length=8)},
        "logits",
    ),
    "wav2vec2": Made("Wav2Vec2Model", "Wav2Vec2Config", SMALL_WAVE, sound),
    "wav2vec2stable": Made(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        {**SMALL_WAVE, "do_stable_layer_norm": True, "feat_extract_norm": "layer"},
        sound,
    ),
    "hubert": Made("HubertModel", "HubertConfig", SMALL_WAVE, sound),
    "wavlm": Made("WavLMModel", "WavLMConfig", SMALL_WAVE, sound),
    "conformer": Made(
        "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", {**SMALL_WAVE, "conv_depthwise_kernel_size": 7}, sound
    ),
    "sew": Made("SEWModel", "SEWConfig", SMALL_WAVE, sound),
    "ast": Made(
        "ASTModel",
        "ASTConfig",
        {**USUAL, "max_length": 64, "num_mel_bins": 32},
        lambda: {"input_values": torch.randn(ROWS, 64, 32)},
    ),
}


class Taken(nn.Module):
    """Calls a model with named inputs and gives one field of its answer."""

    def __init__(self, model: nn.Module, names: list[str], taken: str) -> None:
        super().__init__()
        self.model, self.names, self.taken = model, names, taken

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.names, values, strict=True))
        if "use_cache" in type(self.model).forward.__code__.co_varnames:
            return getattr(self.model(**given, use_cache=False), self.taken)
        return getattr(self.model(**given), self.taken)


def build(made: Made) -> Example:
    """The model and its inputs."""
    config = getattr(transformers, made.config)(**made.settings)
    if hasattr(config, "num_experts_per_tok"):  # grouped products have no ONNX operator
        config._experts_implementation = "eager"
    model = getattr(transformers, made.model)(config)
    model.config.use_cache = False
    feeds = made.feeds()
    return Example(Taken(model, list(feeds), made.taken), feeds)


EXAMPLES: dict[str, Callable[[], Example]] = {name: partial(build, made) for name, made in MODELS.items()}
