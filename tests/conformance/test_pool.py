"""The suite finds what it is there to find: each kind of broken converter fails at its stage, and only its own case."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.pool import run_cases

CONVERTER = """import os
from onnx import ModelProto


def convert(model, level, dtype, target):
    node = model.graph.node[0]
    if node.op_type == "Cos":
        raise ValueError("no")
    if node.op_type == "Tan":
        model.producer_name += "x"
        return model
    if node.op_type == "Cosh":
        os.abort()
    result = ModelProto()
    result.CopyFrom(model)
    node = result.graph.node[0]
    if node.op_type == "Acos":
        node.op_type = "Nothing"
    if node.op_type == "Asin":
        result.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    if node.op_type == "Tanh":
        node.op_type = "Sin"
    if node.op_type == "Atan":
        result.producer_name += "x"
    return result
"""
STAGES = {
    "test_cos": "convert",
    "test_tan": "untouched",
    "test_acos": "checker",
    "test_asin": "interface",
    "test_tanh": "accuracy",
    "test_atan": "idempotent",
    "test_cosh": "crash",
    "test_abs": "",
}


@pytest.mark.slow
def test_a_broken_converter(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(CONVERTER)
    found = {o.case: o.results[0] for o in run_cases(list(STAGES), ("O3",), f"{tmp_path}/broken.py:convert")}
    assert {name: result.stage for name, result in found.items()} == STAGES
    assert all(result.can_lower for result in found.values() if result.stage != "crash")
    assert not any(result.low_nodes for result in found.values())


@pytest.mark.slow
def test_each_case_at_some_of_the_levels(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text("def convert(model, level, dtype, target):\n    return model\n")
    levels, names = ("O1", "O2", "O3", "auto"), ["test_abs", "test_cos", "test_exp", "test_tan"]
    outcomes = list(run_cases(names, levels, f"{tmp_path}/same.py:convert", count=2))
    assert {len(outcome.results) for outcome in outcomes} <= {2, 4}
    assert {result.level for outcome in outcomes for result in outcome.results} == set(levels)


@pytest.mark.slow
def test_unknown_converter_is_said() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        list(run_cases(["test_cos"], ("O2",), "nowhere:convert"))
