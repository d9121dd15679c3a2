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
    """The float32 tensors of the ONNX model that a low one was converted from (the reference): finds the one that a low
    tensor was rounded from, by its name, or by its numbers where the conversion has renamed it."""

    def __init__(self, tensors: Mapping[str, ir.TensorProtocol]) -> None:
        """``tensors``: name -> the reference's float32 tensor. Those in data files are left out, as a comparison of
        numbers would read them all: `find` gives None for what was rounded from one, and its rounding stays on."""
        self._tensors = {name: t for name, t in tensors.items() if not isinstance(t, ir.ExternalTensor)}
        self._by_size: dict[int, list[ir.TensorProtocol]] = {}  # number of elements -> tensors
        for tensor in self._tensors.values():
            self._by_size.setdefault(size(tensor), []).append(tensor)

    def find(self, name: str, own: ir.TensorProtocol, low: ir.DataType) -> Array | None:
        """The reference's float32 numbers that an ONNX tensor was rounded from, in its shape; None where none fits.
        ``name``, ``own``: the tensor, whose type may be float32 by now; ``low``: the type that it was rounded to. A
        tensor of its name has to have its shape. Under a new name, as a bias that an addition's constant became, it is
        the closest of its size that differs by rounding and by one factor near 1 alone."""
        known = self._tensors.get(name)
        if known is not None:
            return known.numpy() if dims(known) == dims(own) else None
        candidates = [flat(tensor) for tensor in self._by_size.get(size(own), [])]
        if not candidates:
            return None
        numbers = flat(own).astype(np.float64)
        distances = [_distance(each.astype(np.float64), numbers, low) for each in candidates]
        closest = distances.index(min(distances))
        return None if distances[closest] == math.inf else candidates[closest].reshape(dims(own))


def _distance(given: Array, rounded: Array, low: ir.DataType) -> float:
    """How far a low ONNX tensor's numbers ``rounded`` are from the float32 numbers ``given``: the largest difference;
    infinite where rounding to ``low`` and one factor near 1 (by `MOST_LOST` at most) for all do not explain it."""
    limits = low_type(low.name.lower())
    square = float(given @ given)
    with np.errstate(invalid="ignore"):
        factor = float(given @ rounded) / square if square > 0 and given.size > 1 else 1.0  # that of least squares
        step = np.abs(given) * 2 * limits.rounding + limits.smallest_subnormal
        explained = abs(factor - 1) <= MOST_LOST and bool(np.all(np.abs(rounded - factor * given) <= step))
        return float(np.abs(rounded - given).max(initial=0)) if explained else math.inf


WHERE = 9  # the opset from which a Where is known
SEPARATE = 4  # the version of the format from which stored tensors are no inputs
LOW_TYPES = frozenset(DTYPES[name] for name in LOW)
FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class LowParts:
    """What is low in an ONNX model, asked before it is made strict. ``nodes``: those that read or make low values;
    ``casts``: its Casts; ``constants``: name -> type of the stored tensors that are low, Constants as well."""

    nodes: frozenset[ir.Node]
    casts: frozenset[ir.Node]
    constants: Mapping[str, ir.DataType]

    @staticmethod
    def of(model: ir.Model, flow: Dataflow) -> LowParts:
        """The low parts of an ONNX model, to be asked before it is made strict in place. ``flow``: its dataflow."""
        low = {value.id for value in flow.values if value.dtype in LOW}
        nodes = frozenset(op.native for op in flow.ops if low.intersection((*op.inputs, *op.outputs)))
        casts = frozenset(node for graph in all_graphs(model) for node in graph if _is_cast(node))
        types = {v.name or "": t.dtype for v, t in stored(model) if t.dtype in LOW_TYPES}
        return LowParts(nodes, casts, types)


def with_switches(strict: ir.Model, reference: ir.Model, parts: LowParts) -> list[Switched]:
    """Puts switches into a strict ONNX model, in place: an input `SWITCHES` with a truth value for each node that
    rounds. Returns what each element of it switches, in their order. ``reference``: the model that the low one was
    converted from, without functions; ``parts``: of the low model, from before it was made strict."""
    found = _Switches(strict, reference, parts).run()
    strict.ir_version = max(strict.ir_version or 0, SEPARATE)
    return found


class _Switches:
    """Puts the switches into one strict ONNX model, in place. A switch is known by its number, its *flag*.
    ``reference``: gives unrounded stored tensors; ``parts``: what was low."""

    def __init__(self, strict: ir.Model, reference: ir.Model, parts: LowParts) -> None:
        self._strict, self._main, self._parts = strict, strict.graph, parts
        self._reference_names = {v.name for graph in all_graphs(reference) for node in graph for v in node.outputs}
        self._originals = Originals({v.name or "": tensor for v, tensor in stored(reference) if tensor.dtype == FLOAT})
        self._fresh = FreshNames({name for graph in all_graphs(strict) for name in _names(graph)})
        self._nodes: list[ir.Node] = []  # all, in the order of `_nodes_in`
        self._inside: dict[ir.Node, tuple[str, ...]] = {}  # node -> names of the nodes whose bodies it is in
        self._flags: dict[ir.Node, int] = {}  # node -> its switch
        self._members: list[list[ir.Node]] = []  # by switch: the node that rounds, then those that move data to it
        self._conditions: dict[frozenset[int], ir.Value] = {}  # switches -> whether one of them is on

    def run(self) -> list[Switched]:
        """Adds a Where behind each rounding of the strict ONNX model and the input; returns what each switch is for."""
        self._nodes = list(self._nodes_in(self._main, ()))
        constants = list(self._low_constants())
        pairs = list(filter(None, map(_rounding_pair, self._nodes)))
        made = [(raw, wide) for raw, cast, wide in pairs if cast not in self._parts.casts]
        own = self._parts.casts  # the low model's: of these the reference has some, which are no roundings of ours
        read = [(raw, wide) for raw, cast, wide in pairs if cast in own and wide.name not in self._reference_names]
        self._assign_switches({raw for raw, _ in made})
        names = {raw: wide.name or "" for raw, wide in made}
        found = [self._described(members, names) for members in self._members]
        for raw, wide in made:
            maker = raw.producer()
            if maker in self._flags:
                self._switch_result(raw, wide, self._flags[maker])
        stored_pairs = [(self._store_reference(name, numbers), wide) for name, numbers, wide in constants]
        for raw, wide in (*read, *stored_pairs):
            self._switch_by_readers(raw, wide)
        self._add_input()
        return found

    # -- who is switched ----------------------------------------------------------------------------------------------

    def _nodes_in(self, graph: ir.Graph, inside: tuple[str, ...]) -> Iterator[ir.Node]:
        """The nodes of a graph of the strict model in the order of the file, those of bodies before the node that holds
        them; notes for each the names ``inside`` of the nodes around it."""
        for node in graph:
            self._inside[node] = inside
            name = node.name or next((v.name for v in node.outputs if v.name), "") or node.op_type
            for body in bodies(node):
                yield from self._nodes_in(body, (*inside, name))
            yield node

    def _assign_switches(self, rounded: set[ir.Value]) -> None:
        """Gives each low node of the strict model a switch; one that only moves numbers shares that of the first node
        that computes with them. ``rounded``: values that are rounded where they are made."""
        low = [node for node in self._nodes if node in self._parts.nodes and node.inputs and not _is_cast(node)]
        moves = [node for node in low if _only_moves(node) and not rounded.intersection(node.outputs)]
        for node in low:
            if node not in moves:
                self._new_switch(node)
        for node in moves:
            reader = self._first_switched_reader(node, set())
            if reader is None:
                self._new_switch(node)
                continue
            self._flags[node] = self._flags[reader]
            if not bodies(node):  # a loop is not named for what one node in it reads
                self._members[self._flags[node]].append(node)

    def _new_switch(self, node: ir.Node) -> None:
        """Begins a switch of its own for a node of the strict model; nodes that move data to it may join it later."""
        self._flags[node] = len(self._members)
        self._members.append([node])

    def _first_switched_reader(self, node: ir.Node, met: set[ir.Node]) -> ir.Node | None:
        """The first node of the strict model with a switch that reads what ``node`` hands on, through nodes that only
        move numbers, and inside of its bodies if it has any; else None. ``met``: nodes that were looked at."""
        met.add(node)
        handed_on = [value for body in bodies(node) for value in body.inputs] if bodies(node) else list(node.outputs)
        readers = [use.node for value in handed_on for use in value.uses()]
        for reader in readers:
            if reader in self._flags:
                return reader
        for reader in readers:
            if reader not in met and _only_moves(reader):
                found = self._first_switched_reader(reader, met)
                if found is not None:
                    return found
        return None

    def _described(self, members: list[ir.Node], names: Mapping[ir.Value, str]) -> Switched:
        """What a switch of the strict model is for: its first node, and the moves that are switched with it. ``names``:
        unrounded value -> the name that its rounded one has now, which was its own in the file."""
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

    def _low_constants(self) -> Iterator[tuple[str, Array, ir.Value]]:
        """The stored tensors that were low in the ONNX model: (name, the reference's float32 numbers, the float32 value
        that is read: itself, or its Cast's result). Those whose original is not found are left out."""
        for value, own in stored(self._strict):
            name = value.name or ""
            low = self._parts.constants.get(name)
            numbers = None if low is None else self._originals.find(name, own, low)
            if numbers is None or np.abs(numbers).max(initial=0) > low_type("float16").largest:
                continue  # a mask that was bounded stays so
            casts = [use.node for use in value.uses() if _is_cast(use.node)]
            yield name, numbers, casts[0].outputs[0] if casts else value

    def _store_reference(self, tensor: str, numbers: Array) -> ir.Value:
        """Adds the reference's unrounded numbers for a stored tensor to the strict model, as ``NAME@reference``."""
        name = self._fresh(f"{tensor}@reference")
        value = ir.Value(name=name, const_value=ir.Tensor(numbers, name=name))
        value.type, value.shape = ir.TensorType(FLOAT), ir.Shape(numbers.shape)
        self._main.register_initializer(value)
        return value

    # -- switches -----------------------------------------------------------------------------------------------------

    def _switch_result(self, raw: ir.Value, wide: ir.Value, flag: int) -> None:
        """In the strict model, has all readers of a value that is rounded where it is made read it rounded (``wide``)
        where the switch of its node (``flag``) or their own is on, else as it was made (``raw``). The reader's counts
        as a low node rounds what it reads too: it would have a Cast there if the maker were in float32."""
        uses, after = list(wide.uses()), wide.producer()
        assert after is not None
        graph = after.graph
        assert graph is not None
        switched: dict[frozenset[int], ir.Value] = {}  # switches -> the value that they choose

        def switched_by(flags: frozenset[int]) -> ir.Value:
            if flags not in switched:
                node = self._where(flags, wide, raw)
                graph.insert_after(after, node)
                switched[flags] = node.outputs[0]
            return switched[flags]

        for use in uses:
            use.node.replace_input_with(use.idx, switched_by(frozenset({flag, self._flags.get(use.node, flag)})))
        if wide.is_graph_output():
            self._give_out(graph, wide, switched_by(frozenset({flag})))

    def _give_out(self, graph: ir.Graph, wide: ir.Value, switched: ir.Value) -> None:
        """In the strict model, makes ``switched`` the output that ``wide`` is, and gives it that one's name."""
        switched.name, wide.name = wide.name, self._fresh(f"{wide.name}_rounded")
        switched.type, switched.shape = wide.type, wide.shape
        for place, output in enumerate(graph.outputs):
            if output is wide:
                graph.outputs[place] = switched

    def _switch_by_readers(self, raw: ir.Value, wide: ir.Value) -> None:
        """In the strict model, has each low reader of a value that its maker does not round (a stored tensor, or what a
        Cast of the low model rounds) read it rounded (``wide``) where its own switch is on, else ``raw``."""
        for use in list(wide.uses()):
            node = use.node
            if node in self._flags and node.graph is not None:
                switched = self._where(frozenset({self._flags[node]}), wide, raw)
                node.graph.insert_before(node, switched)
                node.replace_input_with(use.idx, switched.outputs[0])

    def _where(self, flags: frozenset[int], rounded: ir.Value, raw: ir.Value) -> ir.Node:
        """A new Where for the strict model, before opset `WHERE` an If, in no graph yet: ``rounded`` where one of
        ``flags`` is on, else ``raw``."""
        condition = self._condition(flags)
        if self._strict.opset_imports[""] >= WHERE:
            node = ir.node("Where", [condition, rounded, raw], num_outputs=1, name="")
        else:
            branches = {"then_branch": self._branch(rounded), "else_branch": self._branch(raw)}
            node = ir.node("If", [condition], branches, num_outputs=1, name="")
        node.outputs[0].name = self._fresh(f"{rounded.name}@switched")
        return node

    def _branch(self, value: ir.Value) -> ir.Graph:
        """A body of an If of the strict model that gives out ``value`` of a graph around it."""
        node = ir.node("Identity", [value], num_outputs=1, name="")
        node.outputs[0].name = self._fresh(f"{value.name}@branch")
        node.outputs[0].type = ir.TensorType(FLOAT)
        return ir.Graph([], node.outputs, nodes=[node], name=node.outputs[0].name)

    def _condition(self, flags: frozenset[int]) -> ir.Value:
        """The strict model's value that says whether one of these one or two switches is on; `_add_input` makes it."""
        if flags not in self._conditions:
            for flag in flags if len(flags) > 1 else ():
                self._condition(frozenset({flag}))
            name = self._fresh(f"{SWITCHES}_{'_'.join(map(str, sorted(flags)))}")
            self._conditions[flags] = ir.Value(name=name)
        return self._conditions[flags]

    def _add_input(self) -> None:
        """Adds the input that holds all switches to the strict model, and, in front of all nodes, those that make each
        `_condition` of it: Gather for one switch, Or for two. To be called when all conditions were asked for."""
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


def _rounding_pair(node: ir.Node) -> tuple[ir.Value, ir.Node, ir.Value] | None:
    """Of a strict ONNX model: (value before the rounding, the Cast to low, value behind the Cast back) where ``node``
    is that first Cast of a pair; None for any other node, and where more than the second Cast reads the low value.
    Where a kernel's sums were computed again, the value before is what the operator itself makes in float32."""
    if node.op_type != "Cast" or node.inputs[0] is None or ir.DataType(node.attributes["to"].as_int()) not in LOW_TYPES:
        return None
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Cast" or node.outputs[0].is_graph_output():
        return None
    return node.inputs[0].meta.get(EXACT, node.inputs[0]), node, uses[0].node.outputs[0]


def _is_cast(node: ir.Node) -> bool:
    """Whether an ONNX node is one that changes types (Cast, CastLike)."""
    return has(kind_of(node), "casts")


def _names(graph: ir.Graph) -> Iterator[str]:
    """The names of inputs, initializers and results of one graph of a strict ONNX model, without its bodies."""
    made = (value for node in graph for value in node.outputs)
    yield from (value.name or "" for value in (*graph.inputs, *graph.initializers.values(), *made))


def _only_moves(node: ir.Node) -> bool:
    """Whether an ONNX node hands on numbers as they are, and so rounds nothing."""
    return has(kind_of(node), "exact")
