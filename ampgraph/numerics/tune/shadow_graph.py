"""The reference with what another model makes of it beside it, in one graph: see `shadow`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...oplists.traits import has
from ..strict import value_types as vt
from ..trace.sites import captured

FLOAT = TensorProto.FLOAT
HUGE = 1e18  # beyond it a value is a mask, not a number; its square still fits float32
OWN_LIMIT = 1 << 20  # bytes: a stored tensor of the low model up to this is taken as it is, a larger one rounded here
SILENT = ("Cast", "CastLike", "Constant")


class Combined:
    """Builds the model.

    ``chained``: the low model runs beside the reference on its own values, and all that both make is compared. Else
    each low node has a shadow that computes it on the reference's values. In both, ``name@error`` is the norm of the
    difference and ``name@norm`` that of the reference.
    """

    def __init__(
        self, reference: ModelProto, low: ModelProto, low_folder: str, masked: frozenset[str], chained: bool
    ) -> None:
        self.reference, self.low = reference, low
        self.low_folder, self.masked, self.chained = low_folder, masked, chained
        self.types, self.low_types = vt.infer(reference).values, vt.infer(low).values
        self.made_by = {name: node for node in low.graph.node for name in node.output if name}
        self.stored = {i.name: i for i in low.graph.initializer}
        self.given = {i.name: i for i in reference.graph.initializer}
        self.taken = set(self.types) | set(self.low_types)
        self.nodes: list[NodeProto] = []
        self.added: list[TensorProto] = []
        self.shadows: dict[str, str] = {}
        self.outputs: list[str] = []
        self.floors = self._floors()

    def build(self) -> ModelProto:
        """The model; ``outputs`` holds what is compared."""
        if self.chained:
            self._side_by_side()
        else:
            self._shadowed()
        model = ModelProto(ir_version=self.reference.ir_version)
        model.opset_import.extend(self.reference.opset_import)
        known = {o.domain for o in model.opset_import}
        model.opset_import.extend(o for o in self.low.opset_import if o.domain not in known)
        graph = model.graph
        graph.name = "shadowed"
        graph.node.extend(self.nodes)
        graph.initializer.extend([*self.reference.graph.initializer, *self.added])
        graph.sparse_initializer.extend(self.reference.graph.sparse_initializer)
        graph.input.extend(self.reference.graph.input)
        for sort in ("@error", "@norm"):
            graph.output.extend(helper.make_tensor_value_info(f"{o}{sort}", FLOAT, []) for o in self.outputs)
        return model

    def _shadowed(self) -> None:
        """The reference, each low node's shadow behind the node."""
        for node in self.reference.graph.node:
            self.nodes.append(node)
            names = {self._origin(name): name for name in node.output if name in self.made_by}
            own = self.made_by[next(iter(names))] if names else None
            if own is not None and own.op_type not in SILENT and self._is_low(own):
                self.outputs += self._compared(own, self._copied(own), names)

    def _side_by_side(self) -> None:
        """Both models, each value compared as soon as both have made it: then it can go."""
        places = {name: i for i, own in enumerate(self.low.graph.node) for name in own.output if name}
        made: set[str] = set()
        copies: dict[str, tuple[NodeProto, NodeProto]] = {}  # by what they make
        done = 0

        def compare(names: Iterable[str]) -> None:
            for name in names:
                if name in made and name in copies:
                    self.outputs += self._compared(*copies[name], {name: name})

        for node in self.reference.graph.node:
            self.nodes.append(node)
            made.update(filter(None, node.output))
            compare(node.output)
            end = max((places[name] + 1 for name in node.output if name in places), default=0)
            for own in self.low.graph.node[done:end]:
                copy = self._copied(own)
                new = {name: value for name, value in zip(own.output, copy.output, strict=True) if name}
                self.shadows.update(new)
                copies.update(dict.fromkeys(new, (own, copy)))
                compare(new)
            done = max(done, end)

    def _origin(self, name: str) -> str:
        """What a value is called before the Cast that the low model has put behind it."""
        node = self.made_by[name]
        return node.input[0] if node.op_type == "Cast" and node.input[0] not in self.types else name

    def _is_low(self, node: NodeProto) -> bool:
        names = [*node.input, *node.output, *captured(node)]
        return any(vt.low_of(self.low_types.get(name, "")) for name in names) or any(map(_holds_low, vt.bodies(node)))

    # -- copies of the low model's nodes ------------------------------------------------------------------------------

    def _copied(self, node: NodeProto) -> NodeProto:
        """The node under other names, on what `_read` gives it."""
        inputs = [self._read(name) if name else "" for name in node.input]
        copy = NodeProto()
        copy.CopyFrom(node)
        outer = {name: self._read(name) for name in captured(node)}
        for body in vt.bodies(copy):
            _rename(body, outer)
        copy.name = ""
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.extend(self._fresh(f"{name}@shadow") if name else "" for name in node.output)
        self.nodes.append(copy)
        return copy

    def _read(self, name: str) -> str:
        """A value as the low model reads it, of the type that it has there."""
        if name not in self.shadows:
            self.shadows[name] = self._made(name)
        return self.shadows[name]

    def _made(self, name: str) -> str:
        kind, source, node = self.low_types.get(name, ""), self.types.get(name), self.made_by.get(name)
        low, constant = vt.low_of(kind), node is not None and node.op_type == "Constant"
        if name in self.stored:
            own = self.stored[name]
            changed = name not in self.given or self.given[name].data_type != own.data_type or name in self.floors
            if changed and (source is None or not low or 2 * math.prod(own.dims) <= OWN_LIMIT):
                return self._initializer(own)
        if source is not None and not constant:
            return self._lowered(name, low) if low and source != kind else name
        if node is None:
            return name  # an input of the low model alone
        copy = self._copied(node)
        return dict(zip(node.output, copy.output, strict=True))[name]

    def _lowered(self, name: str, low: int) -> str:
        source = name
        if name in self.floors:
            source = self._add("Max", [name, self._scalar(self.floors[name])], f"{name}@floored")
        return self._add("Cast", [source], f"{name}@low", to=low)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compared(self, own: NodeProto, copy: NodeProto, names: dict[str, str]) -> Iterator[str]:
        """The outputs of a node that both models have as numbers; ``names``: what the reference calls them."""
        for mine, shadow in zip(own.output, copy.output, strict=True):
            name, low = names.get(mine, ""), vt.low_of(self.low_types.get(mine, ""))
            number = low or self.low_types.get(mine) == vt.tensor(FLOAT)
            if name and number and self.types.get(name) == vt.tensor(FLOAT):
                self._reduced(name, self._add("Cast", [shadow], f"{shadow}@f32", to=FLOAT) if low else shadow)
                yield name

    def _reduced(self, name: str, shadow: str) -> None:
        difference, reference = self._add("Sub", [name, shadow], f"{name}@difference"), name
        kept = self._kept(name)
        if kept:
            difference = self._add("Where", [kept, difference, self._scalar(0.0)], f"{name}@difference")
            reference = self._add("Where", [kept, name, self._scalar(0.0)], f"{name}@reference")
        for source, sort in ((difference, "@error"), (reference, "@norm")):
            self.nodes.append(helper.make_node("ReduceL2", [source], [f"{name}{sort}"], keepdims=0))

    def _kept(self, name: str) -> str:
        """Where a value is a number and no mask; empty where all of it is."""
        if name in self.floors:
            return self._add("Greater", [name, self._scalar(self.floors[name])], f"{name}@kept")
        if name in self.masked:
            return self._add("Less", [self._add("Abs", [name], f"{name}@abs"), self._scalar(HUGE)], f"{name}@kept")
        return ""

    # -- masks --------------------------------------------------------------------------------------------------------

    def _floors(self) -> dict[str, float]:
        """Values on the way from a constant that the low model has floored to its Softmax, with the floor."""
        nodes = [
            node for node in self.reference.graph.node if vt.is_standard(node) or has(node.op_type, "attention_bias")
        ]
        made = {name: node for node in nodes for name in node.output if name}
        work = [n.input[0] for n in nodes if has(n.op_type, "softmaxes")]
        seen: set[str] = set()
        floors: dict[str, float] = {}
        while work:
            name = work.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            node = made.get(name)
            if node is not None and has(node.op_type, "mask_path"):
                work += node.input
            if (floor := self._floor(name)) is not None:
                floors[name] = floor
        for node in nodes if floors else ():
            found = [floors[name] for name in node.input if name in floors]
            if found and has(node.op_type, "mask_path"):
                floors.update((name, max(found)) for name in node.output if name in seen)
        return floors

    def _floor(self, name: str) -> float | None:
        """The lowest finite element of a stored tensor, where the reference's is lower."""
        mine, theirs = self._array(name, self.made_by, self.stored), self._array(name, None, self.given)
        if mine is None or theirs is None or mine.shape != theirs.shape or not mine.size:
            return None
        lowest, before = (float(np.where(np.isfinite(a), a, 0).min()) for a in (mine, theirs))
        return lowest if before < 1.5 * lowest < 0 else None

    def _array(self, name: str, made: Any, stored: dict[str, TensorProto]) -> np.ndarray | None:
        if made is None:
            made = {o: node for node in self.reference.graph.node if node.op_type == "Constant" for o in node.output}
        node, tensor = made.get(name), stored.get(name)
        if node is not None and node.op_type == "Constant":
            held = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            tensor = held.get("value")
            if tensor is None:
                return np.asarray(held["value_float"], np.float32) if "value_float" in held else None
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL or tensor.data_type not in _FLOATS:
            return None
        return numpy_helper.to_array(tensor).astype(np.float32)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _initializer(self, tensor: TensorProto) -> str:
        copy = TensorProto()
        if tensor.data_location == TensorProto.EXTERNAL:  # of the low model's folder, not of the reference's
            copy.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor, self.low_folder)))
        else:
            copy.CopyFrom(tensor)
        copy.name = self._fresh(f"{tensor.name}@own")
        self.added.append(copy)
        return copy.name

    def _scalar(self, number: float) -> str:
        name = f"@{number}"
        if name not in self.shadows:
            self.shadows[name] = self._initializer(numpy_helper.from_array(np.array(number, np.float32), name))
        return self.shadows[name]

    def _add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        output = self._fresh(output)
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _fresh(self, name: str) -> str:
        base, k = name, 0
        while name in self.taken:
            k += 1
            name = f"{base}{k}"
        self.taken.add(name)
        return name


_FLOATS = (FLOAT, *vt.LOW_TYPES)


def _rename(body: GraphProto, names: dict[str, str]) -> None:
    """Gives what a body captures other names."""
    for node in body.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
        for inner in vt.bodies(node):
            _rename(inner, names)
    for value in body.output:
        value.name = names.get(value.name, value.name)


def _holds_low(body: GraphProto) -> bool:
    """Whether a body makes something low by a Cast or stores it."""
    if any(i.data_type in vt.LOW_TYPES for i in body.initializer):
        return True
    return any(
        (node.op_type == "Cast" and any(a.name == "to" and a.i in vt.LOW_TYPES for a in node.attribute))
        or any(map(_holds_low, vt.bodies(node)))
        for node in body.node
    )
