"""The verbs of the ONNX editor, one by one: what they add stays sorted, named and valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ampgraph.core.dataflow import Dataflow, Op, Value
from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx.graph import OnnxGraph
from formats.onnx.helpers import kinds, run_plain, x
from onnx_text import parse


def opened(body: str, outputs: str = "float[4,4] y") -> OnnxGraph:
    return OnnxGraph(ir.from_proto(parse(f"g (float[4,4] x, bool c) => ({outputs}) {{ {body} }}", w=(4, 4))))


def named(flow: Dataflow, name: str) -> Value:
    return next(value for value in flow.values if value.name == name)


def maker(flow: Dataflow, name: str) -> Op:
    return flow.ops[named(flow, name).producer]


def exposed(graph: OnnxGraph, *names: str) -> None:
    """Makes values of the main graph outputs of the model."""
    made = {value.name: value for node in graph.model.graph for value in node.outputs}
    graph.model.graph.outputs.extend(made[name] for name in names)


def nodes_of(graph: OnnxGraph) -> dict[str, Any]:
    """The nodes of the main graph by the names of their first outputs."""
    return {str(node.outputs[0].name): node for node in graph.model.graph}


def outputs_of(graph: OnnxGraph) -> dict[str, np.ndarray]:
    """What comes out; an output that was made here has no shape, which onnx.checker wants and runtimes do not."""
    proto = ir.to_proto(graph.model)
    if all(o.type.tensor_type.HasField("shape") for o in proto.graph.output):
        onnx.checker.check_model(proto, full_check=True)
    return run_plain(proto, {"x": x(4, 4), "c": np.array(True)})


def test_what_is_added_stands_behind_all_that_it_reads() -> None:
    """Each sum reads what was added before it and a value of the file; order of making is not order of standing."""
    graph = opened("a = Exp (x)  b = Neg (a)  d = Abs (b)  y = Add (d, a)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        a, b, d = (named(flow, name) for name in "abd")
        [one] = editor.add("Add", [a, b], ["float32"])
        [two] = editor.add("Mul", [a, a], ["float32"])
        [three] = editor.add("Add", [two, one], ["float32"], name="three")
        [four] = editor.add("Sub", [three, d], ["float32"])
        editor.round(a, "float16", [("", maker(flow, "b").index, 0)])
        [five] = editor.add("Add", [four, one], ["float32"])
    assert [value.name for value in (two, three, five)] == ["a_Mul", "three", "three_Sub_Add"]
    exposed(graph, "a_Mul", "three", "three_Sub_Add")
    proto, found = ir.to_proto(graph.model), outputs_of(graph)
    seen = {"x", "c", "w"}
    for node in proto.graph.node:
        assert set(node.input) <= seen
        seen |= set(node.output)
    value = np.exp(x(4, 4))
    low = -value.astype(np.float16).astype(np.float32)
    expected = value * value + (value + low)
    np.testing.assert_allclose(found["three"], expected, rtol=1e-6)
    np.testing.assert_allclose(found["three_Sub_Add"], expected - np.abs(low) + value + low, rtol=1e-5, atol=1e-6)


def test_what_is_added_has_a_name_of_its_own_and_attributes() -> None:
    graph = opened("x_Neg = Exp (x)  y = Abs (x_Neg)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        [first] = editor.add("Neg", [named(flow, "x")], ["float32"])
        [second] = editor.add("Neg", [named(flow, "x")], ["float32"])
    assert (first.name, second.name) == ("x_Neg_1", "x_Neg_2")
    names = [node.name for node in ir.to_proto(graph.model).graph.node if node.name]
    assert len(names) == len(set(names)) == 2
    # a constant and an operator with attributes
    graph = opened("y = Exp (x)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        [axes] = editor.add("Constant", [], ["int64"], {"value": np.array([1])}, scope=0, name="axes")
        [total] = editor.add("ReduceSum", [named(flow, "y"), axes], ["float32"], {"keepdims": 0})
    exposed(graph, total.name)
    np.testing.assert_allclose(outputs_of(graph)[total.name], np.exp(x(4, 4)).sum(1), rtol=1e-6)


def test_bodies_are_edited() -> None:
    body = """a = Exp (x)  y = If (c) < then_branch = t () => (float[4,4] p) { p = Neg (a) },
                                        else_branch = e () => (float[4,4] q) { q = Abs (a) } >"""
    graph = opened(body)
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        a = named(flow, "a")
        [doubled] = editor.add("Add", [a, a], ["float32"])
        editor.rewire(doubled, [flow.place(use) for use in flow.uses[a.id]])
    np.testing.assert_allclose(outputs_of(graph)["y"], -2 * np.exp(x(4, 4)), rtol=1e-6)
    # something is added in a branch
    body = """a = Exp (x)  y = If (c) < then_branch = t () => (float[4,4] p) { b = Neg (a)  p = Abs (b) },
                                        else_branch = e () => (float[4,4] q) { q = Abs (a) } >"""
    graph = opened(body)
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        b = named(flow, "b")
        [half] = editor.add("Mul", [b, named(flow, "a")], ["float32"])
        editor.rewire(half, [flow.place(use) for use in flow.uses[b.id]])
    np.testing.assert_allclose(outputs_of(graph)["y"], np.exp(x(4, 4)) ** 2, rtol=1e-6)


def test_what_is_read_is_not_removed() -> None:
    graph = opened("a = LeakyRelu <alpha = 0.5> (x)  y = Neg (a)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        assert not editor.remove(maker(flow, "a"))
    assert kinds(ir.to_proto(graph.model)) == ["LeakyRelu", "Neg"]


def test_what_is_low_is_widened() -> None:
    """The other way round, as strict runs want it. The text form gives the bits of a low fill: 16384 are 2.0."""
    body = """l = Cast <to = 10> (x)  a = ConstantOfShape <value = float16[1] {16384}> (shape)  m = Mul (l, a)
        n = Add (m, h)  y = Cast <to = 1> (n)"""
    weights = {"shape": np.array([4, 4]), "h": np.full((4, 4), 0.5, np.float16)}
    graph = OnnxGraph(ir.from_proto(parse(f"g (float[4,4] x, bool c) => (float[4,4] y) {{ {body} }}", weights)))
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        for name in "lamn":
            editor.retype(named(flow, name), "float32")
        editor.weight(named(flow, "h"), "low", "float32", (), None)
    found = {value.name: value.dtype for value in graph.dataflow().values}
    assert {found[name] for name in "lamnhy"} == {"float32"}
    np.testing.assert_allclose(outputs_of(graph)["y"], 2 * x(4, 4) + 0.5, rtol=1e-6)


def test_bodies_give_out_further_results() -> None:
    graph = opened("""y = If (c) <then_branch = t () => (float[4,4] p) { p = Neg (x) },
                                   else_branch = e () => (float[4,4] q) { q = Abs (x) }>""")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        made = [editor.add("Exp", [named(flow, name)], ["float32"]) for name in "pq"]
        further = editor.add_output(maker(flow, "y"), [value for [value] in made], "further")
    exposed(graph, further.name)
    found = outputs_of(graph)
    np.testing.assert_array_equal(found["y"], -x(4, 4))
    np.testing.assert_allclose(found["further"], np.exp(-x(4, 4)), rtol=1e-6)


def test_a_stored_tensor_takes_over_type_and_shape_of_its_new_numbers() -> None:
    graph = opened("a = Cast <to = 1> (w)  y = Add (x, a)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        editor.set_numbers(named(flow, "w"), np.array([1, 2, 3, 4], np.int32))
    [stored] = ir.to_proto(graph.model).graph.initializer
    assert (stored.name, stored.data_type, list(stored.dims)) == ("w", onnx.TensorProto.INT32, [4])
    np.testing.assert_array_equal(outputs_of(graph)["y"], x(4, 4) + np.array([1, 2, 3, 4], np.float32))


def test_only_what_nothing_reads_is_dropped() -> None:
    """A stored tensor and a Constant go; one that is read, one that is given out, and what is computed stay."""
    graph = opened(
        "a = Exp (x)  k = Constant <value_floats = [1.0]> ()  g = Constant <value_floats = [2.0]> ()  y = Neg (w)"
    )
    exposed(graph, "g")
    free = np.zeros(3, np.float32)
    graph.model.graph.register_initializer(ir.Value(name="free", const_value=ir.tensor(free, name="free")))
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        for name in ("a", "k", "g", "w", "x", "free"):
            editor.drop_unread(named(flow, name))
    made = ir.to_proto(graph.model).graph
    assert [tensor.name for tensor in made.initializer] == ["w"]
    assert [node.output[0] for node in made.node] == ["a", "g", "y"] and [one.name for one in made.input] == ["x", "c"]


def test_constants_stored_tensors_and_numbers_are_set() -> None:
    graph = opened("a = Exp (x)  b = Neg (a)  y = LeakyRelu <alpha = 0.5> (b)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        two = editor.constant(np.array([2], np.float32), "two", maker(flow, "a"))
        threes = editor.store(np.full((4, 4), 3, np.float32), "w", 0)  # a name that is taken
        [product] = editor.add("Mul", [named(flow, "a"), two], ["float32"], name="b")
        [total] = editor.add("Sub", [product, threes], ["float32"])
        editor.rewire(total, [("", maker(flow, "b").index, 0)])
        editor.set_number(maker(flow, "y"), "alpha", 0.25)
        editor.set_rank(total, 2)
        editor.rename(named(flow, "b"), "of_sums")
    assert [two.name, threes.name, product.name] == ["two", "w_1", "b_1"]
    nodes = nodes_of(graph)
    assert "b_of_sums" in nodes and "b" not in nodes and len(nodes[total.name].outputs[0].shape) == 2
    negative = -(2 * np.exp(x(4, 4)) - 3)
    expected = np.where(negative < 0, 0.25 * negative, negative)
    np.testing.assert_allclose(outputs_of(graph)["y"], expected, rtol=1e-5)


def test_types_that_attributes_name_are_kept_or_follow() -> None:
    graph = opened("e = EyeLike (x)  n = RandomNormalLike (x)  y = Add (e, n)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        editor.keep_type(maker(flow, "e"), "float32")
        editor.retype(named(flow, "n"), "float16")
        editor.keep_type(maker(flow, "y"), "float32")  # it has no such attribute
    eye, noise, total = graph.model.graph
    assert eye.attributes["dtype"].as_int() == 1 and noise.attributes["dtype"].as_int() == 10 and not total.attributes
    assert noise.outputs[0].dtype == ir.DataType.FLOAT16


def test_a_tensor_is_stored_in_both_types_or_bounded() -> None:
    graph = opened(
        "k = Constant <value_float = 2.0> ()  s = Shape (x)  m = ConstantOfShape <value = float[1] {-1e30}> (s) "
        "a = Add (x, m)  b = Mul (a, w)  d = Mul (b, k)  y = Mul (d, k)"
    )
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        editor.weight(named(flow, "m"), "float32", "float16", (), floor=-1000.0)
        editor.weight(named(flow, "w"), "both", "float16", [("", maker(flow, "b").index, 1)])
        editor.weight(named(flow, "k"), "both", "float16", [("", maker(flow, "d").index, 1)])
    nodes = nodes_of(graph)
    assert nodes["m"].attributes["value"].as_tensor().numpy().tolist() == [-1000]
    assert [nodes[name].inputs[1].name for name in "bdy"] == ["w_float16", "k_float16", "k"]
    assert nodes["k_float16"].op_type == "Constant" and "w_float16" in graph.model.graph.initializers
    assert nodes["b"].inputs[1].const_value.dtype == nodes["d"].inputs[1].dtype == ir.DataType.FLOAT16


def test_a_cast_that_was_given_is_read_again() -> None:
    """One from low gives the low value itself; one to low moves up in front of the other readers."""
    graph = opened("h = Cast <to = 10> (x)  g = Cast <to = 1> (h)  a = Exp (g)  l = Cast <to = 10> (a)  y = Neg (a)")
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        editor.cast(named(flow, "g"), "float16", [("", maker(flow, "a").index, 0)])
        editor.cast(named(flow, "a"), "float16", [("", maker(flow, "y").index, 0)])
    nodes = nodes_of(graph)
    assert [nodes["a"].inputs[0].name, nodes["y"].inputs[0].name] == ["h", "l"]
    assert kinds(ir.to_proto(graph.model)).count("Cast") == 3


def test_a_replacement_must_not_cut_off_other_readers() -> None:
    graph = opened("a = Exp (x)  b = Neg (a)  y = Add (b, a)")
    flow = graph.dataflow()
    indices = [maker(flow, "a").index, maker(flow, "b").index]
    with pytest.raises(AmpError, match="AMP402"), graph.editor(flow) as editor:
        editor.replace("", indices, "Abs", ["x"], {})
    flow = graph.dataflow()
    with pytest.raises(AmpError, match="AMP402"), graph.editor(flow) as editor:
        editor.replace("", indices[1:], "Abs", ["x"], {})  # Neg does not read it
