"""How patterns read a dataflow: through casts, by stored tensors, and where a model computes a value twice."""

from __future__ import annotations

import numpy as np
import pytest

from ampgraph.core.dataflow import Dataflow
from ampgraph.core.matching import TWICE, View
from ampgraph.core.patterns import Conventions
from ampgraph.formats import adapters
from onnx_text import parse

TEXT = """g (float[2, 4] x, float[4] bias) => (float[2, 4] y) {
    a = Relu (x)  b = Relu (x)  c = Neg (a)  i = Identity (b)  d = Neg (i)  e = Neg (x)
    p = Add (c, d)  q = Add (e, row)  r = Add (p, q)  s = Add (r, full)  y = Add (s, bias) }"""
STORED = {"row": np.ones((1, 4), np.float32), "full": np.ones((2, 4), np.float32), "bias": np.ones(4, np.float32)}


@pytest.fixture(scope="module")
def view() -> View:
    flow = adapters.load(parse(TEXT, STORED))[0].dataflow()
    return View(flow, Conventions(through=frozenset({"Identity", "Cast"})), {"Relu", "Neg"})


def ids(flow: Dataflow) -> dict[str, int]:
    """Values by name."""
    return {value.name: value.id for value in flow.values}


def test_values_that_are_computed_twice(view: View) -> None:
    values = ids(view.flow)
    copies = view.same_computation(values["c"], values["d"])
    assert copies is not None and [op.kind for op in copies] == ["Neg", "Neg", "Relu", "Relu"]
    assert view.same_computation(values["c"], values["c"]) == ()
    assert view.same_computation(values["c"], values["e"]) is None  # of another operand
    assert view.same_computation(values["p"], values["q"]) is None  # patterns do not speak of Add
    assert view.same_computation(values["c"], values["d"], TWICE) is None


def test_identities_are_looked_through(view: View) -> None:
    values = ids(view.flow)
    value, passed = view.look_through(values["i"])
    assert value == values["b"] and [op.kind for op in passed] == ["Identity"]
    assert view.look_through(values["b"]) == (values["b"], ())


def test_sorts_of_stored_tensors(view: View) -> None:
    values = ids(view.flow)
    sorts = {name: [sort for sort in ("vector", "row", "any") if view.is_stored(sort, values[name])] for name in "xa"}
    assert sorts == {"x": [], "a": []}
    found = {name: [s for s in ("vector", "row", "any") if view.is_stored(s, values[name])] for name in STORED}
    assert found == {"row": ["row", "any"], "full": ["any"], "bias": ["vector", "row", "any"]}
    strict = View(view.flow, view.conventions, (), overridable=False)
    assert not strict.is_stored("any", values["bias"]) and strict.is_stored("any", values["row"])  # bias is an input


def test_axes_count_from_the_front(view: View) -> None:
    relu = view.flow.at("", 0)
    assert view.axes_from_front(relu, (-1, 0)) == (1, 0)
    assert view.axes_from_front(relu, ("computed", 3)) == ("computed", 3) and view.axes_from_front(relu, None) is None
