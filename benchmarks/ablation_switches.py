"""What can be switched off one at a time, and which of it a plan asks at all.

Everything is found where the product keeps it: rewrites and rules in their registries, traits and patterns in op_lists,
thresholds as numbers at the top of the planner's modules; parts of rules alone are listed here. `Seen` records what a
plan asks, so that a switch is tried only where it may matter: a trait that answered yes, a pattern that matched, a line
that reads a threshold, a rule, part or rewrite that found something.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import ampgraph.planner
import ampgraph.rules
from ampgraph.core.matching import PatternSet
from ampgraph.core.patterns import Pattern
from ampgraph.oplists import pattern_files, patterns, rewrites
from ampgraph.oplists import traits as trait_files
from ampgraph.oplists.files import ListFile, own_file, read_file
from ampgraph.planner import steps
from ampgraph.planner.facts import values
from ampgraph.planner.order import RULES
from ampgraph.planner.rules.rule import Findings

Pair = tuple[str, str]
"""A trait and an operator that has it."""

FACTS = frozenset(
    (
        *(
            "AFFINE",
            "CLASSES",
            "CUBE",
            "DIGITS",
            "AXES_READ_SINCE",
            "ENDLESS",
            "EPSILON",
            "EXACT",
            "FREE",
            "HIGH",
            "HOLDS",
        ),
        *("INFINITE", "KNOWN", "LOW", "NOBODY", "NONE", "OPEN", "ORPHAN", "ROOT", "ROWS", "SIDES", "SINCE", "SMALLEST"),
        *("STEPS_OF_SLICE", "TREE", "UNBOUND", "UNKNOWN", "WIDE_NODES", "ampgraph.rules.rewrites.number.MOST"),
    )
)
"""Names of numbers that are no thresholds: sizes of types, opsets, ranks, marks."""
SETTINGS: Mapping[str, Callable[[float], float]] = {
    "0": lambda number: 0,
    "/4": lambda number: number // 4 if isinstance(number, int) else number / 4,
    "x4": lambda number: number * 4,
}
"""What a threshold is set to: 0 switches it off, the others show how much hangs on its value."""


@dataclass
class Seen:
    """What a plan asked: traits that answered yes, patterns that matched by their number, thresholds that were read;
    rules, parts and rewrites that found something."""

    traits: set[Pair] = field(default_factory=set)
    patterns: set[int] = field(default_factory=set)
    thresholds: set[str] = field(default_factory=set)
    rules: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    rewrites: set[str] = field(default_factory=set)

    def to_dict(self) -> dict[str, list[Any]]:
        pairs = sorted(f"{trait} {role}" for trait, role in self.traits)
        named = {name: sorted(getattr(self, name)) for name in ("thresholds", "rules", "parts", "rewrites")}
        return {"traits": pairs, "patterns": sorted(self.patterns), **named}

    @staticmethod
    def of(data: Mapping[str, Sequence[Any]]) -> Seen:
        pairs = (text.split(" ", 1) for text in data["traits"])
        named = (set(data[name]) for name in ("thresholds", "rules", "parts", "rewrites"))
        return Seen({(a, b) for a, b in pairs}, set(data["patterns"]), *named)


@dataclass(frozen=True)
class Switch:
    """Something that is switched off while ``off()`` is entered; ``recipe`` are fields of the recipe that do it.

    ``sort``: rule, rewrite, trait, row of a trait, pattern or threshold. ``matters``: whether it may change a plan that
    asked for so much."""

    sort: str
    name: str
    matters: Callable[[Seen], bool]
    off: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    recipe: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    traits: frozenset[Pair] = frozenset()

    @property
    def key(self) -> str:
        return f"{self.sort} {self.name}"


@contextlib.contextmanager
def all_off(given: Sequence[Switch]) -> Iterator[dict[str, tuple[str, ...]]]:
    """Several at once; yields the fields of the recipe."""
    fields: dict[str, tuple[str, ...]] = {}
    with contextlib.ExitStack() as stack:
        for switch in given:
            stack.enter_context(switch.off())
            for name, words in switch.recipe.items():
                fields[name] = (*fields.get(name, ()), *words)
        yield fields


def switches() -> list[Switch]:
    """All that there is, in a fixed order."""
    return [*_rules(), *_parts(), *_rewrites(), *_patterns(), *_traits(), *_trait_rows(), *_thresholds()]


# -- rules and rewrites -----------------------------------------------------------------------------------------------


_found: dict[str, set[str]] = {"rules": set(), "parts": set(), "rewrites": set()}


def _rules() -> Iterator[Switch]:
    """Rules that can be switched off; those of validity cannot."""
    for rule in RULES:
        if not rule.validity:
            yield _rule(rule.name)


PARTS: Mapping[str, object] = {
    "rules.arithmetic._weighed_under_root": [],
    "rules.arithmetic._square": None,
    "rules.arithmetic._passes_on": False,
    "rules.arithmetic._turns": False,
    "rules.cancelling.Cancelling._variance": [],
    "rules.cancelling.Cancelling._squared_distance": [],
    "rules.cancelling.Cancelling._remainder": [],
    "rules.cancelling.Cancelling._weights": {},
    "rules.constants._tells_known_shape": False,
    "rules.integers._quantized_ops": [],
    "rules.integers._ops_between_quantized": [],
    "rules.integers._ops_computing_scales": [],
    "rules.integers._scales_large_numbers": False,
    "rules.raw._scores_with_positions": [],
    "rules.raw.Angles._keeps_angles": False,
    "rules.raw._is_of_integers": False,
    "rules.raw._ops_to_last_scale": [],
    "rules.raw._divisor": 0.0,
    "rules.spectra.Spectra._adds_many": False,
    "rules.spectra.Spectra._is_raw": False,
    "rules.streams._is_added_to": False,
    "rules.streams._begins_low": False,
    "rules.thresholds._is_exact": False,
    "rules.thresholds._adds_up_exactly": False,
    "rules.weights._Reader._converted": {},
    "rules.rule._units_passed_between": [],
    "rules.rule.reaches": [],
    "facts.squares.Squares._is_form": False,
    "facts.masks.Masks._shrinks": False,
    "facts.masks.Masks._is_times_truths": False,
    "facts.masks.Masks.most_added": 1,
    "facts.sizes.OpenSizes._sizes_behind": None,
    "facts.sizes.OpenSizes.is_open": False,
    "facts.values._known_numbers": None,
    "facts.values._sizes": None,
    "facts.values._converted_numbers": None,
    "facts.values._picked_numbers": None,
    "facts.values._float_arithmetic": None,
    "facts.values._integer_arithmetic": None,
    "scales._is_made_up_for": False,
    "scales.find_scalings": (),
    "streams.StreamFinder._is_move": False,
    "fused_pairs.folded_into_product": "",
    "fused_pairs.goes_to_reader": False,
    "classify._why_left_to_cut": "",
    "classify.masked_rows": (),
    "regions.beside_fusion": [],
    "regions.reads_float32_stream": None,
    "regions.fused_when_wide": False,
    "regions.bias_folded_into": None,
    "regions.mistaken_epsilon": "",
    "regions._is_decided_apart": False,
    "costs.Costs.is_cast_with_others": False,
    "ampgraph.rules.fusions.affine_behind": [],
    "ampgraph.rules.together.rounded_together": [],
    "ampgraph.rules.together.LowStored.parts_before": {},
    "ampgraph.rules.together.LowStored._parts_behind": {},
    "ampgraph.rules.together.LowStored.holds_parameters": False,
    "ampgraph.rules.together.LowStored.holds_weights": False,
}
"""Functions of rules and facts that look for one special thing, with what they give where they find nothing; in
`ampgraph.planner` where a name does not begin with the package."""


def _parts() -> Iterator[Switch]:
    """A part of a rule or a fact, everywhere that it is called from; and each derivation of intervals."""
    for place, nothing in PARTS.items():
        yield _part(place, lambda place=place, nothing=nothing: _finding(place, nothing))
    for number, derivation in enumerate(values.DERIVATIONS):
        left = (*values.DERIVATIONS[:number], *values.DERIVATIONS[number + 1 :])
        yield _part(_named(derivation), lambda left=left: _replaced(values, "DERIVATIONS", left))


def _part(name: str, off: Callable[[], contextlib.AbstractContextManager[None]]) -> Switch:
    return Switch("part", name, lambda seen: name in seen.parts, off)


def _named(derivation: values.Derivation) -> str:
    return f"facts.values.DERIVATIONS of {', '.join(derivation.traits)}"


def _watch_parts() -> None:
    """Keeps the names of parts and of derivations that find something."""
    for place, nothing in PARTS.items():
        owner, name, is_class = owner_of(place)
        found = getattr(owner, name)
        watched = _watched("parts", place, found, nothing)
        for one in [owner] if is_class else [m for m in _modules() if vars(m).get(name) is found]:
            setattr(one, name, watched)
    derive = values.Values._derive_interval

    def derived(self: values.Values, value: int) -> values.Interval:
        result, op = derive(self, value), self.flow.writer(value)
        if op is not None and op.role in self._rules and (result[:3] != values.UNKNOWN[:3] or result.row is not None):
            _found["parts"].add(_named(self._rules[op.role]))
        return result

    values.Values._derive_interval = derived  # type: ignore[method-assign]


def owner_of(place: str) -> tuple[Any, str, bool]:
    """The module or class that has a part, the part's name, and whether it is a class."""
    *rooms, name = place.split(".")
    kind = rooms.pop() if rooms[-1].lstrip("_")[:1].isupper() else ""
    module = importlib.import_module(".".join(rooms if rooms[0] == "ampgraph" else ("ampgraph.planner", *rooms)))
    return getattr(module, kind) if kind else module, name, bool(kind)


@contextlib.contextmanager
def _finding(place: str, nothing: object) -> Iterator[None]:
    owner, name, is_class = owner_of(place)
    found = getattr(owner, name)
    owners = [owner] if is_class else [m for m in _modules() if vars(m).get(name) is found]
    with contextlib.ExitStack() as stack:
        for one in owners:
            stack.enter_context(_replaced(one, name, lambda *given, **named: nothing))
        yield


def _rule(name: str) -> Switch:
    return Switch("rule", name, lambda seen: name in seen.rules, recipe={"rule": (f"{rewrites.WITHOUT}{name}",)})


def _watch_rules() -> None:
    """Keeps the names of the rules that find something."""
    for rule in RULES:
        for action in ("look", "run"):
            if getattr(rule, action) is not None:
                object.__setattr__(rule, action, _watched("rules", rule.name, getattr(rule, action), None))


def _watched(sort: str, name: str, act: Callable[..., Any], nothing: object) -> Callable[..., Any]:
    """A function that keeps ``name`` where it gives another result than ``nothing``, which stands for all that is
    empty if it is so."""

    def watched(*given: Any, **named: Any) -> Any:
        result = act(*given, **named)
        result = list(result) if isinstance(result, types.GeneratorType) else result
        if isinstance(result, Findings):
            found = any(vars(result).values())
        elif nothing is None:
            found = result is not None
        else:
            found = result != nothing if nothing else bool(result)
        if found:
            _found[sort].add(name)
        return result

    return watched


def _rewrites() -> Iterator[Switch]:
    for name in rewrites.rewrite_names():
        yield _rewrite(name)


def _rewrite(name: str) -> Switch:
    """What is found by no class may matter to every plan."""
    matters = (lambda seen: name in seen.rewrites) if steps.rewrite_classes([name]) else (lambda seen: True)
    return Switch("rewrite", name, matters, recipe={"rewrite": (f"{rewrites.WITHOUT}{name}",)})


def _watch_rewrites() -> None:
    """Keeps the names of the rewrites that are found."""
    for kind in steps.rewrite_classes(rewrites.rewrite_names()):
        kind.find = _watched_find(kind.find)


def _watched_find(find: Callable[..., Iterator[Any]]) -> Callable[..., list[Any]]:
    def watched(known: Any) -> list[Any]:
        found = list(find(known))
        _found["rewrites"].update(one.name for one in found)
        return found

    return watched


# -- traits -----------------------------------------------------------------------------------------------------------

_off: set[Pair] = set()
_asked: set[Pair] = set()


def _watch_traits() -> None:
    """Questions about traits pass here: pairs in `_off` are answered with no, and those answered with yes are kept."""
    kind = trait_files.Traits
    has, operators, positions, at = kind.has, kind.operators, kind.positions, kind.at

    def asked(role: str, trait: str) -> bool:
        if (trait, role) in _off:
            return False
        _asked.add((trait, role))
        return True

    def new_operators(self: Any, *traits: Any) -> frozenset[str]:
        pairs = [(trait, role) for trait in traits for role in operators(self, trait)]
        _asked.update(pairs)
        return frozenset(role for trait, role in pairs if (trait, role) not in _off)

    replaced: dict[str, Any] = {
        "has": lambda self, role, trait: has(self, role, trait) and asked(role, trait),
        "operators": new_operators,
        "positions": lambda self, role, trait: (
            found if (found := positions(self, role, trait)) and asked(role, trait) else ()
        ),
        "at": lambda self, role, trait, index: at(self, role, trait, index) and asked(role, trait),
    }
    for name, method in replaced.items():
        setattr(kind, name, method)


@contextlib.contextmanager
def _without(pairs: frozenset[Pair]) -> Iterator[None]:
    new = pairs - _off
    _off.update(new)
    try:
        yield
    finally:
        _off.difference_update(new)


def _by_pairs(sort: str, name: str, pairs: frozenset[Pair]) -> Switch:
    return Switch(sort, name, lambda seen: not pairs.isdisjoint(seen.traits), lambda: _without(pairs), traits=pairs)


def _pairs(traits: trait_files.Traits) -> frozenset[Pair]:
    return frozenset((trait, role) for trait in trait_files.names() for role in traits.places[trait])


def _traits() -> Iterator[Switch]:
    """A trait that no operator has."""
    whole = _pairs(trait_files.traits())
    for trait in trait_files.names():
        yield _by_pairs("trait", trait, frozenset(pair for pair in whole if pair[0] == trait))


def _trait_rows() -> Iterator[Switch]:
    """An operator less in a trait, and in those that include it."""
    file = own_file("traits.toml")
    whole = _pairs(trait_files.traits())
    for trait, entry in file.data["traits"].items():
        for kind in (*entry.get("operators", ()), *entry.get("positions", ())):
            fewer = {
                "operators": [one for one in entry.get("operators", ()) if one != kind],
                "positions": {one: place for one, place in entry.get("positions", {}).items() if one != kind},
            }
            data = {"traits": {**file.data["traits"], trait: {**entry, **fewer}}}
            left = _pairs(trait_files.merge_traits([replace(file, data=data)]))
            yield _by_pairs("row of a trait", f"{trait}: {kind}", whole - left)


# -- patterns ---------------------------------------------------------------------------------------------------------

_matched: set[Hashable] = set()


def _identity(pattern: Pattern) -> Hashable:
    return pattern.kind, pattern.variant, pattern.nodes


@cache
def _numbers() -> Mapping[Hashable, int]:
    return {_identity(pattern): number for number, pattern in enumerate(pattern_files.shipped_patterns())}


def _watch_patterns() -> None:
    find = PatternSet.find

    def watched(self: PatternSet, *given: Any) -> Iterator[Any]:
        for match in find(self, *given):
            _matched.add(_identity(match.pattern))
            yield match

    PatternSet.find = watched  # type: ignore[method-assign]


def _pattern_files() -> Iterator[ListFile]:
    folder = pattern_files.data_folder() / "patterns"
    for path in sorted(folder.glob("*.toml")):
        yield _read_patterns(path)


def _patterns() -> Iterator[Switch]:
    """Every variant, and of every function with several ways each way."""
    for file in _pattern_files():
        for variant in file.data.get("variants", {}):
            yield _pattern(file, "variants", variant, -1)
        for name, ways in file.data.get("functions", {}).items():
            for place in range(len(ways)) if len(ways) > 1 else ():
                yield _pattern(file, "functions", name, place)


_dropped: set[tuple[str, str, str, int]] = set()
"""File, table, key, and the way of a function or -1."""


def _pattern(file: ListFile, table: str, key: str, place: int) -> Switch:
    row = (file.name, table, key, place)
    name = f"{file.name.removesuffix('.toml')}: {key}" + (f", way {place + 1}" if place >= 0 else "")

    @cache
    def lost() -> frozenset[int]:
        numbers = _numbers()
        with _without_pattern(row):
            left = {_identity(pattern) for pattern in pattern_files.shipped_patterns()}
        return frozenset(number for known, number in numbers.items() if known not in left)

    return Switch("pattern", name, lambda seen: not lost().isdisjoint(seen.patterns), lambda: _without_pattern(row))


@contextlib.contextmanager
def _without_pattern(row: tuple[str, str, str, int]) -> Iterator[None]:
    _dropped.add(row)
    try:
        yield
    finally:
        _dropped.discard(row)


def _read_patterns(path: Any) -> ListFile:
    """A file of patterns, less what is dropped."""
    file = read_file(path)
    data = {**file.data}
    for table in ("variants", "functions"):
        gone = {(key, place) for name, where, key, place in _dropped if (name, where) == (file.name, table)}
        rows = {key: row for key, row in data.get(table, {}).items() if (key, -1) not in gone}
        for key in {key for key, place in gone if place >= 0}:
            rows[key] = [way for place, way in enumerate(rows[key]) if (key, place) not in gone]
        data[table] = rows
    return replace(file, data=data)


@cache
def _shipped(dropped: frozenset[tuple[str, str, str, int]]) -> tuple[Pattern, ...]:
    """What ``shipped_patterns`` gives without some rows."""
    return tuple(p for file in _pattern_files() if "region" in file.data for p in pattern_files.patterns_of(file))


@cache
def _set_of(name: str, dropped: frozenset[tuple[str, str, str, int]]) -> PatternSet:
    made: PatternSet = _makers[name]()
    return made


_makers: dict[str, Callable[[], Any]] = {}


def _drop_patterns() -> None:
    """The patterns are those without what is dropped; each such set is made once."""
    pattern_files.read_file = _read_patterns
    pattern_files._shared_file = pattern_files._shared_file.__wrapped__
    patterns.shipped_patterns = lambda: _shipped(frozenset(_dropped))
    pattern_files.shipped_patterns = patterns.shipped_patterns
    for name in ("region_patterns", "bias_patterns"):
        _makers[name] = getattr(patterns, name).__wrapped__
        setattr(patterns, name, lambda name=name: _set_of(name, frozenset(_dropped)))


# -- thresholds -------------------------------------------------------------------------------------------------------


@cache
def _modules() -> tuple[types.ModuleType, ...]:
    """The modules of the planner, and those of the rewrites."""
    rooms = (ampgraph.planner, ampgraph.rules)
    found = (info for room in rooms for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}."))
    return tuple(importlib.import_module(info.name) for info in found)


@cache
def _owned() -> Mapping[str, tuple[str, str, Any]]:
    """By `room.NAME`: the module, the name and the number of a threshold."""
    found = {}
    for module in _modules():
        with open(str(module.__file__), encoding="utf-8") as source:
            tree = ast.parse(source.read())
        assigned = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
        assigned = [node for node in assigned if not isinstance(node.value, ast.Call)]  # marks, as of a range
        stored = [n for node in assigned for n in ast.walk(node) if isinstance(n, ast.Name)]
        for name in (n.id for n in stored if isinstance(n.ctx, ast.Store) and n.id.isupper()):
            value = getattr(module, name)
            key = f"{module.__name__.removeprefix('ampgraph.planner.')}.{name}"
            if FACTS.isdisjoint((name, key)) and _is_threshold(value):
                found[key] = (module.__name__, name, value)
    return found


def _is_threshold(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(_is_threshold(one) for one in value.values())
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@cache
def _places(key: str) -> tuple[types.ModuleType, ...]:
    """The modules that have a threshold under its name."""
    owner, name, value = _owned()[key]
    return tuple(
        m for m in _modules() if m.__name__ == owner or (vars(m).get(name) is value and _imports(m, owner, name))
    )


def _imports(module: types.ModuleType, owner: str, name: str) -> bool:
    with open(str(module.__file__), encoding="utf-8") as source:
        nodes = [node for node in ast.walk(ast.parse(source.read())) if isinstance(node, ast.ImportFrom)]
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    named = [n for n in nodes if any(a.name == name for a in n.names)]
    return any(importlib.util.resolve_name("." * n.level + (n.module or ""), package) == owner for n in named)


def _thresholds() -> Iterator[Switch]:
    for key, (_, name, value) in _owned().items():
        for setting, change in SETTINGS.items():
            yield _threshold(key, name, setting, _changed(value, change))


def _changed(value: Any, change: Callable[[float], float]) -> Any:
    return {k: _changed(v, change) for k, v in value.items()} if isinstance(value, Mapping) else change(value)


def _threshold(key: str, name: str, setting: str, value: Any) -> Switch:
    @contextlib.contextmanager
    def off() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in _places(key):
                stack.enter_context(_replaced(module, name, value))
            yield

    return Switch("threshold", f"{key} {setting}", lambda seen: key in seen.thresholds, off)


@contextlib.contextmanager
def _replaced(module: object, name: str, value: object) -> Iterator[None]:
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


@cache
def _readers() -> Mapping[tuple[str, int], frozenset[str]]:
    """By file and line: the thresholds that are read there; by file and 0: those of the file."""
    found: dict[tuple[str, int], set[str]] = {}
    for key, (_, name, _) in _owned().items():
        for module in _places(key):
            with open(str(module.__file__), encoding="utf-8") as source:
                code = compile(source.read(), str(module.__file__), "exec")
            for line in _lines(code, name):
                found.setdefault((str(module.__file__), line), set()).add(key)
    return {place: frozenset(keys) for place, keys in found.items()}


def _lines(code: types.CodeType, name: str) -> Iterator[int]:
    for instruction in dis.get_instructions(code):
        if instruction.argval == name and instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.positions.lineno if instruction.positions else 0
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _lines(inner, name)


@contextlib.contextmanager
def recorded(lines: bool = True) -> Iterator[Seen]:
    """What is asked meanwhile; which thresholds are read only with ``lines``, for it takes several times as long."""
    seen, readers = Seen(), _readers()
    files = {file for file, _ in readers}

    def line(frame: types.FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen.thresholds.update(readers.get((frame.f_code.co_filename, frame.f_lineno), ()))
        return line

    for told in (_asked, _matched, *_found.values()):
        told.clear()
    if lines:
        sys.settrace(lambda frame, event, _: line if frame.f_code.co_filename in files else None)
    try:
        yield seen
    finally:
        sys.settrace(None)
    seen.traits, (seen.rules, seen.parts, seen.rewrites) = set(_asked), map(set, _found.values())
    seen.patterns = {_numbers()[known] for known in _matched if known in _numbers()}


def watch() -> None:
    """Replaces what is to be watched and switched off, once in a process and before any plan."""
    _watch_traits()
    _watch_rules()
    _watch_parts()
    _watch_rewrites()
    _watch_patterns()
    _drop_patterns()
