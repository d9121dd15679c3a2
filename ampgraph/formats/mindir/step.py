"""A training step in a MindIR file: whether it is one, what of it is the network, and its check for overflow.

MindSpore writes gradients under ``Gradients/``, in the scope of their forward operator and its kind:
``Gradients/Default/network-WithLossCell/_backbone-Net/fc-Dense/Grad_MatMul/MatMul-op0``. Operators that do the same
share the scope of the first of them, so the forward operator is found by kind and by the values that both read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
NOT_IN_A_FILE = ("BatchNorm", "Conv2D", "MaxPool")  # operators that MindSpore differentiates in Python alone
STANDS_FOR = {"Load": 0, "Depend": 0, "UpdateState": 0}  # operator -> position of the operand that its result is

WHOLE_STEP = (
    "export forward and loss alone, in training mode, for ampgraph.training.mindspore.train_step; or, for "
    "convert and train, the step of nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, loss), ...)"
)


def refuse_whole_step(model: Message, where: str = "", hint: str = WHOLE_STEP) -> None:
    """Raises AmpError AMP205, with ``hint``, where gradients or an optimizer are in the .mindir file ``where``."""
    found = _sign_of_step(model)
    if found:
        message = f"holds a whole training step ({found}): its gradients are in it already"
        raise AmpError("AMP205", message, where=where, hint=hint)


def written_parameters(model: Message) -> set[str]:
    """The names of the parameters that the main graph of a .mindir file itself writes, by an operator of `WRITES`."""
    return {tensor.ref_key or tensor.name for tensor in _parameters_at(model, WRITES)}


def assigned_parameters(model: Message) -> set[str]:
    """The names, as the graph's nodes read them, of the parameters that a MindIR step assigns: a loss scale, counters.
    `written_parameters` counts statistics of norms too, and gives the names that users know."""
    return {tensor.name for tensor in _parameters_at(model, {"Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,)})}


def _parameters_at(model: Message, writers: Mapping[str, tuple[int, ...]]) -> list[Message]:
    """The parameters that operators of a MindIR main graph write. ``writers``: kind -> positions of what it writes."""
    known = view.primitives(model)
    found: set[str] = set()
    for node in model.graph.node:
        places = writers.get(view.kind_of(node, known), ())
        found |= {node.input[i] for i in places if i < len(node.input)}
    return [tensor for tensor in model.graph.parameter if tensor.name in found]


def _sign_of_step(model: Message) -> str:
    """What shows that a .mindir file holds a training step: its optimizer, else ``gradients``; "" without a step."""
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
"""What parts of a scope begin with: in the network where the loss is told from it, in either, in the loss."""
SCALE = "scale_sense"  # what MindSpore's cell calls its loss scale
LOSS_SCALE_CELL = "nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, loss), optimizer, scale_sense)"
UNSCALED = f"no {SCALE} in the step: unless it scales its loss otherwise, small gradients become 0 in float16"
OUTSIDE = "the step keeps loss, loss scale, checks and updates in float32"
PASSING = {"Add": (0, 1), "AddExt": (0, 1), "AddN": None, "BiasAdd": (0,), "Sub": (0,), "SubExt": (0,)}
"""Forward operators whose gradient is that of an operand, unchanged -> positions of such operands, None for all."""


def has_loss_scale(model: Message) -> bool:
    """Whether the MindIR step scales its loss, as MindSpore's cell does: by a parameter called `SCALE`."""
    return any((tensor.ref_key or tensor.name).endswith(SCALE) for tensor in model.graph.parameter)


def is_step(model: Message) -> bool:
    """Whether the .mindir file is a whole training step: whether nodes of gradients are in it."""
    return any(node.domain.startswith(f"{GRADIENTS}/") for graph in view.graphs(model) for node in graph.node)


NO_NETWORK = (
    "its scopes do not say what the network is: export nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, "
    "loss), ...) of a network that is built anew for it, as one that was exported or run before keeps the names of then"
)


def refuse_unknown_step(model: Message) -> None:
    """Raises AmpError AMP205 for a MindIR step whose scopes do not show both the network's forward and its backward."""
    scopes = {node.domain for graph in view.graphs(model) for node in graph.node}
    named = any(f"/{BACKBONE}" in scope for scope in scopes)
    inside = [scope for scope in scopes if _in_network(scope, named)]
    if not 0 < sum(scope.startswith(f"{GRADIENTS}/") for scope in inside) < len(inside):
        refuse_whole_step(model, hint=NO_NETWORK)


def _in_network(scope: str, named: bool) -> bool:
    """Whether a node's scope, ``Default/network-WithLossCell/...``, is in the network of a .mindir step. ``named``:
    whether the file has a `BACKBONE`; without one, the network is what is in `NETWORK` and not in `LOSS`."""
    parts = scope.split("/")
    if named:
        return any(part.startswith(BACKBONE) for part in parts)
    return any(part.startswith(NETWORK) for part in parts) and not any(part.startswith(LOSS) for part in parts)


def mark_step(flow: Dataflow, model: Message) -> None:
    """In the dataflow of a MindIR step, marks what is outside the network as held in float32 (``Op.held``), notes for
    gradients whose they are (``Op.follows``, ``Op.adds_for``), and lets ``flow.cells`` be the network's."""
    regions = _NetworkScopes(flow, model)
    for op in flow.ops:
        if not regions.is_network(op):
            op.held = OUTSIDE
    _GradientOwners(flow, regions).follow()
    flow.cells = _inner_cells


def in_gradients(op: Op) -> bool:
    """Whether an operator of a MindIR step computes gradients: its name is its scope, under ``Gradients/``."""
    return op.name.startswith(f"{GRADIENTS}/")


def _inner_cells(op: Op) -> list[tuple[str, str]]:
    """(attribute, class) of the network's cells around an operator of a .mindir step; none outside of the network."""
    inside = re.sub(rf"^.*?/({BACKBONE}|{NETWORK}(?!.*/{BACKBONE}))[^/]*/", "Default/", op.name)
    return [] if op.held else view.cells(inside)


class _NetworkScopes:
    """Which operators of a whole MindIR training step are of the network, forward and backward. Scopes say it, but not
    of updates: outside are also operators that are no gradients and read one, or what such an operator makes, and those
    that read nothing but what is assigned (a loss scale, counters) and constants."""

    def __init__(self, flow: Dataflow, model: Message) -> None:
        self._named = any(f"/{BACKBONE}" in op.name for op in flow.ops)
        self._outside = set[int]()  # ids of operators
        state = _loads_of_assigned(flow, model)  # values that are computed of what is assigned alone
        behind = set[int]()  # values that are gradients, or are computed of them
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
        """Whether an operator of the MindIR step is of the network, or of its gradients."""
        return op.id not in self._outside and _in_network(op.name, self._named)


def _loads_of_assigned(flow: Dataflow, model: Message) -> set[int]:
    """The ids of the values that a MindIR step loads from parameters that it assigns: a loss scale, counters."""
    parameters, known = assigned_parameters(model), view.primitives(model)
    found = set[int]()
    for scope in flow.scopes:
        names = {name: value for value, name in scope.native.names.items()}
        nodes = scope.native.graph.node
        loads = {node.output[0]: node.input[0] for node in nodes if view.kind_of(node, known) == "Load"}
        found |= {names[name] for name, source in loads.items() if source in parameters and name in names}
    return found


class _GradientOwners:
    """Finds for each gradient operator of a MindIR step the forward operator that it belongs to. Gradients are looked
    at in the order of the file, as each needs what was noted of those that it reads. Every operator outside of the
    network must have its ``Op.held`` before this is made, as `mark_step` sees to."""

    def __init__(self, flow: Dataflow, regions: _NetworkScopes) -> None:
        self.flow = flow
        self.forward = dict[str, list[Op]]()  # operators of the network's forward, by kind
        self.backward = list[Op]()  # operators of its gradients
        self.forward_values = dict[int, list[int]]()  # gradient -> the values it may be one of, the nearest first
        for op in flow.ops:
            if regions.is_network(op) and in_gradients(op):
                self.backward.append(op)
            elif regions.is_network(op):
                self.forward.setdefault(op.kind, []).append(op)
        network = {op.id for ops in self.forward.values() for op in ops}
        self.ends = [  # values that the forward hands to what is outside of the network, as the loss
            value.id
            for value in flow.values
            if value.producer in network and any(reader.held for reader in flow.readers(value.id))
        ]

    def follow(self) -> None:
        """Notes ``Op.follows`` (the forward operator) of gradient operators in a MindIR step, and ``Op.adds_for`` (the
        forward value) of additions, where they are found."""
        for op in self.backward:
            for source in op.inputs:
                self._seed(source)
            kind = next((part.removeprefix(RULE) for part in op.name.split("/") if part.startswith(RULE)), "")
            if not kind:  # no gradient of one operator
                self._note_addition(op)
                continue
            found = self._owner(op, kind)
            if found is not None:
                op.follows = found.id
                self._note_results(op, found)

    def _seed(self, source: int) -> None:
        """Notes an operand with which the backward of a MindIR step starts, as the gradient of those values at the end
        of the forward that have its shape: one that the loss's own gradient makes."""
        maker = self.flow.writer(source) if source != NONE else None
        if maker is not None and maker.held and in_gradients(maker):
            self.forward_values[source] = [value for value in self.ends if self._same_shape(value, source)]

    def _same_shape(self, one: int, other: int) -> bool:
        """Whether two values of the MindIR step have the same shape, or no known one both."""
        return self.flow.values[one].shape == self.flow.values[other].shape

    def _owner(self, op: Op, kind: str) -> Op | None:
        """The forward operator of this kind in the MindIR step whose gradient ``op`` computes; None if none is found.
        The first of: one that shares a value with the gradient and makes a value whose gradient that reads; one that
        does the former; one that does the latter; one whose gradient computes an operand of ``op``."""
        given = {source for source in op.inputs if source != NONE and not self._is_constant(source)}
        sharing = [f for f in self.forward.get(kind, ()) if given & {*f.inputs, *f.outputs}]
        values = [value for source in op.inputs for value in self._values_behind(source)]
        makers = [maker for maker in map(self.flow.writer, values) if maker is not None and maker.kind == kind]
        makers.sort(key=lambda maker: -maker.id)  # backward starts with what comes last, so branches before their stem
        both = [candidate for candidate in makers if candidate in sharing]
        writers = [self.flow.writer(source) for source in op.inputs if source != NONE]
        owners = [self.flow.ops[w.follows] for w in writers if w is not None and w.follows != NONE]
        same_kind = [candidate for candidate in owners if candidate.kind == kind]
        return next(iter((*both, *sharing, *makers, *same_kind)), None)

    def _is_constant(self, source: int) -> bool:
        """Whether a value of the .mindir file is an axis, shape or number, which unrelated operators may share."""
        return self.flow.values[source].weight and not self.flow.values[source].parameter

    def _note_addition(self, op: Op) -> None:
        """Notes which forward value of the MindIR step an addition of several gradients is for (``Op.adds_for``): the
        nearest that all of them may be gradients of. Nothing where there is none, as for any other operator."""
        groups = [self._values_behind(source) for source in op.inputs if source in self.forward_values]
        common = [value for value in (groups[0] if groups else ()) if all(value in group for group in groups)]
        if common:
            op.adds_for = common[0]
            self.forward_values.update(dict.fromkeys(op.outputs, common[:1]))

    def _values_behind(self, gradient: int) -> list[int]:
        """The forward values of the MindIR step that this may be a gradient of, the nearest first, also through forward
        operators that have the same gradient as their operand; none for a value of which nothing was noted."""
        return list(reachable(self.forward_values.get(gradient, ()), self._operands_of_same_gradient))

    def _operands_of_same_gradient(self, value: int) -> list[int]:
        """The operands of same shape, if any, whose gradient in the MindIR step is that of ``value``, by `PASSING`."""
        maker = self.flow.writer(value)
        if maker is None or maker.kind not in PASSING:
            return []
        positions = PASSING[maker.kind]
        operands = [v for i, v in enumerate(maker.inputs) if v != NONE and (positions is None or i in positions)]
        return [operand for operand in operands if self._same_shape(operand, value)]

    def _note_results(self, op: Op, owner: Op) -> None:
        """Notes what the results of a gradient operator in the MindIR step are gradients of: operands of ``owner`` of
        the same shape, rather those that it does not read, as a factor's gradient reads the other."""
        for result in op.outputs:
            alike = [source for source in owner.inputs if source != NONE and self._same_shape(source, result)]
            alike = [source for source in alike if not self._is_constant(source)]
            unread = [source for source in alike if source not in op.inputs]
            self.forward_values[result] = unread or alike  # an operator as a square reads the one that there is


STATUS, CLEAR = ("NPUGetFloatStatusV2", "NPUGetFloatStatus"), ("NPUClearFloatStatusV2", "NPUClearFloatStatus")
"""Operators that read and clear the register in which an Ascend device notes overflow."""
PARTS = (*STATUS, *CLEAR, "NPUAllocFloatStatus", "Depend", "Equal")
"""What a check by the register consists of, in front of its ReduceAll."""
OTHER_FORM = "export the step with nn.TrainOneStepWithLossScaleCell"


def has_float_status(model: Message) -> bool:
    """Whether a MindIR step asks the device's register whether anything overflowed (an operator of `STATUS`)."""
    known = view.primitives(model)
    return any(view.kind_of(node, known) in STATUS for graph in view.graphs(model) for node in graph.node)


def check_finite(model: Message, where: str = "") -> int:
    """Has a MindIR step check its gradients for numbers that are not finite instead of asking the device's register,
    and returns how many gradients it checks; 0 where no register is asked. ``where``: how messages name the file.
    Raises AmpError AMP205 for a check of another form than MindSpore's cells make."""
    count = 0
    for graph in view.graphs(model):
        known = view.primitives(model)
        if any(view.kind_of(node, known) in STATUS for node in graph.node):
            count += _StatusCheck(model, graph, where).replace()
    return count


class _StatusCheck:
    """The check for overflow in one graph of a MindIR step, to be replaced. On Ascend MindSpore asks a register whether
    anything overflowed: ``Depend(status, gradients) -> NPUGetFloatStatusV2 -> Equal -> ReduceAll``. No other device has
    it. There every gradient is looked at: IsFinite, ReduceAll, LogicalAnd."""

    def __init__(self, model: Message, graph: Message, where: str) -> None:
        """``graph``: one of ``model`` that reads the register; ``where``: how messages name the file."""
        self.model, self.graph, self.where = model, graph, where
        known = view.primitives(model)
        self.kinds = {node.output[0]: view.kind_of(node, known) for node in graph.node}  # by name of the result
        self.makers = {node.output[0]: node for node in graph.node}  # by name of the result
        self.fresh = FreshNames(view.all_names(model))

    def replace(self) -> int:
        """Replaces the MindIR step's check of the register by finite checks; returns how many gradients these look at.
        Raises AmpError AMP205 for a check of unknown form; the graph is then as it was."""
        gone = self._register_nodes()
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
        self._write(nodes, gone)
        return len(gradients)

    def _register_nodes(self) -> set[str]:
        """The names of the results of all nodes of the MindIR step that clear, read, compare or wait for the register.
        Nodes stand behind what they read: one walk finds them. A Depend belongs to them if its first operand does."""
        found = {name for name, kind in self.kinds.items() if kind in (*STATUS, *CLEAR, "NPUAllocFloatStatus")}
        found |= {self.makers[name].input[0] for name in found if self._is_depend(self.makers[name].input[0])}
        for node in self.graph.node:
            kind = self.kinds[node.output[0]]
            read = node.input[:1] if kind == "Depend" else node.input
            if kind in PARTS and any(name in found for name in read):
                found.add(node.output[0])
        return found

    def _is_depend(self, name: str) -> bool:
        """Whether a Depend, which only orders nodes, makes the value of this name in the MindIR step."""
        return self.kinds.get(name) == "Depend"

    def _gradients(self) -> list[str]:
        """The names of the gradients behind which the MindIR step reads the register; empty for a check of another form
        than ``Depend(status, MakeTuple(gradients)) -> NPUGetFloatStatus``, and for several reads."""
        [status, *more] = [node for node in self.graph.node if self.kinds[node.output[0]] in STATUS]
        before = self.makers.get(status.input[0])
        if more or before is None or not self._is_depend(before.output[0]):
            return []
        waited = self.makers.get(before.input[1])
        return list(waited.input) if waited is not None and self.kinds[waited.output[0]] in view.TUPLES else []

    def _refuse(self) -> NoReturn:
        """Raises AmpError AMP205: a MindIR step checks for overflow in an unknown form."""
        raise AmpError("AMP205", "checks for overflow in an unknown form", where=self.where, hint=OTHER_FORM)

    def _checks(self, end: Message, gradients: list[str]) -> list[Message]:
        """The new nodes of a MindIR step that check gradients, in order; the last has the name of the old ``end``."""
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
        """A new node of the MindIR step, not in its graph yet, whose bool result has the shape of ``like``'s."""
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

    def _write(self, nodes: list[Message], gone: set[str]) -> None:
        """Makes ``nodes`` all nodes of the MindIR step's graph; UpdateStates no longer wait for results in ``gone``.
        Raises AmpError AMP205 where another node still reads one of these; the graph is then as it was."""
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
