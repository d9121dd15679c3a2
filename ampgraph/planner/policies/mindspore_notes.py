"""Where MindSpore's choice cannot be read from a file: what the policy ``mindspore`` notes.

Each note names one thing in the file that MindSpore would type from what it knows of the network's Python objects, and
only where the two types are really in question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...core.dataflow import FLOAT32, NONE, Op, Use, Value
from ...core.plan import Note
from ...oplists.mindspore_lists import MindsporeRules
from .mindspore_rules import O3, Cell, Rules, is_of, is_within

LOW_TYPES = ("float16", "bfloat16")
TOPIC = "mindspore"
CLASSES = 3
"""How many classes of a network a note names."""
OWN_CLASS = "the network's own class"


def notes(rules: Rules) -> list[Note]:
    """All notes on a model whose units are settled."""
    level = rules.options.level.name
    found = list(_given_low(rules, level)) if level != "O1" else list(_by_source(rules))
    if level in ("O1", "O2"):
        found += _unplaced(rules, level)
    if isinstance(rules, O3):
        found += [*_made_tensors(rules), *_parameters_of_functions(rules), *_softmaxes(rules)]
    if level != "O1":
        found += _numbers(rules)
    return found


def _name(op: Op) -> str:
    return op.name or op.kind


def _by_source(rules: Rules) -> Iterator[Note]:
    """What is low at O1, where MindSpore rewrites the source of the network's classes: a file has their names alone."""
    low = [op for op in rules.flow.ops if any(map(rules.is_low, op.slots.values())) and not rules.converts(op)]
    if not low:
        return
    kinds, classes = (Counter(words).most_common() for words in ([op.kind for op in low], _classes(rules, low)))
    told = [kind for kind, _ in classes[:CLASSES]]
    told += [f"{len(classes) - CLASSES} more"] if len(classes) > CLASSES else []
    text = (
        f"{len(low)} low by their scopes; MindSpore's O1 goes by the source of {_listed([*told, OWN_CLASS])}, which no "
        "file holds: float32 is what it calls in an inherited method, by an index or in 'a if b else c'"
    )
    yield Note(TOPIC, ", ".join(f"{count} {kind}" for kind, count in kinds), text)


def _classes(rules: Rules, ops: list[Op]) -> Iterator[str]:
    """The class that each operator, or the layer that makes it, is called in; the network's own has no name."""
    for op in ops:
        kinds = [kind for _, kind in rules.cells[op.id] if kind not in rules.rules.containers]
        while kinds and (kinds[-1] == op.kind or kinds[-1] in rules.rules.layers):
            kinds.pop()
        yield from kinds[-1:]


def _listed(words: list[str]) -> str:
    """Words as a sentence has them: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _unplaced(rules: Rules, level: str) -> Iterator[Note]:
    """Operators that a listed cell may have made, in a file that does not say which cell did."""
    lists = rules.rules
    cells = lists.white_cells if level == "O1" else lists.black_cells
    kinds = {kind for made in cells.values() for kind in made} - lists.white_operators
    kinds -= rules.options.lists.traits.operators("reshapes") if level == "O2" else set()
    words = "float16 in a white cell" if level == "O1" else "float32 in a black cell"
    words = words.replace("float16", rules.options.dtype)
    bare = []
    for op in rules.flow.ops:
        if op.kind not in kinds or not op.slots or rules.cell(op, cells):
            continue
        if not op.name:
            bare.append(op)
        elif any(_is_below(owner, rules.cells[op.id], lists) for owner, _ in rules.parameters(op)):
            yield Note(
                TOPIC, op.name, f"the scope leaves out the cell of its parameters: in MindSpore {op.kind} is {words}"
            )
    if bare:
        text = f"{len(bare)} of these have no scope: if a listed cell made them, they are {words}"
        yield Note(TOPIC, bare[0].kind, text)


def _is_below(owner: str, cells: Cell, lists: MindsporeRules) -> bool:
    """Whether a cell that owns a parameter is inside the last of ``cells``."""
    return is_within(owner, cells, lists.containers) and not is_of(owner, cells, lists.containers)


def _given_low(rules: Rules, level: str) -> Iterator[Note]:
    """What the file computes low, and MindSpore would compute in float32 from the network itself."""
    flow = rules.flow
    for op in flow.ops:
        if any(flow.values[source].dtype in LOW_TYPES for source in op.inputs if source != NONE) and rules.black(op):
            yield Note(
                TOPIC, _name(op), "is low in the file and stays so; MindSpore computes it in float32 at this level"
            )
    if level != "auto":
        for number, value in enumerate(flow.scopes[0].outputs):
            if flow.values[value].dtype in LOW_TYPES:
                yield Note(TOPIC, f"output {number}", "is low in the file and stays so; MindSpore returns float32")


def _softmaxes(rules: O3) -> Iterator[Note]:
    """Networks often write ``x.astype(float32)`` before these: of what is float32 already, that leaves no trace."""
    traits = rules.options.lists.traits
    found = [op for op in rules.flow.ops if traits.has(op.role, "softmaxes")]
    low = [op for op in found if any(map(rules.is_low, op.slots.values()))]
    if low:
        text = f"{len(low)} {low[0].kind} low here; MindSpore computes in float32 what the network itself casts to it"
        yield Note(TOPIC, _name(low[0]), text)


def _made_tensors(rules: O3) -> Iterator[Note]:
    """Constants such as `ops.ones` or `ops.arange` make, which keep a type that was asked for."""
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
        yield Note(TOPIC, f"{_name(rules.flow.ops[uses[0].op])}, input {uses[0].index}", text)


def _is_even(rules: Rules, value: Value) -> bool:
    """Whether a constant is of one number, or goes in even steps: what `ops.ones` and `ops.linspace` make."""
    array = rules.flow.weights.array(value)
    if array is None or array.size < 2:
        return False
    steps = np.diff(array.reshape(-1))
    return bool(np.allclose(steps, steps[0], rtol=1e-3, atol=0))


def _numbers(rules: Rules) -> Iterator[Note]:
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
            if number is None or _is_exact(number, rules.options.dtype) or readers & rules.rules.number_functions:
                continue  # GELU and LeakyReLU: functions whose numbers take the other operand's type
            text = f"{number:.7g} is rounded; MindSpore keeps it float32 if the network makes a tensor of it"
            yield Note(TOPIC, _name(op), text)


def _is_exact(number: float, dtype: str) -> bool:
    if dtype == "float16":
        return float(np.float16(number)) == number
    return int(np.float32(number).view(np.uint32)) & 0xFFFF == 0


def _parameters_of_functions(rules: O3) -> Iterator[Note]:
    """Parameters that a network may have handed to a function: only what a primitive reads is cast."""
    for value in rules.flow.values:
        if not value.parameter or value.dtype != FLOAT32:
            continue
        told = next(filter(None, (_handed(rules, value, use) for use in rules.flow.uses[value.id])), None)
        if told is not None:
            yield told


def _handed(rules: O3, value: Value, use: Use) -> Note | None:
    """What is assumed of one read of a parameter, where it could be otherwise."""
    op = rules.flow.ops[use.op] if use.op != NONE else None
    if op is None or use.unit == NONE or op.kind in rules.rules.parameter_operators | rules.rules.norms:
        return None
    if rules.stays(value, op.id):
        text = f"'{value.name}' is float32 here, as MindSpore hands it to a function; it casts it for a primitive"
    elif rules.reads_low(use) and rules.is_bare(op, value):
        text = f"'{value.name}' is low here; MindSpore casts it for a primitive, and not for a function or a method"
    else:
        return None
    return Note(TOPIC, _name(op), text)
