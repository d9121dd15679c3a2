"""Properties of operators as data: code asks for a trait and never holds a set of operators.

has("Reshape", "moves")                       # True
traits().operators("conversions")             # frozenset({'Cast', 'CastLike'})
traits().positions("Resize", "scales")        # (1, 2): the operands that the trait is about
traits().at("Where", "mask_path", 0)          # False: the condition is none

These speak of op_lists/traits.toml alone; what a user's lists add is in ``OpLists.traits``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from ..core.errors import AmpError
from .files import ListFile, canonical_name, check_known, check_operator, mistake, own_file

Trait = str
"""The name of a trait: one of op_lists/traits.toml."""

ALL = "all"
KEYS = ("about", "operators", "positions", "includes")
FORM = '[traits.moves] has operators = ["mycompany::Shuffle"], or positions = { "mycompany::Pick" = 1 }'

Places = tuple[int, ...] | None
"""Places of the operands that a trait is about; None: all of them."""


@dataclass(frozen=True)
class Traits:
    """The traits of operators. ``places``: trait -> operator that has it -> the operands that the trait is about."""

    places: Mapping[str, Mapping[str, Places]]
    _unions: dict[tuple[Trait, ...], frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    def has(self, role: str, trait: Trait) -> bool:
        """Whether an operator has a trait."""
        return role in self.places[trait]

    def operators(self, *traits: Trait) -> frozenset[str]:
        """All operators that have at least one of some traits; collected once for the same traits."""
        if traits not in self._unions:
            self._unions[traits] = frozenset[str]().union(*(self.places[trait] for trait in traits))
        return self._unions[traits]

    def positions(self, role: str, trait: Trait) -> tuple[int, ...]:
        """The places of the operands that a trait is about; empty for an operator without it, and for all operands."""
        return self.places[trait].get(role, ()) or ()

    def at(self, role: str, trait: Trait, index: int) -> bool:
        """Whether an operator has a trait, and the trait is about the operand at a place."""
        places = self.places[trait].get(role, ())
        return places is None or index in places


def names() -> list[str]:
    """Every trait, of op_lists/traits.toml."""
    return list(own_file("traits.toml").data["traits"])


@cache
def traits() -> Traits:
    """The traits as shipped, of op_lists/traits.toml."""
    return merge_traits([own_file("traits.toml")])


def has(role: str, trait: Trait) -> bool:
    """Whether an operator has a trait, as shipped."""
    return traits().has(role, trait)


def merge_traits(files: Iterable[ListFile]) -> Traits:
    """The traits of several files together: a later file adds operators and included traits, and says the places of an
    operator anew. One of `operators` has a trait about its first operand."""
    own: dict[str, dict[str, Places]] = {name: {} for name in names()}
    includes: dict[str, dict[str, None]] = {name: {} for name in names()}
    for file in files:
        for name, entry in file.data.get("traits", {}).items():
            own[name].update((canonical_name(kind), (0,)) for kind in entry.get("operators", ()))
            for kind, given in entry.get("positions", {}).items():
                own[name][canonical_name(kind)] = _parse_places(given)
            includes[name].update(dict.fromkeys(entry.get("includes", ())))
    return Traits({name: _with_included(name, own, includes, ()) for name in own})


def _with_included(
    name: str, own: Mapping[str, Mapping[str, Places]], includes: Mapping[str, Iterable[str]], within: tuple[str, ...]
) -> dict[str, Places]:
    """In op_lists/traits.toml: a trait's operators, and those of the traits that it includes; its own places win.
    ``within``: the traits that include it, to raise AmpError AMP301 for one that includes itself."""
    if name in within:
        raise AmpError("AMP301", f"trait '{name}' includes itself", hint=" > ".join((*within, name)))
    found: dict[str, Places] = {}
    for other in includes[name]:
        found.update(_with_included(other, own, includes, (*within, name)))
    return {**found, **own[name]}


def _parse_places(given: int | str | list[int]) -> Places:
    """In op_lists/traits.toml: the operands that a trait is about, said as `2`, `[0, 2]` or `"all"`."""
    if given == ALL:
        return None
    return tuple(given) if isinstance(given, list) else (int(given),)


def check_traits(file: ListFile) -> None:
    """Raises AmpError AMP301 for the first mistake in a file's traits."""
    for name, entry in file.data.get("traits", {}).items():
        table = f"traits.{name}"
        check_known(file, table, "", name, "trait", names())
        if not isinstance(entry, dict):
            raise mistake(file, "traits", name, f"trait '{name}' is a table", FORM)
        for key in entry:
            check_known(file, table, key, key, "key", KEYS, " of a trait")
        for key in ("operators", "includes"):
            found = entry.get(key, [])
            if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
                raise mistake(file, table, key, f"'{key}' is an array of names", FORM)
            for item in found:
                if key == "operators":
                    check_operator(file, table, item, key)
                else:
                    check_known(file, table, key, item, "trait", names())
        _check_places(file, table, entry.get("positions", {}))


def _check_places(file: ListFile, table: str, places: object) -> None:
    """Checks `positions` of a trait: known operators, and whole numbers from 0 on or "all"."""
    if not isinstance(places, dict):
        raise mistake(file, table, "positions", "'positions' gives operands by operator", FORM)
    for kind, given in places.items():
        inner, key = f"{table}.positions", kind
        if (inner, kind) not in file.lines:
            inner, key = table, "positions"
        check_operator(file, inner, kind, key)
        numbers = given if isinstance(given, list) else [given]
        if given != ALL and not (numbers and all(type(number) is int and number >= 0 for number in numbers)):
            raise mistake(file, inner, key, f"'{kind}' has no operand {given!r}", '0, [0, 2] or "all"')
