"""What cannot be run here is still checked: bfloat16, and the targets whose kernels live elsewhere.

Every backend case converts, passes the checker where the original does, keeps its interface, and converts again to the
same bytes.
"""

from __future__ import annotations

import onnx
import pytest

import ampgraph
from conformance.cases import case, index
from conformance.checks import LEVELS
from share import share, turn

CHUNKS = 4
WAYS = [("bfloat16", "cpu"), ("bfloat16", "cuda"), ("float16", "cuda"), ("float16", "tensorrt")]
FEWER = {("bfloat16", "cpu"), ("bfloat16", "cuda"), ("float16", "tensorrt")}
"""Decide by tables that differ little from those of the other: one case in three, at O2 or auto; of it one in two."""


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError):
        return False
    return True


def _faults(name: str, dtype: str, target: str) -> list[str]:
    model = case(name).proto()
    good, faults = _valid(model), []
    before = model.SerializeToString(deterministic=True)
    levels = turn(name, ("O2", "auto") if (dtype, target) in FEWER else LEVELS)
    for level in levels:
        where = f"{name} at {level} in {dtype} for {target}"
        once = ampgraph.convert(model, level=level, dtype=dtype, target=target)
        after = once.SerializeToString(deterministic=True)
        if after == before:
            continue
        if good and not _valid(once):
            faults.append(f"{where}: the checker refuses it")
        if list(once.graph.input) != list(model.graph.input) or list(once.graph.output) != list(model.graph.output):
            faults.append(f"{where}: its inputs or outputs changed")
        again = ampgraph.convert(once, level=level, dtype=dtype, target=target)
        if again.SerializeToString(deterministic=True) != after:
            faults.append(f"{where}: converting again changes it")
    return faults


@pytest.mark.sample
@pytest.mark.parametrize(("dtype", "target"), WAYS)
def test_sample(dtype: str, target: str) -> None:
    assert [f for name in sorted(index().ops)[::40] for f in _faults(name, dtype, target)] == []


@pytest.mark.share(2)
@pytest.mark.conformance
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize(("dtype", "target"), WAYS)
def test_all(dtype: str, target: str, chunk: int) -> None:
    names = sorted(index().ops)[chunk::CHUNKS]
    chosen = share(names, 3 if (dtype, target) in FEWER else 2)
    assert [f for name in chosen for f in _faults(name, dtype, target)] == []
