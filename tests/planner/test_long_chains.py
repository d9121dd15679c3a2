"""Rules that look back along a chain end soon, however long it is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from onnx_text import parse


def chain(first: str, then: str, count: int, bias: tuple[int, ...]) -> ModelProto:
    """A product with many additions of one stored bias behind it."""
    body = "  ".join(f"v{n + 1} = {then} (v{n}, b)" for n in range(count))
    stored = {"w": np.ones((4, 4, 1, 1), np.float32), "b": np.ones(bias, np.float32)}
    shape = "float[N,4,2,2]"
    return parse(f"g ({shape} x) => ({shape} v{count}) {{ v0 = {first}  {body} }}", stored, opset=17)


@pytest.mark.parametrize(("first", "bias"), [("Conv (x, w)", (4, 1, 1)), ("Relu (x)", (4, 1, 1)), ("Relu (x)", (2,))])
def test_a_chain_of_additions_is_planned(first: str, bias: tuple[int, ...]) -> None:
    plan = ampgraph.plan(chain(first, "Add", 40, bias), level="O1")
    assert len(plan.decisions) >= 40


def test_a_chain_longer_than_the_stack_is_planned() -> None:
    assert ampgraph.plan(chain("Relu (x)", "Add", 600, (2,)), level="O1").decisions


def test_open_numbers_are_looked_for_once() -> None:
    """Each Slice reads the one before it twice; the last may be a known number."""
    slices = "  ".join(f"s{n + 1} = Slice (c, s{n}, s{n})" for n in range(40))
    text = f"g (float[N,8] x) => (float[N,8] z) {{ q = Relu (x)  s0 = Shape (q)  {slices}"
    given = parse(text + "  f = Cast <to = 1> (s40)  z = Mul (q, f) }", c=np.arange(4), opset=17)
    assert ampgraph.plan(given, level="O1").decisions
