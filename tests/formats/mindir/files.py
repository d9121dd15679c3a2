"""MindIR files of tests: what to compare of them."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import weights as mindir_weights

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
