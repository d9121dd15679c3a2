"""The lists as data: which class an operator belongs to, and why.

lists = load_op_lists(extra=["mine.toml"])
lists.entry("Conv")                                # Listing(cls='allow', reason='...', source='ampgraph.toml:14')
lists.traits.has("Reshape", "moves")               # True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .check import user_files
from .files import ListFile, canonical_name, own_file
from .framework_lists import FOLLOWS, OWN, Framework, Listing, entries, framework
from .kernels import TypeGroups
from .levels import Level
from .traits import Traits, merge_traits

if TYPE_CHECKING:
    from ..core.dataflow import Dataflow, Op


@dataclass(frozen=True)
class OpLists:
    """A policy's lists, with the user's merged over them. Operators are named `Conv` or `com.microsoft::Gelu`."""

    listings: Mapping[str, Listing]
    tied: Mapping[str, TypeGroups]
    """Operator -> groups of type variables that must hold one type."""
    float32_slots: Mapping[str, Mapping[str, str]]
    """Operator -> type variable, or `input:<name>` -> why it is always float32, but where a target's kernels take it in
    the type of the data alone."""
    firm: Mapping[str, frozenset[str]]
    """Operator -> of its float32 slots those that are float32 even there, and the data with them."""
    regions: Mapping[str, str]
    """Decomposed forms that are recognised -> what they are made of."""
    traits: Traits
    framework: Framework
    """Whose classes these are."""
    products: frozenset[str]
    """Operators that are worth their while in the low type, whatever a policy makes of them."""
    own: frozenset[str] = frozenset()
    """Namespaces of the framework's names in the list, as ``aten``."""
    edited: frozenset[str] = frozenset()
    """Operators that a user's list speaks of."""

    def entry(self, kind: str) -> Listing | None:
        """The entry of an operator in the lists, or None: it is in no list and stays float32."""
        return self.listings.get(kind)

    def listing(self, flow: Dataflow, op: Op) -> Listing | None:
        """The entry of a node: that of the framework's operator which it was exported from, where the file says it and
        the list speaks of such names, else that of its kind, as in a user's list."""
        origin = flow.origin(op) if self.own and op.role not in self.edited else None
        if origin is None:
            return self.entry(op.role)
        entry = next((self.listings[name] for name in origin.names if name in self.listings), None)
        own, classes = self.entry(op.role), self.framework.classes
        if entry and own and classes[entry.cls].at == FOLLOWS and classes[own.cls].at == "low":
            return own  # the exporter folded the named operator, a norm, into this one
        return entry

    def items(self) -> Iterator[tuple[str, Listing]]:
        """Every entry of the lists, sorted by operator."""
        return iter(sorted(self.listings.items()))

    def at(self, cls: str, level: Level) -> str:
        """What a level does with a class of the lists: ``low``, ``float32``, ``cut``, or a framework's own word."""
        named = self.framework.classes.get(cls)
        return named.at_level(level.name) if named else level.of_class(cls)

    def classes_of(self, at: str) -> tuple[str, ...]:
        """The classes of the lists whose operators are ``low``, or ``float32``, where no level says otherwise."""
        named = tuple(cls.name for cls in self.framework.classes.values() if cls.at == at)
        return named or (("allow",) if at == "low" else ("deny", "fp32"))

    def unlisted(self, level: Level) -> str:
        """What a level does with an operator that is in no list: ``float32`` or `FOLLOWS`."""
        return "float32" if level.name == "O0" else self.framework.unlisted


def load_op_lists(name: str | Path = OWN, extra: Sequence[str | Path] = ()) -> OpLists:
    """A policy's lists; ``extra`` files, a user's lists, are merged over them in order, and the later one wins.
    ``name``: a file of op_lists, or the path of another. Slots, regions and traits, and which operators are products,
    come from our own files whatever the policy."""
    users = user_files(extra, framework(name).names)
    return _merged_lists(str(name), users) if users else _as_shipped(str(name))


@cache
def _as_shipped(name: str) -> OpLists:
    """A list without a user's, merged once: that takes as long as the rest of a small model's conversion."""
    return _merged_lists(name, ())


def _merged_lists(name: str, users: Sequence[ListFile]) -> OpLists:
    """The lists of a policy with a user's on top: later files win, operator by operator."""
    whose, own = framework(name), own_file(OWN)
    listings = _listings((own_file(name), *users), whose)
    ours = listings if name == OWN else _listings((own,), framework(OWN))
    regions = {name: reason for file in (own, *users) for name, reason in file.data.get("regions", {}).items()}
    return OpLists(
        listings=MappingProxyType(listings),
        **_slot_fields((own_file("tied_slots.toml"), *users)),
        regions=MappingProxyType(regions),
        traits=merge_traits((own_file("traits.toml"), *users)),
        framework=whose,
        products=frozenset(kind for kind, listing in ours.items() if listing.cls == "allow"),
        own=frozenset(kind.partition("::")[0] for kind in whose.own(own_file(str(name)))),
        edited=frozenset(_listings(users, whose)),
    )


def _listings(files: Sequence[ListFile], whose: Framework) -> dict[str, Listing]:
    """The listing of each operator, by the last file that has it."""
    return {kind: listing for file in files for kind, listing in entries(file, whose)}


def _slot_fields(files: Sequence[ListFile]) -> dict[str, Any]:
    """The fields of `OpLists` about slots, of several files together; a later file wins."""
    tied: dict[str, TypeGroups] = {}
    float32: dict[str, dict[str, str]] = {}
    firm: dict[str, frozenset[str]] = {}
    for file in files:
        for kind, entry in file.data.get("tied", {}).items():
            tied[canonical_name(kind)] = tuple(map(frozenset, entry["groups"]))
        for table in ("float32", "firm"):
            for kind, slots in file.data.get(table, {}).items():
                float32.setdefault(canonical_name(kind), {}).update(slots)
        firm.update({canonical_name(kind): frozenset(slots) for kind, slots in file.data.get("firm", {}).items()})
    held = {kind: MappingProxyType(slots) for kind, slots in float32.items()}
    found: dict[str, Mapping[str, Any]] = {"tied": tied, "float32_slots": held, "firm": firm}
    return {name: MappingProxyType(table) for name, table in found.items()}
