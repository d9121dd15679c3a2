"""Constants behind a product, put into its stored operands: y = s * (W x + b) + c becomes (s W) x + (s b + c)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...oplists.traits import Trait, has, positions
from .stored import drop_constant
from .weights import flat, stored_tensor


def fold(nodes: Sequence[ir.Node], fresh: Callable[[str], str]) -> bool:
    """``nodes``: a product, the operators behind it, and identities of their constants; the result is the last one's.

    The product moves there, and reads new tensors, computed in float64 and rounded to float32 once, where they
    change. False, with nothing done, for nodes that are no such chain."""
    product = next((node for node in nodes if positions(node.op_type, "biased")), None)
    chain = [] if product is None else _chain(product, nodes)
    if product is None or not chain:
        return False
    (place,) = positions(product.op_type, "biased")
    factor, bias = _together(chain, _numbers(product.inputs[place]) if len(product.inputs) > place else None)
    read = [value for node in nodes for value in node.inputs if value is not None]
    if factor is not None:
        _store(product, 1, _rows(product.inputs[1], factor), fresh)
    if bias is not None:
        _store(product, place, np.broadcast_to(bias, (_channels(product),)), fresh)
    last, graph = nodes[-1], product.graph
    assert graph is not None
    _take_over(product, last)
    graph.remove(product)
    graph.insert_after(last, product)
    graph.remove([node for node in reversed(nodes) if node is not product], safe=True)
    for value in dict.fromkeys(read):
        drop_constant(value)
    return True


def _chain(product: ir.Node, nodes: Sequence[ir.Node]) -> list[tuple[ir.Node, Array]]:
    """The operators behind a product up to the last of some nodes, with their constants; none where it is no chain."""
    found: list[tuple[ir.Node, Array]] = []
    node, inside = product, set(nodes)
    while node is not nodes[-1]:
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or uses[0][0] not in inside or len(uses[0][0].inputs) != 2:
            return []
        node, at = uses[0]
        constant = _numbers(node.inputs[1 - at])
        if constant is None or not _is(node, "affine"):
            return []
        found.append((node, constant))
    others = inside - {product, *(node for node, _ in found)}
    return found if all(_is(node, "nothing_in_inference") for node in others) else []


def _together(chain: Sequence[tuple[ir.Node, Array]], bias: Array | None) -> tuple[Array | None, Array | None]:
    """What a chain multiplies with and adds in the end; None where it does nothing of the kind."""
    factor: Array | None = None
    for node, constant in chain:
        if _is(node, "scalings"):
            by = constant if _is(node, "multiplies") else 1 / constant
            factor = by if factor is None else factor * by
            bias = None if bias is None else bias * by
        else:
            shift = constant if _is(node, "additions") else -constant
            bias = shift if bias is None else bias + shift
    return factor, bias


def _take_over(product: ir.Node, last: ir.Node) -> None:
    """The product makes the last one's result, under its name."""
    old, result = last.outputs[0], product.outputs[0]
    ((first, at),) = result.uses()
    first.replace_input_with(at, product.inputs[0])  # nothing reads the raw product any more
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    result.type, result.shape = old.type, old.shape
    old.name, result.name = None, old.name


def _source(value: ir.Value) -> ir.Value:
    """The stored value behind identities."""
    while (node := value.producer()) is not None and _is(node, "nothing_in_inference"):
        assert node.inputs[0] is not None
        value = node.inputs[0]
    return value


def _is(node: ir.Node, trait: Trait) -> bool:
    return not node.domain and has(node.op_type, trait)


def _numbers(value: ir.Value | None) -> Array | None:
    """A stored constant, in float64 and one dimension; None for what is no constant."""
    tensor = None if value is None else stored_tensor(_source(value))
    return None if tensor is None else flat(tensor).astype(np.float64)


def _rows(value: ir.Value | None, factor: Array) -> Array:
    """Weights with their rows multiplied."""
    assert value is not None
    tensor = stored_tensor(_source(value))
    assert tensor is not None
    weights = tensor.numpy()
    rows = np.broadcast_to(factor, (len(weights),)).reshape(-1, *[1] * (weights.ndim - 1))
    return np.asarray((weights * rows).astype(np.float32))


def _channels(product: ir.Node) -> int:
    assert product.inputs[1] is not None
    tensor = stored_tensor(_source(product.inputs[1]))
    assert tensor is not None
    rows, columns = tensor.shape.numpy()[:2]
    if has(product.op_type, "channels_by_rows"):
        return rows
    group = product.attributes.get("group")
    return columns * (1 if group is None else group.as_int())


def _store(product: ir.Node, place: int, numbers: Array, fresh: Callable[[str], str]) -> None:
    """A new initializer in the product's graph, called after what stood there or after the product."""
    old = product.inputs[place] if len(product.inputs) > place else None
    name = fresh((old.name if old is not None else "") or f"{product.name or product.outputs[0].name}_bias")
    tensor = ir.tensor(np.ascontiguousarray(numbers, np.float32), name=name)
    value = ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(numbers.shape), type=ir.TensorType(ir.DataType.FLOAT)
    )
    graph = product.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(value)
    if len(product.inputs) <= place:
        product.resize_inputs(place + 1)
    product.replace_input_with(place, value)
