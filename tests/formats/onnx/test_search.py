"""A decoder with a cache inside ONNX Runtime's searches, as its converter for GPT-2 writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from ampgraph import convert
from onnx_text import proto

WORDS, WIDTH, HEADS = 24, 16, 2

DECODER = """
decoder (int32[B,S] input_ids, int32[B,S] position_ids, int32[B,T] attention_mask, float[2,B,2,P,8] past_0)
  => (float[B,S,24] logits, float[2,B,2,T,8] present_0)
{
  word = Gather (words, input_ids)
  place = Gather (places, position_ids)
  h = Add (word, place)
  mask = Cast <to = 1> (attention_mask)
  given = Unsqueeze (mask, axes)
  hidden = Sub (one, given)
  bias = Mul (hidden, large)
  normed = LayerNormalization (h, scale, shift)
  joined = MatMul (normed, w_in)
  heads = Reshape (joined, by_heads)
  turned = Transpose <perm = [2, 0, 3, 1, 4]> (heads)
  q, new = Split (turned, one_two)
  cache = Concat <axis = 3> (past_0, new)
  present_0 = Identity (cache)
  k, v = Split (cache, one_one)
  k_t = Transpose <perm = [0, 1, 2, 4, 3]> (k)
  scores = MatMul (q, k_t)
  scaled = Mul (scores, factor)
  masked = Add (scaled, bias)
  weights = Softmax (masked)
  mixed = MatMul (weights, v)
  back = Transpose <perm = [1, 3, 0, 2, 4]> (mixed)
  flat = Reshape (back, by_width)
  out = MatMul (flat, w_out)
  residual = Add (h, out)
  logits = MatMul (residual, w_words)
}
"""


def _weights() -> dict[str, np.ndarray]:
    dice = np.random.default_rng(3)

    def drawn(*shape: int) -> np.ndarray:
        return (dice.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    return {
        **{"words": drawn(WORDS, WIDTH) * 4, "places": drawn(32, WIDTH), "w_in": drawn(WIDTH, 3 * WIDTH)},
        **{"w_out": drawn(WIDTH, WIDTH), "w_words": drawn(WIDTH, WORDS)},
        **{"scale": np.ones(WIDTH, np.float32), "shift": np.zeros(WIDTH, np.float32)},
        **{"one": _number(1.0), "large": _number(-10000.0), "factor": _number(0.35)},
        **{"axes": np.array([1, 2]), "one_two": np.array([1, 2]), "one_one": np.array([1, 1])},
        **{"by_heads": np.array([0, 0, 3, HEADS, WIDTH // HEADS]), "by_width": np.array([0, 0, WIDTH])},
    }


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def search(kind: str) -> onnx.ModelProto:
    """A model of one ``BeamSearch``, ``GreedySearch`` or ``Sampling``: ``input_ids`` to ``sequences``."""
    decoder = parser.parse_graph(DECODER)
    decoder.initializer.extend(numpy_helper.from_array(array, name) for name, array in _weights().items())
    given = {"max_length": 12, "min_length": 1}
    beams = {"num_beams": 3, "num_return_sequences": 1} if kind == "BeamSearch" else {}
    floats = {"length_penalty": 1.0} if beams else {}
    numbers = {**given, **beams, **floats, "repetition_penalty": 1.0}
    stored = [
        numpy_helper.from_array(np.array([number], np.float32 if isinstance(number, float) else np.int32), name)
        for name, number in numbers.items()
    ]
    certain = {"top_p": 0.1, "temperature": 0.5} if kind == "Sampling" else {}  # one word is left to draw from
    attributes: dict[str, Any] = {
        **certain,
        "decoder": decoder,
        "model_type": 0,
        "eos_token_id": WORDS - 1,
        "pad_token_id": WORDS - 1,
    }
    node = helper.make_node(
        kind, ["input_ids", *numbers], ["sequences"], "search", domain="com.microsoft", **attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT32, ["B", "S"])],
        [helper.make_tensor_value_info("sequences", TensorProto.INT32, ["B", *([1] if beams else []), "L"])],
        stored,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


# Decoders inside ONNX Runtime's searches: low inside, with the names and types that its operators demand.

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
