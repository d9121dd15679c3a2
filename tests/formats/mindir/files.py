"""MindIR files of tests: what to compare of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.dataflow import NONE, Dataflow, Op
from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir.parse import graph_of, parse

LOW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DIGITS = Path(__file__).resolve().parents[3] / "models" / "digits_transformer.onnx"
UNKNOWN = bytes([0x5A, 4]) + b"left"  # field 11 (parallel), which the table does not name


def refused(code, function, *arguments):
    with pytest.raises(AmpError) as raised:
        function(*arguments)
    assert raised.value.code == code and raised.value.hint and "\n" not in raised.value.message
    return str(raised.value)


def values(path):
    """Parameters of a file by name."""
    file = mindir_io.load(path)
    return {t.ref_key: mindir_weights.elements(file, t).copy() for t in file.model.graph.parameter}


def parameter(file, name="layer.weight"):
    return next(t for t in file.model.graph.parameter if t.ref_key == name)


def rounded_all(path, dtype="float16"):
    file = mindir_io.load(path)
    for tensor in file.model.graph.parameter:
        mindir_weights.round_tensor(file, tensor, dtype)
    return file


def tree(folder):
    """Every file under a folder and its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# Facts of a MindIR dataflow, asked by name.


def flow_of(words: str, **options: Any) -> Dataflow:
    return graph_of(parse(words)).dataflow(**options)


def op_of(flow: Dataflow, kind: str, number: int = 0) -> Op:
    return [op for op in flow.ops if op.kind == kind][number]


def names(flow: Dataflow, ids: list[int]) -> list[str]:
    """Values by name without the graph's; '' for an operand that is no tensor of the dataflow."""
    return [flow.values[v].name.split(":")[-1] if v != NONE else "" for v in ids]


def units(flow: Dataflow, *values: str) -> list[int]:
    """The unit that writes each value."""
    found = {value.name.split(":")[-1]: value for value in flow.values}
    return [flow.find(found[name].unit) for name in values]


def fixed(flow: Dataflow, value: str) -> str:
    """Why a value cannot be low."""
    root = units(flow, value)[0]
    return next((unit.fixed for unit in flow.units if unit.fixed and flow.find(unit.id) == root), "")
