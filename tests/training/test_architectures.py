"""Whole models: the gradients of architectures as torch exports them, at O0 and, in strict runs, at O1 and O2.

Half of them; ./test full takes all ten."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from share import share, turn
from training.architectures import LOW, Measured, build
from training.kernels import without_cuda_kernel
from training.models import MAKERS, make

pytestmark = pytest.mark.slow

NAMES = share([*MAKERS, "BERT/eager"], 2)  # eager: its mask is the least float32 where others have a bool
POST_NORM = ("BERT", "BERT/eager")
"""Its norms stand in the residual stream, which O2 rounds at each, as Apex's O2 does and autocast does not."""
BOTH_TYPES = ("GPT-2", "ResNet", "Swin")
"""Also in bfloat16: ``python -m training.architectures`` measures all."""
TIED = {
    "BERT": ("model.bert.embeddings.word_embeddings.weight", "model.cls.predictions.decoder.weight"),
    "GPT-2": ("model.transformer.wte.weight", "model.lm_head.weight"),
    "T5": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
    "Whisper": ("model.model.decoder.embed_tokens.weight", "model.proj_out.weight"),
}


measured = functools.cache(Measured)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name):
    """O0: as near to float64 as torch's, for every parameter that trains and batches of several sizes. O1, O2 (one of
    them, both in a full run): no further than autocast, or than Apex's O2 where norms are in the stream. One test for
    all, since they share their exports."""
    found = measured(name)
    assert max(found.ours("O0")) <= 3 * max(found.float32())
    for dtype in turn(name, list(LOW)) if name in BOTH_TYPES else ("float16",):
        band = [*found.autocast(dtype), *(found.apex(dtype) if name in POST_NORM else ())]
        for level in turn(f"{name} {dtype}", ("O1", "O2")) if "/" not in name else ("O2",):
            assert 1e-5 < np.median(found.ours(level, dtype)) <= max(band), f"{level} {dtype}"


@pytest.mark.parametrize("name", [name for name in MAKERS if name in NAMES])
def test_every_operator_has_a_cuda_kernel(name):
    for level, dtype in (("O0", "float16"), ("O2", "float16"), ("O2", "bfloat16")):
        assert not without_cuda_kernel(build(measured(name).forward, level, dtype)), (level, dtype)


@pytest.mark.parametrize("name", [name for name in TIED if name in NAMES])
def test_tied_weights_are_one_parameter(name):
    first, second = TIED[name]
    names = dict(make(name).named_parameters(remove_duplicate=False))
    trained = build(measured(name).forward, "O0").parameters
    assert second in names and first in trained and second not in trained
