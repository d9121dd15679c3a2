"""A whole training step in a dataflow: what of it is the network, and which operator each gradient belongs to.

MindSpore writes gradients under ``Gradients/``, in the scope of their forward operator and its kind:
``Gradients/Default/network-WithLossCell/_backbone-Net/fc-Dense/Grad_MatMul/MatMul-op0``. Operators that do the same
share the scope of the first of them, so the forward operator is found by kind and by the values that both read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...core.dataflow import NONE, Dataflow, Op
from . import view
from .schema import Message
from .training import assigned_parameters, refuse_whole_step

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
    """Whether a scope is in the network. ``named``: whether the file tells the backbone from the loss around it."""
    parts = scope.split("/")
    if named:
        return any(part.startswith(BACKBONE) for part in parts)
    return any(part.startswith(NETWORK) for part in parts) and not any(part.startswith(LOSS) for part in parts)


def mark_step(flow: Dataflow, model: Message) -> None:
    """Holds what is outside the network in float32 (``Op.held``), and says whose gradients there are."""
    regions = _Regions(flow, model)
    for op in flow.ops:
        if not regions.is_network(op):
            op.held = OUTSIDE
    _Gradients(flow, regions).follow()
    flow.cells = _inner_cells


def in_gradients(op: Op) -> bool:
    """Whether an operator is under ``Gradients/``."""
    return op.name.startswith(f"{GRADIENTS}/")


def _inner_cells(op: Op) -> list[tuple[str, str]]:
    """The cells inside the network around an operator; none for what is outside."""
    inside = re.sub(rf"^.*?/({BACKBONE}|{NETWORK}(?!.*/{BACKBONE}))[^/]*/", "Default/", op.name)
    return [] if op.held else view.cells(inside)


class _Regions:
    """What is the network, forward and backward, by scope and by what comes behind the gradients."""

    def __init__(self, flow: Dataflow, model: Message) -> None:
        self.flow = flow
        self._named = any(f"/{BACKBONE}" in op.name for op in flow.ops)
        self._outside = set[int]()
        state = _loaded(flow, model)
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


def _loaded(flow: Dataflow, model: Message) -> set[int]:
    """The values that hold what parameters that are assigned held at one moment: a loss scale, counters."""
    parameters, known = assigned_parameters(model), view.primitives(model)
    found = set[int]()
    for scope in flow.scopes:
        names = {name: value for value, name in scope.native.names.items()}
        nodes = scope.native.graph.node
        loads = {node.output[0]: node.input[0] for node in nodes if view.kind_of(node, known) == "Load"}
        found |= {names[name] for name, source in loads.items() if source in parameters and name in names}
    return found


class _Gradients:
    """Walks the gradients in order. ``of``: the forward values that a gradient may be of, the nearest first."""

    def __init__(self, flow: Dataflow, regions: _Regions) -> None:
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
        """What comes from the loss is a gradient of what the loss reads."""
        maker = self.flow.writer(source) if source != NONE else None
        if maker is not None and maker.held and in_gradients(maker):
            self.of[source] = [value for value in self.ends if self._alike(value, source)]

    def _alike(self, one: int, other: int) -> bool:
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
        """Axes, shapes and numbers, which operators share that have nothing to do with each other."""
        return self.flow.values[source].weight and not self.flow.values[source].parameter

    def _maker(self, value: int, kind: str) -> Iterator[Op]:
        maker = self.flow.writer(value)
        if maker is not None and maker.kind == kind:
            yield maker

    def _sum(self, op: Op) -> None:
        """Notes the value of which several gradients are added."""
        reached = [self._reach(source) for source in op.inputs if source != NONE and source in self.of]
        common = [value for value in (reached[0] if reached else ()) if all(value in other for other in reached)]
        if common:
            op.adds_for = common[0]
            self.of.update(dict.fromkeys(op.outputs, common[:1]))

    def _reach(self, gradient: int) -> list[int]:
        """The forward values that a gradient is of, behind operators that hand it on too."""
        found = list(self.of.get(gradient, ()))
        for value in found:  # which grows
            maker = self.flow.writer(value)
            if maker is not None and maker.kind in PASSING:
                found += [v for v in self._handed(maker) if v not in found and self._alike(v, value)]
        return found

    def _handed(self, op: Op) -> Iterable[int]:
        places = PASSING[op.kind]
        inputs = op.inputs if places is None else [op.inputs[place] for place in places if place < len(op.inputs)]
        return (source for source in inputs if source != NONE)

    def _name_results(self, op: Op, owner: Op) -> None:
        """What the results of a gradient are gradients of: operands of the forward operator, not those that it reads if
        there are others, as the gradient of one factor reads the other."""
        for result in op.outputs:
            alike = [source for source in owner.inputs if source != NONE and self._alike(source, result)]
            alike = [source for source in alike if not self._is_constant(source)]
            self.of[result] = [source for source in alike if source not in op.inputs] or alike
