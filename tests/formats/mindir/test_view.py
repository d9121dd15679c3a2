"""What the dataflow shows of a MindIR model: text in, facts out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ampgraph.core.dataflow import NONE, Dataflow, Op
from ampgraph.core.errors import AmpError
from ampgraph.core.graph import Stored
from ampgraph.formats.mindir import schema, view
from ampgraph.formats.mindir.graph import DEEPEST, MOST_ELEMENTS, check_structure
from formats.mindir.files import fill, fixed, flow_of, names, op_of, units
from formats.mindir.parse import convert, dump, graph_of, parse

NORM = """
    main(x: f32[2,4])
      parameter g: f32[4]
      parameter b: f32[4]
      lg = Load(g, state)
      lb = Load(b, state)
      n: (f32[2,4], f32[2,1], f32[2,1]) = LayerNorm(x, lg, lb, -1, -1, 1e-07) @Default/norm-LayerNorm/LayerNorm-op0
      y = TupleGetItem(n, 0)
      m = TupleGetItem(n, -1)
      return y
"""


def test_slots_units_and_several_outputs() -> None:
    flow = flow_of(NORM)
    norm = op_of(flow, "LayerNorm")
    assert norm.role == "LayerNormalization" and norm.name == "Default/norm-LayerNorm/LayerNorm-op0"
    assert names(flow, norm.inputs)[:3] == ["x", "g", "b"] and "T" in norm.slots
    assert flow.attribute(norm, "epsilon") == pytest.approx(1e-7)
    assert [use.unit for use in flow.uses[norm.inputs[0]]] == [norm.slots["T"]]
    assert flow.values[norm.outputs[0]].unit == norm.slots["T"]
    assert flow.units[flow.values[norm.outputs[1]].unit].fixed == "this result is float32 whatever goes in"
    assert [flow.values[v].name for v in flow.scopes[0].outputs] == [f"{norm.native.node.output[0]}[0]"]
    # several outputs
    flow = flow_of("""
        main(x: f32[2,4])
          a = ReLU(x)
          i: i32[2] = Argmax(a, -1, 34)
          t = MakeTuple(a, x)
          o = MakeTuple(i, t, a)
          d = Depend(o, state)
          return d
    """)
    assert names(flow, flow.scopes[0].outputs) == ["i", "a", "x", "a"]
    assert [unit.slot for unit in flow.units if unit.slot.startswith("output")] == ["output 1", "output 2", "output 3"]
    assert [place.position for place in flow.scopes[0].native.outputs] == [0, 0, 1, 2]
    # an element of what is no tuple is nothing that is known
    flow = flow_of("main(x: f32[2])\n a: f32[2] = TupleGetItem(x, 0)\n b = Exp(a)\n return b")
    assert flow.ops[-1].inputs == [NONE]
    # an unknown operator stays as it is
    flow = flow_of("""
        main(x: f32[2,4])
          a = ReLU(x)
          b = NobodyKnowsThis(a, 3)
          return b
    """)
    op = op_of(flow, "NobodyKnowsThis")
    assert flow.unknown_kinds == {"NobodyKnowsThis"} and op.role == "mindspore::NobodyKnowsThis"
    assert {flow.units[u].fixed for u in op.slots.values()} == {"no schema is known for NobodyKnowsThis"}


def test_the_census_counts_parameters_and_tensors_in_constants() -> None:
    """Of tuples too; a number in a Constant is no tensor."""
    model = parse("""
        main(x: f32[2,4])
          parameter g: f32[4]
          lg = Load(g, state)
          a = Mul(x, lg)
          b = Add(a, f32[4])
          c = Mul(b, 2.0)
          d = Cast(c, f16)
          return d
    """)
    held = model.graph.node.add(name="pair", output=["pair"], op_type="Constant").attribute.add(name="value")
    held.type = schema.TUPLE
    for numbers in np.zeros(3, np.float16), np.zeros(5, np.int32):
        fill(held.values.add(type=schema.TENSORS).tensors.add(), numbers)
    census = graph_of(model).census()
    assert (census.nodes, census.casts) == (5, 1)
    assert census.weights == {"float16": Stored(1, 6), "float32": Stored(2, 32), "int32": Stored(1, 20)}


def test_tuples_and_order() -> None:
    text = """
        main(x: f32[2,3,4,4])
          parameter g: f32[3]
          n: (f32[2,3,4,4], f32[3], f32[3]) = BatchNormExt(x, g, g, g, g, true, 0.1, 1e-05, state)
          y = TupleGetItem(n, 0)
          return y
    """
    norm = op_of(flow_of(text), "BatchNormExt")
    assert norm.inputs[1:5] == [NONE] * 4 and norm.inputs[5] != NONE  # parameters that are written, then the flag
    # a tuple that an operator makes is no place for casts
    flow = flow_of("""
        main(x: f32[4,4])
          s: (f32[2,4], f32[2,4]) = Split(x, 0, 2)
          y: f32[4,4] = Concat(s, 0)
          z = Cast(y, f16)
          return z
    """)
    split, concat = op_of(flow, "Split"), op_of(flow, "Concat")
    assert concat.native.places[:2] == [None, None]
    assert flow.find(split.slots["T"]) == flow.find(concat.slots["T"])
    # what only keeps order is another name
    flow = flow_of("""
        main(x: f32[4,4])
          parameter w: f32[4,4]
          u = UpdateState(state, x)
          l = Load(w, u)
          d = Depend(l, u)
          y = MatMul(d, l, false, false)
          e = Depend(y, u)
          return e
    """)
    op = op_of(flow, "MatMul")
    assert names(flow, op.inputs[:2]) == ["w", "w"] and len(flow.ops) == 1
    native = flow.scopes[0].native
    assert native.ordered == {"main:d", "main:e"} and native.names[op.inputs[0]] == "main:l"
    assert native.outputs[0].node.output[0] == "main:e"  # in front of the last Depend


@pytest.mark.parametrize("operator", ["AddN(t)", "Concat(t, 0)"])
def test_a_tuple_that_is_made_for_an_operator(operator: str) -> None:
    flow = flow_of(f"""
        main(x: f32[2,4], z: f32[2,4])
          a = ReLU(x)
          t = MakeTuple(a, z)
          y: f32[2,4] = {operator}
          return y
    """)
    op = op_of(flow, operator.split("(")[0])
    assert names(flow, op.inputs)[:2] == ["a", "z"] and list(op.slots) == ["T"]
    places = op.native.places
    assert [place.position for place in places[:2]] == [0, 1] and places[0].via.node is op.native.node


def test_nested_tuples_and_tuples_behind_a_depend_have_places() -> None:
    flow = flow_of("""
        main(x: f32[2,4])
          a = ReLU(x)
          t = MakeTuple(a, x)
          n = MakeTuple(t, a)
          d = Depend(n, state)
          i = TupleGetItem(d, 0)
          y: f32[2,4] = AddN(n)
          z: f32[2,4] = AddN(i)
          o = MakeTuple(y, z)
          return o
    """)
    first, second = op_of(flow, "AddN"), op_of(flow, "AddN", 1)
    assert names(flow, first.inputs) == ["a", "x", "a"] and None not in first.native.places
    assert names(flow, second.inputs) == ["a", "x"] and second.native.places == [None, None]
    root = flow.find(second.slots["T"])
    assert flow.find(units(flow, "a")[0]) == root and flow.find(units(flow, "x")[0]) == root


@pytest.mark.parametrize("node", ["MatMul(x)", "BatchNorm(x, x)", "LayerNorm(x, x)"])
def test_an_operator_with_fewer_operands_than_the_table_says_is_unknown(node: str) -> None:
    flow = flow_of(f"""
        main(x: f32[4,4])
          a = {node}
          return a
    """)
    assert flow.unknown_kinds == {node.split("(")[0]}


def test_casts_shapes_and_attributes() -> None:
    flow = flow_of("""
        main(x: f32[-1,4])
          a = ReLU(x)
          b: f32[-2] = Exp(a)
          return b
    """)
    assert [flow.shape(op.outputs[0]) for op in flow.ops] == [(None, 4), None]
    assert flow.dims(flow.ops[0].outputs[0]) == [1, 4] and flow.dims(flow.ops[1].outputs[0]) == [1, 128, 128]
    # given casts
    flow = flow_of("""
        main(x: f32[4])
          a = Cast(x, f16)
          b = ReLU(a)
          c = Cast(b, f32)
          d = Cast(c, f32)
          e = Cast(d, f64)
          f: i64[4] = Cast(d, 35)
          o = MakeTuple(c, e)
          return o
    """)
    down, _, up, same, wide, whole = flow.ops
    assert flow.uses[down.inputs[0]][0].given_cast and list(down.slots) == ["T1"]
    assert flow.values[up.outputs[0]].low_source == up.inputs[0] and list(up.slots) == ["T2"]
    assert flow.find(same.slots["T1"]) == flow.find(same.slots["T2"])
    assert list(wide.slots) == list(whole.slots) == ["T1"]
    assert flow.attribute(whole, "to") == 35
    # the operand of a cast says its type not the abstract
    flow = flow_of("""
        main(x: f32[4])
          a: f32[4] = Cast(x, f16)
          b = ReLU(a)
          return b
    """)
    assert flow.values[flow.ops[0].outputs[0]].dtype == "float16"
    assert flow.conflicts == [
        "'main:a' is float16, and says float32",
        "ReLU '': makes float16 of T, not float32",
    ]
    # attributes of operands and primitives
    model = parse("""
        main(x: f32[2,4])
          a = Softmax(x)
          b: f32[2,1] = ReduceMean(a, [1], true)
          return b
    """)
    model.primitives[0].attribute.add(name="axis").ints.append(-1)
    model.primitives[0].attribute[0].type = view.SEQUENCES[0]
    flow = graph_of(model).dataflow()
    softmax, mean = flow.ops
    assert flow.attribute(softmax, "axis") in (None, [-1])  # an operand in MindSpore 2.10
    assert flow.attribute(mean, "keepdims") is True and flow.attribute(mean, "nonsense") is None


def test_names_layers_and_borders() -> None:
    flow = flow_of("""
        main(x: f32[2])
          a = ReLU(x) @Default/seq-SequentialCell/0-Dense/ReLU-op0
          b = Exp(a) @Default/Exp-op0
          c = Exp(b) @Gradients/Default/head-Dense/Exp-op0
          d = Exp(c)
          return d
    """)
    assert [flow.layer(op) for op in flow.ops] == ["seq.0", "", "head", ""]
    # cells of a network
    flow = flow_of("main(x: f32[2])\n a = ReLU(x) @Default/seq-SequentialCell/0-Dense/ReLU-op0\n return a")
    assert flow.cells(flow.ops[0]) == [("seq", "SequentialCell"), ("0", "Dense")]
    assert view.cells("Gradients/Default/head-Dense/gradMatMul/Exp-op0")[:2] == [("Default", ""), ("head", "Dense")]
    assert view.cells("Default/plain/Exp-op0") == [("plain", "")] and not view.cells("Exp-op0") and not view.cells("")
    # inputs may be tuples and outputs low
    text = """
        main(x: f32[2], t: (f32[2], f32[2]))
          a = TupleGetItem(t, 1)
          b = Add(x, a)
          return b
    """
    flow = flow_of(text, low_io=frozenset(["t[1]", "output 0"]))
    assert names(flow, flow.scopes[0].inputs) == ["x", "t[0]", "t[1]"]
    assert [unit.fixed_low for unit in flow.units if unit.op == NONE] == [False, False, True, True]
    assert dump(convert(parse(text), io=["t[[]1]=low"])).startswith("graph main(x: f32[2], t: (f32[2], f16[2]))")
    # names that repeat are told apart
    model = parse("""
        main(x: f32[2])
          parameter w: f32[2]
          a = Exp(x)
          return a
    """)
    model.graph.parameter[0].ref_key = "x"
    flow = graph_of(model).dataflow()
    found = [(value.scope, value.name) for value in flow.values]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("a: ? = ReLU(x)", "AMP201", "'main:a' has no type"),
        ("a: f32[2] = call f(x, x)", "AMP203", "takes 1 operands and is given more"),
        ("t = MakeTuple(x, x)\n a: f32[2] = call f(t)", "AMP203", "has 2 elements"),
        ("s = Switch(c, x, x)\n a: f32[2] = call s()", "AMP203", "chooses between values that are not functions"),
        ("t: (f32[2], f32[2]) = call f(x)\n a = TupleGetItem(t, 0)", "AMP203", "has no result 1"),
    ],
)
def test_what_cannot_be_read(body: str, code: str, message: str) -> None:
    text = f"""
        main(x: f32[2], c: bool[])
          {body}
          b = Exp(a)
          return b
        f(z: f32[2])
          return z
    """
    graph = graph_of(parse(text))
    with pytest.raises(AmpError, match=message) as caught:
        graph.prepare()
        graph.dataflow()
    assert caught.value.code == code and caught.value.hint


SOUND = """
    main(x: f32[2])
      parameter w: f32[2]
      l = Load(w, state)
      d = Depend(x, l)
      a = Add(d, l)
      return a
"""
FAULTS: dict[str, Callable[[Any], object]] = {
    "two parameters are called 'w'": lambda model: model.graph.parameter.add(name="main:v", ref_key="w"),
    "has 0 outputs; every node has one": lambda model: node_of(model, "Depend").output.pop(),
    "two things are called 'main:d'": lambda model: set_first(node_of(model, "Load").output, "main:d"),
    "something has no name": lambda model: set_first(node_of(model, "Load").output, ""),
    "two functions have one name, or one has none": lambda model: [model.functions.add(name="f") for _ in range(2)],
    "node 'main:a' reads 'nobody', which its graph does not have": lambda model: set_first(
        node_of(model, "Add").input, "nobody"
    ),
    "node 'main:d' reads 'main:a', before it is made": lambda model: set_first(
        node_of(model, "Depend").input, "main:a"
    ),
    "Depend 'main:d' has 0 operands, and needs 1": lambda model: node_of(model, "Depend").ClearField("input"),
    "graph 'main' returns 'nobody', which nothing makes": lambda model: setattr(
        model.graph.output[0], "name", "nobody"
    ),
}


def node_of(model: Any, kind: str) -> Any:
    known = view.primitives(model)
    return next(node for node in model.graph.node if view.kind_of(node, known) == kind)


def set_first(names: Any, name: str) -> None:
    names[0] = name


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_of_the_structure_is_named(message: str) -> None:
    model = parse(SOUND)
    graph_of(model).prepare()
    FAULTS[message](model)
    with pytest.raises(AmpError, match=f"AMP202.*{message}"):
        graph_of(model).prepare()


@pytest.mark.parametrize(
    ("elements", "depth"), [(MOST_ELEMENTS, 2), (MOST_ELEMENTS + 1, 2), (2, DEEPEST), (2, DEEPEST + 1)]
)
def test_tuples_are_so_large_and_so_deep_at_most(elements: int, depth: int) -> None:
    model = parse(SOUND.replace("d = Depend(x, l)", "t0 = MakeTuple(x, x)\n d = Depend(x, l)"))
    place = next(node for node in model.graph.node if node.output[0] == "main:t0")
    place.input[:] = ["main:x"] * elements
    for number in range(1, depth):
        node = model.graph.node.add(name=f"t{number}", op_type=place.op_type, output=[f"main:t{number}"])
        node.input.append(f"main:t{number - 1}")
    if elements <= MOST_ELEMENTS and depth <= DEEPEST:
        check_structure(graph_of(model).file)
        return
    with pytest.raises(AmpError, match=f"AMP202.*tuple 'main:t.*' has {elements:,} elements, [0-9]* deep"):
        check_structure(graph_of(model).file)


# What the dataflow shows of MindIR functions: branches, loops, calls; text in, facts out.

SWITCH = """
    main(x: f32[2,4], c: bool[])
      parameter w: f32[4,4]
      p = Partial(yes, x, w, state)
      q = Partial(no, x)
      s = Switch(c, p, q)
      y: f32[2,4] = call s()
      r = ReLU(y)
      return r
    yes(a: f32[2,4], *w, u: state)
      l = Load(w, u)
      m = MatMul(a, l, false, false)
      return m
    no(b: f32[2,4])
      n = Exp(b)
      return n
"""


def test_switches() -> None:
    flow = flow_of(SWITCH)
    assert [(scope.path, scope.kind) for scope in flow.scopes] == [
        ("", "main"),
        ("yes", "function"),
        ("no", "function"),
    ]
    call = op_of(flow, "call")
    result = flow.find(flow.values[call.outputs[0]].unit)
    assert {flow.find(flow.uses[v][-1].unit) for scope in flow.scopes[1:] for v in scope.outputs} == {result}
    given = [flow.find(use.unit) for use in flow.uses[flow.scopes[0].inputs[0]]]
    assert given == units(flow, "a", "b") and flow.find(given[0]) != flow.find(given[1])
    passed = {tuple(names(flow, list(pair))) for pair in flow.passed}
    assert passed == {("x", "a"), ("x", "b"), ("m", "y"), ("n", "y")}
    assert names(flow, op_of(flow, "MatMul").inputs[:2]) == ["a", "w"]  # one value in all graphs
    # functions as direct operands of a switch
    flow = flow_of("""
        main(x: f32[2,4], c: bool[])
          s = Switch(c, yes, no)
          y: f32[2,4] = call s(x)
          return y
        yes(a: f32[2,4])
          m = Exp(a)
          return m
        no(b: f32[2,4])
          return b
    """)
    shared = flow.find(flow.uses[flow.scopes[0].inputs[0]][0].unit)
    assert {shared} == set(units(flow, "a", "b"))
    assert not fixed(flow, "y")


def test_a_while_loop() -> None:
    flow = flow_of("""
        main(x: f32[2,4], n: i32[])
          y: f32[2,4] = call head(x, n)
          return y
        head(a: f32[2,4], i: i32[])
          c: bool[] = Less(i, i)
          p = Partial(body, a, i)
          q = Partial(after, a)
          s = Switch(c, p, q)
          r: f32[2,4] = call s()
          return r
        body(b: f32[2,4], j: i32[])
          t = Tanh(b)
          v: f32[2,4] = call head(t, j)
          return v
        after(z: f32[2,4])
          e = ReLU(z)
          return e
    """)
    y, v, r = units(flow, "y", "v", "r")
    assert y == v == flow.find(flow.uses[op_of(flow, "call", 1).outputs[0]][-1].unit)  # what head returns
    assert r == flow.find(flow.uses[op_of(flow, "ReLU").outputs[0]][-1].unit)  # what the branches return
    state = [flow.find(use.unit) for use in flow.uses[op_of(flow, "Tanh").outputs[0]]]
    assert state == units(flow, "a") and not flow.conflicts


def test_calls() -> None:
    flow = flow_of("""
        main(x: f32[2,4])
          y: f32[2,4] = call f(x)
          z: f32[2,4] = call f(y)
          return z
        f(a: f32[2,4])
          m = Exp(a)
          return m
    """)
    assert len(set(units(flow, "y", "z"))) == 1
    assert flow.find(flow.uses[op_of(flow, "call").outputs[0]][0].unit) == units(flow, "a")[0]
    # a function that is handed on keeps its types
    flow = flow_of("""
        main(x: f32[2,4])
          y: f32[2,4] = call apply(f, x)
          return y
        apply(g: function, a: f32[2,4])
          m: f32[2,4] = call g(a)
          return m
        f(b: f32[2,4])
          n = Exp(b)
          return n
    """)
    assert fixed(flow, "b") == "the function is handed on as a value"
    assert fixed(flow, "m") == "nothing is known of what is called"
    assert "nothing is known of what is called" in {
        flow.units[use.unit].fixed for use in flow.uses[flow.scopes[1].inputs[0]]
    }


def test_tuples_cross_the_border_of_a_function() -> None:
    flow = flow_of("""
        main(x: f32[2,4], z: f32[2,4])
          t = MakeTuple(x, z)
          y: (f32[2,4], f32[2,4]) = call f(t)
          a = TupleGetItem(y, 1)
          return a
        f(p: (f32[2,4], f32[2,4]))
          b = TupleGetItem(p, 0)
          c = TupleGetItem(p, 1)
          e = Exp(b)
          o = MakeTuple(c, e)
          return o
    """)
    assert {tuple(names(flow, list(pair))) for pair in flow.passed} == {
        ("x", "p[0]"),
        ("z", "p[1]"),
        ("p[1]", "y[0]"),
        ("e", "y[1]"),
    }
    assert names(flow, flow.scopes[0].outputs) == ["y[1]"]
    assert None not in op_of(flow, "call").native.places


# What the dataflow of a MindIR model shows of parameters and constants, and of what is written in place.


def test_parameters_and_constants() -> None:
    flow = flow_of("""
        main(x: f32[4])
          parameter w: f32[4]
          l = Load(w, state)
          a = Mul(x, l)
          b = Add(a, f32[]=1.0)
          c = Muls(b, 2.0)
          d = Add(c, f16[4]=1.0)
          return d
    """)
    stored = {value.name: value for value in flow.values if value.weight}
    assert stored["w"].parameter and stored["w"].unit == NONE and not stored["Const_1"].parameter
    assert flow.scalar(op_of(flow, "Add").inputs[1]) == 1.0
    number = flow.values[op_of(flow, "Muls").inputs[1]]
    assert number.dtype == "number" and flow.weights.size(number) == 1 and flow.scalar(number.id) == 2.0
    assert flow.conflicts == ["Add '': T holds float16 and float32"]


@pytest.mark.parametrize(
    "node",
    [
        "a = Assign(w, x, state)",
        "a = AssignAdd(w, x, state)",
        "a = NobodyKnowsThis(w, x)",
        "d = Depend(w, state)\n a = Assign(d, x, state)",
        "v = TransposeView(w, [0])\n a = InplaceAddExt(v, x, 1, state)",
        "r = Load(w, state)\n a = InplaceAddExt(r, x, 1, state)",
    ],
)
def test_a_parameter_that_is_written(node: str) -> None:
    flow = flow_of(f"""
        main(x: f32[4])
          parameter w: f32[4]
          b = Load(w, state)
          y = Add(b, x)
          {node}
          u = UpdateState(state, a)
          c = Load(w, u)
          z = Add(c, y)
          return z
    """)
    assert "w" not in [value.name for value in flow.values]
    assert fixed(flow, "b") == fixed(flow, "c") == "a parameter that is written keeps its type"
    assert op_of(flow, "Add").inputs[0] != op_of(flow, "Add", 1).inputs[0]


def test_training_batch_norm_keeps_its_parameters() -> None:
    flow = flow_of("""
        main(x: f32[2,3,4,4])
          parameter g: f32[3]
          parameter m: f32[3]
          lg = Load(g, state)
          n: (f32[2,3,4,4], f32[3], f32[3], f32[3], f32[3]) = BatchNorm(x, lg, lg, m, m, true, 1e-5, 0.1, 'NCHW', state)
          y = TupleGetItem(n, 0)
          return y
    """)
    norm = op_of(flow, "BatchNorm")
    assert not flow.units[norm.slots["T"]].fixed
    assert flow.units[norm.slots["T1"]].fixed == "it holds a parameter that is written, which keeps its type"


@pytest.mark.parametrize("operator", ["Momentum", "ApplyMomentum", "Adam", "AdamWeightDecay"])
def test_optimizers_write_what_they_are_given(operator: str) -> None:
    flow = flow_of(f"""
        main(g: f32[4])
          parameter w: f32[4]
          parameter v: f32[4]
          p = Relu6(g)
          a: f32[4] = {operator}(w, v, 0.1, p, 0.9, state)
          u = UpdateState(state, a)
          d = Depend(g, u)
          return d
    """)
    assert not [value for value in flow.values if value.parameter]
    assert all(flow.units[unit].fixed for unit in op_of(flow, operator).slots.values())


def test_what_is_written_in_place() -> None:
    flow = flow_of("""
        main(x: f32[4,4])
          a = MatMul(x, x, false, false)
          v = TransposeView(a, [1, 0])
          o = TransposeView(a, [1, 0])
          b = InplaceAddExt(v, x, 1, state)
          u = UpdateState(state, b)
          d = Depend(o, u)
          y = ReLU(d)
          return y
    """)
    assert [fixed(flow, name) for name in "avo"] == ["its memory is written in place"] * 3
    # what nothing else sees is written in place as by any operator
    flow = flow_of("""
        main(x: f32[4,4])
          a = MatMul(x, x, false, false)
          b = InplaceAddExt(a, x, 1, state)
          c = InplaceMuls(b, 2.0, state)
          d = InplaceMul(x, c, state)
          e = InplaceMul(d, c, state)
          return e
    """)
    add, scale, border, follows = (op for op in flow.ops if op.kind.startswith("Inplace"))
    assert not any(flow.units[unit].fixed for op in (add, scale) for unit in op.slots.values())
    assert list(add.slots) == ["T", "T1"] and (add.role, scale.role) == ("Add", "Mul")
    assert [fixed(flow, name) for name in "abcde"] == ["", "", "", *["its memory is written in place"] * 2]
    assert all(fixed_units(flow, op) for op in (border, follows))


def fixed_units(flow: Dataflow, op: Op) -> bool:
    """Whether nothing is decided of an operator."""
    roots = {flow.find(unit.id) for unit in flow.units if unit.fixed}
    return all(flow.find(unit) in roots for unit in op.slots.values())
