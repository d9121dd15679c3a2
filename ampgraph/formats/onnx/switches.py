"""A strict model whose roundings can be turned off node by node: by an input that holds a truth value for each.

A strict graph computes in float32 and rounds by pairs of Casts. Behind each pair stands a Where that hands on what was
rounded or what was not, and a stored tensor that is rounded has the reference's beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.dataflow import Dataflow
from ...core.graph import LOW
from ...core.low_types import MOST_LOST, low_type
from ...core.names import FreshNames
from ...core.runnable import SWITCHES, Switched
from ...oplists.traits import has
from .accumulators import EXACT
from .nodes import kind_of
from .types import DTYPES
from .walk import all_graphs, bodies
from .weights import dims, flat, size, stored


class Originals:
    """The float32 tensors of a reference, from which low ones were rounded: by name, or by their numbers where a
    conversion has renamed them."""

    def __init__(self, tensors: Mapping[str, ir.TensorProtocol]) -> None:
        """``tensors``: the reference's in float32, by name. Those in data files are left out: `of` finds
        none of them."""
        self._tensors = {name: t for name, t in tensors.items() if not isinstance(t, ir.ExternalTensor)}
        self._by_size: dict[int, list[ir.TensorProtocol]] = {}
        for tensor in self._tensors.values():
            self._by_size.setdefault(size(tensor), []).append(tensor)

    def of(self, name: str, own: ir.TensorProtocol, low: ir.DataType) -> Array | None:
        """The reference's float32 numbers that a low tensor ``own`` was rounded from, in its shape; None where none
        fits.

        ``low``: what it was rounded to. Of a tensor under a new name, as a bias that an addition's constant became, it
        is the closest that differs by rounding and by a factor beside the product (`factors`) alone.
        """
        known = self._tensors.get(name)
        if known is not None:
            return known.numpy() if dims(known) == dims(own) else None
        alike = [flat(tensor) for tensor in self._by_size.get(size(own), [])]
        numbers = flat(own).astype(np.float64) if alike else np.zeros(0)
        off = [_apart(each.astype(np.float64), numbers, low) for each in alike]
        closest = min(range(len(off)), key=off.__getitem__, default=None)
        return None if closest is None or off[closest] == math.inf else alike[closest].reshape(dims(own))


def _apart(given: Array, numbers: Array, low: ir.DataType) -> float:
    """Switches, by which a low tensor's original is known: the largest distance of rounded numbers from the given ones;
    infinite where it is more than a rounding and a common factor explain."""
    limits = low_type(low.name.lower())
    square = float(given @ given)
    factor = float(given @ numbers) / square if square > 0 and given.size > 1 else 1.0
    with np.errstate(invalid="ignore"):
        step = np.abs(given) * 2 * limits.rounding + limits.smallest_subnormal
        same = abs(factor - 1) <= MOST_LOST and bool(np.all(np.abs(numbers - factor * given) <= step))
        return float(np.abs(numbers - given).max(initial=0)) if same else math.inf


SEPARATE = 4  # the version of the format from which stored tensors are no inputs
LOW_TYPES = frozenset(DTYPES[name] for name in LOW)
FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class LowParts:
    """What a low model holds, asked before it is made strict: the nodes that read or make low values, its Casts, and
    the types of stored tensors that are low by name, of Constant nodes as well."""

    nodes: frozenset[ir.Node]
    casts: frozenset[ir.Node]
    constants: Mapping[str, ir.DataType]

    @staticmethod
    def of(model: ir.Model, flow: Dataflow) -> LowParts:
        """The low parts of a model, before it is made strict in place."""
        low = {value.id for value in flow.values if value.dtype in LOW}
        nodes = frozenset(op.native for op in flow.ops if low.intersection((*op.inputs, *op.outputs)))
        types = {v.name or "": t.dtype for v, t in stored(model) if t.dtype in LOW_TYPES}
        return LowParts(nodes, frozenset(node for each in all_graphs(model) for node in each if _casts(node)), types)


def with_switches(strict: ir.Model, reference: ir.Model, parts: LowParts) -> list[Switched]:
    """Puts switches into a strict model, in place; returns what each is for, in the order of the file.

    ``reference``: the model that it was made from, without functions; ``parts``: the low model's, before.
    """
    found = _Switches(strict, reference, parts).run()
    strict.ir_version = max(strict.ir_version or 0, SEPARATE)
    return found


class _Switches:
    """Puts the switches into one strict model, in place. ``reference``: gives unrounded stored tensors; ``parts``: what
    was low."""

    def __init__(self, strict: ir.Model, reference: ir.Model, parts: LowParts) -> None:
        self._strict, self._main, self._parts = strict, strict.graph, parts
        self._given = {v.name for graph in all_graphs(reference) for node in graph for v in node.outputs}
        self._originals = Originals({v.name or "": tensor for v, tensor in stored(reference) if tensor.dtype == FLOAT})
        self._fresh = FreshNames({name for graph in all_graphs(strict) for name in _names(graph)})
        self._nodes: list[ir.Node] = []
        self._inside: dict[ir.Node, tuple[str, ...]] = {}
        self._flags: dict[ir.Node, int] = {}
        self._members: list[list[ir.Node]] = []
        self._conditions: dict[frozenset[int], ir.Value] = {}

    def run(self) -> list[Switched]:
        """Adds a Where behind each rounding and one truth-valued input for all of them; gives what each element of it
        switches."""
        self._nodes = list(self._walk(self._main, ()))
        constants = list(self._constants())
        pairs = [pair for node in self._nodes if (pair := _pair(node)) is not None]
        made = [(raw, wide) for raw, cast, wide in pairs if cast not in self._parts.casts]
        read = [(r, w) for r, cast, w in pairs if cast in self._parts.casts and w.name not in self._given]
        self._number({raw for raw, _ in made})
        found = [self._told(members, {raw: wide.name or "" for raw, wide in made}) for members in self._members]
        for raw, wide in made:
            maker = raw.producer()
            if maker in self._flags:
                self._switch_all(raw, wide, self._flags[maker])
        for raw, wide in (*read, *((self._store(name, numbers), wide) for name, numbers, wide in constants)):
            self._switch_readers(raw, wide)
        self._add_input()
        return found

    # -- who is switched ----------------------------------------------------------------------------------------------

    def _walk(self, graph: ir.Graph, inside: tuple[str, ...]) -> Iterator[ir.Node]:
        """Nodes in the order of the file, those of bodies before the node that holds them."""
        for node in graph:
            self._inside[node] = inside
            name = node.name or next((v.name for v in node.outputs if v.name), "") or node.op_type
            for body in bodies(node):
                yield from self._walk(body, (*inside, name))
            yield node

    def _number(self, rounded: set[ir.Value]) -> None:
        """Gives each node that rounds a switch; one that only moves numbers shares that of the first node that computes
        with them."""
        computes = [node for node in self._nodes if node in self._parts.nodes and node.inputs and not _casts(node)]
        later = [node for node in computes if not rounded.intersection(node.outputs) and _exact(node)]
        for node in computes:
            if node not in later:
                self._new_switch(node)
        for node in later:
            reader = self._reader(node, set())
            if reader is None:
                self._new_switch(node)
                continue
            self._flags[node] = self._flags[reader]
            if not bodies(node):  # a loop is not named for what one node in it reads
                self._members[self._flags[node]].append(node)

    def _new_switch(self, node: ir.Node) -> None:
        """Begins a switch of its own for a node; nodes that only move its results join it later."""
        self._flags[node] = len(self._members)
        self._members.append([node])

    def _reader(self, node: ir.Node, met: set[ir.Node]) -> ir.Node | None:
        """The first node that computes on what ``node`` moves, through moves and into bodies; None where there is
        none."""
        met.add(node)
        handed = [*node.outputs] if not bodies(node) else [v for body in bodies(node) for v in body.inputs]
        readers = [use.node for value in handed for use in value.uses()]
        known = next((reader for reader in readers if reader in self._flags), None)
        if known is not None:
            return known
        moving = [reader for reader in readers if reader not in met and _exact(reader)]
        return next((found for r in moving if (found := self._reader(r, met)) is not None), None)

    def _told(self, members: list[ir.Node], names: dict[ir.Value, str]) -> Switched:
        """What a switch is for: its first node, and the moves that are switched with it. ``names``: by unrounded value,
        its name."""
        first, *moves = [
            Switched(
                node.name or "",
                kind_of(node),
                tuple(names.get(value, value.name or "") for value in node.outputs),
                self._inside[node],
            )
            for node in members
        ]
        return replace(first, moves=tuple(moves))

    # -- constants ----------------------------------------------------------------------------------------------------

    def _constants(self) -> Iterator[tuple[str, Array, ir.Value]]:
        """The low stored tensors of the file, each as (name, the reference's own float32 numbers, the value that is
        read)."""
        for value, own in stored(self._strict):
            name = value.name or ""
            low = self._parts.constants.get(name)
            numbers = None if low is None else self._originals.of(name, own, low)
            if numbers is None or np.abs(numbers).max(initial=0) > low_type("float16").largest:
                continue  # a mask that was bounded stays so
            casts = [use.node for use in value.uses() if _casts(use.node)]
            yield name, numbers, casts[0].outputs[0] if casts else value

    def _store(self, of: str, numbers: Array) -> ir.Value:
        """An initializer of the main graph with the numbers that the reference has, unrounded."""
        name = self._fresh(f"{of}@reference")
        value = ir.Value(name=name, const_value=ir.Tensor(numbers, name=name))
        value.type, value.shape = ir.TensorType(FLOAT), ir.Shape(numbers.shape)
        self._main.register_initializer(value)
        return value

    # -- switches -----------------------------------------------------------------------------------------------------

    def _switch_all(self, raw: ir.Value, wide: ir.Value, flag: int) -> None:
        """Has all readers of a rounded value read it rounded, or as it was made, as the switch of its node says.

        A low node rounds what it reads too: it would have a Cast there if the maker were in float32. What computes in
        float32 has no switch of its own.
        """
        uses, after = list(wide.uses()), wide.producer()
        assert after is not None
        graph = after.graph
        assert graph is not None
        switched: dict[frozenset[int], ir.Value] = {}

        def by(flags: frozenset[int]) -> ir.Value:
            if flags not in switched:
                node = self._where(flags, wide, raw)
                graph.insert_after(after, node)
                switched[flags] = node.outputs[0]
            return switched[flags]

        for use in uses:
            use.node.replace_input_with(use.idx, by(frozenset({flag, self._flags.get(use.node, flag)})))
        if wide.is_graph_output():
            self._give_out(graph, wide, by(frozenset({flag})))

    def _give_out(self, graph: ir.Graph, wide: ir.Value, switched: ir.Value) -> None:
        """Gives the switched value the name that was the rounded one's, and its place among the graph's outputs."""
        switched.name, wide.name = wide.name, self._fresh(f"{wide.name}_rounded")
        switched.type, switched.shape = wide.type, wide.shape
        for place, output in enumerate(graph.outputs):
            if output is wide:
                graph.outputs[place] = switched

    def _switch_readers(self, raw: ir.Value, wide: ir.Value) -> None:
        """Has each reader of a tensor that is stored low read it rounded or as the reference has it, by that reader's
        own switch."""
        for use in list(wide.uses()):
            node = use.node
            if node in self._flags and node.graph is not None:
                switched = self._where(frozenset({self._flags[node]}), wide, raw)
                node.graph.insert_before(node, switched)
                node.replace_input_with(use.idx, switched.outputs[0])

    def _where(self, flags: frozenset[int], rounded: ir.Value, raw: ir.Value) -> ir.Node:
        """Where(flags, rounded, raw): the rounded value as long as one of these flags is on."""
        return self._node("Where", [self._condition(flags), rounded, raw], f"{rounded.name}@switched")

    def _node(self, kind: str, inputs: list[ir.Value], name: str, **attributes: int) -> ir.Node:
        """A node in no graph yet, its one output named after ``name``."""
        node = ir.node(kind, inputs, attributes, num_outputs=1, name="")
        node.outputs[0].name = self._fresh(name)
        return node

    def _condition(self, flags: frozenset[int]) -> ir.Value:
        """Whether one of two nodes is low."""
        if flags not in self._conditions:
            for flag in flags if len(flags) > 1 else ():
                self._condition(frozenset({flag}))
            name = self._fresh(f"{SWITCHES}_{'_'.join(map(str, sorted(flags)))}")
            self._conditions[flags] = ir.Value(name=name)
        return self._conditions[flags]

    def _add_input(self) -> None:
        """Adds the input that holds all switches, and picks them apart before all nodes."""
        given = ir.Value(name=SWITCHES, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([len(self._members)]))
        self._main.inputs.append(given)
        first = next(iter(self._main), None)
        for flags, value in self._conditions.items():
            if len(flags) > 1:
                node = ir.Node(
                    "", "Or", [self._conditions[frozenset({f})] for f in sorted(flags)], outputs=(value,), name=""
                )
            else:
                name = f"{value.name}_at"
                index = ir.Value(name=name, const_value=ir.Tensor(np.array(min(flags)), name=name))
                index.type, index.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
                self._main.register_initializer(index)
                node = ir.Node("", "Gather", (given, index), outputs=(value,), name="")
            if first is not None:
                self._main.insert_before(first, node)


def _pair(node: ir.Node) -> tuple[ir.Value, ir.Node, ir.Value] | None:
    """Switches in a strict model: (float32, the Cast to low, float32 again) of a rounding that a node begins."""
    if node.op_type != "Cast" or node.inputs[0] is None or ir.DataType(node.attributes["to"].as_int()) not in LOW_TYPES:
        return None
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Cast" or node.outputs[0].is_graph_output():
        return None
    return node.inputs[0].meta.get(EXACT, node.inputs[0]), node, uses[0].node.outputs[0]


def _casts(node: ir.Node) -> bool:
    """Whether a node is one that changes types (Cast, CastLike)."""
    return has(kind_of(node), "casts")


def _names(graph: ir.Graph) -> Iterator[str]:
    """Switches in a strict model: names of inputs, initializers and results of one graph, without its bodies."""
    made = (value for node in graph for value in node.outputs)
    yield from (value.name or "" for value in (*graph.inputs, *graph.initializers.values(), *made))


def _exact(node: ir.Node) -> bool:
    """Switches in a strict model: whether a node hands on numbers that are rounded already, and rounds nothing."""
    return has(kind_of(node), "exact")
