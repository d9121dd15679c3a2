"""Whole models: the gradients of ten architectures as torch exports them, at O0 and, in strict runs, at O1 and O2."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from training.architectures import LOW, Measured, build
from training.models import MAKERS, make

SEEDS = range(4)
NAMES = [*MAKERS, "BERT/eager"]  # whose mask is the least float32 where others have a bool
TIED = {
    "BERT": ("model.bert.embeddings.word_embeddings.weight", "model.cls.predictions.decoder.weight"),
    "GPT-2": ("model.transformer.wte.weight", "model.lm_head.weight"),
    "T5": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
    "Whisper": ("model.model.decoder.embed_tokens.weight", "model.proj_out.weight"),
}


measured = functools.cache(functools.partial(Measured, seeds=SEEDS))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_as_near_to_float64_as_those_of_torch(name):
    """Of every parameter that trains, for batches of several sizes: `error` compares the names."""
    assert max(measured(name).ours("O0")) <= 3 * max(measured(name).float32())


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", MAKERS)
def test_o1_errs_no_more_than_autocast(name, dtype):
    errors, band = measured(name).ours("O1", dtype), measured(name).autocast(dtype)
    assert 1e-5 < np.median(errors) <= max(band)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", NAMES)
def test_o2_errs_no_more_than_torch_stored_low(name, dtype):
    """Autocast adds branches in float32; Apex's O2, after which ours is called, does not."""
    band = [*measured(name).autocast(dtype), *measured(name).apex(dtype)]
    assert 1e-5 < np.median(measured(name).ours("O2", dtype)) <= max(band)


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_are_one_parameter(name):
    first, second = TIED[name]
    names = dict(make(name).named_parameters(remove_duplicate=False))
    trained = build(measured(name).forward, "O0").parameters
    assert second in names and first in trained and second not in trained
