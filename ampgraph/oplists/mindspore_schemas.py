"""MindSpore's operators as data: role, slots and types of each, read from op_lists/schemas/mindspore.toml.

operator("LayerNormExt").role                # 'LayerNormalization'
operator("LayerNormExt").slot_of_input(2)    # 'T'
operator("MatMul").attributes["transA"]      # Place(operand=2, attribute='')
operator("NoSuchOperator")                   # None: it stays as it is, and is reported
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from ..core.errors import AmpError
from .files import data_folder
from .traits import has

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NO_SLOT = "-"
"""Nothing is decided there: no float, or a tensor whose type is a fact."""

FIXED_TYPES = frozenset({"bool", "float32", "int8", "int32", "int64"})
"""Outputs that never change their type; a slot is none of these."""

LOW_TYPES = frozenset({"float16", "bfloat16"})

_KEYS = {"role", "inputs", "outputs", "attributes", "order", "admits", "effect", "in_place", "view", "structural"}
_PLACE = re.compile(r"input:(\d+)|attr:(\w+)")
_SLOT = re.compile(r"[A-Z][A-Z0-9]*")


@dataclass(frozen=True)
class Place:
    """Where a node holds what the role calls an attribute: an operand, else an attribute of the primitive."""

    operand: int = -1
    attribute: str = ""


@dataclass(frozen=True)
class Operator:
    """One primitive. ``inputs`` and ``outputs`` are slots, fixed types or "-"; the last may repeat (``variadic_*``)."""

    name: str
    role: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: Mapping[str, Place] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    """Operand of the primitive for each operand of the role; empty: the same order."""
    admits: frozenset[str] = LOW_TYPES
    """Low types that MindSpore's type inference takes for the slots; what kernels take is the target's matter."""
    effect: bool = False
    """Writes an operand that is a Parameter: such operands are never cast."""
    in_place: bool = False
    """Writes operand 0 and gives it back: a plain operator where nothing else sees that memory."""
    view: bool = False
    """Its result shares the memory of operand 0: what is written into one shows in the other."""
    structural: bool = False
    """Control flow, tuples and ordering: the view's own business."""
    variadic_input: bool = False
    variadic_output: bool = False

    @property
    def kind(self) -> str:
        """What the planner and the lists call it."""
        return self.role or f"mindspore::{self.name}"

    @property
    def slots(self) -> tuple[str, ...]:
        """Every slot, in order of appearance."""
        return tuple(dict.fromkeys(slot for slot in (*self.inputs, *self.outputs) if is_slot(slot)))

    def slot_of_input(self, position: int) -> str:
        """The slot of an operand, or "-": also for operands beyond the table, such as monads."""
        return _at(self.inputs, position, self.variadic_input)

    def slot_of_output(self, position: int) -> str:
        """The slot of an output, a fixed type such as "float32", or "-"."""
        return _at(self.outputs, position, self.variadic_output)


def is_slot(entry: str) -> bool:
    """Whether an entry of inputs or outputs is a slot: neither "-" nor a type that never changes."""
    return entry != NO_SLOT and entry not in FIXED_TYPES


def _at(entries: tuple[str, ...], position: int, variadic: bool) -> str:
    if position < len(entries):
        return entries[position]
    return entries[-1] if variadic and entries else NO_SLOT


def operator(name: str) -> Operator | None:
    """The entry of a primitive by its name in the file (``MatMul``), or None."""
    return operators().get(name)


@cache
def operators() -> Mapping[str, Operator]:
    """Every operator of the table."""
    text = (data_folder() / "schemas" / "mindspore.toml").read_text(encoding="utf-8")
    return parse(text)


def parse(text: str) -> Mapping[str, Operator]:
    """A table in TOML as operators; AmpError for the first mistake in it."""
    return MappingProxyType({name: _operator(name, entry) for name, entry in tomllib.loads(text).items()})


def _mistake(name: str, message: str) -> AmpError:
    return AmpError("AMP901", message, where=f"mindspore.toml: {name}")


def _operator(name: str, entry: dict[str, Any]) -> Operator:
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise _mistake(name, f"unknown key '{unknown[0]}'")
    structural = entry.get("structural", False)
    if structural:
        if set(entry) != {"structural"}:
            raise _mistake(name, "a structural operator has no other key")
        return Operator(name, structural=True)
    if not {"inputs", "outputs"} <= set(entry):
        raise _mistake(name, "inputs and outputs are needed")
    inputs, variadic_input = _entries(name, entry["inputs"], fixed=False)
    outputs, variadic_output = _entries(name, entry["outputs"], fixed=True)
    _check_slots(name, entry.get("role", ""), inputs, outputs)
    order = tuple(entry.get("order", ()))
    if len(set(order)) != len(order) or any(not 0 <= place < len(inputs) for place in order):
        raise _mistake(name, f"order {list(order)} does not fit {len(inputs)} operands")
    admits = frozenset(entry.get("admits", LOW_TYPES))
    if not admits <= LOW_TYPES:
        raise _mistake(name, f"admits {sorted(admits - LOW_TYPES)}, which are no low types")
    return Operator(
        name=name,
        role=entry.get("role", ""),
        inputs=inputs,
        outputs=outputs,
        attributes=MappingProxyType({k: _place(name, v, inputs) for k, v in entry.get("attributes", {}).items()}),
        order=order,
        admits=admits,
        effect=entry.get("effect", False),
        in_place=entry.get("in_place", False),
        view=entry.get("view", False),
        variadic_input=variadic_input,
        variadic_output=variadic_output,
    )


def _entries(name: str, given: list[str], fixed: bool) -> tuple[tuple[str, ...], bool]:
    variadic = bool(given) and given[-1].endswith("...")
    entries = (*given[:-1], given[-1].removesuffix("...")) if given else ()
    for entry in entries:
        if entry != NO_SLOT and not _SLOT.fullmatch(entry) and not (fixed and entry in FIXED_TYPES):
            raise _mistake(name, f"'{entry}' is neither a slot, nor a type, nor '-'")
    return entries, variadic


def _check_slots(name: str, role: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """A slot without an operand cannot be cast into; Cast alone names its result itself."""
    for slot in outputs:
        if is_slot(slot) and slot not in inputs and not has(role, "casts"):
            raise _mistake(name, f"no operand has the slot '{slot}' of an output")


def _place(name: str, text: str, inputs: tuple[str, ...]) -> Place:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise _mistake(name, f"'{text}' is neither input:<number> nor attr:<name>")
    if match[1] is None:
        return Place(attribute=match[2])
    if int(match[1]) >= len(inputs):
        raise _mistake(name, f"'{text}' is beyond its {len(inputs)} operands")
    return Place(operand=int(match[1]))
