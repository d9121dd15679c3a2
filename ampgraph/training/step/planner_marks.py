"""Marks by which a training graph tells the planner which nodes stay float32, and where branches are added.

Small products at the boundary of a step stay float32 where norms do: the last before the loss, the first of an input.
A part of the graph between two norms in float32, or between one and the loss or an input, is low only inside: Casts go
in and come out, in the forward and in the backward. Where its products are so small that the Casts cost more than
float32 does, the part stays float32. A part is what float values connect, without norms. Beside a norm that is one
kernel of low data only the products are pinned, and the other nodes of the part are left to the planner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from ...core.dataflow import BRANCHES, HELD, KEPT, Ties
from ...core.walk import reachable
from ...formats.onnx.graph import OnnxGraph
from ...formats.onnx.walk import captured
from ...oplists.patterns import find_regions
from ...oplists.traits import has
from ..forward.read import FLOATS
from ..gradients.rules.norms import KEEP
from .vectors import LAUNCH, dims

Value = ir.Value
REASON = "a small product at the border: its Casts cost more than float32 does"
FLOPS = 10  # that a device computes in float32 while it moves a byte; today's devices 10 to 20
PASSES = 3  # of a product: the forward, and the gradients of both operands
REST = 7 / 8  # the share of all multiplications that is not pinned to float32, at least


@dataclass
class _PartBetweenNorms:
    """A part of a training graph between norms (see the head of the file)."""

    nodes: list[ir.Node] = field(default_factory=list)
    held_casts: int = 0  # beside nodes that are held in float32: they are not needed if the part is float32 too
    input_casts: int = 0  # of graph inputs: likewise
    at_boundary: bool = False  # it reads an input, or computes what the loss is made of
    low: bool = False  # there is a norm beside it that may be low
    known: bool = True  # no node has bodies that read float values from around

    @property
    def products(self) -> list[ir.Node]:
        """Of a training graph between norms: the products (MatMul, Conv), which low types make faster."""
        return [node for node in self.nodes if has(node.op_type, "products")]

    @property
    def multiplications(self) -> float:
        """Of a training graph between norms: multiplications of all its products for one batch."""
        return sum(map(_multiplications, self.products))

    @property
    def pays(self) -> bool:
        """Of a training graph between norms: whether float32 pays: its Casts cost more than float32's slower products
        and its two more bytes for each number that is read or written, forward and backward. An input that goes on into
        a low norm is cast in any case."""
        casts = self.held_casts + (0 if self.low else self.input_casts)
        numbers = sum(_element_count(value) for node in self.nodes for value in _float_values(node))
        return 2 * PASSES * self.multiplications / FLOPS + 4 * numbers <= casts * LAUNCH


def pin_boundary_products(graph: ir.Graph, loss: Value) -> None:
    """Marks small products at the boundary of a training graph to stay float32 where norms do, before the graph is
    differentiated: their gradients are marked with them. Parts of unknown sizes are left out."""
    parts = _parts_between_norms(graph, loss)
    left = (1 - REST) * sum(number for number in (one.multiplications for one in parts) if math.isfinite(number))
    for part in sorted((one for one in parts if one.at_boundary), key=lambda one: one.multiplications):
        if part.known and 0 < part.multiplications <= left and part.pays:
            left -= part.multiplications
            for node in part.products if part.low else part.nodes:
                node.meta[KEPT] = REASON


def _parts_between_norms(graph: ir.Graph, loss: Value) -> list[_PartBetweenNorms]:
    """Marks on a training graph: its parts, in order: nodes that float values connect (stored ones do not), without
    norms and what is held in float32."""
    read = {node: _float_values(node) for node in graph}
    numbers = {value: n for n, value in enumerate(dict.fromkeys(value for values in read.values() for value in values))}
    ties = Ties(range(len(numbers)))
    for node, values in read.items():
        if values and not _bounds_parts(node):
            ties.tie(numbers[value] for value in values)
    parts: dict[int, _PartBetweenNorms] = {}

    def pinned_operands(value: Value) -> list[Value]:
        node = value.producer()
        return _float_values(node) if node is not None and HELD in node.meta else []

    last = set(reachable([loss], pinned_operands))  # what the loss is computed from by pinned nodes alone
    for value, number in numbers.items():
        part = parts.setdefault(ties.find(number), _PartBetweenNorms())
        around = [node for node in (value.producer(), *value.consumers()) if node is not None and _bounds_parts(node)]
        part.low |= not all(HELD in node.meta for node in around)
        part.held_casts += 2 * any(HELD in node.meta for node in around)
        part.input_casts += value.is_graph_input()
        part.at_boundary |= value.is_graph_input() or value in last
    for node, values in read.items():
        if values and not _bounds_parts(node):
            part = parts[ties.find(numbers[values[0]])]
            part.known &= not captured(node)
            part.nodes.append(node)
    return list(parts.values())


def _bounds_parts(node: ir.Node) -> bool:
    """Marks on a training graph: whether a node lies between two parts: a norm of one operator, or whatever is pinned
    to float32 already (`HELD`), as a norm of simple operators is."""
    return HELD in node.meta or has(node.op_type, "norms")


def _float_values(node: ir.Node) -> list[Value]:
    """Marks on a training graph: the float values that a node and its bodies read and write, not stored ones."""
    given = [value for value in (*node.inputs, *node.outputs, *captured(node)) if value is not None]
    return [value for value in given if value.dtype in FLOATS and not value.is_initializer()]


def _element_count(value: Value | None) -> float:
    """Marks on a training graph: the number of elements of a value; infinite where its shape is open."""
    sizes = None if value is None or value.shape is None else list(value.shape)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return math.inf
    return math.prod(int(str(size)) for size in sizes)


def _multiplications(node: ir.Node) -> float:
    """Marks on a training graph: how many multiplications a product (MatMul, Conv) takes; infinite where its shape is
    open."""
    data, operand, made = node.inputs[0], node.inputs[1], node.outputs[0]
    if has(node.op_type, "biased"):  # as Conv: each number of the result, or of the data, meets a row of the weights
        rows = dims(operand)[0] if operand is not None and math.isfinite(_element_count(operand)) else 1
        return (
            _element_count(made if has(node.op_type, "channels_by_rows") else data)
            * _element_count(operand)
            / max(rows, 1)
        )
    known = has(node.op_type, "linear_in") and math.isfinite(_element_count(made)) and dims(made)
    return _element_count(data) * dims(made)[-1] if known else math.inf


def hold_norms(model: ir.Model) -> None:
    """Marks the nodes of norms that a training graph writes in simple operators to stay float32, and so their
    gradients. The planner ties a norm's nodes to one decision only where nothing else reads between them, as gradients
    do."""
    for region in find_regions(OnnxGraph(model).dataflow()):
        if has(region.kind, "norms"):
            for op in region.ops:
                op.native.meta[HELD] = KEEP


def mark_branches(graph: ir.Graph) -> None:
    """Marks the additions of two computed values of a training graph: residual streams, and gradients that meet."""
    for node in graph:
        if node.op_type == "Add" and all(value is not None and value.producer() is not None for value in node.inputs):
            node.meta[BRANCHES] = True


def hold_seed(graph: ir.Graph, seed: ir.Value) -> None:
    """Marks the nodes of a training graph that read a loss scale itself to stay float32, as 65536 is beyond float16:
    those that only hand it on, and the first that multiply it. Types must be known."""
    pure = {seed}  # values that are nothing but the seed, in some shape or type
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        if any(value in pure for value in inputs):
            node.meta.setdefault(HELD, "the loss scale itself is beyond the range of float16")
            if all(value in pure or value.dtype not in FLOATS or value.is_initializer() for value in inputs):
                pure.update(node.outputs)
