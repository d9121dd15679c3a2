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
    """How MindSpore types operators at one level. ``cells``: by an operator's id, the cells around it (around a
    gradient's forward operator); ``helper_prefixes``: what names of parameters of ``helper_cells`` begin with."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        for op in flow.ops:
            for units in tied_to_forward(flow, op):
                flow.merge(units)
        super().__init__(flow, options)
        self.lists = load_mindspore_rules()
        self._ranges: dict[int, bool] = {}  # by value id, what `is_range` has answered
        self.cells = cells_of_operators(flow, options.lists.traits)
        for op in flow.ops:
            self.cells[op.id] = self.cells[forward_of(flow, op).id]
        self.helper_prefixes = set[str]()
        for cells in set(self.cells):
            for depth, (_, kind) in enumerate(cells, 1):
                if kind in self.lists.helper_cells:
                    self.helper_prefixes |= parameter_prefixes(cells[:depth], self.lists.containers)

    def _settle_op(self, op: Op) -> bool:
        """Types an operator's slots; True when one changed. A gradient is tied to its forward operator and needs no
        rule; a sum of gradients has the type of the value that they are gradients of."""
        if op.follows != NONE:
            return False
        if op.adds_for == NONE:
            return super()._settle_op(op)
        if self.adds_low(self.flow.values[op.adds_for]):
            return False
        changed = [self.make_float32(unit, "adds gradients of what is float32") for unit in op.slots.values()]
        return any(changed)

    def adds_low(self, value: Value) -> bool:
        """Whether MindSpore adds the gradients of a value low: where the value is low itself."""
        return self.comes_low(value, NONE)

    def is_cast(self, op: Op) -> bool:
        """Whether an operator is a conversion of the MindSpore file, with slots T1 (operand) and T2 (result)."""
        return self.options.lists.traits.has(op.role, "casts")

    def _is_rounded(self, value: Value, use: Use) -> bool:
        """Whether MindSpore gives a reader a value rounded. A reader outside of the network (`Op.held`, as those of a
        loss) gets rounded only what a forward operator of the network makes."""
        if use.op != NONE and self.flow.ops[use.op].held:
            maker = self.flow.writer(value.id)
            if maker is None or maker.held or maker.follows != NONE or maker.adds_for != NONE:
                return False
        return self._rounds(value, use)

    def _rounds(self, value: Value, use: Use) -> bool:
        """Whether MindSpore rounds a float32 value before a float32 reader; never, unless a level says otherwise."""
        return False

    # -- what cells make -----------------------------------------------------------------------------------------------

    def parameters(self, op: Op) -> Iterator[tuple[str, str]]:
        """Yields (owner, name) of the MindSpore parameters that an operator reads: ``encoder.norm``, ``gamma``."""
        for source in op.inputs:
            if source != NONE and self.flow.values[source].parameter:
                owner, _, name = self.flow.values[source].name.rpartition(".")
                yield owner, name

    def black(self, op: Op) -> Cell:
        """The cells down to the black one that makes an operator float32; empty, unless a level says otherwise."""
        return ()

    def reads_low(self, use: Use) -> bool:
        """Whether MindSpore has an operator read through this use in the low type."""
        return use.unit != NONE and self.is_low(use.unit)

    def listed_cell(self, op: Op, made: Mapping[str, frozenset[str]]) -> Cell:
        """The cells around an operator down to the outermost one whose class ``made`` lists (class of a MindSpore cell
        -> operators that it makes) with operators of this kind; empty if there is none."""
        cells = self.cells[op.id]
        for depth, (_, kind) in enumerate(cells, 1):
            if op.kind in made.get(kind, ()):
                return cells[:depth]
        return ()


class O0(Rules):
    """MindSpore's level O0: nothing is cast."""

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32 at MindSpore's O0: always, as nothing is low."""
        return "nothing is asked to be low at this level"

    def _settle_boundaries(self) -> bool:
        """Makes every unit float32, those without an operator too; True when one changed."""
        changed = [self.make_float32(unit.id, "nothing is asked to be low at this level") for unit in self.flow.units]
        return any(changed)


class O1(Rules):
    """MindSpore's level O1: white operators and what white cells make are low, each result is float32 again."""

    def adds_low(self, value: Value) -> bool:
        """Whether gradients are added low: never, as every result is float32 again at MindSpore's O1."""
        return False

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32 at MindSpore's O1: neither white nor in a white cell; "" for low."""
        if self.is_cast(op):
            return self.widest(op, unit) if slot == "T1" else "a conversion of the file"
        if self._is_unreached(op):
            return "in a list of lists or a dictionary, where O1 does not look"
        return "" if self._is_white(op) else "neither a white operator nor in a white cell"

    def _is_unreached(self, op: Op) -> bool:
        """Whether MindSpore's O1, which rewrites the source of cells, misses the one around an operator: in a container
        of `unreached_containers`, or of `unreached_inside` right inside another container (`mindspore.toml`)."""
        kinds = [kind for _, kind in self.cells[op.id]]
        for outer, inner in pairwise(kinds):
            if outer in self.lists.containers and inner in self.lists.unreached_inside:
                return True
        return not self.lists.unreached_containers.isdisjoint(kinds)

    def _is_white(self, op: Op) -> bool:
        """Whether MindSpore's O1 makes an operator low: a white one that no helper function computes, what a white cell
        is known to make, or any primitive of a cell inside a white cell."""
        lists = self.lists
        if op.kind in lists.white_operators and self._is_by_helper(op):
            return False
        if op.kind in lists.white_operators or self.listed_cell(op, lists.white_cells):
            return True
        outer = self.cells[op.id][:-1]
        return op.kind not in lists.python_operators and any(kind in lists.white_cells for _, kind in outer)

    def _is_by_helper(self, op: Op) -> bool:
        """Whether a function beside a MindSpore cell's class, as of LSTM, computes an operator."""
        if any(kind in self.lists.helper_cells for _, kind in self.cells[op.id]):
            return True
        return any(owner in self.helper_prefixes for owner, _ in self.parameters(op))

    def _settle_boundaries(self) -> bool:
        """Makes float32 at MindSpore's O1 what functions return, and what they are given unless it comes low and one of
        their operators reads it low. True when a unit changed."""
        changed = False
        for source, target in self.flow.passed:
            value = self.flow.values[target]
            if value.unit == NONE or not self.is_low(value.unit):
                continue
            returned = value.producer != NONE
            read_low = any(self.reads_low(use) for use in self.flow.uses[target])
            if returned or not read_low or not self.comes_low(self.flow.values[source], NONE):
                changed |= self.make_float32(value.unit, "is float32 outside white cells")
        return changed


class O3(Rules):
    """MindSpore's level O3: all is low; inputs, parameters and constants are cast as they enter, results at the end."""

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32 at MindSpore's O3 and O2: a file's Cast, a black cell, or an operand; "" for low."""
        if self.is_cast(op) and slot == "T2":
            return "a conversion of the file"
        if self.black(op):
            return "in a black cell"
        return self.widest(op, unit)

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader (an operator's id; `NONE`: a boundary) low: it is low, or MindSpore casts
        it: inputs, stored tensors (see `stays_float32`), what leaves a black cell or enters a cell of MindSpore's."""
        if value.dtype != FLOAT32:
            return super().comes_low(value, reader)
        if value.weight:
            return not self.stays_float32(value, reader)
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
        return reader != NONE and self._enters_cell(maker, reader)

    def stays_float32(self, value: Value, reader: int) -> bool:
        """Whether MindSpore does not cast a stored tensor for a reader (`NONE`: a boundary, for which it does): a
        parameter that a user's class hands to a function, and a constant that one makes, as by `ops.arange`."""
        if reader == NONE:
            return False
        op = self.flow.ops[reader]
        if value.parameter:
            return op.kind in self.lists.function_operators and self.reads_own_parameter(op, value)
        return self.is_range(value) and not self.is_of_layer(op)

    def is_range(self, value: Value) -> bool:
        """Whether a constant of a MindSpore network counts in equal whole steps, as `ops.arange` does; asked once."""
        if value.id not in self._ranges:
            self._ranges[value.id] = _counts_in_steps(self.flow, value)
        return self._ranges[value.id]

    def is_of_layer(self, op: Op) -> bool:
        """Whether constants that an operator reads are MindSpore's own: it is in a layer of MindSpore's, or a norm,
        which reads such constants where it was given no scale and shift."""
        return op.kind in self.lists.norms or any(kind in self.lists.layers for _, kind in self.cells[op.id])

    def reads_own_parameter(self, op: Op, value: Value) -> bool:
        """Whether a class of the user's own reads a parameter that is its own or an inner cell's. A MindSpore cell that
        is handed a parameter as an argument casts it."""
        cells = self.cells[op.id]
        if not is_within(value.name.rpartition(".")[0], cells, self.lists.containers):
            return False
        return not cells or cells[-1][1] not in self.lists.layers

    def _enters_cell(self, maker: Op, reader: int) -> bool:
        """Whether a value enters a MindSpore cell, which casts it: its reader (an operator's id) is in the cell, its
        maker not. A black cell does not cast, so that the one around it counts. The scope of a Python operator (`+`)
        may be wrong, and is believed only if the maker of one operand stands there too."""
        op = forward_of(self.flow, self.flow.ops[reader])
        black = self.black(op)
        entered = black[:-1] if black else self.cells[reader]
        if op.kind in self.lists.python_operators:
            makers = [self.flow.writer(source) for source in op.inputs if source != NONE]
            if not any(other is not None and _is_inside(self.cells[other.id], entered) for other in makers):
                return False
        return not _is_inside(self.cells[maker.id], entered)

    def widest(self, op: Op, unit: int) -> str:
        """Why a slot is float32: an operand, be it a scalar constant, comes as float32; "" if none does."""
        return self.float32_among(op, self.operands(op, unit))

    def _rounds(self, value: Value, use: Use) -> bool:
        """Whether MindSpore's O2 and O3 round a float32 value before a float32 reader: inputs, returned parameters,
        what leaves a black cell, and what a black cell reads from outside of the cell around it."""
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
        return black and reader is not None and self._enters_cell(maker, reader.id)


class O2(O3):
    """MindSpore's level O2: as O3, but for what black cells make."""

    def black(self, op: Op) -> Cell:
        """The cells down to the black one around an operator, or a gradient's forward operator, at O2; else empty."""
        op = forward_of(self.flow, op)
        return self.listed_cell(op, self.lists.black_cells) or self._derived_black(op)

    def _derived_black(self, op: Op) -> Cell:
        """All MindSpore cells around a norm if the user derived the innermost one's class from a black one (a cell that
        owns the scale `gamma` which the norm reads is taken for that); else empty."""
        cells = self.cells[op.id]
        norms = {made for kind, kinds in self.lists.black_cells.items() for made in kinds if made in kind}
        if not cells or op.kind not in norms:
            return ()
        owners = [owner for owner, name in self.parameters(op) if name == "gamma"]
        return cells if any(is_of(owner, cells, self.lists.containers) for owner in owners) else ()


class Auto(Rules):
    """MindSpore's level auto, by operator; others take what comes. ``outputs``: units of the network's outputs."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        super().__init__(flow, options)
        read = (use for value in flow.scopes[0].outputs for use in flow.uses[value])
        self.outputs = {use.unit for use in read if use.op == NONE and use.scope == 0} - {NONE}
        for unit in self.outputs:  # low so far: `_settle_boundaries` gives them the type of what makes them
            self.low[unit] = True

    def black(self, op: Op) -> Cell:
        """An operator (of a gradient the forward one) that level auto lists as black, as its own cell; else empty."""
        op = forward_of(self.flow, op)
        return ((op.name, op.kind),) if op.kind in self.lists.auto_black else ()

    def _settle_boundaries(self) -> bool:
        """Types what is passed to functions, and the outputs of the network at MindSpore's level auto: float32 where
        what makes them is. True when a unit changed."""
        changed = super()._settle_boundaries()
        for value in self.flow.values:
            for use in self.flow.uses[value.id]:
                if use.unit in self.outputs and self.is_low(use.unit) and not self.comes_low(value, NONE):
                    changed |= self.make_float32(use.unit, "this result is float32")
        return changed

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """Why a slot is float32 at level auto, by MindSpore's lists, else as the widest operand; "" for low."""
        if self.is_cast(op) and slot == "T2":
            return "a conversion of the file"
        if op.kind in self.lists.auto_white:
            return ""
        if op.kind in self.lists.auto_black:
            return f"{op.kind} is black"
        return self.widest(op, unit)

    def _rounds(self, value: Value, use: Use) -> bool:
        """Whether MindSpore's level auto rounds a parameter before a float32 reader: the scale and shift of a norm in a
        cell of its own name (`follow_cells`), which gives them the type of its low input first."""
        if not value.parameter or use.op == NONE:
            return False
        op = self.flow.ops[use.op]
        cells = self.cells[op.id]
        if not cells or cells[-1][1] not in self.lists.follow_cells or op.kind != cells[-1][1]:
            return False
        return bool(op.inputs) and self.comes_low(self.flow.values[op.inputs[0]], op.id)


def _counts_in_steps(flow: Dataflow, value: Value) -> bool:
    """Whether a stored tensor is known to count up or down in equal whole steps, as `ops.arange` of MindSpore does."""
    array = flow.weights.array(value) if value.shape else None
    if array is None or array.size < 2:
        return False
    steps = np.diff(array.reshape(-1))
    return bool(steps[0] != 0 and float(steps[0]).is_integer() and (steps == steps[0]).all())


LEVELS: Mapping[str, type[Rules]] = {"O0": O0, "O1": O1, "O2": O2, "O3": O3, "auto": Auto}


Cell = tuple[tuple[str, str], ...]
"""(name, class) of the cells around an operator, from the outermost one. A single cell is named by these down to it."""


@lru_cache(maxsize=1024)
def _owner_pattern(cells: Cell, containers: Set[str], end: str) -> re.Pattern[str]:
    """A pattern that finds the owner (with a dot at its end) of parameters of a MindSpore cell, the last of ``cells``,
    or with ``end`` "" of one inside it: Block `0` in CellList `blocks` of Net `net` finds `net.blocks.0.` and `net.0.`,
    without the container. A number stands for any number, another name but a container's for any: cells of one class
    may have the scope of the first."""
    parts = [r"(?:^|(?<=\.))" if cells else "^"]
    for name, kind in cells:
        if kind in containers:
            parts.append(rf"(?:{re.escape(name)}\.)?")
        else:
            parts.append(r"\d+\." if name.isdigit() else r"(?!\d+\.)[^.]+\.")
    return re.compile("".join(parts) + end)


def cells_of_operators(flow: Dataflow, traits: Traits) -> list[Cell]:
    """The MindSpore cells around every operator, by its id, as scopes say; one that only reshapes what a cell makes and
    reads stands in that cell, as no value leaves a cell and comes back."""
    cells: list[Cell] = [tuple(flow.cells(op)) for op in flow.ops]
    for op in flow.ops:
        maker = flow.writer(op.inputs[0]) if op.inputs and op.inputs[0] != NONE else None
        if maker is not None and traits.has(op.role, "reshapes"):
            home = cells[maker.id]
            if not _is_inside(cells[op.id], home) and _is_read_in_cell(flow, traits, op, home, cells):
                cells[op.id] = home
    return cells


def _is_read_in_cell(flow: Dataflow, traits: Traits, op: Op, home: Cell, cells: list[Cell]) -> bool:
    """Whether an operator in the MindSpore cell ``home`` reads the first result of ``op``, straight or through
    operators that only reshape it. ``cells``: those around every operator, by its id."""
    reshapes = traits.operators("reshapes")
    uses = downstream(flow, op.outputs[:1], lambda reader: reader.outputs[:1] if reader.role in reshapes else ())
    return any(use.op != NONE and _is_inside(cells[use.op], home) for use in uses)


def _is_inside(cells: Cell, home: Cell) -> bool:
    """Whether the MindSpore cells around an operator are those of ``home``, or inside them."""
    return cells[: len(home)] == home


def parameter_prefixes(cells: Cell, containers: Set[str]) -> set[str]:
    """What names of parameters of a MindSpore cell, the last one of ``cells``, begin with: the names of the cells with
    a dot between, with those of a class among ``containers`` and without, as `blocks.0` and `0`."""
    with_containers = ".".join(name for name, _ in cells)
    return {with_containers, ".".join(name for name, kind in cells if kind not in containers)}


def is_of(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner`` (the path before a parameter's name, `blocks.0.norm`) is the last one of MindSpore's ``cells``
    (name and class of each, the outermost first). A path may leave out cells of a class among ``containers``."""
    return _owner_pattern(cells, containers, "$").search(_owner_prefix(owner)) is not None


def is_within(owner: str, cells: Cell, containers: Set[str]) -> bool:
    """Whether ``owner``, as of `is_of`, is the last one of MindSpore's ``cells`` or inside that one. If not, the
    parameter is one of an outer cell, which handed it to an inner one as an argument."""
    return _owner_pattern(cells, containers, "").search(_owner_prefix(owner)) is not None


def _owner_prefix(owner: str) -> str:
    """The attribute path of a MindSpore cell with a dot behind; empty for the network itself, whose path is empty."""
    return f"{owner}." if owner else ""


TOPIC = "mindspore"
CLASSES = 3
"""How many classes of a network a note names."""
OWN_CLASS = "the network's own class"


def notes(rules: Rules) -> list[Note]:
    """All notes of the policy MindSpore on a model whose units are settled."""
    level = rules.options.level.name
    found = list(_source_note(rules)) if level == "O1" else list(_low_in_file_notes(rules, level))
    if level in ("O1", "O2"):
        found += _unknown_cell_notes(rules, level)
    if isinstance(rules, O3):
        found += [*_made_constant_notes(rules), *_parameter_notes(rules), *_softmax_notes(rules)]
    if level != "O1":
        found += _scalar_notes(rules)
    return found


def _node_in_note(op: Op) -> str:
    """How a note of the policy MindSpore names an operator: by its name, without one by its kind."""
    return op.name or op.kind


def _source_note(rules: Rules) -> Iterator[Note]:
    """At most one note, on what is low at O1: MindSpore goes by the source of classes, a file has their names alone."""
    low = [op for op in rules.flow.ops if any(map(rules.is_low, op.slots.values())) and not rules.is_cast(op)]
    if not low:
        return
    kinds = Counter(op.kind for op in low).most_common()
    classes = [name for name, _ in Counter(_class_names(rules, low)).most_common()]
    named = classes[:CLASSES]
    if len(classes) > CLASSES:
        named.append(f"{len(classes) - CLASSES} more")
    sources = f"{', '.join(named)} and {OWN_CLASS}" if named else OWN_CLASS
    text = (
        f"{len(low)} low by their scopes; MindSpore's O1 goes by the source of {sources}, which no "
        "file holds: float32 is what it calls in an inherited method, by an index or in 'a if b else c'"
    )
    yield Note(TOPIC, ", ".join(f"{count} {kind}" for kind, count in kinds), text)


def _class_names(rules: Rules, ops: list[Op]) -> Iterator[str]:
    """The MindSpore class whose `construct` calls each operator, or the layer that makes it: the innermost cell that is
    neither a layer nor a container. Nothing for an operator that the network's own class calls."""
    for op in ops:
        kinds = [kind for _, kind in rules.cells[op.id] if kind not in rules.lists.containers]
        while kinds and (kinds[-1] == op.kind or kinds[-1] in rules.lists.layers):
            kinds.pop()
        yield from kinds[-1:]


def _unknown_cell_notes(rules: Rules, level: str) -> Iterator[Note]:
    """Notes on operators that a listed MindSpore cell may have made: one for each whose scope leaves out the cell of
    its parameters, and one for all without a scope. ``level``: O1, for white cells, or O2, for black ones."""
    lists = rules.lists
    if level == "O1":
        cells, words = lists.white_cells, f"{rules.options.dtype} in a white cell"
    else:
        cells, words = lists.black_cells, "float32 in a black cell"
    kinds = {kind for made in cells.values() for kind in made} - lists.white_operators
    if level == "O2":
        kinds -= rules.options.lists.traits.operators("reshapes")
    without_scope = []
    for op in rules.flow.ops:
        if op.kind not in kinds or not op.slots or rules.listed_cell(op, cells):
            continue
        if not op.name:
            without_scope.append(op)
            continue
        around, containers = rules.cells[op.id], lists.containers
        owners = [owner for owner, _ in rules.parameters(op)]
        if any(is_within(owner, around, containers) and not is_of(owner, around, containers) for owner in owners):
            yield Note(
                TOPIC, op.name, f"the scope leaves out the cell of its parameters: in MindSpore {op.kind} is {words}"
            )
    if without_scope:
        text = f"{len(without_scope)} of these have no scope: if a listed cell made them, they are {words}"
        yield Note(TOPIC, without_scope[0].kind, text)


def _low_in_file_notes(rules: Rules, level: str) -> Iterator[Note]:
    """Notes on operators that the MindIR file computes low and MindSpore would compute in float32 from the network
    itself, and on outputs that are low in the file, which MindSpore returns in float32 but at level auto."""
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
    """At most one note, on low Softmax: a MindSpore network's ``x.astype(float32)`` may have left no trace."""
    traits = rules.options.lists.traits
    found = [op for op in rules.flow.ops if traits.has(op.role, "softmaxes")]
    low = [op for op in found if any(map(rules.is_low, op.slots.values()))]
    if low:
        text = f"{len(low)} {low[0].kind} low here; MindSpore computes in float32 what the network itself casts to it"
        yield Note(TOPIC, _node_in_note(low[0]), text)


def _made_constant_notes(rules: O3) -> Iterator[Note]:
    """Notes on constants that look as if the MindSpore network made them by `ops.ones` or `ops.arange`: such a one
    keeps the type that was asked for. Only where the user's own classes read them, in whole steps or low."""
    for value in rules.flow.values:
        if not value.weight or value.parameter or not value.shape or value.dtype != FLOAT32:
            continue
        uses = [use for use in rules.flow.uses[value.id] if use.op != NONE and use.unit != NONE]
        uses = [use for use in uses if not rules.is_of_layer(rules.flow.ops[use.op])]
        if not uses:
            continue
        if rules.is_range(value):
            dtype = "float32"
        elif any(map(rules.reads_low, uses)) and _is_even(rules, value):
            dtype = "low"
        else:
            continue
        text = f"a constant in even steps: {dtype} here; MindSpore keeps one that the network makes, "
        text += "and casts an attribute"
        yield Note(TOPIC, f"{_node_in_note(rules.flow.ops[uses[0].op])}, input {uses[0].index}", text)


def _is_even(rules: Rules, value: Value) -> bool:
    """Whether a MindSpore constant of several elements goes in even steps, as `ops.linspace`, or is one number."""
    array = rules.flow.weights.array(value)
    if array is None or array.size < 2:
        return False
    steps = np.diff(array.reshape(-1))
    return bool(np.allclose(steps, steps[0], rtol=1e-3, atol=0))


def _scalar_notes(rules: Rules) -> Iterator[Note]:
    """Notes on stored numbers that are rounded in a low Mul or Div: MindSpore keeps float32 if they are tensors."""
    flow = rules.flow
    for op in flow.ops:
        if op.kind not in rules.lists.scaled or not any(rules.is_low(unit) for unit in op.slots.values()):
            continue
        readers = {reader.kind for value in op.outputs for reader in flow.readers(value)}
        for source in op.inputs:
            value = flow.values[source]
            if not value.weight or value.parameter or value.shape != () or value.dtype != FLOAT32:
                continue
            number = flow.scalar(source)
            exact = number is None or float(np.asarray(number, numpy_type(rules.options.dtype))) == number
            if exact or readers & rules.lists.number_functions:
                continue  # GELU and LeakyReLU: functions whose numbers take the other operand's type
            text = f"{number:.7g} is rounded; MindSpore keeps it float32 if the network makes a tensor of it"
            yield Note(TOPIC, _node_in_note(op), text)


def _parameter_notes(rules: O3) -> Iterator[Note]:
    """Notes on parameters, one each, that MindSpore may not cast as the network may have handed them to a function."""
    for value in rules.flow.values:
        if not value.parameter or value.dtype != FLOAT32:
            continue
        for use in rules.flow.uses[value.id]:
            note = _note_on_read(rules, value, use)
            if note is not None:
                yield note
                break


def _note_on_read(rules: O3, value: Value, use: Use) -> Note | None:
    """A note on how one read of a MindSpore parameter is typed, where MindSpore might do otherwise; else None."""
    op = rules.flow.ops[use.op] if use.op != NONE else None
    if op is None or use.unit == NONE or op.kind in rules.lists.parameter_operators | rules.lists.norms:
        return None
    if rules.stays_float32(value, op.id):
        text = f"'{value.name}' is float32 here, as MindSpore hands it to a function; it casts it for a primitive"
    elif rules.reads_low(use) and rules.reads_own_parameter(op, value):
        text = f"'{value.name}' is low here; MindSpore casts it for a primitive, and not for a function or a method"
    else:
        return None
    return Note(TOPIC, _node_in_note(op), text)
