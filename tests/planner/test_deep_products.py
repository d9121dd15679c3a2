"""Products that are too deep for the target's float16 accumulators are float32: alone, or with others in a row."""

from __future__ import annotations

import numpy as np
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from onnx_text import parse

NET = """g (float[4, A] x) => (float[4, C] y) {
    a = MatMul (x, w)
    r = Relu (a)
    y = MatMul (r, v)
}"""


def wide(depths: tuple[int, int, int], target: str = "webgpu", level: str = "O2") -> list[str]:
    """The products that stay float32 for their depth."""
    first, middle, last = depths
    weights = {"w": np.full((first, middle), 0.01, np.float32), "v": np.full((middle, last), 0.01, np.float32)}
    text = NET.replace("A", str(first)).replace("C", str(last))
    plan = ampgraph.plan(parse(text, weights, opset=17), level, target=target)
    return [one.why.text.split()[0] for one in plan.decisions if one.why.rule == "accumulator" and one.kind == "MatMul"]


@pytest.mark.parametrize(
    ("depths", "held"),
    [
        ((768, 1024, 8), []),
        ((768, 3072, 8), ["3,072"]),
        ((1024, 1400, 8), ["1,400"]),
        ((3072, 3072, 8), ["3,072", "3,072"]),
    ],
)
def test_the_deepest_stay_float32(depths: tuple[int, int, int], held: list[str]) -> None:
    assert wide(depths) == held
    assert wide(depths, target="cuda") == wide(depths, level="O3") == []


def test_bfloat16_is_refused_with_the_reason() -> None:
    with pytest.raises(AmpError, match="webgpu runs no bfloat16: WGSL has no bfloat16") as told:
        ampgraph.plan(
            parse(
                NET.replace("A", "8").replace("C", "8"),
                {"w": np.ones((8, 8), np.float32), "v": np.ones((8, 8), np.float32)},
                opset=17,
            ),
            "O2",
            dtype="bfloat16",
            target="webgpu",
        )
    assert told.value.code == "AMP304"
