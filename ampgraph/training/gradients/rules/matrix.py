"""Gradients of matrix products: MatMul, Gemm, Einsum.

A product with a two-dimensional weight has one Gemm for each operand, over all rows of the batch together, and no
transposed copy: Gemm's own flags transpose.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import Builder, Size, same_size, sum_to, sum_to_dims
from ..registry import Unsupported, gradient

Value = ir.Value


@gradient("MatMul")
def matmul(b: Builder, node: ir.Node, g: Value) -> tuple[Value, Value]:
    """Gradients of MatMul: g B^T and A^T g, summed over the batch dimensions that were broadcast."""
    left, right = operand(node), operand(node, 1)
    ranks = b.rank(left), b.rank(right)
    if ranks[0] >= 2 and ranks[1] == 2:
        return _weight_product_gradients(b, left, right, g)
    a = left if ranks[0] > 1 else b.op("Unsqueeze", left, b.ints(0))
    c = right if ranks[1] > 1 else b.op("Unsqueeze", right, b.ints(1))
    # the row of a one-dimensional left operand comes second to last, the column of a right one last
    if ranks[1] == 1:
        g = b.op("Unsqueeze", g, b.ints(-1))
    if ranks[0] == 1:
        g = b.op("Unsqueeze", g, b.ints(-2))
    first = b.op("MatMul", g, _transposed(b, c, max(ranks[1], 2)))
    second = b.op("MatMul", _transposed(b, a, max(ranks[0], 2)), g)
    return _operand_gradient(b, first, left, right, node), _operand_gradient(b, second, right, left, node)


def _weight_product_gradients(b: Builder, x: Value, weight: Value, g: Value) -> tuple[Value, Value]:
    """Gradients of MatMul's data and of its two-dimensional weight, one Gemm each over all rows."""
    if b.rank(x) == 2:
        return b.op("Gemm", g, weight, transB=1), b.op("Gemm", x, g, transA=1)
    rows = b.op("Flatten", g, axis=-1)
    first = b.reshaped(b.op("Gemm", rows, weight, transB=1), x)
    return first, b.op("Gemm", b.op("Flatten", x, axis=-1), rows, transA=1)


def _transposed(b: Builder, value: Value, rank: int) -> Value:
    """Gradient of MatMul: a matrix, or a batch of them, of ``rank`` axes, with the last two swapped."""
    return b.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _operand_gradient(b: Builder, found: Value, value: Value, other: Value, node: ir.Node) -> Value:
    """Gradient of MatMul: that of its operand ``value``, from ``found``, which has the batch dimensions of the result:
    summed over those that were broadcast, as a vector if it is one. ``other``: the node's other operand."""
    if b.rank(value) == 1:  # the result's batch is the other operand's, and all of it is summed
        batch = b.rank(other) - 2
        with b.float32("a sum over the batch"):
            summed = b.sum(found, range(max(batch, 0)))
        return b.reshaped(summed, value)
    result = node.outputs[0].shape
    if result is None or b.rank(other) == 1:  # a vector has no batch: nothing was broadcast
        return found if b.rank(other) == 1 else sum_to_dims(b, found, value, None)
    assert value.shape is not None
    return sum_to_dims(b, found, value, [*result[:-2], *value.shape[-2:]])


@gradient("Gemm")
def gemm(b: Builder, node: ir.Node, g: Value) -> list[Value | None]:
    """Gradients of Gemm, Y = alpha A' B' + beta C: every transposition is a flag of the gradients' Gemm."""
    x, y, *bias = node.inputs
    flip_x, flip_y = int(attribute(node, "transA", 0)), int(attribute(node, "transB", 0))
    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    if flip_x:
        first = b.op("Gemm", y, g, transA=flip_y, transB=1, alpha=alpha)
    else:
        first = b.op("Gemm", g, y, transB=1 - flip_y, alpha=alpha)
    if flip_y:
        second = b.op("Gemm", g, x, transA=1, transB=flip_x, alpha=alpha)
    else:
        second = b.op("Gemm", x, g, transA=1 - flip_x, alpha=alpha)
    if not bias or bias[0] is None:
        return [first, second]
    third = sum_to(b, g, bias[0], node.outputs[0])
    return [first, second, third if beta == 1 else b.op("Mul", third, b.number(beta, g))]


@gradient("Einsum")
def einsum(b: Builder, node: ir.Node, g: Value) -> list[Value]:
    """Gradients of Einsum. For ``ab,bc->ac``: ``ac,bc->ab`` of g and B, and ``ac,ab->bc`` of g and A. Along an index
    that only this operand has, and that so was summed, the gradient is repeated, and along one whose size is 1 in all
    others; along one whose size is 1 in this operand alone, it is summed."""
    inputs = [value for value in node.inputs if value is not None]
    terms, result = _einsum_indices(attribute(node, "equation"), [b.rank(value) for value in inputs])
    sizes = _index_sizes(inputs, terms)
    found = []
    for position, (value, term) in enumerate(zip(inputs, terms, strict=True)):
        others = [other for n, other in enumerate(inputs) if n != position]
        sources = [result, *(term for n, term in enumerate(terms) if n != position)]
        kept = "".join(index for index in term if any(index in source for source in sources))
        part = b.op("Einsum", g, *others, equation=f"{','.join(sources)}->{kept}")
        lost = [place for place, index in enumerate(term) if index not in kept]
        if lost:
            part = b.op("Unsqueeze", part, b.ints(*lost))
        if lost or any(sizes[index] is None and index not in result for index in kept):
            part = b.op("Expand", part, b.shape(value))
        if any(sizes[index] is None for index in term):
            dims = zip(term, value.shape or (), strict=True)
            part = sum_to_dims(b, part, value, [ir.SymbolicDim(None) if sizes[i] is None else dim for i, dim in dims])
        found.append(part)
    return found


def _index_sizes(inputs: list[Value], terms: list[str]) -> dict[str, Size | None]:
    """Gradient of Einsum: the size of each index; None where operands may differ in it, as a size of 1 is broadcast."""
    sizes: dict[str, Size | None] = {}
    for value, term in zip(inputs, terms, strict=True):
        for index, dim in zip(term, value.shape or (), strict=True):
            known = sizes.get(index)
            equal = index not in sizes or (known is not None and same_size(known, dim))
            sizes[index] = dim if equal else None
    return sizes


def _einsum_indices(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Gradient of Einsum: the indices of each operand and of the result, by the equation and the operands' ranks, with
    letters in the place of an ellipsis. Raises Unsupported for a diagonal, and for an ellipsis that is summed."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    hidden = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    spread = "".join(free[: max(hidden)])
    terms = [term.replace("...", spread[len(spread) - count :]) for term, count in zip(terms, hidden, strict=True)]
    if any(len(set(term)) != len(term) for term in terms):
        raise Unsupported(f"Einsum '{equation}' takes a diagonal; only products and sums have a gradient here")
    if not arrow:  # the indices that come once, in order, behind the ellipsis
        counts = Counter("".join(terms))
        return terms, spread + "".join(sorted(i for i, n in counts.items() if n == 1 and i not in spread))
    if spread and "..." not in result:
        raise Unsupported(f"Einsum '{equation}' sums over its ellipsis; write its indices out")
    return terms, result.replace("...", spread)
