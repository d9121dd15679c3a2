"""The reference with what another model makes of it beside it, in one graph: see `shadow`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...core.dataflow import FLOAT32, Dataflow
from ...core.graph import LOW
from ...core.names import FreshNames
from ...core.runnable import RunnableGraph
from ...formats.onnx.graph import OnnxGraph
from ...formats.onnx.schemas import kind_of
from ...formats.onnx.types import DTYPES
from ...formats.onnx.walk import all_graphs, bodies, captured
from ...formats.onnx.weights import stored_tensor
from ...oplists.traits import Trait, has

HUGE = 1e18  # beyond it a value is a mask, not a number; its square still fits float32
ON_THE_WAY: tuple[Trait, ...] = ("mask_path", "scalings")  # operators between a mask's constant and its Softmax
OWN_LIMIT = 1 << 20  # bytes: a stored tensor of the low model up to this is taken as it is, a larger one rounded here
FLOATS = frozenset(DTYPES[name] for name in (FLOAT32, *LOW))
Compared = tuple[str, ir.Value, ir.Value]  # a value of the reference, the norms of its error and of itself
ERROR, NORM = "@error", "@norm"


@dataclass(frozen=True)
class Types:
    """(container, element type) of values, as inferred once; ``("", "")`` is unknown."""

    of: Mapping[ir.Value, tuple[str, str]]

    @staticmethod
    def read(flow: Dataflow) -> Types:
        """Those of a model without functions: each of its values stands in one scope."""
        return Types({value.native: (value.container, value.dtype) for value in flow.values})

    def tensor(self, value: ir.Value) -> str:
        """The element type of a tensor, empty for what is none."""
        container, dtype = self.of.get(value, ("", ""))
        return "" if container else dtype

    def low(self, value: ir.Value) -> str:
        """The low element type of a tensor or a container, else empty."""
        dtype = self.of.get(value, ("", ""))[1]
        return dtype if dtype in LOW else ""

    def is_float32(self, value: ir.Value) -> bool:
        """Whether it is a float32 tensor."""
        return self.tensor(value) == FLOAT32


class Combined:
    """Puts the low model's nodes into the reference; both graphs are taken over.

    ``chained``: the low model runs beside the reference on its own values, and all that both make is compared. Else
    each low node has a shadow that computes it on the reference's values. In both, ``name@error`` is the norm of the
    difference and ``name@norm`` that of the reference.
    """

    def __init__(self, reference: RunnableGraph, low: RunnableGraph, masked: frozenset[str], chained: bool) -> None:
        assert isinstance(reference, OnnxGraph) and isinstance(low, OnnxGraph)
        self.model, self.masked, self.chained = reference.model, masked, chained
        self.graph, self.low = reference.model.graph, low.model.graph
        flows = reference.dataflow(), low.dataflow()
        self.types, self.low_types = (Types.read(flow) for flow in flows)
        self.mine, self.theirs = ({v.name: v.native for v in f.values if v.scope == 0 and v.name} for f in flows)
        self.called = {value: name for name, value in self.theirs.items()}  # moved nodes write other names
        self.origins = {name: self._origin(value) for name, value in self.theirs.items()}
        self.lows = {node for node in self.low if self._is_low(node)}
        self.names = FreshNames(_names(reference.model, low.model))
        self.imports = low.model.opset_imports
        self.place = next(iter(self.graph), None)  # what is added stands behind it
        self.shadows: dict[ir.Value, ir.Value] = {}  # of the low model, what stands for it here
        self.moved: set[ir.Node] = set()
        self.numbers: dict[float, ir.Value] = {}
        self.outputs: list[str] = []
        self.floors = self._floors()

    def build(self) -> OnnxGraph:
        """The model; ``outputs`` holds what is compared."""
        self.graph.outputs.clear()
        compared = list(self._side_by_side() if self.chained else self._shadowed())
        self.outputs = [name for name, _, _ in compared]
        for value in (*(error for _, error, _ in compared), *(norm for _, _, norm in compared)):
            value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
            self.graph.outputs.append(value)
        for domain, version in self.imports.items():
            self.model.opset_imports.setdefault(domain, version)
        return OnnxGraph(self.model)

    def _shadowed(self) -> Iterator[Compared]:
        """The reference, each low node's shadow behind the node."""
        for node in list(self.graph):
            self.place = node
            names = {self.origins[v.name]: v.name for v in node.outputs if v.name and v.name in self.origins}
            own = next(iter(names)).producer() if names else None
            if own in self.lows and not has(own.op_type, "conversions") and not has(own.op_type, "constants"):
                self._move(own)
                for value in own.outputs:
                    if value in names:
                        yield from self._compared(value, names[value])

    def _side_by_side(self) -> Iterator[Compared]:
        """Both models, each value compared as soon as both have made it: then it can go."""
        nodes = list(self.low)
        places = {value.name: i for i, node in enumerate(nodes) for value in node.outputs if value.name}
        made: set[str] = set()
        done = 0
        for node in list(self.graph):
            self.place = node
            names = [value.name for value in node.outputs if value.name]
            made.update(names)
            end = max((places[name] + 1 for name in names if name in places), default=0)
            ready = [self.theirs[name] for name in names if places.get(name, done) < done]
            for value in ready:
                yield from self._compared(value, self.called[value])
            for own in nodes[done:end]:
                self._move(own)
                self.shadows.update((value, value) for value in own.outputs)
                for value in own.outputs:
                    if self.called.get(value) in made:
                        yield from self._compared(value, self.called[value])
            done = max(done, end)

    def _origin(self, value: ir.Value) -> ir.Value:
        """A value before the Cast that the low model has put behind it."""
        node = value.producer()
        source = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        return source if source is not None and source.name not in self.mine else value

    def _is_low(self, node: ir.Node) -> bool:
        read = [value for value in node.inputs if value is not None]
        return any(map(self.low_types.low, (*read, *node.outputs, *captured(node)))) or any(
            self.low_types.low(value) for body in bodies(node) for value in _values(body)
        )

    # -- the low model's nodes ----------------------------------------------------------------------------------------

    def _move(self, node: ir.Node) -> None:
        """The node computes here, under other names, on what `_read` gives it."""
        if node in self.moved:
            return
        self.moved.add(node)
        read = [value for value in (*node.inputs, *captured(node)) if value is not None]
        _rewire(node, {value: self._read(value) for value in read})
        self.low.remove(node)
        node.name = ""
        for value in node.outputs:
            value.name = self.names(f"{value.name}@shadow") if value.name else value.name
        self._put(node)

    def _read(self, value: ir.Value) -> ir.Value:
        """A value as the low model reads it, of the type that it has there."""
        if value not in self.shadows:
            self.shadows[value] = self._made(value)
        return self.shadows[value]

    def _made(self, value: ir.Value) -> ir.Value:
        name, low = self.called.get(value, ""), self.low_types.low(value)
        source, node, tensor = self.mine.get(name), value.producer(), value.const_value
        if tensor is not None and value.is_initializer():
            given = None if source is None else source.const_value
            changed = given is None or given.dtype != tensor.dtype or source in self.floors
            if changed and (source is None or not low or tensor.nbytes <= OWN_LIMIT):
                return self._stored(name, tensor)
        if source is not None and not (node is not None and has(node.op_type, "constants")):
            same = self.types.of[source] == self.low_types.of[value]
            return self._floored(source) if same or not low else self._lowered(source, low)
        if node is not None:
            self._move(node)
        return value

    def _lowered(self, value: ir.Value, low: str) -> ir.Value:
        return self._add("Cast", [self._floored(value)], f"{value.name}@low", {"to": DTYPES[low].value})

    def _floored(self, value: ir.Value) -> ir.Value:
        """A value with the floor of the low model's mask."""
        if value not in self.floors:
            return value
        return self._add("Max", [value, self._scalar(self.floors[value])], f"{value.name}@floored")

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compared(self, shadow: ir.Value, name: str) -> Iterator[Compared]:
        """A value of the low model beside the reference's, where both are numbers."""
        value, low = self.mine.get(name), self.low_types.low(shadow)
        number = self.low_types.tensor(shadow) in (*LOW, FLOAT32)
        if value is not None and number and self.types.is_float32(value):
            to = {"to": ir.DataType.FLOAT.value}
            wide = self._add("Cast", [shadow], f"{shadow.name}@f32", to) if low else shadow
            difference, reference = self._add("Sub", [value, wide], f"{name}@difference"), value
            if (kept := self._kept(value)) is not None:
                zero = self._scalar(0.0)
                difference = self._add("Where", [kept, difference, zero], f"{name}@difference")
                reference = self._add("Where", [kept, value, zero], f"{name}@reference")
            norms = [
                self._put(_new_node("ReduceL2", [source], f"{name}{sort}", {"keepdims": 0}))
                for source, sort in ((difference, ERROR), (reference, NORM))
            ]
            yield name, norms[0], norms[1]

    def _kept(self, value: ir.Value) -> ir.Value | None:
        """Where a value is a number and no mask; None where all of it is."""
        if value in self.floors:
            return self._add("Greater", [value, self._scalar(self.floors[value])], f"{value.name}@kept")
        if value.name in self.masked:
            size = self._add("Abs", [value], f"{value.name}@abs")
            return self._add("Less", [size, self._scalar(HUGE)], f"{value.name}@kept")
        return None

    # -- masks --------------------------------------------------------------------------------------------------------

    def _floors(self) -> dict[ir.Value, float]:
        """Values on the way from a constant that the low model has floored to its Softmax, with the floor."""
        kinds = {node: kind_of(node.domain, node.op_type) for node in self.graph}
        work = [node.inputs[0] for node, kind in kinds.items() if has(kind, "softmaxes")]
        seen: set[ir.Value] = set()
        floors: dict[ir.Value, float] = {}
        while work:
            value = work.pop()
            if value is None or value in seen:
                continue
            seen.add(value)
            node = value.producer()
            if node is not None and any(has(kinds[node], trait) for trait in ON_THE_WAY):
                work += node.inputs
            if (floor := self._floor(value)) is not None:
                floors[value] = floor
        for node, kind in kinds.items() if floors else ():
            found = [floors[value] for value in node.inputs if value in floors]
            if found and any(has(kind, trait) for trait in ON_THE_WAY):
                floors.update((value, max(found)) for value in node.outputs if value in seen)
        return floors

    def _floor(self, value: ir.Value) -> float | None:
        """The lowest finite element of a stored tensor, where the reference's is lower."""
        twin = self.theirs.get(value.name or "")
        mine, given = (None if v is None else _floats(_held(v)) for v in (twin, value))
        if mine is None or given is None or mine.shape != given.shape or not mine.size:
            return None
        lowest, before = (float(np.where(np.isfinite(a), a, 0).min()) for a in (mine, given))
        return lowest if before < 1.5 * lowest < 0 else None

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _stored(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """A tensor of the low model, which may lie in its folder, here."""
        name = self.names(f"{name}@own")
        value = ir.Value(name=name, const_value=ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        self.graph.register_initializer(value)
        return value

    def _scalar(self, number: float) -> ir.Value:
        if number not in self.numbers:
            self.numbers[number] = self._stored(f"@{number}", ir.tensor(np.array(number, np.float32)))
        return self.numbers[number]

    def _add(
        self, kind: str, inputs: list[ir.Value], name: str, attributes: Mapping[str, int] | None = None
    ) -> ir.Value:
        return self._put(_new_node(kind, inputs, self.names(name), attributes))

    def _put(self, node: ir.Node) -> ir.Value:
        """Behind what was added before."""
        if self.place is None:
            self.graph.append(node)
        else:
            self.graph.insert_after(self.place, node)
        self.place = node
        return node.outputs[0]


def _values(body: ir.Graph) -> Iterator[ir.Value]:
    """What a body makes or stores, at any depth."""
    yield from body.initializers.values()
    for node in body:
        yield from node.outputs
        for inner in bodies(node):
            yield from _values(inner)


def _floats(tensor: ir.TensorProtocol | None) -> npt.NDArray[np.float32] | None:
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or tensor.dtype not in FLOATS:
        return None
    return tensor.numpy().astype(np.float32)


def _held(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor behind a value: stored, or the number that it is filled with."""
    node, stored = value.producer(), stored_tensor(value)
    given = (
        node.attributes.get("value") if node is not None and has(kind_of(node.domain, node.op_type), "fills") else None
    )
    return stored if given is None or given.is_ref() else given.as_tensor()


def _rewire(node: ir.Node, given: Mapping[ir.Value, ir.Value]) -> None:
    """A node, and what its bodies capture, reads other values."""
    for place, value in enumerate(node.inputs):
        if value is not None and value in given:
            node.replace_input_with(place, given[value])
    for body in bodies(node):
        for inner in body:
            _rewire(inner, given)
        for place, value in enumerate(body.outputs):
            if value in given:
                body.outputs[place] = given[value]


def _new_node(kind: str, inputs: list[ir.Value], name: str, attributes: Mapping[str, int] | None = None) -> ir.Node:
    """A node of the standard domain with one result, which is called ``name``."""
    node = ir.node(kind, list(inputs), attributes, num_outputs=1, name="")
    node.outputs[0].name = name
    return node


def _names(*models: ir.Model) -> Iterator[str | None]:
    """Of every value, bodies included."""
    for model in models:
        for graph in all_graphs(model):
            yield from (value.name for value in (*graph.inputs, *graph.initializers.values()))
            yield from (value.name for node in graph for value in node.outputs)
