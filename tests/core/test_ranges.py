"""Measured ranges by the keys of values: across bodies, and after a rewrite that renames and scales."""

from __future__ import annotations

import numpy as np

from ampgraph.core.ranges import Ranges, ranges_by_value, value_key
from ampgraph.formats import adapters
from onnx_text import parse

TEXT = """g (float[4] x, bool c) => (float[4] z) {
    a = Relu (x)
    z = If (c) <then_branch = t () => (float[4] u) { u = Exp (x) },
                else_branch = e () => (float[4] v) { v = Abs (x) }> }"""


def test_a_key_names_the_bodies_around_a_value() -> None:
    flow = adapters.load(parse(TEXT))[0].dataflow()
    keys = {value.name: value_key(flow, value.id) for value in flow.values}
    assert keys["a"] == "a" and keys["z"] == "z"
    assert keys["u"] == "z.then_branch > u" and keys["v"] == "z.else_branch > v"
    flow.values[flow.at("", 0).outputs[0]].name = "a > \\b"  # no scope: a name that looks like one
    assert value_key(flow, flow.at("", 0).outputs[0]) == "a \\> \\\\b"
    ranges = Ranges("digest")
    ranges.add("z.then_branch > u", np.array([1, 2], np.float32))
    ranges.add("gone", np.array([3], np.float32))
    found = ranges_by_value(flow, ranges.values)
    assert {flow.values[value].name: (held.low, held.high) for value, held in found.items()} == {"u": (1, 2)}


def test_renamed_and_scaled_values() -> None:
    ranges = Ranges("digest")
    for name in ("a", "b"):
        ranges.add(name, np.array([-8, 0, 4, np.inf], np.float32))
    found = ranges.scaled({"a": ("a_scaled", 2), "unmeasured": ("c", 1)}).values
    assert found.keys() == {"b", "a_scaled"} and found["b"] == ranges.values["b"]
    assert (found["a_scaled"].low, found["a_scaled"].high, found["a_scaled"].exponents) == (-2, 1, {1: 1, 0: 1})
    assert (found["a_scaled"].zeros, found["a_scaled"].nonfinite) == (1, 1)
