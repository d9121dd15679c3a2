"""What the dataflow shows of MindIR functions: branches, loops, calls; text in, facts out."""

from __future__ import annotations

from formats.mindir.flows import fixed, flow_of, names, op_of, units

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


def test_a_switch_between_functions() -> None:
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


def test_functions_as_direct_operands_of_a_switch() -> None:
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


def test_a_function_called_from_two_places() -> None:
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


def test_a_function_that_is_handed_on_keeps_its_types() -> None:
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
