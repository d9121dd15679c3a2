"""How MindSpore types operators at each of its levels, and where that cannot be read from a file.

MindSpore assigns no types: it casts operands at certain places and lets types flow. Source of the rules:
mindspore/train/amp.py of 2.10, and exports at every level. Each note names one thing in the file that MindSpore would
type from what it knows of the network's Python objects, and only where the two types are really in question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Use, Value
from ...core.graph import LOW
from ...core.low_types import numpy_type
from ...core.plan import Note
from ...core.walk import downstream
from ...oplists.mindspore_lists import load_mindspore_rules
from ...oplists.options import Options
from ...oplists.traits import Traits
from ..classify import forward_of, tied_to_forward
from .forward import ForwardTypes


class Rules(ForwardTypes):
    """How MindSpore types operators at one level. ``cells``: the modules around every operator."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        for op in flow.ops:
            for units in tied_to_forward(flow, op):
                flow.merge(units)
        super().__init__(flow, options)
        self.rules = load_mindspore_rules()
        self._ranges: dict[int, bool] = {}
        self.cells = placed(flow, options.lists.traits)
        for op in flow.ops:
            self.cells[op.id] = self.cells[forward_of(flow, op).id]
        self.helped = {
            path
            for cells in self.cells
            for depth, (_, kind) in enumerate(cells, 1)
            if kind in self.rules.helper_cells
            for path in paths(cells[:depth], self.rules.containers)
        }

    def _settle_op(self, op: Op) -> bool:
        """Gradients follow their forward operators; a sum of them has the type of the value that they are of."""
        if op.follows != NONE:
            return False
        if op.adds_for == NONE:
            return super()._settle_op(op)
        if self.adds_low(self.flow.values[op.adds_for]):
            return False
        changed = [self.make_float32(unit, "adds gradients of what is float32") for unit in op.slots.values()]
        return any(changed)

    def adds_low(self, value: Value) -> bool:
        """Whether gradients of a value are added low: where it is low itself, whoever reads it (hence `NONE`)."""
        return self.comes_low(value, NONE)

    def converts(self, op: Op) -> bool:
        """Whether an operator is a conversion of the file."""
        return self.options.lists.traits.has(op.role, "casts")

    def _is_rounded(self, value: Value, use: Use) -> bool:
        """Whether MindSpore gives a reader a value rounded: one outside the network only what the network gives."""
        if use.op != NONE and self.flow.ops[use.op].held:
            maker = self.flow.writer(value.id)
            if maker is None or maker.held or maker.follows != NONE or maker.adds_for != NONE:
                return False
        return self._rounds(value, use)

    def _rounds(self, value: Value, use: Use) -> bool:
        """Whether MindSpore rounds a float32 value before a reader, by a cast to the low type and back; here none."""
        return False

    # -- what cells make -----------------------------------------------------------------------------------------------

    def parameters(self, op: Op) -> Iterator[tuple[str, str]]:
        """(owner, name) of the MindSpore parameters that an operator reads: ``encoder.norm``, ``gamma``."""
        for source in op.inputs:
            if source != NONE and self.flow.values[source].parameter:
                owner, _, name = self.flow.values[source].name.rpartition(".")
                yield owner, name

    def black(self, op: Op) -> Cell:
        """The black cell that makes an operator float32, if one does."""
        return ()

    def reads_low(self, use: Use) -> bool:
        """Whether MindSpore has an operator read through this use in the low type."""
        return use.unit != NONE and self.is_low(use.unit)

    def cell(self, op: Op, known: Mapping[str, frozenset[str]]) -> Cell:
        """The outermost cell around an operator that is one of ``known`` and makes operators of its kind."""
        cells = self.cells[op.id]
        for depth, (_, kind) in enumerate(cells, 1):
            if op.kind in known.get(kind, ()):
                return cells[:depth]
        return ()


class O0(Rules):
    """MindSpore's level O0: nothing is cast."""

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Always: nothing is low at this level."""
        return "nothing is asked to be low at this level"

    def _settle_boundaries(self) -> bool:
        """Makes every unit float32."""
        changed = [self.make_float32(unit.id, "nothing is asked to be low at this level") for unit in self.flow.units]
        return any(changed)


class O1(Rules):
    """MindSpore's level O1: white operators and what white cells make are low, each result is float32 again."""

    def adds_low(self, value: Value) -> bool:
        """Never: results are float32 again here, and so are the gradients that meet."""
        return False

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Float32 but for white operators and white cells; a Cast of the file keeps its result's type."""
        if self.converts(op):
            return self.widest(op, unit) if slot == "T1" else "a conversion of the file"
        if self._unreached(op):
            return "in a list of lists or a dictionary, where O1 does not look"
        return "" if self._white(op) else "neither a white operator nor in a white cell"

    def _unreached(self, op: Op) -> bool:
        """Whether the rewriter that O1 is does not find the cell around an operator: it is in a container that it does
        not enter, or that stands inside another one (`mindspore.toml`: unreached_containers, unreached_inside)."""
        kinds = [kind for _, kind in self.cells[op.id]]
        nested = any(
            outer in self.rules.containers and inner in self.rules.unreached_inside for outer, inner in pairwise(kinds)
        )
        return nested or not self.rules.unreached_containers.isdisjoint(kinds)

    def _white(self, op: Op) -> bool:
        """Whether O1 makes an operator low: it is white, or a primitive in a white cell, and no helper's."""
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

    def _settle_boundaries(self) -> bool:
        """A function is given the low value where its own reader wants it so; what it returns is float32."""
        changed = False
        for source, target in self.flow.passed:
            value = self.flow.values[target]
            if value.unit == NONE or not self.is_low(value.unit):
                continue
            wanted = any(self.reads_low(use) for use in self.flow.uses[target])
            if value.producer != NONE or not wanted or not self.comes_low(self.flow.values[source], NONE):
                changed |= self.make_float32(value.unit, "is float32 outside white cells")
        return changed


class O3(Rules):
    """MindSpore's level O3: everything low; inputs, parameters and constants are cast where they enter, results where
    they leave."""

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Low but for black cells and what a Cast of the file says."""
        if self.converts(op) and slot == "T2":
            return "a conversion of the file"
        if self.black(op):
            return "in a black cell"
        return self.widest(op, unit)

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader low: parameters, constants, inputs and what leaves a black cell do."""
        if value.dtype != FLOAT32:
            return super().comes_low(value, reader)
        if value.weight:
            return not self.stays(value, reader)
        if value.producer == NONE and value.scope == 0:
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

    def stays(self, value: Value, reader: int) -> bool:
        """Whether a stored tensor is not cast for a reader: a parameter that a class of the user's own hands to a
        function, and a constant that the network makes, as `ops.arange` does."""
        if reader == NONE:
            return False
        op = self.flow.ops[reader]
        if value.parameter:
            return op.kind in self.rules.function_operators and self.is_bare(op, value)
        return self.is_range(value) and not self.inside(op)

    def is_range(self, value: Value) -> bool:
        """Whether a constant of a MindSpore network counts in whole steps."""
        if value.id not in self._ranges:
            self._ranges[value.id] = _counts_in_steps(self.flow, value)
        return self._ranges[value.id]

    def inside(self, op: Op) -> bool:
        """Whether an operator is MindSpore's own: of a layer, or a norm that was given no scale and shift."""
        return op.kind in self.rules.norms or any(kind in self.rules.layers for _, kind in self.cells[op.id])

    def is_bare(self, op: Op, value: Value) -> bool:
        """Whether a class of the user's own reads a parameter that it was not handed: such a cell casts what it is
        given."""
        cells = self.cells[op.id]
        if not is_within(value.name.rpartition(".")[0], cells, self.rules.containers):
            return False
        return not cells or cells[-1][1] not in self.rules.layers

    def _enters(self, maker: Op, reader: int) -> bool:
        """Whether a reader stands in a MindSpore cell that the maker is outside of: such a cell casts what it is given.
        A black cell does not, and a Python operator stands where its scope says if another operand is made there too.
        """
        op = forward_of(self.flow, self.flow.ops[reader])
        black = self.black(op)
        inner = black[:-1] if black else self.cells[reader]
        if op.kind in self.rules.python_operators:
            makers = [self.flow.writer(source) for source in op.inputs if source != NONE]
            if not any(m is not None and self.cells[m.id][: len(inner)] == inner for m in makers):
                return False
        return self.cells[maker.id][: len(inner)] != inner

    def widest(self, op: Op, unit: int) -> str:
        """A scalar constant counts as any other."""
        return self.float32_among(op, self.operands(op, unit))

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


class O2(O3):
    """MindSpore's level O2: as O3, but for what black cells make."""

    def black(self, op: Op) -> Cell:
        """The black cell of MindSpore that an operator is in, for a gradient its forward operator; empty for none."""
        op = forward_of(self.flow, op)
        return self.cell(op, self.rules.black_cells) or self._derived(op)

    def _derived(self, op: Op) -> Cell:
        """The cell, if the user derived its class from a black one: then it owns its norm's scale."""
        cells = self.cells[op.id]
        if not cells or not any(op.kind in made and op.kind in kind for kind, made in self.rules.black_cells.items()):
            return ()
        owners = [owner for owner, name in self.parameters(op) if name == "gamma"]
        return cells if any(is_of(owner, cells, self.rules.containers) for owner in owners) else ()


class Auto(Rules):
    """MindSpore's level auto, by operator; what is in no list takes the types that come."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        super().__init__(flow, options)
        read = (use for value in flow.scopes[0].outputs for use in flow.uses[value])
        self.outputs = {use.unit for use in read if use.op == NONE and use.scope == 0} - {NONE}
        for unit in self.outputs:  # results keep the type that they have
            self.low[unit] = True

    def black(self, op: Op) -> Cell:
        """The operator itself, where it is a black one."""
        op = forward_of(self.flow, op)
        return ((op.name, op.kind),) if op.kind in self.rules.auto_black else ()

    def _settle_boundaries(self) -> bool:
        """Results take the type that comes: float32 where what makes them is."""
        changed = super()._settle_boundaries()
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                if use.unit in self.outputs and self.is_low(use.unit) and not self.comes_low(value, NONE):
                    changed |= self.make_float32(use.unit, "this result is float32")
        return changed

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32 at level auto, by MindSpore's own lists; an operator in none takes the widest type of
        its operands."""
        if self.converts(op) and slot == "T2":
            return "a conversion of the file"
        if op.kind in self.rules.auto_white:
            return ""
        if op.kind in self.rules.auto_black:
            return f"{op.kind} is black"
        return self.widest(op, unit)

    def _rounds(self, value: Value, use: Use) -> bool:
        """Norms that give their scale and shift the type of their input round them before they are float32 again."""
        if not value.parameter or use.op == NONE:
            return False
        op = self.flow.ops[use.op]
        cells = self.cells[op.id]
        if not cells or cells[-1][1] not in self.rules.follow_cells or op.kind != cells[-1][1]:
            return False
        return bool(op.inputs) and self.comes_low(self.flow.values[op.inputs[0]], op.id)


def _counts_in_steps(flow: Dataflow, value: Value) -> bool:
    """Whether a stored tensor counts up or down in whole steps, as what a MindSpore network makes by `ops.arange`."""
    array = flow.weights.array(value) if value.shape else None
    if array is None or array.size < 2:
        return False
    steps = np.diff(array.reshape(-1))
    return bool(steps[0] != 0 and float(steps[0]).is_integer() and (steps == steps[0]).all())


LEVELS: Mapping[str, type[Rules]] = {"O0": O0, "O1": O1, "O2": O2, "O3": O3, "auto": Auto}


Cell = tuple[tuple[str, str], ...]
"""(name, class) of the cells around an operator, from the outermost one."""


@lru_cache(maxsize=1024)
def _owner_pattern(cells: Cell, containers: Set[str], end: str) -> re.Pattern[str]:
    """What the owners of a MindSpore cell's parameters look like. Names are not compared, as cells of one class may
    have the scope of the first: a number stands for any number, another name for any other."""
    parts = [r"(?:^|(?<=\.))" if cells else "^"]
    for name, kind in cells:
        if kind in containers:
            parts.append(rf"(?:{re.escape(name)}\.)?")
        else:
            parts.append(r"\d+\." if name.isdigit() else r"(?!\d+\.)[^.]+\.")
    return re.compile("".join(parts) + end)


def placed(flow: Dataflow, traits: Traits) -> list[Cell]:
    """The MindSpore cells around every operator. What is given a cell's value and hands it back to that cell is called
    there, unless its own cell is inside: a value that leaves a cell does not come back."""
    cells: list[Cell] = [tuple(flow.cells(op)) for op in flow.ops]
    for op in flow.ops:
        maker = flow.writer(op.inputs[0]) if op.inputs and op.inputs[0] != NONE else None
        if maker is not None and traits.has(op.role, "reshapes"):
            home = cells[maker.id]
            if not _is_inside(cells[op.id], home) and _is_read_in_cell(flow, traits, op, home, cells):
                cells[op.id] = home
    return cells


def _is_read_in_cell(flow: Dataflow, traits: Traits, op: Op, home: Cell, cells: list[Cell]) -> bool:
    """Whether what an operator passes on is read in a cell, through others that only pass it on."""
    reshapes = traits.operators("reshapes")
    uses = downstream(flow, op.outputs[:1], lambda reader: reader.outputs[:1] if reader.role in reshapes else ())
    return any(use.op != NONE and _is_inside(cells[use.op], home) for use in uses)


def _is_inside(cells: Cell, home: Cell) -> bool:
    """Whether the MindSpore cells around an operator are those of ``home``, or inside them."""
    return cells[: len(home)] == home


def paths(cells: Cell, containers: Set[str]) -> set[str]:
    """What the names of a MindSpore cell's own parameters begin with: with its lists (cells of a class among
    ``containers``), or without them, as `blocks.0` and `0`."""
    return {".".join(name for name, kind in cells if kind not in left_out) for left_out in (containers, frozenset())}


def is_of(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner`` (the path before a parameter's name, `blocks.0.norm`) is the last one of MindSpore's ``cells``
    (name and class of each, the outermost first). A path may leave out cells of a class among ``containers``."""
    return _owner_pattern(cells, containers, "$").search(_owner_prefix(owner)) is not None


def is_within(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner``, as of `is_of`, is the last one of MindSpore's ``cells`` or inside that one. If not, the
    parameter is one of an outer cell, which handed it to an inner one as an argument."""
    return _owner_pattern(cells, containers, "").search(_owner_prefix(owner)) is not None


def _owner_prefix(owner: str) -> str:
    """The attribute path of a MindSpore cell as it stands before a parameter's name; empty for the network itself."""
    return f"{owner}." if owner else ""


TOPIC = "mindspore"
CLASSES = 3
"""How many classes of a network a note names."""
OWN_CLASS = "the network's own class"


def notes(rules: Rules) -> list[Note]:
    """All notes of the policy MindSpore on a model whose units are settled."""
    level = rules.options.level.name
    found = list(_given_low(rules, level)) if level != "O1" else list(_by_source(rules))
    if level in ("O1", "O2"):
        found += _unplaced(rules, level)
    if isinstance(rules, O3):
        found += [*_made_tensors(rules), *_parameters_of_functions(rules), *_softmax_notes(rules)]
    if level != "O1":
        found += _scalar_notes(rules)
    return found


def _node_in_note(op: Op) -> str:
    """How a note of the policy MindSpore names an operator."""
    return op.name or op.kind


def _by_source(rules: Rules) -> Iterator[Note]:
    """A note on what is low at O1: MindSpore rewrites the source of the network's classes there, of which a file has
    the names alone."""
    low = [op for op in rules.flow.ops if any(map(rules.is_low, op.slots.values())) and not rules.converts(op)]
    if not low:
        return
    kinds, classes = (Counter(words).most_common() for words in ([op.kind for op in low], _class_names(rules, low)))
    told = [kind for kind, _ in classes[:CLASSES]]
    told += [f"{len(classes) - CLASSES} more"] if len(classes) > CLASSES else []
    named = " and ".join(filter(None, (", ".join(told), OWN_CLASS)))
    text = (
        f"{len(low)} low by their scopes; MindSpore's O1 goes by the source of {named}, which no "
        "file holds: float32 is what it calls in an inherited method, by an index or in 'a if b else c'"
    )
    yield Note(TOPIC, ", ".join(f"{count} {kind}" for kind, count in kinds), text)


def _class_names(rules: Rules, ops: list[Op]) -> Iterator[str]:
    """The class that each operator, or the layer that makes it, is called in; the network's own has no name."""
    for op in ops:
        kinds = [kind for _, kind in rules.cells[op.id] if kind not in rules.rules.containers]
        while kinds and (kinds[-1] == op.kind or kinds[-1] in rules.rules.layers):
            kinds.pop()
        yield from kinds[-1:]


def _unplaced(rules: Rules, level: str) -> Iterator[Note]:
    """Operators that a listed cell may have made, in a file that does not say which cell did."""
    lists = rules.rules
    cells = lists.white_cells if level == "O1" else lists.black_cells
    kinds = {kind for made in cells.values() for kind in made} - lists.white_operators
    kinds -= rules.options.lists.traits.operators("reshapes") if level == "O2" else set()
    words = f"{rules.options.dtype} in a white cell" if level == "O1" else "float32 in a black cell"
    bare = []
    for op in rules.flow.ops:
        if op.kind not in kinds or not op.slots or rules.cell(op, cells):
            continue
        around = rules.cells[op.id], lists.containers
        if not op.name:
            bare.append(op)
        elif any(is_within(owner, *around) and not is_of(owner, *around) for owner, _ in rules.parameters(op)):
            yield Note(
                TOPIC, op.name, f"the scope leaves out the cell of its parameters: in MindSpore {op.kind} is {words}"
            )
    if bare:
        text = f"{len(bare)} of these have no scope: if a listed cell made them, they are {words}"
        yield Note(TOPIC, bare[0].kind, text)


def _given_low(rules: Rules, level: str) -> Iterator[Note]:
    """What the file computes low, and MindSpore would compute in float32 from the network itself."""
    flow = rules.flow
    for op in flow.ops:
        if any(flow.values[source].dtype in LOW for source in op.inputs if source != NONE) and rules.black(op):
            yield Note(
                TOPIC,
                _node_in_note(op),
                "is low in the file and stays so; MindSpore computes it in float32 at this level",
            )
    if level != "auto":
        for number, value in enumerate(flow.scopes[0].outputs):
            if flow.values[value].dtype in LOW:
                yield Note(TOPIC, f"output {number}", "is low in the file and stays so; MindSpore returns float32")


def _softmax_notes(rules: O3) -> Iterator[Note]:
    """Networks often write ``x.astype(float32)`` before these: of what is float32 already, that leaves no trace."""
    traits = rules.options.lists.traits
    found = [op for op in rules.flow.ops if traits.has(op.role, "softmaxes")]
    low = [op for op in found if any(map(rules.is_low, op.slots.values()))]
    if low:
        text = f"{len(low)} {low[0].kind} low here; MindSpore computes in float32 what the network itself casts to it"
        yield Note(TOPIC, _node_in_note(low[0]), text)


def _made_tensors(rules: O3) -> Iterator[Note]:
    """Notes on constants as `ops.ones` or `ops.arange` make them, which keep a type that was asked for."""
    for value in rules.flow.values:
        if not value.weight or value.parameter or not value.shape or value.dtype != FLOAT32:
            continue
        uses = [use for use in rules.flow.uses[value.id] if use.op != NONE and use.unit != NONE]
        uses = [use for use in uses if not rules.inside(rules.flow.ops[use.op])]
        if not uses or not (rules.is_range(value) or any(map(rules.reads_low, uses)) and _is_even(rules, value)):
            continue
        kept = "float32" if rules.is_range(value) else "low"
        text = (
            f"a constant in even steps: {kept} here; MindSpore keeps one that the network makes, and casts an attribute"
        )
        yield Note(TOPIC, f"{_node_in_note(rules.flow.ops[uses[0].op])}, input {uses[0].index}", text)


def _is_even(rules: Rules, value: Value) -> bool:
    """Whether a MindSpore network's constant is one number, or goes in even steps, as of `ops.ones`, `ops.linspace`."""
    array = rules.flow.weights.array(value)
    if array is None or array.size < 2:
        return False
    steps = np.diff(array.reshape(-1))
    return bool(np.allclose(steps, steps[0], rtol=1e-3, atol=0))


def _scalar_notes(rules: Rules) -> Iterator[Note]:
    """Tensors without dimensions beside a low operand: as a tensor of the network's own they stay float32."""
    flow = rules.flow
    for op in flow.ops:
        if op.kind not in rules.rules.scaled or not any(rules.is_low(unit) for unit in op.slots.values()):
            continue
        readers = {reader.kind for value in op.outputs for reader in flow.readers(value)}
        for source in op.inputs:
            value = flow.values[source]
            if not value.weight or value.parameter or value.shape != () or value.dtype != FLOAT32:
                continue
            number = flow.scalar(source)
            exact = number is None or float(np.asarray(number, numpy_type(rules.options.dtype))) == number
            if exact or readers & rules.rules.number_functions:
                continue  # GELU and LeakyReLU: functions whose numbers take the other operand's type
            text = f"{number:.7g} is rounded; MindSpore keeps it float32 if the network makes a tensor of it"
            yield Note(TOPIC, _node_in_note(op), text)


def _parameters_of_functions(rules: O3) -> Iterator[Note]:
    """Parameters that a network may have handed to a function: only what a primitive reads is cast."""
    for value in rules.flow.values:
        if not value.parameter or value.dtype != FLOAT32:
            continue
        told = next(filter(None, (_handed(rules, value, use) for use in rules.flow.uses[value.id])), None)
        if told is not None:
            yield told


def _handed(rules: O3, value: Value, use: Use) -> Note | None:
    """A note on what is assumed of one read of a parameter, where MindSpore might do otherwise; None where it does
    not."""
    op = rules.flow.ops[use.op] if use.op != NONE else None
    if op is None or use.unit == NONE or op.kind in rules.rules.parameter_operators | rules.rules.norms:
        return None
    if rules.stays(value, op.id):
        text = f"'{value.name}' is float32 here, as MindSpore hands it to a function; it casts it for a primitive"
    elif rules.reads_low(use) and rules.is_bare(op, value):
        text = f"'{value.name}' is low here; MindSpore casts it for a primitive, and not for a function or a method"
    else:
        return None
    return Note(TOPIC, _node_in_note(op), text)
