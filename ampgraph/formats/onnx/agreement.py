"""Whether every slot of an ONNX model holds one type that it admits, told in less than half the time of a dataflow.

Most models are one graph of tensors whose types follow from those of its inputs and stored tensors, and most of their
nodes are alike: each sort is read once, as a dataflow reads it. Where anything else comes, or is wrong, the answer is
no: then a dataflow has to be asked, which follows all of it and names what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...core.dataflow import NONE, Dataflow, Op
from .operators import Environment, OnnxOperators
from .shapes import OnnxShapes
from .types import Type, declared_type, dtype_name
from .weights import OnnxWeights

Sort = tuple[str, str, int, tuple[str, ...], tuple[int, ...]]
"""What the types of an ONNX node's outputs follow from: (operator, domain, number of outputs, types of its inputs, `id`
of each of its attributes)."""


def types_agree(model: ir.Model) -> bool:
    """True only where a dataflow of the ONNX model has no conflicts; False means that a dataflow has to be asked."""
    return not model.functions and _TypeAgreement(model).agree(model.graph)


class _TypeAgreement:
    """Follows types through an ONNX graph without bodies and functions, node by node."""

    def __init__(self, model: ir.Model) -> None:
        self._reader = _NodeTypes(model)
        self._known: dict[Sort, Sequence[str]] = {}  # -> types of the outputs, () for what this module does not know

    def agree(self, graph: ir.Graph) -> bool:
        """Whether all nodes of an ONNX graph are sorted, known here, and read types that their slots admit."""
        types: dict[ir.Value | None, str] = {None: ""}
        for value in graph.inputs:
            container, types[value] = declared_type(value)
            if container or not types[value]:
                return False
        for value in graph.initializers.values():
            if value.const_value is not None:
                types.setdefault(value, dtype_name(value.const_value.dtype))
        known = self._known
        for node in graph:
            outputs = node.outputs
            try:
                read = tuple([types[value] for value in node.inputs])
            except KeyError:  # what nothing defines, or not yet
                return False
            attributes = node.attributes.data
            ids = tuple(map(id, attributes.values())) if attributes else ()
            sort = node.op_type, node.domain, len(outputs), read, ids
            made = known.get(sort)
            if made is None:
                made = known[sort] = self._reader.types(node, read)
            if not made:
                return False
            if len(outputs) == 1:  # as nearly all have
                types[outputs[0]] = made[0]
            else:
                types.update(zip(outputs, made, strict=True))
        return True


class _NodeTypes(OnnxOperators):
    """Reads single ONNX nodes, each as `OnnxOperators` does, into a dataflow that nobody else sees."""

    def __init__(self, model: ir.Model) -> None:
        flow = Dataflow(OnnxWeights(), lambda op, name: None, lambda op: "", OnnxShapes(model))
        super().__init__(model, flow, "", frozenset())
        self._env = Environment(dict(model.opset_imports), {})
        flow.opset = self._env.opsets.get("", self._env.opsets.get("ai.onnx", 0))
        self._scope = self.enter("", NONE, NONE, "main", 1, model.graph, self._env)
        self._unusual = False  # whether onnx's inference was asked for the node

    def types(self, node: ir.Node, read: Sequence[str]) -> Sequence[str]:
        """The element types of an ONNX node's outputs, by those of its inputs, ``read``; () where they do not fit, and
        where they follow from more than these: bodies, functions, containers, values."""
        flow, env, self._unusual = self.flow, self._env, False
        given = [
            NONE if value is None else self.make(value, 0, env, dtype).id
            for value, dtype in zip(node.inputs, read, strict=True)
        ]
        form = self.form(node.domain, node.op_type, len(given), len(node.outputs), env)
        if form.control or form.slots is None:
            return ()
        op = self.add_op(form.kind, 0, 0, node.name or "", given, node)
        if self.read_operator(op, node, form, self._scope, env) or self._unusual or flow.conflicts:
            return ()
        made = [flow.values[value] for value in op.outputs]
        return [value.dtype for value in made] if all(v.dtype and not v.container for v in made) else ()

    def _inferred(self, op: Op, node: ir.Node) -> list[Type]:
        """The types of an ONNX node's outputs as onnx infers them, and marks the node as unusual: they may follow from
        values and shapes, which are not known here."""
        self._unusual = True
        return super()._inferred(op, node)
