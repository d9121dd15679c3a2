"""Gradients of reductions: sums, means, extremes, products and norms over axes; softmax; running sums; TopK. The axes
are an attribute or an input, by opset and operator; the gradients work with axes that only a run shows."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ....formats.onnx.nodes import attribute, operand
from ..builder import Builder, Term
from ..registry import gradient

Value = ir.Value

ROW = "a sum over a row: half precision keeps 11 bits or fewer"
RANGE = "squares and products leave the range of float16"


def _reduced_axes(b: Builder, node: ir.Node) -> Value | None:
    """Gradient of a reduction: the axes that the node reduces, an int64 vector; None for no axes, by which it reduces
    all, or none (`_noop_with_empty_axes`)."""
    listed = attribute(node, "axes")
    if listed is not None:
        return b.ints(*listed) if len(listed) else None
    value = node.inputs[1] if len(node.inputs) > 1 else None
    given = b.known_numbers(value)
    return None if given is not None and given.size == 0 else value


def _noop_with_empty_axes(node: ir.Node) -> int:
    """Gradient of a reduction: whether empty axes mean that nothing is reduced (1) or all (0), as the node says."""
    return int(attribute(node, "noop_with_empty_axes", 0))


def _restore_axes(b: Builder, node: ir.Node, value: Value) -> Value:
    """Gradient of a reduction: a value of the shape of the node's result, so that it broadcasts against the operand:
    with the reduced axes put back, of size 1; as it is where the result keeps them, and where the node names no axes:
    then it is a scalar, or nothing is reduced."""
    axes = _reduced_axes(b, node)
    if int(attribute(node, "keepdims", 1)) or axes is None:
        return value
    return b.op("Unsqueeze", value, axes)


def _reduced_sum(b: Builder, node: ir.Node, value: Value) -> Value:
    """Gradient of a reduction: the sum of a value over the axes that the node reduces, which stay with a size of 1."""
    return b.op(
        "ReduceSum", value, _reduced_axes(b, node), keepdims=1, noop_with_empty_axes=_noop_with_empty_axes(node)
    )


@gradient("ReduceMean")
def reduce_mean(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of ReduceMean: g divided by the count, for every element (a low type may not hold 1 / count)."""
    x = operand(node)
    count = _reduced_count(b, node)
    # float16 and bfloat16 hold it: it is within range, and has at most 8 significant bits
    exact = count is not None and count <= 1 << 15 and count % (1 << max(0, count.bit_length() - 8)) == 0
    with b.float32("" if exact else "a count has more digits than a low type"):
        if count is None:
            sizes = (b.op("Cast", b.op("Size", value), to=int(x.dtype or 1)) for value in (x, node.outputs[0]))
            share = b.op("Div", g, b.op("Div", *sizes))
        else:
            share = b.op("Div", g, b.number(count, x)) if count else g
    return b.op("Expand", _restore_axes(b, node, share), b.shape(x))


def _reduced_count(b: Builder, node: ir.Node) -> int | None:
    """Gradient of a reduction: how many elements are reduced to one; None where only a run shows it."""
    x, axes = operand(node), _reduced_axes(b, node)
    given = b.known_numbers(axes)
    if x.shape is None or (given is None and (axes is not None or _noop_with_empty_axes(node))):
        return None
    sizes = [b.dim(x, int(axis)) for axis in (range(b.rank(x)) if given is None else given.reshape(-1))]
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of ReduceMax and ReduceMin: g for the element that is equal to the result; equal ones share it."""
    x = operand(node)
    hit = b.op("Equal", x, _restore_axes(b, node, node.outputs[0]))
    zero = b.number(0, x)
    with b.float32(ROW):
        count = _reduced_sum(b, node, b.op("Where", hit, b.number(1, x), zero))
        share = b.op("Div", _restore_axes(b, node, g), count)
    return b.op("Where", hit, share, zero)


@gradient("ReduceProd")
def reduce_prod(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of ReduceProd: g times the product of the other elements, y / x. With one 0 among the elements only
    that one has a gradient, with two none has."""
    x = operand(node)
    zero, one = b.number(0, x), b.number(1, x)
    is_zero = b.op("Equal", x, zero)
    with b.float32(RANGE):
        nonzero = b.op("Where", is_zero, one, x)
        attributes = {name: attribute(node, name) for name in ("axes", "noop_with_empty_axes")}
        product = b.op("ReduceProd", nonzero, *node.inputs[1:], keepdims=1, **attributes)
        zeros = _reduced_sum(b, node, b.op("Where", is_zero, one, zero))
        own = b.op("Where", is_zero, one, zero)
        no_other_zero = b.op("Equal", zeros, own)
        slope = b.op("Mul", _restore_axes(b, node, g), b.op("Div", product, nonzero))
        return b.op("Where", no_other_zero, slope, zero)


def reduction(kind: str, formula: Callable[..., Term], reason: str = "") -> None:
    """Declares the gradient of a reduction by a ``formula`` of terms g, x and y, and of a function that gives g or y
    the reduced axes back, so that they broadcast against x. ``reason``: why it is float32; "": as the level has it."""

    def rule(b: Builder, node: ir.Node, g: Value) -> Term:
        with b.float32(reason):
            x, y, slope = b.terms(operand(node), node.outputs[0], g)
            return formula(slope, x, y, lambda term: Term(b, _restore_axes(b, node, term.value), term.dtype))

    gradient(kind)(rule)


reduction("ReduceSum", lambda g, x, y, spread: spread(g).op("Expand", g.b.shape(x.value)))
reduction("ReduceL1", lambda g, x, y, spread: spread(g) * x.op("Sign"))
# x / y; 0 for a norm of 0, as in torch
reduction("ReduceL2", lambda g, x, y, spread: spread(g / y.op("Equal", 0).where(1, y)) * x, RANGE)
reduction("ReduceSumSquare", lambda g, x, y, spread: spread(g + g) * x)
# the softmax, e^(x - y)
reduction("ReduceLogSumExp", lambda g, x, y, spread: spread(g) * (x - spread(y)).op("Exp"), ROW)


@gradient("ReduceLogSum")
def reduce_log_sum(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of ReduceLogSum: g / e^y for every element."""
    with b.float32(RANGE):
        share = b.op("Div", g, b.op("Exp", node.outputs[0]))
    return b.op("Expand", _restore_axes(b, node, share), b.shape(operand(node)))


@gradient("Softmax")
def softmax(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of Softmax: y (g - sum(y g)). The sum is a weighted mean of g, which no low type overflows."""
    y = node.outputs[0]
    whole = b.sum(b.op("Mul", y, g), [int(attribute(node, "axis", -1))])
    return b.op("Mul", y, b.op("Sub", g, whole))


@gradient("LogSoftmax")
def log_softmax(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of LogSoftmax: g - e^y sum(g)."""
    with b.float32(ROW):
        whole = b.sum(g, [int(attribute(node, "axis", -1))])
        return b.op("Sub", g, b.op("Mul", b.op("Exp", node.outputs[0]), whole))


@gradient("CumSum")
def cum_sum(b: Builder, node: ir.Node, g: Value) -> Value:
    """The gradient of CumSum: the running sum of g from the other end, as every element is in the sums behind it."""
    backwards = 1 - int(attribute(node, "reverse", 0))
    with b.float32(ROW):
        return b.op("CumSum", g, node.inputs[1], exclusive=attribute(node, "exclusive"), reverse=backwards)


@gradient("TopK")
def top_k(b: Builder, node: ir.Node, g: Value, of_indices: None) -> Value:
    """The gradient of TopK: g scattered to where its values were; no index comes twice, so nothing is added.
    ``of_indices``: the gradient of the second output, which has none."""
    return b.op("ScatterElements", b.zeros(operand(node)), node.outputs[1], g, axis=attribute(node, "axis", -1))
