"""Sequences and optionals: no Cast exists for them, so their elements, and what feeds them, share one type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from formats.onnx.helpers import LEVELS, casts, convert_everywhere, low_kinds, nodes, x
from onnx_text import parse

pytestmark = pytest.mark.slow  # a grid: many small cases

SEQUENCES = {
    "construct, insert, erase, at, concat": """ <int64 i = {0}, int64 j = {1}> {
        a = MatMul (x, w)  b = Softmax (x)
        s = SequenceConstruct (a, b)  s2 = SequenceInsert (s, x)  s3 = SequenceErase (s2, j)
        e = SequenceAt (s3, i)  y = MatMul (e, w)  z = ConcatFromSequence <axis = 0> (s3) }""",
    "split and concat": """ {
        a = MatMul (x, w)  s = SplitToSequence <axis = 0> (a)
        y = ConcatFromSequence <axis = 0> (s)  z = Concat <axis = 0> (y, x) }""",
    "a map over two sequences": """ {
        a = MatMul (x, w)  s = SequenceConstruct (a, a)
        t = SequenceMap (s, x) <body = b (float[2,4] p, float[2,4] q) => (float[2,4] r) {
            k = MatMul (p, w)  r = Add (k, q) } >
        z = ConcatFromSequence <axis = 0> (t)  y = Relu (a) }""",
    "a sequence from branches": """ <int64 i = {0}> {
        a = MatMul (x, w)  b = Softmax (a)
        c = Constant <value = bool {1}> ()
        s = If (c) <
            then_branch = t () => (seq(float[2,4]) p) { p = SequenceConstruct (a, b) },
            else_branch = e () => (seq(float[2,4]) q) { q = SequenceConstruct (b, b) } >
        k = SequenceAt (s, i)  y = MatMul (k, w)  z = ConcatFromSequence <axis = 0> (s) }""",
    "a sequence that a loop fills": """ <int64 n = {2}, bool t = {1}> {
        e = SequenceEmpty ()
        s, y = Loop (n, t, e, x) <
            body = b (int64 i, bool go, seq(float[2,4]) q, float[2,4] a)
                => (bool on, seq(float[2,4]) r, float[2,4] next) {
            on = Identity (go)  next = MatMul (a, w)  r = SequenceInsert (q, next) } >
        z = ConcatFromSequence <axis = 0> (s) }""",
}


@pytest.mark.parametrize("body", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequences(body: str) -> None:
    given = parse("g (float[2,4] x) => (float[2,4] y, float[4,4] z)" + body, w=(4, 4))
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])


def test_elements_of_a_sequence_are_low_with_it() -> None:
    given = parse(f"g (float[2,4] x) => (float[2,4] y, float[4,4] z){next(iter(SEQUENCES.values()))}", w=(4, 4))
    converted = convert_everywhere(given, {"x": x(2, 4)}, levels=("O3",), bfloat16=False)["O3"]
    low = low_kinds(converted)
    assert casts(converted) == 3, "one for the input, one for each output"
    assert all(low[kind] == 1 for kind in ("SequenceConstruct", "SequenceInsert", "SequenceAt", "ConcatFromSequence"))


def test_sequences_at_the_border_stay_float32() -> None:
    given = parse(
        """g (seq(float[2,4]) s, float[2,4] x) => (seq(float[2,4]) t, float[2,4] y, seq(float[1,4]) u) <int64 i = {0}> {
        a = SequenceAt (s, i)  b = MatMul (a, w)  t = SequenceInsert (s, b)
        u = SplitToSequence <axis = 0> (b)  y = ConcatFromSequence <axis = 0> (u) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"s": [x(2, 4), x(2, 4) * 2], "x": x(2, 4)}, low=["MatMul"])


def test_an_empty_sequence_takes_the_type_of_what_it_will_hold() -> None:
    given = parse(
        "g (float[2,4] x) => (float[2,4] y, float[4,4] z)" + SEQUENCES["a sequence that a loop fills"], w=(4, 4)
    )
    converted = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])["O3"]
    empty = next(n for n in nodes(converted) if n.op_type == "SequenceEmpty")
    assert [a.i for a in empty.attribute if a.name == "dtype"] == [onnx.TensorProto.FLOAT16]


def test_a_sequence_of_another_type_is_none_of_ours() -> None:
    given = parse(
        """g (float[2,4] x) => (int64 n, float[2,4] y) {
        e = SequenceEmpty <dtype = 11> ()  n = SequenceLength (e)  y = MatMul (x, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    for level in LEVELS:
        assert [n.attribute[0].i for n in nodes(result[level]) if n.op_type == "SequenceEmpty"] == [11]


def test_optionals() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y, bool z) {
        a = MatMul (x, w)  o = Optional (a)  z = OptionalHasElement (o)
        k = OptionalGetElement (o)  y = MatMul (k, w) }""",
        w=(4, 4),
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])


def test_an_empty_optional_names_its_type() -> None:
    given = parse(
        """g (float[2,4] x, bool c) => (bool z, float[2,4] y) {
        a = MatMul (x, w)
        y = Relu (a)
        o = If (c) <
            then_branch = t () => (optional(float[2,4]) p) { p = Optional (a) },
            else_branch = e () => (optional(float[2,4]) q) { q = Optional () } >
        z = OptionalHasElement (o) }""",
        w=(4, 4),
        opset=18,
    )
    empty = next(n for n in nodes(given) if n.op_type == "Optional" and not n.input)
    empty.attribute.append(helper.make_attribute("type", helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, 4])))
    result = convert_everywhere(given, [{"x": x(2, 4), "c": np.array(c)} for c in (True, False)], low=["MatMul"])
    kinds = {
        n.attribute[0].tp.tensor_type.elem_type for n in nodes(result["O3"]) if n.op_type == "Optional" and n.attribute
    }
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_optional_sequences_at_the_border() -> None:
    given = parse(
        """g (optional(seq(float[2,4])) o, float[2,4] x) => (float[2,4] y) <int64 i = {0}> {
        s = OptionalGetElement (o)  a = SequenceAt (s, i)  b = MatMul (a, w)  y = Add (b, x) }""",
        w=(4, 4),
        opset=18,
    )
    convert_everywhere(given, {"o": [x(2, 4)], "x": x(2, 4)}, low=["MatMul"])


def test_the_element_of_what_is_no_optional() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y) {
        e = Exp (x)  s = OptionalGetElement (e)  b = MatMul (s, w)  y = Add (b, x) }""",
        w=(4, 4),
        opset=18,
    )
    convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
