"""Decoders inside ONNX Runtime's searches: low inside, with the names and types that its operators demand."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ampgraph import convert
from formats.onnx.search_model import WORDS, search
from onnx_text import proto

KINDS = ("BeamSearch", "GreedySearch", "Sampling")
PROMPTS = np.random.default_rng(1).integers(0, WORDS - 1, (2, 5)).astype(np.int32)


def sequences(model: onnx.ModelProto) -> np.ndarray:
    """What ONNX Runtime, as it comes, finds on the CPU."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input_ids": PROMPTS})[0])


def decoder(model: onnx.ModelProto) -> onnx.GraphProto:
    return next(a.g for a in model.graph.node[0].attribute if a.name == "decoder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_a_search_loads_and_finds_the_same(kind: str, level: str) -> None:
    given, low = search(kind), proto(convert(search(kind), level, check="off"))
    assert np.array_equal(sequences(given), sequences(low))
    old, new = decoder(given), decoder(low)
    for before, after in ((old.input, new.input), (old.output, new.output)):
        assert [(v.name, v.type) for v in before] == [(v.name, v.type) for v in after]
    matrices = [t for t in new.initializer if t.name.startswith("w_")]
    assert len(matrices) == 3 and all(t.data_type == onnx.TensorProto.FLOAT16 for t in matrices)


def test_bfloat16_keeps_the_names_too() -> None:
    """The CPU has no kernels to run it."""
    low = decoder(proto(convert(search("BeamSearch"), "O2", dtype="bfloat16", check="off")))
    assert [v.name for v in low.output] == ["logits", "present_0"]
    assert any(t.data_type == onnx.TensorProto.BFLOAT16 for t in low.initializer)
