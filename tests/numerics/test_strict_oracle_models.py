"""Every node of the larger backend models in a strict run, against onnx's reference, to 1 ulp."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import ampgraph
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.numerics.graphs import flat_graph
from ampgraph.numerics.ranges.segments import SegmentedModel
from ampgraph.numerics.strict.session import rewrite
from conformance.cases import case, index
from conformance.reference import reference
from numerics.oracle import LOWS, NAMES, oracle, rounded, ulps
from share import FULL, share, turn
from typed import bodies, types_by_name

# onnx's reference sums LRN over another window than its definition says, and Dropout's mask was free before opset 12.
NO_ORACLE = ("LRN", "Dropout")


def steps(name: str, low: int) -> tuple[int, list[str]]:
    """(low nodes compared, those that are off) in a backend model converted with everything low that may be."""
    model, ref = case(name).proto(), reference(name)
    if ref.skipped or any("random" in e for e in ref.excuses):
        return 0, []
    converted = ampgraph.convert(model, "O3", dtype=NAMES[low])
    flat = flat_graph(converted)
    assert isinstance(flat, OnnxGraph)
    kept = ir.to_proto(flat.model)
    types, versions = types_by_name(kept), kept.opset_import
    names = [o for node in kept.graph.node for o in node.output if types.get(o, ("", ""))[1] and not types[o][0]]
    rewrite(flat, keep_border=False)
    strict = SegmentedModel(flat, names)
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in kept.graph.initializer}
    count, wrong = 0, []
    for read in ref.feeds:
        feeds = {n: _raised(v) if isinstance(v, np.ndarray) else v for n, v in read.items()}  # as its border is
        values = {n: _raised(v) for n, v in stored.items()} | feeds
        values |= dict(strict.run(feeds))
        for node in kept.graph.node:
            lows = [low if types.get(o, ("", ""))[1] == NAMES[low] else 0 for o in node.output]
            if not any(lows) or node.op_type in NO_ORACLE or bodies(node):
                continue
            if not all(n in values for n in node.input if n):
                continue
            for output, made, value in zip(node.output, lows, _single(node, values, versions), strict=True):
                if made and output in values:
                    count += 1
                    got = rounded(values[output].astype(np.float32), made)
                    off = ulps(rounded(np.asarray(value, np.float32), made), got)
                    wrong += [f"{name} {node.op_type} {output}: {off} ulp"] if off > 1 else []
    return count, wrong


def _raised(array: Any) -> Any:
    return array.astype(np.float32) if str(array.dtype) in ("float16", "bfloat16") else array


def _single(node: onnx.NodeProto, values: dict[str, Any], versions: Any) -> list[Any]:
    """One node in float32 by the reference."""
    if node.op_type in ("Cast", "CastLike"):
        return [values[node.input[0]]]
    if node.op_type == "Constant":
        return [_raised(onnx.numpy_helper.to_array(node.attribute[0].t))]
    read = [n for n in dict.fromkeys(node.input) if n]
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), None) for n in read]
    outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in node.output if o]
    model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=list(versions))
    found = oracle(model, {n: values[n] for n in read})
    return [found.get(o) for o in node.output]


WIDE = {"test_bvlc_alexnet", "test_zfnet512"}  # onnx's reference takes seconds for their convolutions


def _large() -> list[str]:
    names = [n for n in sorted(index().kinds) if FULL or n not in WIDE]
    return [n for n in share(names, 2) if 2 <= len(case(n).proto().graph.node) <= 60]


@pytest.mark.conformance
@pytest.mark.parametrize("low", LOWS)
def test_every_node_of_the_larger_cases(low: int) -> None:
    count, wrong = 0, []
    for name in _large():
        if low not in turn(name, LOWS):
            continue  # each in one of the types; in both in a full run
        found = steps(name, low)
        count += found[0]
        wrong += found[1]
    assert not wrong, "\n".join(wrong)
    assert count >= (1000 if FULL else 400)
