"""The policy ``mindspore``: what `mindspore.amp.auto_mixed_precision` does, from the float32 file alone.

MindSpore assigns no types: it casts operands at certain places and lets types flow. So this walks the operators in
order until no type changes; a value that never was asked for starts low, and float32 wins where two types meet. None of
our guards, regions or cuts applies. Source of the rules: mindspore/train/amp.py of 2.10, and exports at every level.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Use, Value
from ...core.plan import Rounding, Why
from ...oplists.mindspore_lists import MindsporeRules, load_mindspore_rules
from ..state import HIGH, LIST, LOW, Options, State
from .mindspore_notes import notes

Cell = tuple[tuple[str, str], ...]


def decide_like_mindspore(flow: Dataflow, options: Options) -> State:
    """Every unit as MindSpore would type it, and in ``state.roundings`` what it rounds and widens again."""
    levels: dict[str, Callable[[Dataflow, Options], Rules]] = {"O1": _O1, "O2": _O2, "O3": _O3, "auto": _Auto}
    return levels[options.level.name](flow, options).decide()


class Rules(ABC):
    """One level. ``low`` holds the type of every unit while it is not settled."""

    entry = False  # whether float inputs are rounded on entry

    def __init__(self, flow: Dataflow, options: Options) -> None:
        self.flow, self.options = flow, options
        self.rules: MindsporeRules = load_mindspore_rules()
        self.state = State(flow, options)
        self.why: dict[int, str] = {}
        self.low = [True] * len(flow.units)
        for unit in flow.units:
            if unit.fixed or options.dtype not in unit.admits and not unit.fixed_low:
                self.low[flow.find(unit.id)] = False
                self.why[flow.find(unit.id)] = unit.fixed or f"its operator does not take {options.dtype}"
        self.cells: list[Cell] = [tuple(flow.cells(op)) for op in flow.ops]
        self.helped = {
            ".".join(name for name, _ in cells[:depth])
            for cells in self.cells
            for depth, (_, kind) in enumerate(cells, 1)
            if kind in self.rules.helper_cells
        }

    def decide(self) -> State:
        changed = True
        while changed:
            changed = False
            for op in self.flow.ops:
                changed |= self._settle(op)
            changed |= self._borders()
        for unit in self.flow.units:
            root = self.flow.find(unit.id)
            text = unit.fixed or self.why.get(root, "takes the type that comes")
            self.state.value[root] = LOW if self.is_low(unit.id) else HIGH
            self.state.rank[root], self.state.why[root] = LIST, Why("mindspore", text)
        for op in self.flow.ops:
            self.state.class_of_op[op.id] = "gray"
        self.state.seeded = True
        self.state.roundings = self._roundings()
        self.state.notes += notes(self)
        return self.state

    # -- types --------------------------------------------------------------------------------------------------------

    def is_low(self, unit: int) -> bool:
        return self.low[self.flow.find(unit)]

    def _raise(self, unit: int, why: str) -> bool:
        """A unit becomes float32; True when it was not."""
        root = self.flow.find(unit)
        if self.low[root]:
            self.low[root] = False
            self.why[root] = why
            return True
        return False

    def _settle(self, op: Op) -> bool:
        """Types the slots of an operator; True when one changed."""
        changed = False
        for slot, unit in op.slots.items():
            if self.is_low(unit) and (why := self._high(op, slot, unit)):
                changed |= self._raise(unit, why)
        return changed

    @abstractmethod
    def _high(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32, or an empty text."""

    def _borders(self) -> bool:
        """What is passed into and out of functions has the type that comes, float32 where two differ."""
        changed = False
        for source, target in self.flow.passed:
            unit = self.flow.values[target].unit
            if unit != NONE and self.is_low(unit) and not self._value_low(self.flow.values[source], NONE):
                changed |= self._raise(unit, "is given float32")
        return changed

    def _value_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader low."""
        if value.dtype != FLOAT32:
            return value.dtype == self.options.dtype
        return value.unit != NONE and self.is_low(value.unit)

    def _operands(self, op: Op, unit: int) -> list[Value]:
        """The values that an operator reads through one of its slots."""
        root = self.flow.find(unit)
        found = []
        for source in dict.fromkeys(op.inputs):
            if source != NONE and any(
                u.op == op.id and u.unit != NONE and self.flow.find(u.unit) == root for u in self.flow.uses[source]
            ):
                found.append(self.flow.values[source])
        return found

    def _wide(self, op: Op, unit: int, slot: str) -> str:
        """Types as they come: float32 where an operand is."""
        operands = self._operands(op, unit)
        if not operands:
            return "is made as float32"
        strong = [value for value in operands if not self._is_weak(value)] or operands
        wide = next((value for value in strong if not self._value_low(value, op.id)), None)
        return f"'{wide.name}' comes as float32" if wide else ""

    def _is_weak(self, value: Value) -> bool:
        """A constant without dimensions is a Python number: it takes the type of the other operand."""
        return value.weight and not value.parameter and value.shape == ()

    # -- roundings ----------------------------------------------------------------------------------------------------

    def _roundings(self) -> list[Rounding]:
        found = []
        for value in self.flow.values:
            if value.dtype != FLOAT32 or (value.unit != NONE and self.is_low(value.unit)):
                continue
            uses = [use for use in self.flow.uses[value.id] if self._reads_high(use) and self._rounds(value, use)]
            if uses:
                places = tuple(self.flow.place(use) for use in uses)
                found.append(Rounding(self.flow.scopes[value.scope].path, value.name, places))
        return found

    def _reads_high(self, use: Use) -> bool:
        return use.unit != NONE and not use.given_cast and not self.is_low(use.unit)

    def _rounds(self, value: Value, use: Use) -> bool:
        """Whether a float32 reader gets a float32 value rounded."""
        return False

    # -- what cells make -----------------------------------------------------------------------------------------------

    def parameters(self, op: Op) -> Iterator[tuple[str, str]]:
        """(owner, name) of the parameters that an operator reads: ``encoder.norm``, ``gamma``."""
        for source in op.inputs:
            if source != NONE and self.flow.values[source].parameter:
                owner, _, name = self.flow.values[source].name.rpartition(".")
                yield owner, name

    def black(self, op: Op) -> Cell:
        """The black cell that makes an operator float32, if one does."""
        return ()

    def reads_low(self, use: Use) -> bool:
        return use.unit != NONE and self.is_low(use.unit)

    def cell(self, op: Op, known: Mapping[str, frozenset[str]]) -> Cell:
        """The outermost cell around an operator that is one of ``known`` and makes such operators."""
        cells = self.cells[op.id]
        for depth, (_, kind) in enumerate(cells, 1):
            if op.kind in known.get(kind, ()):
                return cells[:depth]
        return ()


class _O1(Rules):
    """White operators and what white cells make are low, each result is float32 again."""

    def _high(self, op: Op, slot: str, unit: int) -> str:
        if op.role == "Cast":
            return self._wide(op, unit, slot) if slot == "T1" else "a conversion of the file"
        return "" if self._white(op) else "neither a white operator nor in a white cell"

    def _white(self, op: Op) -> bool:
        rules = self.rules
        if op.kind in rules.white_operators and self._by_helper(op):
            return False
        if op.kind in rules.white_operators or self.cell(op, rules.white_cells):
            return True
        outer = self.cells[op.id][:-1]
        return op.kind not in rules.python_operators and any(kind in rules.white_cells for _, kind in outer)

    def _by_helper(self, op: Op) -> bool:
        """Whether a function beside a cell's class made an operator: in the cell, or with the cell's parameters."""
        if any(kind in self.rules.helper_cells for _, kind in self.cells[op.id]):
            return True
        return any(owner in self.helped for owner, _ in self.parameters(op))

    def _borders(self) -> bool:
        """A function is given the low value where its own reader wants it so; what it returns is float32."""
        changed = False
        for source, target in self.flow.passed:
            value = self.flow.values[target]
            if value.unit == NONE or not self.is_low(value.unit):
                continue
            wanted = any(self.reads_low(use) for use in self.flow.uses[target])
            if value.producer != NONE or not wanted or not self._value_low(self.flow.values[source], NONE):
                changed |= self._raise(value.unit, "is float32 outside white cells")
        return changed


class _O3(Rules):
    """Everything low: inputs, parameters and constants are cast where they enter, results where they leave."""

    def _high(self, op: Op, slot: str, unit: int) -> str:
        if op.role == "Cast" and slot == "T2":
            return "a conversion of the file"
        if self.black(op):
            return "in a black cell"
        return self._wide(op, unit, slot)

    def _value_low(self, value: Value, reader: int) -> bool:
        """Parameters, constants, inputs and what leaves a black cell come low."""
        if value.dtype != FLOAT32:
            return super()._value_low(value, reader)
        if value.weight or (value.producer == NONE and value.scope == 0):
            return True
        if value.unit == NONE or self.is_low(value.unit):
            return True
        maker = self.flow.writer(value.id)
        if maker is None:
            return False
        cell = self.black(maker)
        if cell and (reader == NONE or self.black(self.flow.ops[reader]) != cell):
            return True
        return reader != NONE and self._enters(maker, reader)

    def _enters(self, maker: Op, reader: int) -> bool:
        """Whether a reader stands in a cell that the maker is outside of: such a cell casts what it is given. A black
        cell does not, and a Python operator stands where its scope says if another operand is made there too."""
        op = self.flow.ops[reader]
        black = self.black(op)
        inner = black[:-1] if black else self.cells[reader]
        if op.kind in self.rules.python_operators:
            makers = [self.flow.writer(source) for source in op.inputs if source != NONE]
            if not any(m is not None and self.cells[m.id][: len(inner)] == inner for m in makers):
                return False
        return self.cells[maker.id][: len(inner)] != inner

    def _wide(self, op: Op, unit: int, slot: str) -> str:
        operands = self._operands(op, unit)
        wide = next((value for value in operands if not self._value_low(value, op.id)), None)
        if not operands:
            return "is made as float32"
        return f"'{wide.name}' comes as float32" if wide else ""

    def _rounds(self, value: Value, use: Use) -> bool:
        """What entered the network, a cell or left a black cell is low before it is float32 again."""
        reader = self.flow.ops[use.op] if use.op != NONE else None
        black = bool(reader is not None and self.black(reader))
        if value.weight:
            return reader is None and value.parameter
        if value.producer == NONE:
            return value.scope == 0 and value.unit != NONE and "parameter" not in self.flow.units[value.unit].slot
        maker = self.flow.writer(value.id)
        assert maker is not None
        cell = self.black(maker)
        if cell:
            return reader is None or self.black(reader) != cell
        return black and reader is not None and self._enters(maker, reader.id)


class _O2(_O3):
    """As O3, but for what black cells make."""

    def black(self, op: Op) -> Cell:
        return self.cell(op, self.rules.black_cells) or self._derived(op)

    def _derived(self, op: Op) -> Cell:
        """The cell of a class that a user derived from a black one: it owns the scale of its norm."""
        cells = self.cells[op.id]
        if not cells or not any(op.kind in made and op.kind in kind for kind, made in self.rules.black_cells.items()):
            return ()
        path = ".".join(name for name, _ in cells)
        return cells if (path, "gamma") in self.parameters(op) else ()


class _Auto(Rules):
    """By operator; what is in no list takes the types that come."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        super().__init__(flow, options)
        for unit in flow.units:  # results keep the type that they have
            if unit.op == NONE and unit.slot.startswith("output "):
                self.low[unit.id] = True
        self.outputs = {u.id for u in flow.units if u.op == NONE and u.slot.startswith("output ")}

    def black(self, op: Op) -> Cell:
        """The operator itself, where it is a black one."""
        return ((op.name, op.kind),) if op.kind in self.rules.auto_black else ()

    def _borders(self) -> bool:
        changed = super()._borders()
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                if use.unit in self.outputs and self.is_low(use.unit) and not self._value_low(value, NONE):
                    changed |= self._raise(use.unit, "this result is float32")
        return changed

    def _high(self, op: Op, slot: str, unit: int) -> str:
        if op.role == "Cast" and slot == "T2":
            return "a conversion of the file"
        if op.kind in self.rules.auto_white:
            return ""
        if op.kind in self.rules.auto_black:
            return f"{op.kind} is black"
        return self._wide(op, unit, slot)

    def _rounds(self, value: Value, use: Use) -> bool:
        """Norms that give their scale and shift the type of their input round them before they are float32 again."""
        if not value.parameter or use.op == NONE:
            return False
        op = self.flow.ops[use.op]
        cells = self.cells[op.id]
        if not cells or cells[-1][1] not in self.rules.follow_cells or op.kind != cells[-1][1]:
            return False
        return bool(op.inputs) and self._value_low(self.flow.values[op.inputs[0]], op.id)
