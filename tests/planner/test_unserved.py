"""Between products that the target runs in float32 alone, a list makes nothing low: Casts are all it would add."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from onnx_text import parse
from planner.support import converted, decisions

BLOCK = "c{0} = Conv (a{0}, w)  r{0} = Relu (c{0})  d{0} = Conv (r{0}, w)  s{0} = Add (d{0}, a{0})  a{1} = Relu (s{0})"


def network(blocks: int, end: str, opset: int = 18) -> ModelProto:
    """Convolutions with residuals, which have a bfloat16 kernel on CUDA from opset 22 on."""
    body = "  ".join(BLOCK.format(number, number + 1) for number in range(blocks)).replace("(a0, w)", "(x, w)")
    text = f"g (float[1,8,9,9] x) => (float[A,B,C,D] y) {{ {body.replace('a0', 'x')}  {end} }}"
    stored = {"w": np.full((8, 8, 1, 1), 0.1, np.float32), "m": np.eye(9, dtype=np.float32)}
    return parse(text, {name: array for name, array in stored.items() if f", {name})" in text}, opset=opset)


@pytest.mark.parametrize("blocks", [1, 4])
def test_only_what_a_low_product_reads_is_low(blocks: int) -> None:
    result = decisions(converted(network(blocks, f"y = MatMul (a{blocks}, m)"), dtype="bfloat16"))
    assert result.endswith("MatMul:bf16 Cast>f32") and result.count("Cast") == 2
    assert "Conv:f32 Relu:f32 Conv:f32 Add:f32" in result


def test_where_there_are_kernels_nothing_changes() -> None:
    given = network(2, "y = MatMul (a2, m)")
    assert ":f32" not in decisions(converted(given))
    assert ":f32" not in decisions(converted(network(2, "y = MatMul (a2, m)", 22), dtype="bfloat16"))


def test_between_low_products_it_is_low() -> None:
    """A product without a kernel beside one that has it decides nothing for both."""
    given = network(1, "p = MatMul (a1, m)  t = Tanh (p)  q = MatMul (t, m)  e = Tanh (q)  y = Conv (e, w)")
    found = decisions(converted(given, dtype="bfloat16"))
    assert "MatMul:bf16 Tanh:bf16 MatMul:bf16" in found and "Relu:f32 Conv:f32" in found


def test_the_reason_is_told() -> None:
    given = network(2, "y = MatMul (a2, m)")
    (slot,) = ampgraph.explain(given, "r0", dtype="bfloat16").slots
    assert slot.dtype == "float32" and "costs least in float32" in slot.reason


def on_the_cpu() -> ModelProto:
    text = "g (float[1,8,9,9] x) => (float[A,B,C,D] y) { c = Conv (x, w)  t = Atan (c)  y = Conv (t, w) }"
    return parse(text, w=np.full((8, 8, 1, 1), 0.1, np.float32), opset=18)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_what_the_cpu_alone_runs_in_float32_stays_so(level: str) -> None:
    """Low, the runtime would cast beside it, on the CPU."""
    given = on_the_cpu()
    assert decisions(converted(given, level)) == "Cast>f16 Conv:f16 Cast>f32 Atan:f32 Cast>f16 Conv:f16 Cast>f32"
    assert "Atan:f16" in decisions(ampgraph.convert(given, "O3", target="cann"))
    (slot,) = ampgraph.explain(given, "t", level=level).slots
    assert slot.reason == "CUDAExecutionProvider has no kernel for Atan-7, and the CPU's computes in float32"
