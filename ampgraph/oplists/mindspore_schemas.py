"""MindSpore's operators as data: role, slots and types of each, read from op_lists/schemas/mindspore.toml.

operator("LayerNormExt").role                # 'LayerNormalization'
operator("LayerNormExt").slot_of_input(2)    # 'T'
operator("MatMul").attributes["transA"]      # Place(operand=2, attribute='')
operator("NoSuchOperator")                   # None: it stays as it is, and is reported
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from ..core.typed import reader
from .files import own_file

NO_SLOT = "-"
"""In the place of a slot where nothing is decided: no float, or a tensor whose type is a fact."""

FIXED_TYPES = frozenset({"bool", "float32", "int8", "int32", "int64"})
"""Outputs that never change their type; a slot is none of these."""

LOW_TYPES = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True)
class Place:
    """Where a MindSpore node holds what the role calls an attribute: in an ``operand``, by its place (-1: in none),
    else in an ``attribute`` of the primitive."""

    operand: int = -1
    attribute: str = ""


@dataclass(frozen=True)
class Operator:
    """One primitive of MindSpore. ``role``: the ONNX operator that it computes; ``inputs`` and ``outputs``: slots,
    fixed types or "-"; the last may repeat (``variadic_*``). ``attributes``: the role's name of one -> where it is."""

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
        """What the lists and the planner call this operator of MindSpore's schemas."""
        return self.role or f"mindspore::{self.name}"

    @property
    def slots(self) -> tuple[str, ...]:
        """Every slot in MindSpore's schema, in order of appearance."""
        return tuple(dict.fromkeys(slot for slot in (*self.inputs, *self.outputs) if is_slot(slot)))

    def slot_of_input(self, position: int) -> str:
        """The slot of an operand in MindSpore's schema, or "-": also for operands beyond the table, such as monads."""
        return _slot_at(self.inputs, position, self.variadic_input)

    def slot_of_output(self, position: int) -> str:
        """The slot of an output in MindSpore's schema, a fixed type such as "float32", or "-"."""
        return _slot_at(self.outputs, position, self.variadic_output)


def is_slot(entry: str) -> bool:
    """Whether an entry in MindSpore's schemas is a slot: neither "-" nor a type that never changes."""
    return entry != NO_SLOT and entry not in FIXED_TYPES


def _slot_at(entries: tuple[str, ...], position: int, variadic: bool) -> str:
    """The slot at a position in MindSpore's schema; the last one goes on where it is variadic."""
    if position < len(entries):
        return entries[position]
    return entries[-1] if variadic and entries else NO_SLOT


def operator(name: str) -> Operator | None:
    """The entry in MindSpore's schemas of a primitive by its name in the file (``MatMul``), or None."""
    return operators().get(name)


@cache
def operators() -> Mapping[str, Operator]:
    """MindSpore's operators by name, as op_lists/schemas has them."""
    return MappingProxyType(
        {name: _operator_of_row(name, row) for name, row in own_file("schemas/mindspore.toml").data.items()}
    )


def _operator_of_row(name: str, row: Mapping[str, Any]) -> Operator:
    """A row of op_lists/schemas/mindspore.toml as an `Operator`; a slot that ends in ... repeats."""
    given = {**row, "name": name}
    for side in ("input", "output"):
        slots = row.get(f"{side}s", [])
        given[f"{side}s"] = [slot.removesuffix("...") for slot in slots]
        given[f"variadic_{side}"] = bool(slots) and slots[-1].endswith("...")
    given["attributes"] = {attribute: _attribute_place(text) for attribute, text in row.get("attributes", {}).items()}
    found: Operator = reader(Operator)(given)
    return found


def _attribute_place(text: str) -> Place:
    """The place of the role's attribute on a MindSpore node: ``input:2`` is operand 2, ``attr:pads`` an attribute."""
    sort, _, what = text.partition(":")
    return Place(operand=int(what)) if sort == "input" else Place(attribute=what)
