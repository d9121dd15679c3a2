"""ONNX models as protos, and what they take and give."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto

from ...runtime.ports import Port
from . import value_types as vt


def load_proto(model: Any) -> ModelProto:
    """A copy of the model as a proto; weights in files beside it stay there. Raises AmpError AMP101 to AMP104."""
    if isinstance(model, (str, os.PathLike)):
        from ...formats.onnx import io as onnx_io

        return onnx_io.read_proto(Path(model))
    if isinstance(model, ModelProto):
        copy = ModelProto()
        copy.CopyFrom(model)
        return copy
    import onnx_ir as ir

    from ...formats import adapters

    return ir.to_proto(adapters.load(model)[0].model)  # type: ignore[attr-defined]


def folder_of(model: Any) -> str:
    """Where the data files of a model are; empty for one that is no file."""
    return str(Path(model).resolve().parent) if isinstance(model, (str, os.PathLike)) else ""


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives; ``optional``: inputs with a default value."""

    inputs: Mapping[str, Any]  # a Port of the runtime that the model belongs to
    outputs: Mapping[str, Any]
    optional: frozenset[str] = frozenset()


def interface_of(graph: GraphProto) -> Interface:
    """As the file declares it."""
    stored = frozenset(i.name for i in graph.initializer)
    inputs = {v.name: _port(v) for v in graph.input if v.name not in stored}
    optional = frozenset(v.name for v in graph.input if v.name in stored)
    return Interface(inputs, {v.name: _port(v) for v in graph.output}, optional)


def _port(value: Any) -> Port:
    kind = value.type
    if kind.WhichOneof("value") != "tensor_type":
        return Port(value.name, "", ())
    tensor = kind.tensor_type
    name = vt.TYPE_NAMES.get(tensor.elem_type, "")
    dtype = {"float": "float32", "double": "float64", "string": "object"}.get(name, name)
    dims = tensor.shape.dim if tensor.HasField("shape") else ()
    return Port(value.name, dtype, tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims))
