"""What the policy ``mindspore`` reads from a file about the network's Python: which stored tensors are cast."""

from __future__ import annotations

from formats.mindir.parse import convert, dump, parse

HANDED = """
    main(x: f32[2,2,4])
      parameter shift: f32[1,1,4]
      parameter gain: f32[1,1,4]
      t = Tile(shift, ([2], [1], [1])) @Default/Tile-op0
      g = Mul(x, gain) @Default/Mul-op0
      return t, g
"""


def types(text: str, level: str) -> dict[str, str]:
    """Operator -> type of its result, of the converted file."""
    lines = [
        line.split() for line in dump(convert(parse(text), level, policy="mindspore")).splitlines() if " = " in line
    ]
    return {line[3].partition("(")[0]: line[1].partition("[")[0] for line in lines}


def test_a_parameter_handed_to_a_function_stays_float32() -> None:
    for level in ("O2", "O3"):
        found = types(HANDED, level)
        assert (found["Tile"], found["Mul"]) == ("f32", "f16")
