"""Slots that must hold one type, and slots that stay float32 whatever the level, by operator: data of the lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .files import ListFile, plain

TypeGroups = tuple[frozenset[str], ...]
"""Groups of type variables that hold one type each."""


@dataclass(frozen=True)
class Slots:
    """By operator. ``tied``: type variables that must hold one type, with the reasons in ``tied_reasons``;
    ``float32``: a type variable, or `input:<name>`, with why it is always float32, but where a target's kernels take
    it in the type of the data alone; ``firm``: of these, what is float32 even there, and the data with it."""

    tied: Mapping[str, TypeGroups]
    tied_reasons: Mapping[str, str]
    float32: Mapping[str, Mapping[str, str]]
    firm: Mapping[str, frozenset[str]]


def read_slots(files: Iterable[ListFile]) -> Slots:
    """The tied slots of several files together; a later file wins."""
    tied: dict[str, TypeGroups] = {}
    reasons: dict[str, str] = {}
    float32: dict[str, dict[str, str]] = {}
    firm: dict[str, frozenset[str]] = {}
    for file in files:
        for kind, entry in file.data.get("tied", {}).items():
            tied[plain(kind)] = type_groups(entry["groups"])
            reasons[plain(kind)] = entry["reason"]
        for table in ("float32", "firm"):
            for kind, slots in file.data.get(table, {}).items():
                float32.setdefault(plain(kind), {}).update(slots)
        firm.update({plain(kind): frozenset(slots) for kind, slots in file.data.get("firm", {}).items()})
    held = {kind: MappingProxyType(slots) for kind, slots in float32.items()}
    return Slots(MappingProxyType(tied), MappingProxyType(reasons), MappingProxyType(held), MappingProxyType(firm))


def type_groups(groups: Iterable[Iterable[str]]) -> TypeGroups:
    """Groups as a file writes them."""
    return tuple(frozenset(group) for group in groups)
