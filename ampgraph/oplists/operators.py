"""The lists as data: which class an operator belongs to, and why.

lists = load_op_lists(extra=["mine.toml"])
lists.of("Conv")                                   # Listing(cls='white', reason='...', source='ampgraph.toml:14')
lists.traits.has("Reshape", "moves")               # True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..core.errors import AmpError, nearest
from .check import user_files
from .classes import CLASSES
from .files import own_file, plain
from .tied import Slots, TypeGroups, read_slots
from .traits import Traits, merged

POLICIES = ("ampgraph", "mindspore")
POLICIES_TO_COME = ("pytorch", "apex", "tensorflow", "mxnet")


@dataclass(frozen=True)
class Listing:
    """One operator's entry."""

    cls: str
    reason: str
    source: str
    """`ampgraph.toml:57`: the file and line that said so."""


@dataclass(frozen=True)
class OpLists:
    """A policy's lists, with the user's merged over them. Operators are named `Conv` or `com.microsoft::Gelu`."""

    listings: Mapping[str, Listing]
    slots: Slots
    regions: Mapping[str, str]
    """Decomposed forms that are recognised -> what they are made of."""
    traits: Traits

    def of(self, kind: str) -> Listing | None:
        """The entry of an operator, or None: it is in no list and stays float32."""
        return self.listings.get(kind)

    def items(self) -> Iterator[tuple[str, Listing]]:
        """Every entry, sorted by operator."""
        return iter(sorted(self.listings.items()))

    @property
    def tied(self) -> Mapping[str, TypeGroups]:
        """Operator -> groups of type variables that must hold one type."""
        return self.slots.tied

    @property
    def tied_reasons(self) -> Mapping[str, str]:
        """Operator -> why its groups must."""
        return self.slots.tied_reasons

    @property
    def float32_slots(self) -> Mapping[str, Mapping[str, str]]:
        """Operator -> type variable, or `input:<name>` -> why it is always float32."""
        return self.slots.float32


def load_op_lists(policy: str = "ampgraph", extra: Sequence[str | Path] = ()) -> OpLists:
    """A policy's lists; files in `extra` are merged over them in order, and the later one wins.

    The policy mindspore has rules of its own (mindspore_lists); here it counts heavy operators as ampgraph does.
    """
    _check_policy(policy)
    users = user_files(extra)
    listings: dict[str, Listing] = {}
    regions: dict[str, str] = {}
    for file in (own_file("ampgraph.toml"), *users):
        for cls in CLASSES:
            for kind, reason in file.data.get(cls, {}).items():
                listings[plain(kind)] = Listing(cls, reason, file.where(cls, kind))
        regions.update(file.data.get("regions", {}))
    return OpLists(
        listings=MappingProxyType(listings),
        slots=read_slots((own_file("tied_slots.toml"), *users)),
        regions=MappingProxyType(regions),
        traits=merged((own_file("traits.toml"), *users)),
    )


def _check_policy(policy: str) -> None:
    if policy in POLICIES:
        return
    available = f"available: {', '.join(POLICIES)}"
    if policy in POLICIES_TO_COME:
        raise AmpError("AMP303", f"policy '{policy}' is not there yet", hint=available)
    hint = nearest(policy, [*POLICIES, *POLICIES_TO_COME]) or available
    raise AmpError("AMP303", f"unknown policy '{policy}'", hint=hint)
