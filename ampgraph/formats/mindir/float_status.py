"""The overflow check of a training step, for devices without a float status register.

On Ascend MindSpore asks a register whether anything overflowed: ``Depend(status, gradients) -> NPUGetFloatStatusV2 ->
Equal -> ReduceAll``. No other device has it. There every gradient is looked at: IsFinite, ReduceAll, LogicalAnd.
"""

from __future__ import annotations

from typing import NoReturn

from ...core.errors import AmpError
from ...core.names import FreshNames
from . import schema, view
from .schema import Message

STATUS, CLEAR = ("NPUGetFloatStatusV2", "NPUGetFloatStatus"), ("NPUClearFloatStatusV2", "NPUClearFloatStatus")
PARTS = (*STATUS, *CLEAR, "NPUAllocFloatStatus", "Depend", "Equal")
"""What a check by the register consists of, in front of its ReduceAll."""
OTHER_FORM = "export the step with nn.TrainOneStepWithLossScaleCell"


def has_float_status(model: Message) -> bool:
    """Whether the file asks the register."""
    known = view.primitives(model)
    return any(view.kind_of(node, known) in STATUS for graph in view.graphs(model) for node in graph.node)


def check_finite(model: Message, where: str = "") -> int:
    """Puts finite checks of the gradients in the place of the register's; how many gradients are checked.

    Raises AmpError AMP205 for a check of another form than MindSpore's cells make."""
    count = 0
    for graph in view.graphs(model):
        known = view.primitives(model)
        if any(view.kind_of(node, known) in STATUS for node in graph.node):
            count += _StatusCheck(model, graph, where).replace()
    return count


class _StatusCheck:
    """One graph whose check is replaced."""

    def __init__(self, model: Message, graph: Message, where: str) -> None:
        self.model, self.graph, self.where = model, graph, where
        self.known = view.primitives(model)
        self.kinds = {node.output[0]: view.kind_of(node, self.known) for node in graph.node}
        self.makers = {node.output[0]: node for node in graph.node}
        self.fresh = FreshNames(view.all_names(model))

    def replace(self) -> int:
        gone = self._chain()
        ends = [n for n in self.graph.node if self.kinds[n.output[0]] == "ReduceAll" and n.input[0] in gone]
        gradients = self._gradients()
        if len(ends) != 1 or not gradients:
            self._refuse()
        [end] = ends
        made = self._checks(end, gradients)
        nodes: list[Message] = []
        for node in self.graph.node:
            if node is end:
                nodes += made
            elif node.output[0] not in gone:
                nodes.append(node)
        self._write(nodes, end.output[0], gone)
        return len(gradients)

    def _chain(self) -> set[str]:
        """The results of the check's own nodes: those that clear, read or wait for the register."""
        found = {name for name, kind in self.kinds.items() if kind in (*STATUS, *CLEAR, "NPUAllocFloatStatus")}
        found |= {self.makers[name].input[0] for name in found if self._waits(self.makers[name].input[0])}
        for node in self.graph.node:
            kind, given = self.kinds[node.output[0]], node.input
            if any(name in found for name in (given[:1] if kind == "Depend" else given if kind in PARTS else ())):
                found.add(node.output[0])
        return found

    def _waits(self, name: str) -> bool:
        return self.kinds.get(name) == "Depend"

    def _gradients(self) -> list[str]:
        """What the register is read behind; nothing where it is read in another way."""
        [status, *more] = [node for node in self.graph.node if self.kinds[node.output[0]] in STATUS]
        before = self.makers.get(status.input[0])
        if more or before is None or not self._waits(before.output[0]):
            return []
        waited = self.makers.get(before.input[1])
        return list(waited.input) if waited is not None and self.kinds[waited.output[0]] in view.TUPLES else []

    def _refuse(self) -> NoReturn:
        raise AmpError("AMP205", "checks for overflow in an unknown form", where=self.where, hint=OTHER_FORM)

    def _checks(self, end: Message, gradients: list[str]) -> list[Message]:
        """The nodes of the check; the last one has the name of the old ReduceAll's result."""
        made: list[Message] = []
        flags: list[str] = []
        for gradient in gradients:
            finite = self._node("IsFinite", [gradient], self.makers[gradient])
            flag = self._node("ReduceAll", [finite.output[0], *end.input[1:]], end)
            made += [finite, flag]
            flags.append(flag.output[0])
        total = flags[0]
        for flag in flags[1:]:
            made.append(self._node("LogicalAnd", [total, flag], end))
            total = made[-1].output[0]
        made[-1].output[0] = made[-1].name = end.output[0]
        return made

    def _node(self, kind: str, inputs: list[str], like: Message) -> Message:
        """A node with the shape of another, whose result is bool."""
        node = type(like)()
        name = self.fresh(f"amp_{kind.lower()}")
        node.name, node.op_type, node.domain = name, f"REF::{self._primitive(kind)}", f"Default/{kind}-amp"
        node.input.extend(inputs)
        node.output.append(name)
        given = view.attribute(like, "shape")
        assert given is not None  # the file was checked: every operator has a type
        shape = node.attribute.add(name="shape", type=schema.TENSORS)
        tensor = shape.tensors.add(data_type=schema.TENSOR_OF_BOOL)
        tensor.dims.extend(next(view.elements(given)).dims)  # type: ignore[union-attr]
        return node

    def _primitive(self, kind: str) -> str:
        """How nodes refer to an operator, which is added where the file has none."""
        found = next((p.name for p in self.model.primitives if p.op_type == kind), "")
        if not found:
            found = self.fresh(f"{kind}:amp")
            self.model.primitives.add(name=found, op_type=kind, prim_type=schema.PRIMITIVE_FUNCTION)
        return found

    def _write(self, nodes: list[Message], result: str, gone: set[str]) -> None:
        """The graph's new nodes; states no longer wait for what is gone."""
        kept = []
        for node in nodes:
            copy = type(node)()
            copy.CopyFrom(node)
            if self.kinds.get(node.output[0]) == "UpdateState":
                copy.input[:] = [name for name in copy.input if name not in gone]
            kept.append(copy)
        if any(name in gone for node in kept for name in node.input):
            self._refuse()
        del self.graph.node[:]
        self.graph.node.extend(kept)
