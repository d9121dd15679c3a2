"""Kinds of modules that people train, beside torch: ``python -m training.trainable`` in tests/ writes the table."""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.forward.torch_export import ExportedForward

Make = Callable[[], nn.Module]
Batch = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """``make`` in training mode after ``torch.manual_seed``, ``batch`` for example and steps.

    ``random``: it draws numbers that are not torch's, so that losses only have to fall. ``refused``: words of the hint
    of the one error that is expected instead.
    """

    name: str
    make: Make
    batch: Batch
    lr: float = 0.05
    random: bool = False
    refused: str = ""
    fixed: bool = False  # one batch size


CASES: dict[str, Case] = {}


def case(
    name: str,
    batch: Batch,
    make: Make | None = None,
    *,
    lr: float = 0.05,
    random: bool = False,
    refused: str = "",
    fixed: bool = False,
) -> Callable[[Make], Make]:
    """Declares a case: a decorator of the module, or with ``make`` at once."""

    def declare(made: Make) -> Make:
        assert name not in CASES, name
        CASES[name] = Case(name, made, batch, lr, random, refused, fixed)
        return made

    if make is not None:
        declare(make)
    return declare


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(seed))


class Classified(nn.Module):
    """Cross entropy of what a module finds: ``forward(x, y)``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), y)


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


Tensor = torch.Tensor


def batch() -> tuple[Tensor, Tensor]:
    return numbers(4, 6), classes(3, 4)


@case("torch.cond", batch, lr=0.2)
class Either(nn.Module):
    """Both branches have weights of their own and share some."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def first(value: Tensor) -> Tensor:
            return torch.tanh(self.one(value)) + self.other(value)

        def second(value: Tensor) -> Tensor:
            return torch.sigmoid(self.other(value))

        return F.cross_entropy(self.head(torch.cond(x.sum() > 0, first, second, (x,))), y)


@case("torch scan", lambda: (numbers(5, 4, 6), classes(3, 4)), lr=0.5, fixed=True)
class Stepped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def body(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = torch.tanh(self.step(torch.cat([state, row], -1)))
            return new, new * 2

        last, steps = scan(body, torch.zeros(4, 6), x, dim=0)
        return F.cross_entropy(self.head(last + steps.mean(0)), y)


NODES, EDGES, SIZE = 7, 12, 6


def edges() -> tuple[torch.Tensor, ...]:
    return numbers(NODES, SIZE), classes(NODES, EDGES), classes(NODES, EDGES, seed=1), classes(3, NODES)


class Messages(nn.Module):
    """Messages along edges, put together at their ends."""

    def __init__(self, together: str) -> None:
        super().__init__()
        self.message, self.head, self.together = nn.Linear(SIZE, 8), nn.Linear(8, 3), together

    def forward(self, x: torch.Tensor, start: torch.Tensor, end: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sent = torch.tanh(self.message(x))[start]
        places, empty = end[:, None].expand(-1, 8), torch.zeros(NODES, 8)
        if self.together == "index_add":
            found = empty.index_add(0, end, sent)
        elif self.together == "scatter_add":
            found = empty.scatter_add(0, places, sent)
        else:
            found = empty.scatter_reduce(0, places, sent, self.together, include_self=self.together != "mean")
        return F.cross_entropy(self.head(found), y)


def messages(together: str) -> None:
    name = together if together.endswith("add") else f"scatter_reduce {together}"
    case(f"Graph network, {name}", edges, lambda: Messages(together), fixed=True, lr=0.5)


for way in ("index_add", "scatter_add", "amax", "amin", "mean"):
    messages(way)


def bags() -> tuple[torch.Tensor, torch.Tensor]:
    return classes(9, 4, 5), classes(3, 4)


class Bag(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 8, mode=mode), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.bag(words)), y)


case("EmbeddingBag, mean", bags, lambda: Bag("mean"), lr=0.5)
case("EmbeddingBag, sum", bags, lambda: Bag("sum"), lr=0.1)


@case(
    "EmbeddingBag with offsets", lambda: (classes(9, 12), torch.tensor([0, 3, 3, 7]), classes(3, 4)), fixed=True, lr=0.5
)
class Bags(nn.Module):
    """Bags of several sizes, one of them empty."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(9, 8, mode="mean"), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, offsets: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.bag(words, offsets)), y)


@case("Embedding and mean", bags, lr=0.5)
class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.words(words).mean(1)), y)


@case("DLRM: embeddings, products of pairs", lambda: (numbers(4, 5), classes(9, 4, 3), numbers(4, 1).gt(0).float()))
class Ranked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.tables = nn.Linear(5, 8), nn.ModuleList(nn.Embedding(9, 8) for _ in range(3))
        self.top = nn.Sequential(nn.Linear(8 + 6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, which: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dense = F.relu(self.dense(x))
        rows = torch.stack([dense, *(table(which[:, n]) for n, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))
        one, other = torch.tril_indices(4, 4, -1)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([dense, pairs[:, one, other]], 1)), y)


@case("sort and cumsum", lambda: (numbers(4, 6), numbers(4, 6, seed=1)), lr=0.02)
class Sorted(nn.Module):
    """The distance of two distributions on a line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found, _ = self.line(x).sort(-1)
        return (found.cumsum(-1) - y.sort(-1).values.cumsum(-1)).abs().mean()


@case("A part chosen by topk and gather", lambda: (numbers(4, 9, 6), classes(3, 4)), lr=0.2)
class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        best, which = self.score(x).squeeze(-1).topk(4, dim=1)
        rows = x.gather(1, which[..., None].expand(-1, -1, 6)) * torch.sigmoid(best)[..., None]
        return F.cross_entropy(self.head(rows.mean(1)), y)


FEATURES = 6


class With(nn.Module):
    """A network of two layers and a loss of its outputs and what is given."""

    def __init__(self, loss: Callable[..., Tensor], out: int = 3) -> None:
        super().__init__()
        self.net, self.loss = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, out)), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net(x), y)


def labelled() -> tuple[Tensor, Tensor]:
    return numbers(5, FEATURES), classes(3, 5)


def ignoring() -> tuple[Tensor, Tensor]:
    return numbers(5, FEATURES), torch.tensor([0, -100, 2, 1, -100])


def targets() -> tuple[Tensor, Tensor]:
    return numbers(5, FEATURES), numbers(5, 3, seed=1)


def shares() -> tuple[Tensor, Tensor]:
    return numbers(5, FEATURES), numbers(5, 3, seed=1).softmax(-1)


WEIGHT = torch.tensor([0.5, 2.0, 1.0])


def focal(found: Tensor, y: Tensor) -> Tensor:
    share = found.log_softmax(-1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - share.exp()) ** 2) * share).mean() + F.smooth_l1_loss(found, torch.zeros_like(found))


def smooth(**options: object) -> Callable[[], nn.Module]:
    return lambda: With(lambda found, y: F.cross_entropy(found, y, label_smoothing=0.2, **options))  # type: ignore[arg-type]


case("Cross entropy, class weights", labelled, lambda: With(lambda o, y: F.cross_entropy(o, y, WEIGHT)), lr=0.2)
case("Cross entropy, label smoothing", labelled, smooth(), lr=0.2)
case("Cross entropy, label smoothing, weights, ignored labels", ignoring, smooth(weight=WEIGHT), lr=0.2)
case("Cross entropy, label smoothing, a sum", ignoring, smooth(reduction="sum"))
case("Cross entropy of shares", shares, lambda: With(F.cross_entropy), lr=0.2)
case("Cross entropy of shares, label smoothing", shares, smooth(weight=WEIGHT), lr=0.2)
case("Focal loss and smooth L1", labelled, lambda: With(focal), lr=0.2)
case("KL divergence", shares, lambda: With(lambda o, y: F.kl_div(o.log_softmax(-1), y, reduction="batchmean")), lr=0.2)
case("Huber loss", targets, lambda: With(lambda o, y: F.huber_loss(o, y, delta=0.7)), lr=0.2)
case(
    "Cosine embedding loss",
    targets,
    lambda: With(lambda o, y: F.cosine_embedding_loss(o, y, torch.ones(o.shape[0]))),
    lr=0.2,
)
case("Distances by cdist", targets, lambda: With(lambda o, y: torch.cdist(o, y).mean()), lr=0.2)
case("Distances by cdist, p=1", targets, lambda: With(lambda o, y: torch.cdist(o, y, p=1.0).mean()), lr=0.1)


@case("VAE, randn_like", lambda: (numbers(16, FEATURES),), random=True, lr=0.1)
class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 4), nn.Linear(2, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        mean, logarithm = self.encoder(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * logarithm).exp()
        away = -0.5 * (1 + logarithm - mean**2 - logarithm.exp()).mean()
        return F.mse_loss(self.decoder(drawn), x) + away


@case("Siamese network, triplet loss", lambda: tuple(numbers(5, FEATURES, seed=n) for n in range(3)), lr=0.2)
class Triplet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        return F.triplet_margin_loss(self.net(x), self.net(near), self.net(far), margin=2.0)


@case("CLIP: InfoNCE over the batch", lambda: (numbers(5, FEATURES), numbers(5, FEATURES, seed=1)), lr=0.2)
class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4)
        self.heat = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.heat.exp() * F.normalize(self.one(x), dim=-1) @ F.normalize(self.other(y), dim=-1).T
        same = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.T, same)) / 2


def speech() -> tuple[Tensor, ...]:
    targets = torch.tensor([[1, 2, 2], [3, 1, 0], [2, 0, 0]])
    return numbers(3, 8, FEATURES), targets, torch.tensor([8, 7, 5]), torch.tensor([3, 2, 1])


@case("CTC loss", speech, lr=0.5)
class Aligned(nn.Module):
    """Letters over time, some of them twice; sounds and texts of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(FEATURES, 4)

    def forward(self, x: Tensor, y: Tensor, sounds: Tensor, letters: Tensor) -> Tensor:
        scores = self.net(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, y, sounds, letters)


def penalty(function: Callable[[nn.Module, Tensor], Tensor], name: str) -> None:
    case(f"Gradient penalty by {name}", lambda: (numbers(5, FEATURES),), lambda: Penalised(function))


class Penalised(nn.Module):
    def __init__(self, penalty: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.penalty = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1)), penalty

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean() + self.penalty(self.net, x)


def of_inputs(net: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    [slope] = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return ((slope.norm(dim=-1) - 1) ** 2).mean()


def of_weights(net: nn.Module, x: Tensor) -> Tensor:
    slopes = torch.autograd.grad(net(x).mean(), list(net.parameters()), create_graph=True)
    return sum((slope**2).sum() for slope in slopes).sqrt()  # type: ignore[union-attr]


def by_func(net: nn.Module, x: Tensor) -> Tensor:
    slope = torch.func.grad(lambda value: net(value).sum())(x)
    return ((slope.norm(dim=-1) - 1) ** 2).mean()


penalty(of_inputs, "torch.autograd.grad of inputs")
penalty(of_weights, "torch.autograd.grad of weights")
penalty(by_func, "torch.func.grad")


def normed() -> nn.Module:
    made = Penalised(of_inputs)
    made.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    return made


case("Gradient penalty of a network with BatchNorm", lambda: (numbers(5, FEATURES),), normed, refused="make_fx")


TURNS, READ, HIDDEN = 6, 5, 8


def series() -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(4, TURNS, READ), classes(3, 4)


class Last(nn.Module):
    """A head on the last step of a recurrent layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(HIDDEN * (1 + layer.bidirectional), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return found


def layer(kind: type[nn.RNNBase], **options: object) -> nn.Module:
    return Classified(Last(kind(READ, HIDDEN, batch_first=True, **options)))  # type: ignore[arg-type]


both = {"num_layers": 2, "bidirectional": True}
case("RNN tanh", series, lambda: layer(nn.RNN), lr=0.5)
case("RNN relu, 2 layers, bidirectional", series, lambda: layer(nn.RNN, nonlinearity="relu", **both), lr=0.2)
case("LSTM", series, lambda: layer(nn.LSTM), lr=0.5)
case("LSTM, 2 layers, bidirectional", series, lambda: layer(nn.LSTM, **both), lr=0.5)
case(
    "LSTM, 2 layers, Dropout between them",
    series,
    lambda: layer(nn.LSTM, num_layers=2, dropout=0.2),
    lr=0.5,
    random=True,
)
case("LSTM with a projection", series, lambda: Projected(), lr=0.5)
case("GRU", series, lambda: layer(nn.GRU), lr=0.5)
case("GRU, 2 layers, bidirectional", series, lambda: layer(nn.GRU, **both), lr=0.5)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(READ, HIDDEN, batch_first=True, proj_size=4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.layer(x)[0].mean(1)), y)


@case("Encoder and decoder, states handed over", series, lr=0.5)
class Handed(nn.Module):
    """The decoder starts from the encoder's states; the outputs of all steps count."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(READ, HIDDEN, batch_first=True)
        self.decoder, self.head = nn.LSTM(READ, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, states = self.encoder(x)
        scores = self.head(self.decoder(x.flip(1), states)[0])
        return nn.functional.cross_entropy(scores.transpose(1, 2), y.unsqueeze(1).expand(-1, TURNS))


class Loop(nn.Module):
    """A cell in a Python loop."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        last = state[0] if isinstance(state, tuple) else state
        return nn.functional.cross_entropy(self.head(last), y)


case("LSTMCell in a Python loop", series, lambda: Loop(nn.LSTMCell(READ, HIDDEN)), lr=0.5)
case("GRUCell in a Python loop", series, lambda: Loop(nn.GRUCell(READ, HIDDEN)), lr=0.5)


@case("pack_padded_sequence", series, refused="pass padded sequences")
class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(READ, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([6, 5, 3, 2])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.functional.cross_entropy(self.head(self.layer(packed)[1][0][0]), y)


@case("Padded sequences and a mask", lambda: (*series(), torch.tensor([6, 5, 3, 2])), lr=0.5)
class Padded(nn.Module):
    """What to do instead: the step at the last place that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(READ, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        steps = self.layer(x)[0]
        last = steps.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, HIDDEN)).squeeze(1)
        return nn.functional.cross_entropy(self.head(last), y)


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


STEPS = 4
NEAR = 1.5e-5  # of losses at O0, relative to the larger of 1 and torch's
SCALE = "static:256"  # four steps are too few for a scale that starts with skipping them


@dataclass(frozen=True)
class Measured:
    """``away``: the largest difference of losses at O0; ``low``: the losses at O2. ``refused``: the whole error."""

    name: str
    away: float = 0.0
    losses: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    nodes: int = 0
    refused: str = ""

    def trains(self, case: Case) -> bool:
        same = self.away <= NEAR or case.random
        return not self.refused and same and self.low[-1] < self.low[0]

    def as_expected(self, case: Case) -> bool:
        """It trains, or it is refused in one line that says what to do instead."""
        if not case.refused:
            return self.trains(case)
        return case.refused in self.refused.partition("hint: ")[2] and len(self.refused.splitlines()) <= 2


def made(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make().train()


def by_torch(case: Case) -> list[float]:
    module, batch, losses = copy.deepcopy(made(case)), case.batch(), []
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=case.lr)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def measure(case: Case) -> Measured:
    """Raises what is no AmpError."""
    with tempfile.TemporaryDirectory() as folder:
        path, module = Path(folder) / "forward.onnx", made(case)
        try:
            forward = ampgraph.export_for_training(module, case.batch(), path, dynamic_batch=not case.fixed)
            steps = {level: _step(case, forward, level) for level in ("O0", "O2")}
        except AmpError as error:
            return Measured(case.name, refused=str(error))
        names, arrays = forward.inputs, [value.numpy() for value in case.batch()]
        feeds = dict(zip(names, arrays, strict=True))
        found = {}
        for level, step in steps.items():
            trainer = ampgraph.Trainer(step, strict=level == "O2", threads=1)
            found[level] = tuple(trainer.step(feeds).loss for _ in range(STEPS))
    wanted = by_torch(case)
    away = max(abs(ours - theirs) / max(1, abs(theirs)) for ours, theirs in zip(found["O0"], wanted, strict=True))
    nodes = len(list(steps["O0"].model.graph.all_nodes()))
    return Measured(case.name, away, found["O0"], found["O2"], nodes)


def _step(case: Case, forward: ExportedForward, level: str) -> ampgraph.TrainingStep:
    optimizer, scale = f"sgd:lr={case.lr}", SCALE if level == "O2" else "default"
    return ampgraph.build_training_step(
        forward, loss=forward.outputs[0], optimizer=optimizer, level=level, loss_scale=scale
    )


RESULTS = Path(__file__).parents[2] / "benchmarks" / "trainable.json"
PACKAGES = ("torch", "onnxscript", "onnxruntime", "transformers")
HEAD = f"""# Kinds of modules that train, beside torch

Written by `python -m training.trainable` (in tests/; cases in tests/training/trainable.py), with VERSIONS.
Each module is exported, and trained for {STEPS} steps of plain descent: at O0 beside torch (the largest difference of a
loss, at most {NEAR:g}; "drawn" where both draw numbers of their own), at O2 in a strict run (first and last loss).

| module | O0 from torch | O2, first and last loss | nodes at O0 |
|---|---|---|---|
"""


def row(case: Case, found: Measured) -> str:
    if found.refused:
        message, _, hint = found.refused.partition("\nhint: ")
        return f"| {case.name} | refused: {message} | do instead: {hint} | |"
    away = "drawn" if case.random else f"{found.away:.1e}"
    return f"| {case.name} | {away} | {found.low[0]:.4f} {found.low[-1]:.4f} | {found.nodes} |"


def main(words: list[str]) -> None:
    chosen = [case for name, case in CASES.items() if not words or any(word.lower() in name.lower() for word in words)]
    done = []
    for case in chosen:
        found = measure(case)
        done.append(found)
        print(row(case, found), "" if found.as_expected(case) else "OTHERWISE THAN EXPECTED", flush=True)
    if not words:
        write(done)


def write(rows: list[Measured]) -> None:
    """The results of all cases, in their order."""
    versions = {name: version(name) for name in PACKAGES}
    RESULTS.write_text(json.dumps({"versions": versions, "rows": [asdict(found) for found in rows]}, indent=1) + "\n")
    head = HEAD.replace("VERSIONS", ", ".join(f"{name} {number}" for name, number in versions.items()))
    trained = sum(not found.refused for found in rows)
    lines = "\n".join(row(CASES[found.name], found) for found in rows)
    RESULTS.with_suffix(".md").write_text(f"{head}{lines}\n\n{trained} of {len(rows)} train.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
