"""Frameworks' policies on MindIR: the same lists, by the role of each operator."""

from __future__ import annotations

import pytest

from ampgraph.core.errors import AmpError
from formats.mindir.parse import convert, dump, parse

NET = """
    main(x: f32[4,8])
      parameter w: f32[8,8]
      h = MatMul(x, w) @Default/MatMul-op0
      r = ReLU(h) @Default/ReLU-op0
      s = Softmax(r) @Default/Softmax-op0
      t = Tanh(s) @Default/Tanh-op0
      m = MatMul(t, w) @Default/MatMul-op1
      return m
"""


def types(policy: str, level: str) -> dict[str, str]:
    """Node -> type of its result, of the converted file."""
    text = dump(convert(parse(NET), level, policy=policy))
    lines = [line.split() for line in text.splitlines() if " = " in line]
    return {line[-1].rpartition("/")[2]: line[1].partition("[")[0] for line in lines if "Cast" not in line[3]}


def test_frameworks_on_mindir() -> None:
    low = {"MatMul-op0": "f16", "ReLU-op0": "f16", "MatMul-op1": "f16"}
    assert types("pytorch", "auto") == {**low, "Softmax-op0": "f32", "Tanh-op0": "f32"}
    # apex is refused
    with pytest.raises(AmpError, match="AMP303"):
        types("apex", "O1")
