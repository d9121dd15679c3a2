"""What nodes compute: ONNX Runtime runs them by themselves, as the model's own opset has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import FunctionProto, NodeProto, TypeProto, helper

Arrays = dict[str, Any]
ort.set_default_logger_severity(4)


def options() -> ort.SessionOptions:
    found = ort.SessionOptions()
    found.intra_op_num_threads = found.inter_op_num_threads = 1
    found.log_severity_level = 4
    return found


def opened(model: onnx.ModelProto, how: ort.SessionOptions | None = None) -> ort.InferenceSession:
    """A session, or whatever ONNX Runtime raises."""
    content = model.SerializeToString()
    return ort.InferenceSession(content, how or options(), ["CPUExecutionProvider"], enable_fallback=0)


PLAIN = options()
PLAIN.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


def type_of(value: Any, sizes: Sequence[int | str | None] | None = None) -> TypeProto:
    """The type of a value, a list being a sequence; ``sizes`` instead of its own."""
    if isinstance(value, list):
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(_number(value[0]), None))
    return helper.make_tensor_type_proto(_number(value), value.shape if sizes is None else sizes)


def _number(value: Any) -> int:
    return onnx.TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)


def compute(
    nodes: Sequence[NodeProto],
    known: Mapping[str, Any],
    constants: Mapping[str, Any],
    wanted: Sequence[str],
    imports: Mapping[str, int],
    functions: Sequence[FunctionProto] = (),
) -> Arrays | None:
    """The wanted values of nodes on arrays, or None where ONNX Runtime refuses."""
    inputs = [helper.make_value_info(name, type_of(value)) for name, value in known.items()]
    stored = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    inputs += [helper.make_value_info(name, type_of(value)) for name, value in constants.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
    graph = helper.make_graph(nodes, "one", inputs, outputs, stored)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in imports.items()], functions=functions, ir_version=8
    )
    try:
        session = opened(model, PLAIN)
        results = session.run(list(wanted), {**known})
    except Exception:  # the runtime raises kinds of its own; what it refuses is not drawn
        return None
    return dict(zip(wanted, results, strict=True))


def is_tame(value: Any) -> bool:
    """Whether a value can be read by others: small, finite and not empty."""
    if isinstance(value, list):
        return bool(value) and all(is_tame(part) for part in value)
    if not isinstance(value, np.ndarray) or not 0 < value.size <= 4096:
        return False
    if value.dtype.kind != "f":
        return value.dtype.kind in "iubO"
    with np.errstate(all="ignore"):
        return bool(np.isfinite(value).all() and np.abs(value.astype(float)).max() < 3e4)
