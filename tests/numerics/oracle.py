"""The oracle of strict runs: onnx's reference in float32 on rounded inputs, its result rounded."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ampgraph.formats.onnx.schemas import schema
from typed import FLOAT, admits, bodies, declared, types_by_name

LOWS = [TensorProto.FLOAT16, TensorProto.BFLOAT16]
NAMES: dict[int, str] = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


def ulps(expected: np.ndarray, got: np.ndarray) -> int:
    """The distance in steps of the low type; a huge number where one is finite and the other is not."""
    assert expected.dtype == got.dtype and expected.shape == got.shape
    wide, other = expected.astype(np.float64), got.astype(np.float64)
    same = (wide == other) | (np.isnan(wide) & np.isnan(other))
    if (~same & ~(np.isfinite(wide) & np.isfinite(other))).any():
        return 1 << 20
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide - other)
    # A kernel that sums may be off by float32's own noise where its terms cancel.
    noise = apart <= 2.0**-21 * np.abs(np.where(np.isfinite(wide), wide, 0)).max(initial=0)
    steps = [_ordered(a.view(np.int16).astype(np.int64)) for a in (expected, got)]
    return int(np.where(same | noise, 0, np.abs(steps[0] - steps[1])).max(initial=0))


def _ordered(bits: np.ndarray) -> np.ndarray:
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def low_model(model: ModelProto, low: int) -> ModelProto | None:
    """A one-node model with every float32 slot that the schema admits in the low type; None where none is."""
    node, versions = model.graph.node[0], {o.domain: o.version for o in model.opset_import}
    found = schema(node.domain, node.op_type, versions.get(node.domain, 1))
    if found is None or len(model.graph.node) != 1 or bodies(node) or node.op_type in ("BitCast", "Scatter"):
        return None
    types = types_by_name(model)
    turned = set()
    for formals, actuals in ((found.inputs, node.input), (found.outputs, node.output)):
        for i, name in enumerate(actuals):
            formal = formals[min(i, len(formals) - 1)]
            if types.get(name) == FLOAT and admits(found, formal.type, ("", NAMES[low])):
                turned.add(name)
    result = ModelProto.FromString(model.SerializeToString())
    for v in (*result.graph.input, *result.graph.output):
        if v.name in turned:
            v.type.tensor_type.elem_type = low
    inferred = types_by_name(result)
    as_declared = all(inferred.get(v.name) == declared(v.type) for v in result.graph.output)
    return result if turned and as_declared else None


def rounded(value: Any, low: int) -> Any:
    """float32 to low, in lists too."""
    if isinstance(value, list):
        return [rounded(v, low) for v in value]
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        with np.errstate(all="ignore"):
            return value.astype(helper.tensor_dtype_to_np_dtype(low))
    return value


def oracle(model: ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """The float32 model's reference results on low feeds."""
    raised = {n: v.astype(np.float32) if str(v.dtype) in ("float16", "bfloat16") else v for n, v in feeds.items()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return dict(zip([v.name for v in model.graph.output], ReferenceEvaluator(model).run(None, raised), strict=True))
