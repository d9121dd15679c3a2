"""A training step in a MindIR file: whether it is one, what of it is the network, and its check for overflow.

MindSpore writes gradients under ``Gradients/``, in the scope of their forward operator and its kind:
``Gradients/Default/network-WithLossCell/_backbone-Net/fc-Dense/Grad_MatMul/MatMul-op0``. Operators that do the same
share the scope of the first of them, so the forward operator is found by kind and by the values that both read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from ...core.dataflow import NONE, Dataflow, Op
from ...core.errors import AmpError
from ...core.names import FreshNames
from ...core.walk import reachable
from . import schema, view
from .schema import Message

UPDATE = re.compile(
    r"(Sparse|Fused)?Apply(?!Rotary)|(FusedSparse|Cached)?(Lazy)?Adam|FusedSparse|SGD$|Lamb$|LARSUpdate$"
)
"""Operators that update parameters by gradients."""
WRITES = {"BatchNorm": (3, 4), "Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,)}
"""Operator -> operands that it writes: statistics and counters, which no optimizer may touch."""
NOT_IN_A_FILE = ("BatchNorm", "Conv2D", "MaxPool")
"""Operators that MindSpore differentiates in Python alone."""
STANDS_FOR = {"Load": 0, "Depend": 0, "UpdateState": 0}
"""Operator -> the operand that its result stands for."""


WHOLE_STEP = (
    "export forward and loss alone, in training mode, for ampgraph.training.mindspore.train_step; or, for "
    "convert and train, the step of nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, loss), ...)"
)


def refuse_whole_step(model: Message, where: str = "", hint: str = WHOLE_STEP) -> None:
    """Raises AmpError AMP205 where gradients or an optimizer are in the file."""
    found = _sign_of_step(model)
    if found:
        message = f"holds a whole training step ({found}): its gradients are in it already"
        raise AmpError("AMP205", message, where=where, hint=hint)


def written_parameters(model: Message) -> set[str]:
    """The names of the parameters that the graph itself writes."""
    return {tensor.ref_key or tensor.name for tensor in _parameters_at(model, WRITES)}


def assigned_parameters(model: Message) -> set[str]:
    """What a MindIR step calls the parameters that it assigns: a loss scale, counters."""
    return {tensor.name for tensor in _parameters_at(model, {"Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,)})}


def _parameters_at(model: Message, writers: Mapping[str, tuple[int, ...]]) -> list[Message]:
    """The parameters that some operators write, by the places of their operands."""
    known = view.primitives(model)
    found: set[str] = set()
    for node in model.graph.node:
        places = writers.get(view.kind_of(node, known), ())
        found |= {node.input[i] for i in places if i < len(node.input)}
    return [tensor for tensor in model.graph.parameter if tensor.name in found]


def _sign_of_step(model: Message) -> str:
    """What shows that a file holds a training step: its optimizer's name, ``gradients``, or "" for none."""
    known = view.primitives(model)
    gradients = False
    for graph in (model.graph, *model.functions):
        for node in graph.node:
            cells = node.domain.split("/")
            for cell in cells:
                if cell.startswith("optimizer-"):
                    return str(cell).removeprefix("optimizer-")
            kind = view.kind_of(node, known)
            if UPDATE.match(kind):
                return kind
            gradients |= cells[0] == "Gradients"
    return "gradients" if gradients else ""


GRADIENTS, RULE = "Gradients", "Grad_"
BACKBONE, NETWORK, LOSS = "_backbone-", "network-", "_loss_fn-"
SCALE = "scale_sense"
"""What MindSpore's cell calls its loss scale."""
LOSS_SCALE_CELL = "nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, loss), optimizer, scale_sense)"
UNSCALED = f"no {SCALE} in the step: unless it scales its loss otherwise, small gradients become 0 in float16"
OUTSIDE = "the step keeps loss, loss scale, checks and updates in float32"
PASSING = {"Add": (0, 1), "AddExt": (0, 1), "AddN": None, "BiasAdd": (0,), "Sub": (0,), "SubExt": (0,)}
"""Operators that hand their gradient on as it is -> the operands that get it, None for all."""


def has_loss_scale(model: Message) -> bool:
    """Whether the step scales its loss, as MindSpore's cell does."""
    return any((tensor.ref_key or tensor.name).endswith(SCALE) for tensor in model.graph.parameter)


def is_step(model: Message) -> bool:
    """Whether gradients are in the file."""
    return any(node.domain.startswith(f"{GRADIENTS}/") for graph in view.graphs(model) for node in graph.node)


NO_NETWORK = (
    "its scopes do not say what the network is: export nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, "
    "loss), ...) of a network that is built anew for it, as one that was exported or run before keeps the names of then"
)


def refuse_unknown_step(model: Message) -> None:
    """Raises AmpError AMP205 for a step of which the scopes do not tell what is the network, forward and backward."""
    scopes = {node.domain for graph in view.graphs(model) for node in graph.node}
    named = any(f"/{BACKBONE}" in scope for scope in scopes)
    inside = [scope for scope in scopes if _in_network(scope, named)]
    if not 0 < sum(scope.startswith(f"{GRADIENTS}/") for scope in inside) < len(inside):
        refuse_whole_step(model, hint=NO_NETWORK)


def _in_network(scope: str, named: bool) -> bool:
    """Whether a scope of a .mindir step is in the network. ``named``: whether the file tells it from the loss."""
    parts = scope.split("/")
    if named:
        return any(part.startswith(BACKBONE) for part in parts)
    return any(part.startswith(NETWORK) for part in parts) and not any(part.startswith(LOSS) for part in parts)


def mark_step(flow: Dataflow, model: Message) -> None:
    """Holds what is outside the network in float32 (``Op.held``), and says whose gradients there are."""
    regions = _NetworkScopes(flow, model)
    for op in flow.ops:
        if not regions.is_network(op):
            op.held = OUTSIDE
    _GradientOwners(flow, regions).follow()
    flow.cells = _inner_cells


def in_gradients(op: Op) -> bool:
    """Whether an operator is under ``Gradients/``."""
    return op.name.startswith(f"{GRADIENTS}/")


def _inner_cells(op: Op) -> list[tuple[str, str]]:
    """The cells inside the network around an operator of a .mindir step; none for what is outside."""
    inside = re.sub(rf"^.*?/({BACKBONE}|{NETWORK}(?!.*/{BACKBONE}))[^/]*/", "Default/", op.name)
    return [] if op.held else view.cells(inside)


class _NetworkScopes:
    """Which operators of a whole training step are of the network, forward and backward: by scope, and by what comes
    behind the gradients."""

    def __init__(self, flow: Dataflow, model: Message) -> None:
        self.flow = flow
        self._named = any(f"/{BACKBONE}" in op.name for op in flow.ops)
        self._outside = set[int]()
        state = _loads_of_assigned(flow, model)
        behind = set[int]()
        for op in flow.ops:
            given = {source for source in op.inputs if source != NONE}
            moving = {source for source in given if not flow.values[source].weight}
            after = bool(given & behind) and not in_gradients(op)
            if after or (moving and moving <= state):
                self._outside.add(op.id)
            if after or in_gradients(op):
                behind.update(op.outputs)
            elif moving and moving <= state:
                state.update(op.outputs)

    def is_network(self, op: Op) -> bool:
        """Whether an operator is of the network, or of its gradients."""
        return op.id not in self._outside and _in_network(op.name, self._named)


def _loads_of_assigned(flow: Dataflow, model: Message) -> set[int]:
    """The values that hold what parameters that are assigned held at one moment: a loss scale, counters."""
    parameters, known = assigned_parameters(model), view.primitives(model)
    found = set[int]()
    for scope in flow.scopes:
        names = {name: value for value, name in scope.native.names.items()}
        nodes = scope.native.graph.node
        loads = {node.output[0]: node.input[0] for node in nodes if view.kind_of(node, known) == "Load"}
        found |= {names[name] for name, source in loads.items() if source in parameters and name in names}
    return found


class _GradientOwners:
    """Finds for each gradient the forward operator that it belongs to, in order. ``of``: by value, the forward values
    that it may be a gradient of, the nearest first."""

    def __init__(self, flow: Dataflow, regions: _NetworkScopes) -> None:
        self.flow = flow
        self.forward = dict[str, list[Op]]()
        self.backward = list[Op]()
        self.of = dict[int, list[int]]()
        for op in flow.ops:
            if regions.is_network(op) and in_gradients(op):
                self.backward.append(op)
            elif regions.is_network(op):
                self.forward.setdefault(op.kind, []).append(op)
        network = {op.id for ops in self.forward.values() for op in ops}
        self.ends = [
            value.id
            for value in flow.values
            if value.producer in network and any(reader.held for reader in flow.readers(value.id))
        ]

    def follow(self) -> None:
        """Notes ``Op.follows`` and ``Op.adds_for`` wherever they are found."""
        for op in self.backward:
            for source in op.inputs:
                self._seed(source)
            kind = next((part.removeprefix(RULE) for part in op.name.split("/") if part.startswith(RULE)), "")
            if not kind:
                self._sum(op)
                continue
            found = self._owner(op, kind)
            if found is not None:
                op.follows = found.id
                self._name_results(op, found)

    def _seed(self, source: int) -> None:
        """Notes a value with which the backward in the .mindir file starts, made by a node of the loss (held: it stays
        float32), as the gradient of those values at the end of the forward that have its shape."""
        maker = self.flow.writer(source) if source != NONE else None
        if maker is not None and maker.held and in_gradients(maker):
            self.of[source] = [value for value in self.ends if self._alike(value, source)]

    def _alike(self, one: int, other: int) -> bool:
        """Whether two values of the .mindir step have one shape."""
        return self.flow.values[one].shape == self.flow.values[other].shape

    def _owner(self, op: Op, kind: str) -> Op | None:
        """The forward operator of a kind that reads or makes what a gradient reads, else that whose result's gradient
        it reads, else the one that its operand belongs to."""
        given = {source for source in op.inputs if source != NONE and not self._is_constant(source)}
        makers = [m for m in (self.flow.writer(source) for source in op.inputs if source != NONE) if m is not None]
        near = [maker for source in op.inputs for value in self._reach(source) for maker in self._maker(value, kind)]
        near.sort(key=lambda maker: -maker.id)  # backward starts with what comes last, so branches before their stem
        known = [f for f in self.forward.get(kind, ()) if given & {*f.inputs, *f.outputs}]
        both = [candidate for candidate in near if candidate in known]
        same = [self.flow.ops[maker.follows] for maker in makers if maker.follows != NONE]
        inside = [candidate for candidate in same if candidate.kind == kind]
        return next(iter((*both, *known, *near, *inside)), None)

    def _is_constant(self, source: int) -> bool:
        """Whether a value of the .mindir file is an axis, a shape or a number, which operators share that have nothing
        to do with each other."""
        return self.flow.values[source].weight and not self.flow.values[source].parameter

    def _maker(self, value: int, kind: str) -> Iterator[Op]:
        """The forward operator of this kind in the .mindir step that makes a value, if there is one."""
        maker = self.flow.writer(value)
        if maker is not None and maker.kind == kind:
            yield maker

    def _sum(self, op: Op) -> None:
        """Notes which forward value an addition of several gradients is for."""
        reached = [self._reach(source) for source in op.inputs if source != NONE and source in self.of]
        common = [value for value in (reached[0] if reached else ()) if all(value in other for other in reached)]
        if common:
            op.adds_for = common[0]
            self.of.update(dict.fromkeys(op.outputs, common[:1]))

    def _reach(self, gradient: int) -> list[int]:
        """The forward values that a gradient is of, behind operators that hand it on too."""

        def before(value: int) -> list[int]:
            maker = self.flow.writer(value)
            passes = maker is not None and maker.kind in PASSING
            return [v for v in self._handed(maker) if self._alike(v, value)] if maker is not None and passes else []

        return list(reachable(self.of.get(gradient, ()), before))

    def _handed(self, op: Op) -> Iterable[int]:
        """The operands that a gradient operator hands on unchanged but for their shape."""
        places = PASSING[op.kind]
        inputs = op.inputs if places is None else [op.inputs[place] for place in places if place < len(op.inputs)]
        return (source for source in inputs if source != NONE)

    def _name_results(self, op: Op, owner: Op) -> None:
        """Notes what the results of a gradient are gradients of: operands of the forward operator ``owner``, and of
        these rather those that the gradient does not read (the gradient of one factor reads the other)."""
        for result in op.outputs:
            alike = [source for source in owner.inputs if source != NONE and self._alike(source, result)]
            alike = [source for source in alike if not self._is_constant(source)]
            self.of[result] = [source for source in alike if source not in op.inputs] or alike


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
    """One graph whose check is replaced.

    On Ascend MindSpore asks a register whether anything overflowed: ``Depend(status, gradients) -> NPUGetFloatStatusV2
    -> Equal -> ReduceAll``. No other device has it. There every gradient is looked at: IsFinite, ReduceAll, LogicalAnd.
    """

    def __init__(self, model: Message, graph: Message, where: str) -> None:
        self.model, self.graph, self.where = model, graph, where
        self.known = view.primitives(model)
        self.kinds = {node.output[0]: view.kind_of(node, self.known) for node in graph.node}
        self.makers = {node.output[0]: node for node in graph.node}
        self.fresh = FreshNames(view.all_names(model))

    def replace(self) -> int:
        """Replaces the check of the register by finite checks; returns how many gradients these look at."""
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
        """The results of the nodes of the .mindir step that clear, read or wait for the register."""
        found = {name for name, kind in self.kinds.items() if kind in (*STATUS, *CLEAR, "NPUAllocFloatStatus")}
        found |= {self.makers[name].input[0] for name in found if self._waits(self.makers[name].input[0])}
        for node in self.graph.node:
            kind, given = self.kinds[node.output[0]], node.input
            if any(name in found for name in (given[:1] if kind == "Depend" else given if kind in PARTS else ())):
                found.add(node.output[0])
        return found

    def _waits(self, name: str) -> bool:
        """Whether a name in the .mindir file is a Depend's, which only orders nodes."""
        return self.kinds.get(name) == "Depend"

    def _gradients(self) -> list[str]:
        """Whole MindIR step: the gradients behind which the register is read; empty for a check of another form."""
        [status, *more] = [node for node in self.graph.node if self.kinds[node.output[0]] in STATUS]
        before = self.makers.get(status.input[0])
        if more or before is None or not self._waits(before.output[0]):
            return []
        waited = self.makers.get(before.input[1])
        return list(waited.input) if waited is not None and self.kinds[waited.output[0]] in view.TUPLES else []

    def _refuse(self) -> NoReturn:
        """Raises AmpError AMP205 for a check of overflow in a .mindir step of unknown form."""
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
        node.name, node.op_type = name, view.primitive(self.model, kind, self.fresh)
        node.domain = f"Default/{kind}-amp"
        node.input.extend(inputs)
        node.output.append(name)
        given = view.attribute(like, "shape")
        assert given is not None  # the file was checked: every operator has a type
        view.add_type(node, schema.TENSOR_OF_BOOL, next(view.elements(given)).dims)  # type: ignore[union-attr]
        return node

    def _write(self, nodes: list[Message], result: str, gone: set[str]) -> None:
        """Writes the new nodes of the .mindir graph; states no longer wait for those that are gone."""
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
