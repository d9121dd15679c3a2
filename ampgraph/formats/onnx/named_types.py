"""Attributes that name the type of an operator's output, which follow where the type changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...core.dataflow import Dataflow, Op
from .casts import type_attribute
from .handles import Handles
from .slots import DTYPE_ATTRIBUTES
from .types import DTYPES, with_element
from .weights import RoundedTensor


def name_type(handles: Handles, flow: Dataflow, op: Op, dtype: str, pin: bool = False) -> None:
    """Changes the attribute that names the type of an operator's output, where it has one.

    ``pin``: also where the type would otherwise follow a scale, which has a decision of its own."""
    if op.kind == "ConstantOfShape":
        given = flow.attribute(op, "value")
        fill = np.asarray(given if given is not None else [0.0], np.float32)
        handles.node(op).attributes["value"] = ir.AttrTensor("value", RoundedTensor(ir.tensor(fill), dtype))
    elif op.kind == "Optional" and (said := handles.node(op).attributes.get("type")) is not None:
        kind = with_element(said.value.type, DTYPES[dtype])
        handles.node(op).attributes["type"] = ir.AttrTypeProto("type", ir.TypeAndShape(kind, said.value.shape))
    elif op.kind in DTYPE_ATTRIBUTES:
        name = DTYPE_ATTRIBUTES[op.kind]
        follows = op.kind in ("DequantizeLinear", "QuantizeLinear")
        if not follows or pin or flow.attribute(op, name):
            handles.node(op).attributes[name] = type_attribute(name, dtype, flow.opset)
