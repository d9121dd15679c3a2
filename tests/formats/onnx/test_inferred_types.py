"""The types of the dataflow beside onnx's own inference, with every annotation but the inputs' taken away."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import GraphProto, ModelProto
from onnx.backend.test.loader import load_model_tests

from ampgraph.formats.onnx import io as onnx_io
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.nodes import kind_of
from ampgraph.formats.onnx.types import declared_type
from conformance.cases import KINDS, case, index
from share import share

Types = dict[str, tuple[str, str]]
SLICE = 200  # models of the quick run


def onnx_types(model: ModelProto) -> Types:
    """What onnx infers for the values of the main graph and of bodies, by name behind the scope's path."""
    found = onnx.shape_inference.infer_shapes(model, data_prop=True)
    types: Types = {}
    _collect(onnx_io.deserialize(found, None).graph, "", types)
    return types


def _collect(graph: ir.Graph, path: str, types: Types) -> None:
    for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
        if value.name and declared_type(value)[1]:
            types[f"{path}:{value.name}"] = declared_type(value)
    for place, node in enumerate(graph):
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH:
                _collect(attribute.as_graph(), f"{path}/{place}:{kind_of(node)}.{name}", types)


def our_types(model: ModelProto) -> Types:
    """What the dataflow says."""
    flow = OnnxGraph(onnx_io.deserialize(model, None)).dataflow()
    return {f"{flow.scopes[v.scope].path}:{v.name}": (v.container, v.dtype) for v in flow.values}


def bare(model: ModelProto) -> ModelProto:
    """A copy of the model without annotations that could be believed."""
    copied = ModelProto.FromString(model.SerializeToString())
    _strip(copied.graph)
    for value in copied.graph.output:
        value.ClearField("type")
    return copied


def _strip(graph: GraphProto) -> None:
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)


def differences(models: Iterable[tuple[str, ModelProto]]) -> tuple[int, list[str]]:
    """(values compared, those of another type than onnx infers)."""
    count, wrong = 0, []
    for name, model in models:
        asked = bare(model)
        expected, found = onnx_types(asked), our_types(asked)
        count += len(expected)
        wrong += [f"{name} {v}: {found.get(v)}, not {kind}" for v, kind in expected.items() if found.get(v) != kind]
    return count, wrong


def suite() -> Iterator[tuple[str, ModelProto]]:
    """Every case that is on disk or generated, those without float32 values too."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the generators overflow on purpose
        for test in (test for kind in KINDS for test in load_model_tests(kind=kind)):
            stored = (
                Path(test.model_dir) / "model.onnx"
                if test.model_dir
                else Path(onnx.__file__).parents[1] / (test.url or "")
            )
            if test.model is not None or stored.is_file():
                yield test.name, test.model if test.model is not None else onnx.load(stored)


def test_a_slice_of_the_backend_suite() -> None:
    names = random.Random(0).sample(sorted(index().kinds), SLICE)
    count, wrong = differences((name, case(name).proto()) for name in names)
    assert not wrong, "\n".join(wrong)
    assert count > 3 * SLICE


@pytest.mark.conformance
def test_the_whole_backend_suite() -> None:
    """Half of it; all in a full run."""
    count, wrong = differences((name, model) for name, model in suite() if share([name], 2))
    assert not wrong, "\n".join(wrong)
    assert count > 8_000


# Outputs typed by more than a slot: by an attribute, a body, an input of another slot.
BY_MORE_THAN_A_SLOT = [
    "test_adam_multiple",
    "test_linear_attention_gated",
    "test_flexattention_score_mod",
    "test_sequence_map_add_1_sequence_1_tensor",
]


@pytest.mark.parametrize("name", BY_MORE_THAN_A_SLOT)
def test_types_that_no_slot_tells(name: str) -> None:
    count, wrong = differences([(name, case(name).proto())])
    assert count and not wrong, "\n".join(wrong)


def test_shapes_that_onnx_does_not_infer() -> None:
    """Its inference ends where it has no type; the schemas of ONNX Runtime's operators tell it."""
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[2, 6] x) => (float[a, b] y)
    <int64[2] to = {3, 4}> { q = com.microsoft.QuickGelu (x)  r = Reshape (q, to)  y = Neg (r) }"""
    flow = OnnxGraph(onnx_io.deserialize(onnx.parser.parse_model(text), None)).dataflow()
    shapes = {value.name: flow.shape(value.id) for value in flow.values}
    assert shapes["r"] == (3, 4) and shapes["q"] is None
    # They are unknown ones, which onnx's rule for Gemm takes for sizes.
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2, 6] x) => (float[a, b] y)
    <int64[2] to = {3, 4}> { q = Gemm (x, x)  r = Reshape (q, to)  y = Neg (r) }"""
    model = onnx.parser.parse_model(text)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = -1
    flow = OnnxGraph(onnx_io.deserialize(model, None)).dataflow()
    assert {value.name: flow.shape(value.id) for value in flow.values}["r"] == (3, 4)
