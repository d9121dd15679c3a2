"""What `explain` says of a list's reason where level or target make it mean something else."""

from __future__ import annotations

import pytest

import ampgraph
from onnx_text import parse

MODEL = parse("g (float[4, 8] x) => (float[4, 2] y) { h = MatMul (x, w)  y = Softmax (h) }", w=(8, 2))
RULES = "rules pin it to float32 where its numbers ask for that (a sum of exponentials"


def said(node: str, **fields: str) -> str:
    return str(ampgraph.explain(MODEL, node, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("level", "rules"), [("O1", False), ("O2", True), ("O3", False)])
def test_what_speaks_for_float32_is_no_reason_for_low(level: str, rules: bool) -> None:
    text = said("op:Softmax", level=level)
    assert "a sum of exponentials" in text and (RULES in text) == rules


@pytest.mark.parametrize(
    ("target", "words"), [("cuda", "in float32 on tensor cores"), ("webgpu", "adds up in float16")]
)
def test_products_are_said_to_add_up_as_the_target_does(target: str, words: str) -> None:
    text = said("op:MatMul", target=target)
    assert text.count(words) == 2 and ("tensor cores" in text) == (target == "cuda")


def test_data_keeps_the_words_of_the_list() -> None:
    found = ampgraph.explain(MODEL, "op:MatMul", target="webgpu")
    assert found.listed_reason in found.slots[0].reason and found.meant not in found.slots[0].reason
