"""MindIR files of tests without MindSpore, and what to compare of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ampgraph.core.dataflow import NONE, Dataflow, Op
from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import schema
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir.parse import graph_of, parse

LOW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DIGITS = Path(__file__).resolve().parents[3] / "models" / "digits_transformer.onnx"
NUMBERS = {name: number for number, name in reversed(schema.ELEMENT_TYPES.items())}
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


DENSE = """
    main(x: f32[2,6])
      parameter layer.weight: f32[6,5]
      parameter layer.bias: f32[5]
      w = Load(layer.weight, state)
      b = Load(layer.bias, state)
      m: f32[2,5] = MatMul(x, w, false, false) @Default/layer-Dense/MatMul-op0
      a = BiasAdd(m, b, 0) @Default/layer-Dense/BiasAdd-op0
      y = Add(a, f32[5])
      return y
"""


def fill(tensor: Any, data: np.ndarray) -> None:
    """A Tensor message that holds an array."""
    tensor.data_type, tensor.raw_data = NUMBERS[data.dtype.name], data.tobytes()
    tensor.dims[:] = data.shape


def holding(**arrays: np.ndarray) -> Any:
    """A model of parameters alone."""
    model = schema.Model(ir_version="1.1", producer_name="MindSpore", mind_ir_version=3, little_endian=True)
    model.graph.name = "main"
    for name, data in arrays.items():
        fill(model.graph.parameter.add(name=f"main:{name}", ref_key=name, compression_type=0), data)
    return model


def dense() -> Any:
    """A model of one layer: parameters ``layer.weight`` and ``layer.bias``, and a tensor constant."""
    random, model = np.random.default_rng(0), parse(DENSE)
    model.little_endian, model.model_version = True, "2.10.0"
    for tensor in model.graph.parameter:
        fill(tensor, random.standard_normal(tuple(tensor.dims)).astype(np.float32))
    [added] = (a.tensors[0] for node in model.graph.node for a in node.attribute if a.name == "value" and a.tensors)
    fill(added, np.arange(5, dtype=np.float32))
    return model


def write(model: Any, path: Path) -> Path:
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def write_split(model: Any, folder: Path, name: str = "net", files: int = 1) -> Path:
    """Writes the model with its parameters in ``<name>_variables/data_<i>``, in MindSpore's layout; it is changed."""
    parameters = sorted(model.graph.parameter, key=lambda tensor: tensor.ref_key)
    variables = folder / f"{name}_variables"
    variables.mkdir(parents=True)
    for number in range(files):
        with open(variables / f"data_{number}", "wb") as stream:
            stream.write(b"\1" + bytes(63))
            for tensor in parameters[number::files]:
                raw = tensor.raw_data
                place = tensor.external_data
                place.location = f"{variables.name}/data_{number}"
                place.offset, place.length = stream.tell(), len(raw)
                stream.write(raw + bytes(-len(raw) % 64))
                tensor.ClearField("raw_data")
    return write(model, folder / f"{name}_graph.mindir")


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
