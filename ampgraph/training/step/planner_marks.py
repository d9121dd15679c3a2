"""What the planner is told of a training graph: which nodes stay float32, and where branches are added.

Products at the boundary of a step that stay float32 where norms do: the last before the loss, the first of an input.

What lies between two norms in float32 is low only inside, and so is what lies between one and the loss, or an input: a
Cast goes in and one comes out, in the forward and in the backward. Where the products there are so few that this costs
more than they would in float32, they stay. A part is what float values connect, without norms. Beside a norm that is
one kernel of low data, its other nodes are left to the planner.
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
FLOPS = 10  # that a device computes in float32 while it moves a byte; those of today 10 to 20
PASSES = 3  # products of a product: the forward, and the gradients of both operands
REST = 7 / 8  # of all multiplications are made in the low type at least


@dataclass
class _PartBetweenNorms:
    """``held_casts``, ``input_casts``: Casts beside what is held in float32, and of inputs, that are not there if the
    part is float32 too.
    ``at_boundary``: whether it has the loss or an input. ``low``: whether there is a norm beside it that may be low."""

    nodes: list[ir.Node] = field(default_factory=list)
    held_casts: int = 0
    input_casts: int = 0
    at_boundary: bool = False
    low: bool = False
    known: bool = True

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
        """Of a training graph between norms: whether its Casts cost more than the arithmetic, and two more bytes for
        each number that is read or written, both ways. An input that goes on into a low norm is cast in any case."""
        casts = self.held_casts + (0 if self.low else self.input_casts)
        numbers = sum(_element_count(value) for node in self.nodes for value in _float_values(node))
        return 2 * PASSES * self.multiplications / FLOPS + 4 * numbers <= casts * LAUNCH


def pin_boundary_products(graph: ir.Graph, loss: Value) -> None:
    """Marks them, before the graph is differentiated: their gradients are held with them. Sizes must be known."""
    parts = _connected(graph, loss)
    left = (1 - REST) * sum(number for one in parts if math.isfinite(number := one.multiplications))
    for part in sorted((one for one in parts if one.at_boundary), key=lambda one: one.multiplications):
        if part.known and 0 < part.multiplications <= left and part.pays:
            left -= part.multiplications
            for node in part.products if part.low else part.nodes:
                node.meta[KEPT] = REASON


def _connected(graph: ir.Graph, loss: Value) -> list[_PartBetweenNorms]:
    """Marks of a step: float values that nodes other than norms connect, in order. What is stored connects nothing."""
    read = {node: _float_values(node) for node in graph}
    numbers = {value: n for n, value in enumerate(dict.fromkeys(value for values in read.values() for value in values))}
    ties = Ties(range(len(numbers)))
    for node, values in read.items():
        if values and not _bounds_parts(node):
            ties.tie(numbers[value] for value in values)
    parts: dict[int, _PartBetweenNorms] = {}
    last = _computed_from(loss)
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


def _computed_from(loss: Value) -> set[Value]:
    """What a loss is computed from by nodes that are pinned to float32; itself too."""

    def before(value: Value) -> list[Value]:
        node = value.producer()
        return _float_values(node) if node is not None and HELD in node.meta else []

    return set(reachable([loss], before))


def _bounds_parts(node: ir.Node) -> bool:
    """Marks on a training graph: whether a node lies between two parts: a norm of one operator, or whatever is pinned
    to float32 already (`HELD`), as a norm of simple operators is."""
    return HELD in node.meta or has(node.op_type, "norms")


def _float_values(node: ir.Node) -> list[Value]:
    """Marks of a step: the float values that a node, with its bodies, reads and writes, without initializers."""
    given = [value for value in (*node.inputs, *node.outputs, *captured(node)) if value is not None]
    return [value for value in given if value.dtype in FLOATS and not value.is_initializer()]


def _element_count(value: Value | None) -> float:
    """Marks on a training graph: the number of elements of a value; infinite where its shape is open."""
    sizes = None if value is None or value.shape is None else list(value.shape)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return math.inf
    return math.prod(int(str(size)) for size in sizes)


def _multiplications(node: ir.Node) -> float:
    """Marks on a training graph: the multiplications of a product; infinite where its shape is open."""
    data, operand, made = node.inputs[0], node.inputs[1], node.outputs[0]
    if has(node.op_type, "biased"):  # each number of the result, or of the data, meets a row of the weights
        rows = dims(operand)[0] if operand is not None and math.isfinite(_element_count(operand)) else 1
        return (
            _element_count(made if has(node.op_type, "channels_by_rows") else data)
            * _element_count(operand)
            / max(rows, 1)
        )
    known = has(node.op_type, "linear_in") and math.isfinite(_element_count(made)) and dims(made)
    return _element_count(data) * dims(made)[-1] if known else math.inf


def hold_norms(model: ir.Model) -> None:
    """In a step: keeps norms that are written in simple operators in float32, and so what is differentiated of them.

    The planner ties the nodes of a norm to one decision where nobody else reads what is between them; a backward does.
    """
    for region in find_regions(OnnxGraph(model).dataflow()):
        if has(region.kind, "norms"):
            for op in region.ops:
                op.native.meta[HELD] = KEEP


def mark_branches(graph: ir.Graph) -> None:
    """Marks the additions of two computed values: residual streams, and gradients that meet."""
    for node in graph:
        if node.op_type == "Add" and all(value is not None and value.producer() is not None for value in node.inputs):
            node.meta[BRANCHES] = True


def hold_seed(graph: ir.Graph, seed: ir.Value) -> None:
    """Keeps in float32 what is nothing but the seed, and what first multiplies it: a loss scale of 65536 is beyond
    float16. Types must be known."""
    pure = {seed}
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        if any(value in pure for value in inputs):
            node.meta.setdefault(HELD, "the loss scale itself is beyond the range of float16")
            if all(value in pure or value.dtype not in FLOATS or value.is_initializer() for value in inputs):
                pure.update(node.outputs)
