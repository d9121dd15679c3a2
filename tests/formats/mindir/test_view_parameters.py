"""What the dataflow of a MindIR model shows of parameters and constants, and of what is written in place."""

from __future__ import annotations

import pytest

from ampgraph.core.dataflow import NONE, Dataflow, Op
from formats.mindir.flows import fixed, flow_of, op_of


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


def test_what_is_written_in_place_is_never_cast() -> None:
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


def test_what_nothing_else_sees_is_written_in_place_as_by_any_operator() -> None:
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
