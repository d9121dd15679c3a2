"""What gradient rules write with: constants are shared, sizes are constants where they are known, names are new."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.core.dataflow import HELD, KEPT
from ampgraph.training.gradients.builder import FLOAT, INT64, Builder, EagerTerm, Placed, same_size
from ampgraph.training.gradients.rules.indexing import size_product
from present import present


def made(*dims: int | str | None) -> tuple[Builder, ir.Value]:
    """A builder of a graph with one float input, of the sizes ``dims``."""
    shape = ir.Shape([ir.SymbolicDim(dim) if dim is None or isinstance(dim, str) else dim for dim in dims])
    x = ir.Value(name="x", type=ir.TensorType(FLOAT), shape=shape)
    return Builder(ir.Graph([x], [], nodes=[], opset_imports={"": 20})), x


def test_equal_constants_are_one_and_no_input_is_known() -> None:
    b, x = made(2, 3)
    assert b.ints(1, 2) is b.ints(1, 2) and b.ints(1) is not b.int64(1), "a vector is no scalar"
    assert present(b.known_numbers(b.ints(1, 2))).tolist() == [1, 2]
    b.trained.add(b.ints(1, 2))
    assert [b.known_numbers(value) for value in (x, None, b.ints(1, 2))] == [None] * 3


def test_sizes_are_constants_where_they_are_known() -> None:
    b, x = made(2, "n", 3)
    assert [b.dim(x, axis) for axis in range(3)] == [2, None, 3]
    assert present(b.known_numbers(b.plus(b.size(x, -1), 4))).tolist() == [7]
    assert b.size(x, 1) is b.size(x, -2) and b.known_numbers(b.plus(b.size(x, 1), 4)) is None
    assert b.shape(x) is b.shape(x) and [node.op_type for node in b.graph] == ["Shape", "Add", "Shape"]
    assert present(b.known_numbers(size_product(b, [b.size(x, 0), b.size(x, 2)]))).tolist() == [6]
    assert b.known_numbers(size_product(b, [b.size(x, 0), b.size(x, 1)])) is None
    nameless = ir.Value(name="y", type=ir.TensorType(FLOAT))
    with pytest.raises(ValueError, match="rank of 'y' is not known"):
        b.rank(nameless)


def test_sizes_are_equal_by_number_or_by_symbol() -> None:
    n, m, unknown = ir.SymbolicDim("n"), ir.SymbolicDim("m"), ir.SymbolicDim(None)
    assert same_size(3, 3) and same_size(n, ir.SymbolicDim("n"))
    assert not any([same_size(3, 4), same_size(n, 3), same_size(n, m), same_size(unknown, unknown)])


def test_numbers_take_the_type_of_a_term_and_truth_values_choose_in_it() -> None:
    b, x = made(2)
    x.type = ir.TensorType(ir.DataType.DOUBLE)
    [term] = b.terms(None, x)
    chosen = (term > 0).where(1, 0.5)
    assert chosen.dtype == ir.DataType.DOUBLE
    assert {value.dtype for value in b.graph.initializers.values()} == {ir.DataType.DOUBLE}
    at_once = (EagerTerm(np.asarray(3.0)) > 0).where(1, 0.5)
    assert isinstance(at_once, EagerTerm) and float(at_once.array) == 1


def test_what_keeps_float32_says_why() -> None:
    b, x = made(2)
    with b.float32_as_norms("a norm"):
        normal = b.op("Neg", x)
        with b.float32("large"), b.float32_as_norms("a norm"), b.float32(""):
            large = b.op("Neg", x)
    plain = b.op("Neg", x)
    assert [dict(present(value.producer()).meta) for value in (normal, large, plain)] == [
        {KEPT: "a norm"},
        {HELD: "large"},
        {},
    ]


def test_padding_along_one_axis_is_remembered() -> None:
    b, x = made(2, 3)
    padded, cut = (b.padded(x, 2, b.ints(front), b.ints(end), b.ints(-1)) for front, end in ((1, 2), (-1, 0)))
    amounts = [present(b.known_numbers(present(one.producer()).inputs[1])).tolist() for one in (padded, cut)]
    assert amounts == [[0, 1, 0, 2], [0, -1, 0, 0]] and b.placed == {padded: Placed(x, 1, 1, 2)}


def test_unread_nodes_and_constants_are_dropped() -> None:
    b, x = made(2)
    forward = b.op("Neg", x)
    kept = b.op("Add", forward, b.number(1, x))
    b.op("Mul", kept, b.number(7, x))
    b.drop_unused(1, {kept})
    assert [node.op_type for node in b.graph] == ["Neg", "Add"]
    assert [float(present(value.const_value).numpy()) for value in b.graph.initializers.values()] == [1]


def test_names_are_new_in_a_body_too() -> None:
    b, x = made(2)
    body = b.body_builder("body")
    names = [one.op("Neg", x).name for one in (b, body, b, body)]
    assert len(set(names)) == 4 and body.graph is not b.graph
    assert b.typed(b.arange(b.int64(3)), INT64, 3).dtype == INT64
