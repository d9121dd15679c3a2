"""The oracle of strict runs: onnx's reference in float32 on rounded inputs, its result rounded."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ampgraph
from ampgraph.core.graph import LOW
from ampgraph.formats.onnx.graph import OnnxGraph
from ampgraph.formats.onnx.schemas import schema
from ampgraph.numerics.graphs import flat_graph
from ampgraph.numerics.ranges.segments import SegmentedModel
from ampgraph.numerics.strict.session import StrictSession, make_strict
from conformance.cases import case, index
from conformance.reference import reference
from share import FULL, examples, share, turn
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


# A strict run against onnx's reference: the float32 operator on rounded inputs, its result rounded, to 1 ulp.

pytestmark = pytest.mark.slow  # a grid: many small cases


def worst(name: str, low: int) -> tuple[int, str] | None:
    """The largest distance over a backend case's outputs; None where the case does not apply."""
    ref = reference(name)
    if ref.skipped or any("random" in e for e in ref.excuses):
        return None
    model = case(name).proto()
    turned = low_model(model, low)
    if turned is None:
        return None
    distance, where = 0, ""
    session = StrictSession(turned, threads=1)
    numbers = {name: number for number, name in NAMES.items()}
    made_of = {v.name: numbers.get(declared(v.type)[1], 0) for v in turned.graph.output}
    lows = {v.name for v in turned.graph.input if declared(v.type)[1] in LOW}
    for feeds in ref.feeds:
        fed = {n: rounded(v, low) if n in lows else v for n, v in feeds.items()}
        expected = oracle(model, fed)
        for output, value in session.run(fed).items():
            made = made_of[output]
            if made and (d := ulps(rounded(expected[output], made), value)) > distance:
                distance, where = d, output
    return distance, where


def _first_of_each_operator() -> list[str]:
    found = index()
    names = {found.ops[n]: n for n in sorted(found.ops, reverse=True) if found.kinds[n] == "node"}
    return sorted(names.values())


def _check(names: list[str], low: int, at_least: int) -> None:
    applied, wrong = 0, []
    for name in names:
        result = worst(name, low)
        applied += result is not None
        if result and result[0] > 1:
            wrong.append(f"{name} {result[1]}: {result[0]} ulp")
    assert not wrong, "\n".join(wrong)
    assert applied >= at_least


@pytest.mark.sample
@pytest.mark.parametrize("low", LOWS)
def test_one_case_of_each_operator(low: int) -> None:
    _check(_first_of_each_operator(), low, 80)


@pytest.mark.conformance
@pytest.mark.parametrize("low", LOWS)
def test_every_single_node_case(low: int) -> None:
    """Each in one of the types; in both in a full run."""
    _check([n for n, kind in sorted(index().kinds.items()) if kind == "node" and low in turn(n, LOWS)], low, 330)


UNARY = ["Exp", "Tanh", "Neg", "Sqrt", "Sigmoid", "Relu", "Identity", "Transpose", "Reciprocal", "Softmax", "Log"]
BINARY = ["Add", "Sub", "Mul", "Div", "MatMul", "Max", "Pow"]


@st.composite
def graphs(draw: st.DrawFn) -> ModelProto:
    """A small random graph of 4 x 4 values, most of them low, every one of them an output."""
    low = draw(st.sampled_from(LOWS))
    kinds = {"a": low, "b": low, "c": TensorProto.FLOAT}
    nodes = []
    for i in range(draw(st.integers(1, 8))):
        name, op = f"v{i}", draw(st.sampled_from([*UNARY, *BINARY, "Cast", "Round"]))
        first = draw(st.sampled_from(sorted(kinds)))
        if op == "Cast":
            to = draw(st.sampled_from([low, TensorProto.FLOAT]))
            nodes.append(helper.make_node("Cast", [first], [name], to=to))
            kinds[name] = to
            continue
        second = draw(st.sampled_from([n for n in sorted(kinds) if kinds[n] == kinds[first]]))
        nodes.append(helper.make_node(op, [first, second] if op in BINARY else [first], [name]))
        kinds[name] = kinds[first]
    inputs = [helper.make_tensor_value_info(n, kinds[n], [4, 4]) for n in "abc"]
    outputs = [helper.make_tensor_value_info(o, kinds[o], [4, 4]) for n in nodes for o in n.output]
    graph = helper.make_graph(nodes, "random", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


# -- the same nodes elsewhere: a function, a branch, a loop body ------------------------------------------------------


def _in_function(model: ModelProto) -> ModelProto:
    graph = model.graph
    outputs = [v.name for v in graph.output]
    function = helper.make_function("own", "f", list("abc"), outputs, list(graph.node), list(model.opset_import))
    call = helper.make_node("f", list("abc"), outputs, domain="own")
    made = helper.make_graph([call], "g", list(graph.input), list(graph.output))
    imports = [*model.opset_import, helper.make_opsetid("own", 1)]
    return helper.make_model(made, functions=[function], opset_imports=imports, ir_version=10)


def _in_branch(model: ModelProto) -> ModelProto:
    """The body's names are its own; the outputs of the If bear the old ones."""
    graph = model.graph
    inner = _renamed(graph)
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    outputs = [v.name for v in graph.output]
    choice = helper.make_node("If", ["yes"], outputs, then_branch=inner, else_branch=inner)
    made = helper.make_graph([yes, choice], "g", list(graph.input), list(graph.output))
    return helper.make_model(made, opset_imports=list(model.opset_import), ir_version=10)


def _in_loop(model: ModelProto) -> ModelProto:
    """One round, each value a scan output."""
    graph = model.graph
    inner = _renamed(graph)
    inner.input.extend(
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ]
    )
    inner.node.append(helper.make_node("Identity", ["go"], ["on"]))
    values = list(inner.output)
    del inner.output[:]
    inner.output.extend([helper.make_tensor_value_info("on", TensorProto.BOOL, []), *values])
    one = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [], [1]))
    loop = helper.make_node("Loop", ["one", ""], [v.name for v in graph.output], body=inner)
    rows = [helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, [1, 4, 4]) for v in graph.output]
    made = helper.make_graph([one, loop], "g", list(graph.input), rows)
    return helper.make_model(made, opset_imports=list(model.opset_import), ir_version=10)


def _renamed(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A body: the same nodes, their values called ``inner_...``, the inputs captured."""
    body = helper.make_graph(list(graph.node), "body", [], list(graph.output))
    own = {v.name for v in graph.output}
    for node in body.node:
        for names in (node.input, node.output):
            names[:] = [f"inner_{n}" if n in own else n for n in names]
    for value in body.output:
        value.name = f"inner_{value.name}"
    return body


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=graphs(), seed=st.integers(0, 99), scale=st.sampled_from([1.0, 30.0, 1e4, 1e-4]))
def test_the_same_bits_in_functions_branches_and_loops(model: ModelProto, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    with np.errstate(all="ignore"):
        feeds = {n: rounded((rng.standard_normal((4, 4)) * scale).astype(np.float32), kinds[n]) for n in "abc"}
    expected = StrictSession(model, threads=1).run(feeds)
    for wrap in (_in_function, _in_branch, _in_loop):
        wrapped = wrap(ModelProto.FromString(model.SerializeToString()))
        onnx.checker.check_model(wrapped)
        for name, value in StrictSession(wrapped, threads=1).run(feeds).items():
            got, want = (array.astype(np.float32).reshape(4, 4) for array in (value, expected[name]))
            np.testing.assert_array_equal(got, want, err_msg=f"{wrap.__name__} {name}")


# Every node of the larger backend models in a strict run, against onnx's reference, to 1 ulp.

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
    make_strict(flat, keep_interface=False)
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
