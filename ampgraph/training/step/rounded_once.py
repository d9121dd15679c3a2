"""Parts of a gradient that are not rounded before they are added up: their sum is, once, as in one whole batch.

A low product's gradient is rounded to its type and raised to float32 again. Where the batch is shared, each share is
rounded, and AdamW makes whole steps of what that leaves of the smallest gradients. So the product is made float32, from
the same low operands, and the rounding moves to the front of the update, behind the sum. For devices whose kernels
compute in float32 anyway: it costs them nothing.
"""

from __future__ import annotations

import onnx_ir as ir

from ...oplists.traits import has
from ..gradients.builder import Builder
from .cut import CutStep, drop_unread
from .training_step import TrainingStep

FLOAT = ir.DataType.FLOAT
LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def rounded_once(made: CutStep) -> CutStep:
    """The same step, its models changed: low gradients leave the first graph in float32, and the second rounds them."""
    wide = _Wide(made.gradients.model.graph)
    low = {name: dtype for name in made.summed if (dtype := wide.output(name)) is not None}
    drop_unread(made.gradients.model)
    made.gradients.model.graph.sort()
    _round(made.update, low)
    return made


class _Wide:
    """Copies of low values in float32, not rounded where they are made."""

    def __init__(self, graph: ir.Graph) -> None:
        self.b = Builder(graph, "wide")
        self.outputs = {value.name: value for value in graph.outputs}
        self.made: dict[ir.Value, ir.Value] = {}

    def output(self, name: str) -> ir.DataType | None:
        """Makes a gradient unrounded; the type to which it was rounded, None for one that is left as it is."""
        value = self.outputs[name]
        while (node := value.producer()) is not None and node.inputs and node.inputs[0] is not None:
            source = node.inputs[0]
            only = len(value.uses()) + value.is_graph_output() == 1
            if not only or not (has(node.op_type, "casts") or has(node.op_type, "keeps_all")):
                break
            if has(node.op_type, "casts") and source.dtype in LOW:
                node.replace_input_with(0, self._raised(source))
                return source.dtype
            value = source
        return None

    def _raised(self, value: ir.Value) -> ir.Value:
        if value not in self.made:
            self.made[value] = self._copy(value)
        return self.made[value]

    def _copy(self, value: ir.Value) -> ir.Value:
        """In float32. What only moves numbers moves unrounded ones; any other operator computes from rounded ones."""
        node = value.producer()
        if node is None or len(node.outputs) > 1 or any(a.type == ir.AttributeType.GRAPH for a in _given(node)):
            return self.b.cast(value, FLOAT)
        if has(node.op_type, "casts") and node.inputs[0] is not None:
            source = node.inputs[0]
            return self._raised(source) if source.dtype in LOW else self.b.cast(source, FLOAT)
        if any(a.name in ("dtype", "to", "value") for a in _given(node)):
            return self.b.cast(value, FLOAT)
        moved = has(node.op_type, "exact")
        inputs = [self._operand(source, moved) for source in node.inputs]
        copy = ir.Node(node.domain, node.op_type, inputs, list(_given(node)), name=self.b.fresh(f"wide/{node.name}"))
        [result] = copy.outputs
        result.name, result.type, result.shape = self.b.fresh(f"wide/{value.name}"), ir.TensorType(FLOAT), value.shape
        self.b.graph.append(copy)
        return result

    def _operand(self, source: ir.Value | None, moved: bool) -> ir.Value | None:
        if source is None or source.dtype not in LOW:
            return source
        return self._raised(source) if moved else self.b.cast(source, FLOAT)


def _given(node: ir.Node) -> list[ir.Attr]:
    return list(node.attributes.values())


def _round(update: TrainingStep, low: dict[str, ir.DataType]) -> None:
    """Rounds what the update is given, before anything reads it."""
    graph = update.model.graph
    b = Builder(graph, "step")
    for value in [value for value in graph.inputs if value.name in low]:
        readers = list(value.uses())
        rounded = b.cast(b.cast(value, low[value.name or ""]), FLOAT)
        for node, index in readers:
            node.replace_input_with(index, rounded)
    graph.sort()
