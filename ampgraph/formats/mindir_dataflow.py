"""Builds the Dataflow of a MindIR model: slots and units by the table of operators, types checked by propagation.

Load, Depend, TupleGetItem, MakeTuple and UpdateState are no operators here: what reads through them reads the value
itself. A function is one scope, however often it is called; what it is given and what it returns has one type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..dataflow import FLOAT32, NONE, Dataflow, Op, Scope, Use, Value
from . import mindir_view as view
from .base import LOW
from .mindir_functions import Functions
from .mindir_operators import NO_SLOT, Operator, is_slot, operator
from .mindir_view import CALL, Item, MindirOp, MindirScope, Place
from .mindir_weights import MindirFile

NUMBER = "number"  # the type of a constant that is no tensor
_ADMITS = frozenset(LOW)
_NOTHING: frozenset[str] = frozenset()
WRITTEN = "a parameter that is written keeps its type"


class DataflowBuilder:
    """Walks the graphs once, in order. ``low`` is the type that given casts are compared with."""

    def __init__(self, file: MindirFile, flow: Dataflow, low: str, low_io: frozenset[str]) -> None:
        self.file, self.model, self.flow, self.low, self.low_io = file, file.model, flow, low, low_io
        self.graphs = [self.model.graph, *self.model.functions]
        self.primitives = view.primitives(self.model)
        self.constants: dict[str, Item] = {}
        self.parameters: dict[str, int] = {}  # ref_key or name -> value
        self.written = self._written()
        self.functions = Functions(self)

    def build(self) -> Dataflow:
        main = self._scope("", NONE, self.model.graph)
        self._constants(main)
        self._parameters(main)
        env: dict[str, Item] = {tensor.name: self._parameter(tensor) for tensor in main.native.graph.parameter}
        for position, info in enumerate(self.model.graph.input):
            env[info.name] = self._boundary_input(info, position, main)
        self.functions.declare()
        self._nodes(main, env)
        self._results(main, env)
        for graph in self.model.functions:
            scope, formals = self.functions.scopes[graph.name], self.functions.formals[graph.name]
            self._nodes(scope, dict(formals))
            self._results(scope, self.names)
        return self.flow

    # -- values and uses ----------------------------------------------------------------------------------------------

    def _scope(self, path: str, parent: int, graph: Any) -> Scope:
        kind = "main" if parent == NONE else "function"
        scope = Scope(len(self.flow.scopes), path, parent, NONE, kind, 1, native=MindirScope(graph))
        self.flow.scopes.append(scope)
        return scope

    def value(self, name: str, scope: Scope, dtype: str, tensor: Any = None, **more: Any) -> Value:
        value = Value(len(self.flow.values), name, scope.id, dtype, shape=view.shape_of(tensor), **more)
        self.flow.values.append(value)
        self.flow.uses.append([])
        return value

    def use(self, value: Value, op: int, index: int, unit: int, scope: int) -> None:
        self.flow.uses[value.id].append(Use(value.id, op, index, unit, scope))

    def fixed_unit(self, slot: str, why: str, op: int = NONE) -> int:
        return self.flow.new_unit(op, slot, _NOTHING, fixed=why)

    def _constants(self, scope: Scope) -> None:
        """Constants have one name in all graphs. A tensor is a weight, a number a value without a float type."""
        for graph in self.graphs:
            for node in graph.node:
                if node.op_type != "Constant" or not node.output:
                    continue
                given = view.attribute(node, "value")
                tensor = next((t for t in view.elements(given) if t is not None), None)
                if tensor is not None and given.type not in view.SEQUENCES:
                    value = self.value(node.output[0], scope, view.dtype_of(tensor), tensor, weight=True, native=node)
                    self.constants[node.output[0]] = value.id
                elif given is not None and given.type not in view.MONADS and tensor is None:
                    value = self.value(node.output[0], scope, NUMBER, weight=True, native=node)
                    self.constants[node.output[0]] = value.id
                else:
                    self.constants[node.output[0]] = None

    def _parameters(self, scope: Scope) -> None:
        for tensor in self.model.graph.parameter:
            key = tensor.ref_key or tensor.name
            if key in self.written:
                continue  # every Load may read something else: each is a value of its own
            value = self.value(key, scope, view.dtype_of(tensor), tensor, weight=True, parameter=True, native=tensor)
            self.parameters[key] = value.id

    def _parameter(self, tensor: Any) -> Item:
        return self.parameters.get(tensor.ref_key or tensor.name)

    def _written(self) -> set[str]:
        """Parameters that an operator with a side effect is given directly."""
        keys = {tensor.name: tensor.ref_key or tensor.name for tensor in self.model.graph.parameter}
        for graph in self.model.functions:
            keys |= {i.name: i.tensor[0].ref_key for i in graph.input if i.tensor and i.tensor[0].ref_key}
        found = set()
        for graph in self.graphs:
            for node in graph.node:
                entry = operator(self.kind(node))
                if entry is None or entry.effect:
                    structural = entry is None and self._calls(node)
                    found |= {keys[name] for name in node.input if name in keys and not structural}
        return found

    def _calls(self, node: Any) -> bool:
        return node.op_type.startswith("REF::") and view.reference(node) not in self.primitives

    def kind(self, node: Any) -> str:
        """The operator of a node; ``call`` for a function or a function value."""
        return view.kind_of(node, self.primitives)

    def _boundary_input(self, info: Any, position: int, scope: Scope) -> Item:
        tensor = info.tensor[0] if info.tensor else None
        if tensor is None:
            return None
        if tensor.ref_key and tensor.ref_key in self.parameters:
            return self.parameters[tensor.ref_key]
        short = info.name.split(":", 1)[-1]
        known = short in self.constants or short in self.parameters
        value = self.value(info.name if known else short, scope, view.dtype_of(tensor), tensor)
        scope.native.names[value.id] = info.name
        scope.inputs.append(value.id)
        if value.dtype == FLOAT32:
            value.unit = self._boundary_unit(f"input {position}", value.name, "a graph input keeps its type")
        return value.id

    def _boundary_unit(self, slot: str, name: str, why: str) -> int:
        if name in self.low_io:
            return self.flow.new_unit(NONE, slot, _ADMITS, fixed_low=True)
        return self.fixed_unit(slot, why)

    def _results(self, scope: Scope, env: dict[str, Item]) -> None:
        """Reads of what a graph returns, tuples opened."""
        for number, info in enumerate(scope.native.graph.output):
            self._returned(scope, env, Place(None, number), info.name)
        for index, (item, place) in enumerate(self._returns):
            if not isinstance(item, int):
                continue
            value, unit = self.flow.values[item], NONE
            if value.dtype == FLOAT32 and scope.kind == "main":
                unit = self._boundary_unit(f"output {index}", f"output {index}", "a graph output keeps its type")
            elif scope.kind == "function":
                unit = self.functions.result(scope.path, index, value)
            scope.outputs.append(value.id)
            scope.native.outputs.append(place)
            self.use(value, NONE, len(scope.native.outputs) - 1, unit, scope.id)

    def _returned(self, scope: Scope, env: dict[str, Item], place: Place, name: str) -> None:
        """Collects (item, place) behind the Depends and MakeTuples that a result goes through."""
        if place.node is None:
            self._returns: list[tuple[Item, Place]] = []
        maker = self.makers.get(name)
        kind = self.kind(maker) if maker is not None else ""
        if maker is not None and kind == "Depend":
            self._returned(scope, env, Place(maker, 0), maker.input[0])
        elif maker is not None and kind in view.TUPLES:
            for position, part in enumerate(maker.input):
                self._returned(scope, env, Place(maker, position), part)
        else:
            for item in view.flat(self.lookup(name)):
                self._returns.append((item, place))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Item:
        found = self.names.get(name)
        return self.constants.get(name) if found is None else found

    def _nodes(self, scope: Scope, env: dict[str, Item]) -> None:
        self.names = env
        self.makers: dict[str, Any] = {}
        for index, node in enumerate(scope.native.graph.node):
            if node.op_type == "Constant" or not node.output:
                continue
            kind = self.kind(node)
            entry = operator(kind)
            if kind == CALL or kind in ("Partial", "Switch"):
                env[node.output[0]] = self.functions.call(kind, node, index, scope)
            elif kind in view.TUPLES or (entry is not None and entry.structural):
                env[node.output[0]] = self._structural(kind, node, scope)
            else:
                env[node.output[0]] = self._operator(kind, entry, node, index, scope)
            self.makers[node.output[0]] = node

    def _structural(self, kind: str, node: Any, scope: Scope) -> Item:
        names = scope.native.names
        if kind in view.TUPLES:
            return tuple(self.lookup(name) for name in node.input)
        if kind == "Load" and self.lookup(node.input[0]) is None:  # of a parameter that is written
            tensor = next(view.elements(view.attribute(node, "shape")), None)
            value = self.value(node.output[0], scope, view.dtype_of(tensor), tensor)
            names[value.id] = node.output[0]
            if value.dtype == FLOAT32:
                value.unit = self.fixed_unit(f"parameter {value.name}", WRITTEN)
            return value.id
        item = self.lookup(node.input[0]) if kind in ("Load", "Depend", "TupleGetItem") else None
        if kind == "TupleGetItem":
            at = self.constant(node.input[1])
            item = (
                item[at] if isinstance(item, tuple) and isinstance(at, int) and -len(item) <= at < len(item) else None
            )
        if isinstance(item, int) and kind != "Depend":
            names.setdefault(item, node.output[0])
        return item

    def constant(self, name: str) -> Any:
        """The Python value of a Constant that is no tensor; None for anything else."""
        item = self.constants.get(name)
        value = self.flow.values[item] if isinstance(item, int) else None
        return view.number(view.attribute(value.native, "value")) if value and value.dtype == NUMBER else None

    def _operator(self, kind: str, entry: Operator | None, node: Any, index: int, scope: Scope) -> Item:
        op = Op(len(self.flow.ops), kind, scope.id, index, node.domain, [], [], role=entry.kind if entry else "")
        if entry is None:
            op.role = f"mindspore::{kind}"
            self.flow.unknown_kinds.add(kind)
        native = op.native = MindirOp(node, entry)
        self.flow.ops.append(op)
        slots = self._operands(op, native, entry, node)
        units = {slot: self._slot_unit(op, slot, indices, entry) for slot, indices in slots.items()}
        for slot, indices in slots.items():
            for position in indices:
                value = self.flow.values[op.inputs[position]]
                self.use(value, op.id, position, units[slot] if value.dtype == FLOAT32 else NONE, scope.id)
        return self._outputs(op, entry, node, units, scope)

    def _operands(self, op: Op, native: MindirOp, entry: Operator | None, node: Any) -> dict[str, list[int]]:
        """Fills in the operands, in the order of the role with tuples opened; slot -> their positions."""
        slots: dict[str, list[int]] = {}
        order = [*entry.order, *(i for i in range(len(node.input)) if i not in entry.order)] if entry else ()
        for operand in order or range(len(node.input)):
            if operand >= len(node.input):
                op.inputs.append(NONE)
                native.places.append(None)
                continue
            name = node.input[operand]
            item = native.operands[operand] = self.lookup(name)
            slot = entry.slot_of_input(operand) if entry else f"in{operand}"
            if item is None and name in self.written_names(op.scope):
                continue  # a parameter itself: it keeps its type, and so does its slot
            for part, place in self._parts(item, Place(node, operand), name):
                if isinstance(part, int):
                    op.inputs.append(part)
                    native.places.append(place)
                    if self.flow.values[part].dtype != NUMBER:
                        slots.setdefault(slot, []).append(len(op.inputs) - 1)
        return slots

    def written_names(self, scope: int) -> set[str]:
        """Names of written parameters in a scope."""
        graph = self.flow.scopes[scope].native.graph
        found = {t.name for t in graph.parameter if (t.ref_key or t.name) in self.written}
        return found | {i.name for i in graph.input if i.tensor and i.tensor[0].ref_key in self.written}

    def _parts(self, item: Item, place: Place, name: str) -> Iterable[tuple[Item, Place | None]]:
        """The elements of an operand with the places where each can be replaced; None where there is none."""
        if not isinstance(item, tuple):
            yield item, place
            return
        maker = self.makers.get(name)
        made = maker is not None and self.kind(maker) in view.TUPLES
        for position, part in enumerate(item):
            if isinstance(part, tuple) or not made:
                yield from ((inner, None) for inner in view.flat(part))
            else:
                yield part, Place(maker, position, (place.node, place.position))

    def _slot_unit(self, op: Op, slot: str, positions: list[int], entry: Operator | None) -> int:
        """The unit of a slot, NONE where it holds no float32; tells of a slot that holds two types."""
        values = [self.flow.values[op.inputs[position]] for position in positions]
        dtypes = {value.dtype for value in values if value.dtype in (FLOAT32, *LOW, "float64")}
        if entry is not None and slot != NO_SLOT and len(dtypes) > 1:
            self.flow.conflicts.append(f"{op.kind} '{op.name}': {slot} holds {' and '.join(sorted(dtypes))}")
        if FLOAT32 not in dtypes:
            return NONE
        fixed = ""
        if entry is None:
            fixed = f"nothing is known of {op.kind}"
        elif slot == NO_SLOT:
            fixed = "this operand stays as the file has it"
        elif any(self._is_written(op, operand, entry, slot) for operand in range(len(op.native.node.input))):
            fixed = WRITTEN
        unit = op.slots[slot] = self.flow.new_unit(op.id, slot, _NOTHING if fixed else _ADMITS, fixed=fixed)
        for position, value in zip(positions, values, strict=True):
            if op.native.places[position] is None and value.dtype == FLOAT32 and value.unit != NONE:
                self.flow.merge((unit, value.unit))  # an element of a tuple that is made elsewhere: no place for a cast
        return unit

    def _is_written(self, op: Op, operand: int, entry: Operator, slot: str) -> bool:
        name = op.native.node.input[operand]
        return entry.slot_of_input(operand) == slot and name in self.written_names(op.scope)

    def _outputs(self, op: Op, entry: Operator | None, node: Any, units: dict[str, int], scope: Scope) -> Item:
        """Values for the outputs, typed by slot where the table says so, else by the abstract."""
        abstract = view.attribute(node, "shape")
        multiple = abstract is not None and abstract.type in view.SEQUENCES
        named = self._named_dtype(entry, op)
        made: list[int | None] = []
        for number, tensor in enumerate(view.elements(abstract)):
            if tensor is None:
                made.append(None)
                continue
            slot = entry.slot_of_output(number) if entry else NO_SLOT
            slot = NO_SLOT if named else slot
            declared = view.dtype_of(tensor)
            name = f"{node.output[0]}[{number}]" if multiple else node.output[0]
            value = self.value(name, scope, declared, tensor, producer=op.id)
            made.append(value.id)
            op.outputs.append(value.id)
            if not multiple:
                scope.native.names[value.id] = node.output[0]
            self._type_output(op, value, slot, units, entry)
        if op.role == "Cast" and op.outputs:
            self._cast(op)
        return tuple(made) if multiple else (made[0] if made else None)

    def _named_dtype(self, entry: Operator | None, op: Op) -> bool:
        """Whether an operand fixes the type of the outputs."""
        if entry is None or "dtype" not in entry.attributes or op.role == "Cast":
            return False
        return self.attribute(op, "dtype") is not None

    def _type_output(self, op: Op, value: Value, slot: str, units: dict[str, int], entry: Operator | None) -> None:
        if is_slot(slot) and op.role != "Cast":
            held = self._slot_dtype(op, slot)
            if held and value.dtype != held and value.dtype in (FLOAT32, *LOW):
                self.flow.conflicts.append(f"{op.kind} '{op.name}': makes {held} of {slot}, not {value.dtype}")
            if value.dtype == FLOAT32:
                value.unit = units.get(slot, NONE)
                if value.unit == NONE:
                    value.unit = op.slots[slot] = self.fixed_unit(slot, WRITTEN, op.id)
                return
        elif is_slot(slot) is False and slot != NO_SLOT and value.dtype in LOW:
            self.flow.conflicts.append(f"{op.kind} '{op.name}': an output is {slot}, not {value.dtype}")
        if value.dtype == FLOAT32 and op.role != "Cast":
            why = f"nothing is known of {op.kind}" if entry is None else "this result is float32 whatever goes in"
            value.unit = op.slots[f"out{len(op.outputs) - 1}"] = self.fixed_unit(
                f"out{len(op.outputs) - 1}", why, op.id
            )

    def _slot_dtype(self, op: Op, slot: str) -> str:
        """The float type that the operands of a slot have, or an empty string."""
        native: MindirOp = op.native
        for position, source in enumerate(op.inputs):
            place = native.places[position]
            if source == NONE or place is None:
                continue
            operand = place.reader[1] if place.reader else place.position
            if native.operator.slot_of_input(operand) == slot and self.flow.values[source].dtype in (FLOAT32, *LOW):
                return self.flow.values[source].dtype
        return ""

    def _cast(self, op: Op) -> None:
        target = self.flow.values[op.outputs[0]]
        if target.dtype == FLOAT32:
            target.unit = op.slots["T2"] = self.flow.new_unit(op.id, "T2", _ADMITS)
        self.flow.given_cast(op, self.low)

    # -- attributes ---------------------------------------------------------------------------------------------------

    def attribute(self, op: Op, name: str) -> Any:
        """What the role calls an attribute, from an operand or the primitive; None when absent."""
        entry = op.native.operator
        place = entry.attributes.get(name) if entry is not None else None
        if place is None:
            return None
        if place.operand >= 0:
            node = op.native.node
            return self.constant(node.input[place.operand]) if place.operand < len(node.input) else None
        primitive = self.primitives.get(view.reference(op.native.node))
        found = view.attribute(primitive, place.attribute) if primitive is not None else None
        return view.number(found)
