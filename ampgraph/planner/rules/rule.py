"""What a rule is: its name, what trips it, what it does then and at which levels, beside the code that does it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from ...core.dataflow import NONE, Op
from ...core.plan import Note, Why
from ...oplists.traits import Trait
from ..decisions import ACCURACY, Decisions, Hold, Ledger, Source, describe
from ..facts.facts import Facts
from ..regions import Regions

T = TypeVar("T")
Levels = Literal["every", "careful", "warned"]
"""Where a rule acts: at every level; where a level's accuracy guards hold; or there, and where they warn it warns."""


class Ruling(NamedTuple):
    """Holds for one reason, each of one node, and a note for the case that some had an effect. ``says_count``: the
    note's text goes on behind how many nodes had; ``silent``: holds that do not count for it."""

    holds: Sequence[Hold]
    note: Note | None = None
    says_count: bool = False
    silent: Sequence[Hold] = ()

    def enter(self, ledger: Ledger) -> None:
        """Holds its units in the ledger; the note is kept only if that changed something."""
        effects = sum([ledger.hold(hold) for hold in self.holds])
        for hold in self.silent:
            ledger.hold(hold)
        if self.note is not None and effects:
            topic, where, text = self.note.topic, self.note.where, self.note.text
            words = f"{effects} node{'s' * (effects > 1)} {text}" if self.says_count else text
            ledger.notes.append(Note(topic, where, words))


@dataclass(frozen=True)
class Findings:
    """What rules find in a model.

    Attributes:
        rulings: units to hold with a reason, in the order of the model.
        sources: operators whose results are tainted: what follows may be wrong in the low type.
        notes: shown whatever has an effect.
        released: units that the cut decides instead of a list, with why.
        lowered: units that are low instead of what a list says, with why.
        byte_worth: of free units, what a byte saved there is worth to the cut, 1 where none is given.
        prefer_float32: free units that are float32 where that takes no more Casts, with why.
        integer_valued: float values that hold integers.
        floors: mask constants, by value, with what replaces their lowest elements.
        flushing: weights, by value, with the share that the low type makes zero.
    """

    rulings: Sequence[Ruling] = ()
    sources: Sequence[Source] = ()
    notes: Sequence[Note] = ()
    released: Mapping[int, Why] = field(default_factory=dict)
    lowered: Mapping[int, Why] = field(default_factory=dict)
    byte_worth: Mapping[int, int] = field(default_factory=dict)
    prefer_float32: Mapping[int, Why] = field(default_factory=dict)
    integer_valued: frozenset[int] = frozenset()
    floors: Mapping[int, float] = field(default_factory=dict)
    flushing: Mapping[int, float] = field(default_factory=dict)

    def enter(self, ledger: Ledger) -> None:
        """Enters rulings into the ledger, then what is released and lowered, sources and notes; not the rest."""
        for ruling in self.rulings:
            ruling.enter(ledger)
        for unit, why in self.released.items():
            ledger.release(unit, why)
        for unit, why in self.lowered.items():
            ledger.lower(unit, why)
        ledger.sources += self.sources
        ledger.notes += self.notes

    def __or__(self, later: Findings) -> Findings:
        """These findings with later ones; of one unit or value what was found first counts, and of worths the least."""
        least = {unit: min(worth, self.byte_worth.get(unit, worth)) for unit, worth in later.byte_worth.items()}
        return Findings(
            [*self.rulings, *later.rulings],
            [*self.sources, *later.sources],
            [*self.notes, *later.notes],
            {**later.released, **self.released},
            {**later.lowered, **self.lowered},
            {**self.byte_worth, **least},
            {**later.prefer_float32, **self.prefer_float32},
            self.integer_valued | later.integer_valued,
            {**later.floors, **self.floors},
            {**later.flushing, **self.flushing},
        )


@dataclass(frozen=True)
class Sight:
    """What a rule looks at: the facts of a model, and its regions. ``_made``: what `compute_once` has computed."""

    facts: Facts
    regions: Regions
    _made: dict[object, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def at(facts: Facts, regions: Regions) -> Sight:
        """The sight of a model's facts and regions. It shares what was computed for an earlier one whose operators have
        the same regions and classes, and remembers itself in ``facts`` for later ones."""
        made: dict[object, Any] = {}
        earlier: list[Any] = facts.sights
        for other in earlier:
            if (other.regions.of_op, other.regions.classes) == (regions.of_op, regions.classes):
                made = other._made
                break
        sight = Sight(facts, regions, made)
        earlier.append(sight)
        return sight

    def compute_once(self, make: Callable[..., T], *args: object) -> T:
        """What ``make(sight, *args)`` gives for a rule's sight, computed once: several rules share it. It must depend
        on nothing else, as sights of other levels share it too."""
        if (make, args) not in self._made:
            self._made[make, args] = make(self, *args)
        found: T = self._made[make, args]
        return found


Spoilt = tuple[str, Sequence[Op]] | None
"""Why operators must be float32, and which; None where nothing is wrong."""
Look = Callable[[Sight, Op], Spoilt]
Run = Callable[[Sight, Decisions], Findings]
Report = Callable[[Facts, Findings, Decisions], Iterable[Note]]
"""The notes of a rule once everything is decided."""


@dataclass(frozen=True)
class Rule:
    """One rule of the planner, by the name that its decisions bear; ``trigger`` and ``action`` are words for users. It
    ``look``s at every operator with one of some ``traits``, or ``run``s over the model; one with neither is decided by
    `planner.classify`. ``validity``: it cannot be switched off, as the result would be wrong."""

    name: str
    trigger: str
    action: str
    levels: Levels = "warned"
    validity: bool = False
    traits: tuple[Trait, ...] = ()
    look: Look | None = None
    run: Run | None = None
    report: Report | None = None

    def at(self, guards: str) -> bool:
        """Whether the planner's rule acts, or warns, at a level with such accuracy guards: hold, warn or off."""
        return self.levels == "every" or guards == "hold" or (self.levels == "warned" and guards == "warn")


def looks(name: str, *traits: Trait, trigger: str, action: str) -> Callable[[Look], Rule]:
    """A decorator that makes a function a planner's rule on accuracy that looks at every operator with such a trait."""
    return lambda look: Rule(name, trigger, action, traits=traits, look=look)


def runs(
    name: str, *, trigger: str, action: str, levels: Levels = "warned", validity: bool = False,
    report: Report | None = None,
) -> Callable[[Run], Rule]:  # fmt: skip
    """A decorator that makes a function a rule of the planner, of this name, that runs over a whole model."""
    return lambda run: Rule(name, trigger, action, levels, validity, run=run, report=report)


def ruling(facts: Facts, why: Why, ops: Sequence[Op], beside: Iterable[int] = (), where: Op | None = None) -> Ruling:
    """A ruling that holds operators, and units ``beside`` them; its note is at ``where``, else at the first."""
    holds = [Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops if op.slots]
    holds += [Hold((unit,), ACCURACY, why) for unit in beside]
    return Ruling(holds, Note(why.rule, describe(facts.flow, where or ops[0]), why.text))


def look_at_all(sight: Sight, rules: Sequence[Rule], hold: bool) -> Findings:
    """What rules find that look at one operator after the other. ``hold``: whether the level's guards hold; operators
    inside of regions are not looked at then, as their region decides for them, and else only those of class fp32; but
    where others read what is made inside, whom no region keeps from overflow."""
    facts, classes = sight.facts, sight.regions.classes
    safe = {op for op in sight.regions.inside if hold or classes[op] != "fp32"} - sight.regions.shared
    by_role: dict[str, dict[Rule, None]] = {}
    for rule in rules:
        for role in facts.traits.operators(*rule.traits):
            by_role.setdefault(role, {})[rule] = None
    found: list[Ruling] = []
    sources: list[Source] = []
    for op in facts.flow.with_roles(by_role):
        for rule in by_role[op.role] if op.slots and op.id not in safe else ():
            assert rule.look is not None
            spoilt = rule.look(sight, op)
            if spoilt is not None:
                why, ops = Why(rule.name, spoilt[0]), spoilt[1]
                found.append(ruling(facts, why, ops, _units_passed_between(facts, ops), op))
                sources += [Source(other.id, why, False) for other in ops]
    return Findings(found, sources)


def _units_passed_between(facts: Facts, ops: Collection[Op]) -> list[int]:
    """For rulings: units of values that operators read across a boundary of a body or function from one another."""
    flow, crossings, ids = facts.flow, facts.crossings, {op.id for op in ops}
    found: dict[int, None] = {}
    for formal in (v for op in ops for v in op.inputs if v in crossings.before):
        passed = [flow.values[v] for v in sorted(crossings.origins(formal))]
        if any(value.producer in ids for value in passed):
            found.update((value.unit, None) for value in passed if value.unit != NONE)
    return list(found)


def warned(findings: Findings, decided: Decisions) -> Findings:
    """A rule's findings where guards only warn: notes on rulings that would hold what is low, and the rule's own."""
    notes = [
        Note(f"{ruling.note.topic} (not held)", ruling.note.where, ruling.note.text)
        for ruling in findings.rulings
        if ruling.note is not None and any(decided.is_low(unit) for hold in ruling.holds for unit in hold.units)
    ]
    return Findings(notes=[*notes, *findings.notes])


def reaches(sight: Sight, op: Op, kinds: frozenset[str], through: frozenset[str]) -> list[Op]:
    """The chain of readers from an operator to the first whose role is among ``kinds``, that one included, by way of
    operators with roles among ``through``, each role once; empty when there is none."""
    for reader in (r for v in op.outputs for r in sight.facts.flow.readers(v)):
        if reader.role in kinds:
            return [reader]
        if reader.role in through and reader.slots:
            chain = reaches(sight, reader, kinds, through - {reader.role})
            if chain:
                return [reader, *chain]
    return []
