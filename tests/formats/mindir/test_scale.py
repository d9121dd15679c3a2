"""Work grows with the model, not with its square."""

from functools import partial

import pytest

from effort import assert_linear
from formats.mindir.parse import convert, data, parse


def deep(nodes: int) -> str:
    lines, last = ["main(x: f32[4,8])"], "x"
    for i in range(nodes // 5):
        lines += [f"  parameter w{i}: f32[8,8]", f"  l{i} = Load(w{i}, state)"]
        lines += [f"  m{i} = MatMul({last}, l{i}, false, false)", f"  r{i} = ReLU(m{i})", f"  e{i} = Exp(r{i})"]
        lines += [f"  s{i} = Add(e{i}, m{i})"]
        last = f"s{i}"
    return "\n".join([*lines, f"  return {last}"])


def wide(nodes: int) -> str:
    """One value with many readers, and many of them into one tuple."""
    lines = ["main(x: f32[8,8])", "  y = Exp(x)"]
    for i in range(nodes // 2):
        lines += [f"  m{i} = MatMul(y, y, false, false)", f"  r{i} = Log(m{i})"]
    rows = ", ".join(f"r{i}" for i in range(nodes // 2))
    return "\n".join([*lines, f"  t = MakeTuple({rows})", "  a = AddN(t)", "  return a"])


@pytest.mark.slow
@pytest.mark.parametrize("build", [deep, wide])
@pytest.mark.parametrize("level", ["O1", "auto"])
def test_work_is_linear(build, level):
    model = parse(build(100))
    assert data(convert(model, level)) != data(model)
    assert_linear(lambda nodes: partial(convert, parse(build(nodes)), level), 200)
