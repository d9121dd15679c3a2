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
"""Where a rule acts: at every level; where a level's accuracy guards hold; there, while it warns where they warn."""


class Ruling(NamedTuple):
    """Holds for one reason, each of one node, and a note for the case that some of them had an effect.

    ``says_count``: the note's text starts with how many nodes that were; ``silent`` holds do not count.
    """

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
        released: units that the cut decides instead of a list.
        lowered: units that are low instead of what a list says.
        byte_worth: of free units, what a byte saved there is worth to the cut, 1 where none is given.
        prefer_float32: those that are float32 where that takes no more Casts, with the reason.
        integer_valued: float values that hold integers.
        floors: mask constants, by value, with what replaces their lowest elements.
        flushing: weights with the share that the low type makes zero.
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
        """Enters all that was found into the ledger."""
        for ruling in self.rulings:
            ruling.enter(ledger)
        for unit, why in self.released.items():
            ledger.release(unit, why)
        for unit, why in self.lowered.items():
            ledger.lower(unit, why)
        ledger.sources += self.sources
        ledger.notes += self.notes

    def __or__(self, later: Findings) -> Findings:
        """These findings and later ones; of one unit or value what was found first counts, and the least worth."""
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
    """What a rule looks at: the facts of a model, and its regions."""

    facts: Facts
    regions: Regions
    _made: dict[object, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def at(facts: Facts, regions: Regions) -> Sight:
        """A sight that has what one of the same regions, by other words, has made already."""
        seen: list[Any] = facts.sights
        other = (one for one in seen if (one.regions.of_op, one.regions.classes) == (regions.of_op, regions.classes))
        sight = Sight(facts, regions, next((one._made for one in other), {}))
        seen.append(sight)
        return sight

    def of(self, make: Callable[..., T], *args: object) -> T:
        """What ``make`` gives for this sight, made once: several rules share it, whatever the level."""
        if (make, args) not in self._made:
            self._made[make, args] = make(self, *args)
        found: T = self._made[make, args]
        return found


Spoilt = tuple[str, Sequence[Op]] | None
"""Why operators must be float32, and which; None where nothing is wrong."""
Look = Callable[[Sight, Op], Spoilt]
Run = Callable[[Sight, Decisions], Findings]
Report = Callable[[Facts, Findings, Decisions], Iterable[Note]]


@dataclass(frozen=True)
class Rule:
    """One rule, by the name that its decisions bear. ``validity``: it cannot be switched off, as all else is wrong.

    It looks at every operator that has one of some ``traits``, or ``run``s over the model; ``report`` says what is to
    be said of it once everything is decided. Lists, schema and kernels decide slot by slot, before all others."""

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
        """Whether the planner's rule acts at a level with such accuracy guards."""
        return self.levels == "every" or guards == "hold" or (self.levels == "warned" and guards == "warn")


def looks(name: str, *traits: Trait, trigger: str, action: str) -> Callable[[Look], Rule]:
    """Makes a function a rule of the planner on accuracy, which looks at one operator after the other."""
    return lambda look: Rule(name, trigger, action, traits=traits, look=look)


def runs(
    name: str, *, trigger: str, action: str, levels: Levels = "warned", validity: bool = False,
    report: Report | None = None,
) -> Callable[[Run], Rule]:  # fmt: skip
    """A decorator that makes a function a rule of the planner, of this name, that runs over a whole model."""
    return lambda run: Rule(name, trigger, action, levels, validity, run=run, report=report)


def ruling(facts: Facts, why: Why, ops: Sequence[Op], beside: Iterable[int] = (), where: Op | None = None) -> Ruling:
    """A ruling that holds operators, and the units ``beside`` them, for one reason; its note is at ``where``, else at
    the first operator."""
    holds = [Hold(tuple(op.slots.values()), ACCURACY, why) for op in ops if op.slots]
    holds += [Hold((unit,), ACCURACY, why) for unit in beside]
    return Ruling(holds, Note(why.rule, describe(facts.flow, where or ops[0]), why.text))


def look_at_all(sight: Sight, rules: Sequence[Rule], hold: bool) -> Findings:
    """What rules find that look at one operator after the other, at a level whose guards ``hold`` or do not."""
    facts, classes = sight.facts, sight.regions.classes
    safe = {op for op in sight.regions.inside if hold or classes[op] != "fp32"}  # their region decides for them
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
                found.append(ruling(facts, why, ops, _crossed(facts, ops), op))
                sources += [Source(other.id, why, False) for other in ops]
    return Findings(found, sources)


def _crossed(facts: Facts, ops: Collection[Op]) -> list[int]:
    """What hands values over a boundary of a body or a function, from one of some operators to another."""
    flow, crossings, ids = facts.flow, facts.crossings, {op.id for op in ops}
    found: dict[int, None] = {}
    for formal in (v for op in ops for v in op.inputs if v in crossings.before):
        passed = sorted(crossings.origins(formal))
        if any(flow.values[v].producer in ids for v in passed):
            found.update((unit, None) for v in passed if (unit := flow.values[v].unit) != NONE)
    return list(found)


def warned(findings: Findings, decided: Decisions) -> Findings:
    """What a rule would hold, as notes on what is low, where the rule does not act at this level."""
    notes = [
        Note(f"{ruling.note.topic} (not held)", ruling.note.where, ruling.note.text)
        for ruling in findings.rulings
        if ruling.note is not None and any(decided.is_low(unit) for hold in ruling.holds for unit in hold.units)
    ]
    return Findings(notes=[*notes, *findings.notes])


def reaches(sight: Sight, op: Op, kinds: frozenset[str], through: frozenset[str]) -> list[Op]:
    """The chain from an operator to the first of ``kinds`` behind exact moves; empty when there is none."""
    for reader in (r for v in op.outputs for r in sight.facts.flow.readers(v)):
        if reader.role in kinds:
            return [reader]
        if reader.role in through and reader.slots:
            chain = reaches(sight, reader, kinds, through - {reader.role})
            if chain:
                return [reader, *chain]
    return []
