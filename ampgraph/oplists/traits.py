"""Properties of operators as data: code asks for a trait and never holds a set of operators.

has("Reshape", "moves")               # True
operators("conversions")              # frozenset({'Cast', 'CastLike'})
positions("Resize", "scales")         # (1, 2): the operands that the trait is about
at("Where", "mask_path", 0)           # False: the condition is none

These speak of op_lists/traits.toml alone; what a user's lists add is in ``OpLists.traits``, which has the same methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from ..core.errors import AmpError, nearest
from .files import ListFile, mistake, own_file, plain
from .schemas import check_operator

Trait = Literal[
    "additions",
    "adds_and_normalizes",
    "adds_epsilon",
    "adds_exponentials",
    "adds_up",
    "affine",
    "attention_bias",
    "attention_mask",
    "biased",
    "bounded",
    "bounds",
    "by_element",
    "cancels",
    "carries_epsilon",
    "casts",
    "centres_features",
    "channels_by_rows",
    "compares",
    "constants",
    "control_flow",
    "conversions",
    "converts",
    "dequantizes",
    "divides",
    "elementwise",
    "ends_exponentials",
    "exact",
    "exponentials",
    "extremes",
    "fills",
    "fused_attention",
    "index_tuples",
    "indices",
    "integer_arithmetic",
    "integer_products",
    "inverse_roots",
    "joins",
    "keeps_all",
    "keeps_order",
    "learnt_scales",
    "lengths",
    "linear_in",
    "log_probabilities",
    "logarithms",
    "lookups",
    "loops",
    "made_by_fusion",
    "mask_path",
    "means",
    "moves",
    "multiplies",
    "multiplies_matrices",
    "multiplies_up",
    "needs_epsilon",
    "needs_positive",
    "negates",
    "normalizes",
    "norms",
    "nothing_in_inference",
    "orders",
    "pads",
    "passes_on",
    "periodic",
    "permutes",
    "picks_rows",
    "pools",
    "powers",
    "prefix_sums",
    "probabilities",
    "products",
    "quantized",
    "quantizes",
    "random",
    "rearranges",
    "reshapes",
    "roots",
    "row_maxima",
    "row_minima",
    "same_size",
    "scales",
    "scalings",
    "scores",
    "selects",
    "sequence_lengths",
    "shapes",
    "shares",
    "sizes",
    "slices",
    "softmaxes",
    "spectral",
    "squares",
    "stays_in_place",
    "stored_statistics",
    "subtracts",
    "sums",
    "sums_all_places",
    "sums_squares",
    "sums_windows",
    "transforms",
    "uncounted",
    "views",
    "windows",
    "within_two",
    "without_gradient",
]
"""The traits that code asks for."""

TRAITS: tuple[str, ...] = get_args(Trait)
ALL = "all"
KEYS = ("about", "operators", "positions", "includes")
FORM = '[traits.moves] has operators = ["mycompany::Shuffle"], or positions = { "mycompany::Pick" = 1 }'

Places = tuple[int, ...] | None
"""Operands that a trait is about; None: all of them."""


@dataclass(frozen=True)
class Traits:
    """By trait, the operators that have it, each with the operands that it is about."""

    places: Mapping[str, Mapping[str, Places]]
    _operators: Mapping[str, frozenset[str]]

    def has(self, role: str, trait: Trait) -> bool:
        """Whether an operator has a trait."""
        return role in self.places[trait]

    def operators(self, trait: Trait) -> frozenset[str]:
        """All operators that have a trait."""
        return self._operators[trait]

    def positions(self, role: str, trait: Trait) -> tuple[int, ...]:
        """The operands that a trait is about, none for an operator without it."""
        return self.places[trait].get(role, ()) or ()

    def at(self, role: str, trait: Trait, index: int) -> bool:
        """Whether a trait is about an operand."""
        places = self.places[trait].get(role, ())
        return places is None or index in places


@cache
def traits() -> Traits:
    """The traits as shipped."""
    return merged([own_file("traits.toml")])


def has(role: str, trait: Trait) -> bool:
    """Whether an operator has a trait, as shipped."""
    return traits().has(role, trait)


def operators(trait: Trait) -> frozenset[str]:
    """All operators that have a trait, as shipped."""
    return traits().operators(trait)


def positions(role: str, trait: Trait) -> tuple[int, ...]:
    """The operands that a trait is about, as shipped; none for an operator without it."""
    return traits().positions(role, trait)


def at(role: str, trait: Trait, index: int) -> bool:
    """Whether a trait is about an operand, as shipped."""
    return traits().at(role, trait, index)


def merged(files: Iterable[ListFile]) -> Traits:
    """The traits of several files together: a later file adds operators, and places the traits that it names anew."""
    own: dict[str, dict[str, Places]] = {name: {} for name in TRAITS}
    includes: dict[str, dict[str, None]] = {name: {} for name in TRAITS}
    for file in files:
        for name, entry in file.data.get("traits", {}).items():
            own[name].update({plain(kind): (0,) for kind in entry.get("operators", ())})
            own[name].update({plain(kind): _places(given) for kind, given in entry.get("positions", {}).items()})
            includes[name].update(dict.fromkeys(entry.get("includes", ())))
    whole = {name: _with_included(name, own, includes, ()) for name in TRAITS}
    return Traits(whole, {name: frozenset(kinds) for name, kinds in whole.items()})


def _with_included(
    name: str, own: Mapping[str, Mapping[str, Places]], includes: Mapping[str, Iterable[str]], within: tuple[str, ...]
) -> dict[str, Places]:
    """A trait's own operators, and those of the traits that it includes; its own places win."""
    if name in within:
        raise AmpError("AMP301", f"trait '{name}' includes itself", hint=" > ".join((*within, name)))
    found: dict[str, Places] = {}
    for other in includes[name]:
        found.update(_with_included(other, own, includes, (*within, name)))
    return {**found, **own[name]}


def _places(given: int | str | list[int]) -> Places:
    if given == ALL:
        return None
    return tuple(given) if isinstance(given, list) else (int(given),)


def check_traits(file: ListFile) -> None:
    """Raises AmpError AMP301 for the first mistake in a file's traits."""
    for name, entry in file.data.get("traits", {}).items():
        table = f"traits.{name}"
        if name not in TRAITS:
            hint = nearest(name, list(TRAITS)) or f"traits are {', '.join(TRAITS)}"
            raise mistake(file, table, "", f"unknown trait '{name}'", hint)
        if not isinstance(entry, dict):
            raise mistake(file, "traits", name, f"trait '{name}' is a table", FORM)
        for key in entry:
            if key not in KEYS:
                hint = nearest(key, list(KEYS)) or f"keys are {', '.join(KEYS)}"
                raise mistake(file, table, key, f"unknown key '{key}' of a trait", hint)
        _check_entry(file, table, entry)


def _check_entry(file: ListFile, table: str, entry: Mapping[str, Any]) -> None:
    for key, allowed in (("operators", None), ("includes", TRAITS)):
        names = entry.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise mistake(file, table, key, f"'{key}' is an array of names", FORM)
        for name in names:
            if allowed is None:
                check_operator(file, table, name, key)
            elif name not in allowed:
                raise mistake(file, table, key, f"unknown trait '{name}'", nearest(name, list(allowed)))
    places = entry.get("positions", {})
    if not isinstance(places, dict):
        raise mistake(file, table, "positions", "'positions' gives operands by operator", FORM)
    for kind, given in places.items():
        inner = f"{table}.positions" if (f"{table}.positions", kind) in file.lines else table
        check_operator(file, inner, kind, kind if inner != table else "positions")
        if not _is_place(given):
            message = f"'{kind}' has no operand {given!r}"
            raise mistake(file, inner, kind if inner != table else "positions", message, '0, [0, 2] or "all"')


def _is_place(given: object) -> bool:
    numbers = given if isinstance(given, list) else [given]
    return given == ALL or bool(numbers) and all(type(number) is int and number >= 0 for number in numbers)
