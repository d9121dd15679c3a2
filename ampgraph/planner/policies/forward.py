"""Types that flow forward, as in frameworks that cast at certain places and promote where types meet.

A unit starts low; what its operator reads, and a policy's rules, make it float32, for good: float32 wins where two
types meet. The operators are walked in order until nothing changes. No guard, region or cut of ours applies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Use, Value
from ...core.plan import Note, Rounding, Why
from ...oplists.options import Options
from ..assemble import DecidedModel
from ..classify import classify_validity
from ..decisions import HIGH, LIST, LOW, USER, VALIDITY, Decisions, Ledger, Result, Tie, Verdict, Verdicts, describe
from ..facts.facts import Facts
from ..overrides import read_overrides
from ..regions import Regions


class ForwardTypes(ABC):
    """Types of a model's units as they flow forward. ``low``: whether a unit is low so far, and ``why`` it is float32,
    both by representative; ``given``: what is decided before any rule is asked: what is low there no rule changes."""

    def __init__(self, flow: Dataflow, options: Options, given: Decisions | None = None) -> None:
        self.flow, self.options, self.given = flow, options, given
        self.why: dict[int, str] = {}
        self.low = [True] * len(flow.units)
        if given is not None:
            self.low = [not given.is_high(unit) for unit in range(len(flow.units))]
            return
        for unit in flow.units:
            if unit.fixed or options.dtype not in unit.admits and not unit.fixed_low:
                self.low[flow.find(unit.id)] = False
                self.why[flow.find(unit.id)] = unit.fixed or f"its operator does not take {options.dtype}"
        for op in flow.ops:
            for held in op.slots.values() if op.held else ():
                self.make_float32(held, op.held)

    def settle(self) -> None:
        """Types operators and boundaries again until no type changes."""
        changed = True
        while changed:
            changed = False
            for op in self.flow.ops:
                changed |= self._settle_op(op)
            changed |= self._settle_boundaries()

    @abstractmethod
    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        """By a policy's rule: why a slot, whose unit is still low, has to be float32; "" where it stays low."""

    def is_low(self, unit: int) -> bool:
        """Whether the unit is low so far, by the policy."""
        return self.low[self.flow.find(unit)]

    def make_float32(self, unit: int, why: str) -> bool:
        """A policy makes a unit float32, with why; True when it was low, False when it is float32 or given as low."""
        root = self.flow.find(unit)
        if not self.low[root] or (self.given is not None and self.given.is_low(root)):
            return False
        self.low[root] = False
        self.why[root] = why
        return True

    def _settle_op(self, op: Op) -> bool:
        """Types the slots of an operator by the policy's rule; True when one changed."""
        changed = False
        for slot, unit in op.slots.items():
            why = self._float32_for(op, slot, unit) if self.is_low(unit) else ""
            if why:
                changed |= self.make_float32(unit, why)
        return changed

    def _settle_boundaries(self) -> bool:
        """Gives what is passed into and out of bodies and functions the type that comes; True when a unit changed."""
        changed = False
        for source, target in self.flow.passed:
            unit = self.flow.values[target].unit
            if unit != NONE and self.is_low(unit) and not self.comes_low(self.flow.values[source], NONE):
                changed |= self.make_float32(unit, "is given float32")
        return changed

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader (an operator's id, `NONE` for a boundary) low, by the policy."""
        if value.dtype != FLOAT32:
            return value.dtype == self.options.dtype
        return value.unit != NONE and self.is_low(value.unit)

    def operands(self, op: Op, unit: int) -> list[Value]:
        """For a policy: the values that an operator reads through one of its slots."""
        root = self.flow.find(unit)
        found = []
        for source in dict.fromkeys(op.inputs):
            if source != NONE and any(
                u.op == op.id and u.unit != NONE and self.flow.find(u.unit) == root for u in self.flow.uses[source]
            ):
                found.append(self.flow.values[source])
        return found

    def widest(self, op: Op, unit: int) -> str:
        """For a policy: why a slot takes float32 by promotion: an operand comes as float32; "" if none does. Scalar
        constants, Python numbers in the frameworks, count only where there is no other operand."""
        operands = self.operands(op, unit)
        strong = [value for value in operands if not value.weight or value.parameter or value.shape != ()]
        return self.float32_among(op, strong or operands)

    def float32_among(self, op: Op, operands: list[Value]) -> str:
        """For a policy's reason: the first operand that does not come low, in words; "" if all do. Without operands a
        slot is float32 too, as what the operator makes of nothing is."""
        if not operands:
            return "is made as float32"
        for value in operands:
            if not self.comes_low(value, op.id):
                return f"'{value.name}' comes as float32"
        return ""

    def roundings(self) -> list[Rounding]:
        """By a policy: float32 values that float32 readers get rounded to low and widened again, with these readers."""
        found = []
        for value in self.flow.values:
            if value.dtype != FLOAT32 or (value.unit != NONE and self.is_low(value.unit)):
                continue
            uses = [
                use for use in self.flow.uses[value.id] if self._reads_float32(use) and self._is_rounded(value, use)
            ]
            if uses:
                places = tuple(self.flow.place(use) for use in uses)
                found.append(Rounding(self.flow.scopes[value.scope].path, value.name, places))
        return found

    def _reads_float32(self, use: Use) -> bool:
        """For a policy: whether a use reads float32 and is no Cast of the file to low."""
        return use.unit != NONE and not use.given_cast and not self.is_low(use.unit)

    def _is_rounded(self, value: Value, use: Use) -> bool:
        """By a policy: whether a float32 reader gets a float32 value rounded. Never, unless a policy says otherwise."""
        return False


def verdicts_of_types(types: ForwardTypes) -> Verdicts:
    """A policy's settled types as verdicts of rank LIST, by representative; of tied units the last gives the reason."""
    flow, verdicts = types.flow, dict[int, Verdict]()
    for unit in flow.units:
        root = flow.find(unit.id)
        text = unit.fixed or types.why.get(root, "takes the type that comes")
        verdicts[root] = Verdict(LOW if types.low[root] else HIGH, LIST, Why(types.options.policy, text))
    return Verdicts(verdicts.items())


PARITY = "parity"
"""The topic of notes that say where a result is not what the framework does."""


def unlisted_notes(flow: Dataflow, framework: str, ops: Iterable[Op], then: str) -> Iterator[Note]:
    """Notes on kinds of ``ops`` that are in none of a framework's lists. ``then``: what becomes of them."""
    kinds: dict[str, list[Op]] = {}
    for op in ops:
        kinds.setdefault(op.kind, []).append(op)
    for kind, found in sorted(kinds.items()):
        yield Note(PARITY, describe(flow, found[0]), f"{len(found)} {kind} in none of {framework}'s lists: {then}")


@dataclass(frozen=True)
class Begun:
    """A model before a framework's rule is asked: ``given`` has what validity (schemas and kernels) and the user's
    patterns decide; in ``flow``, a fork of the model's dataflow, slots that must share a type are tied."""

    flow: Dataflow
    options: Options
    ledger: Ledger
    given: Decisions

    def finish(
        self,
        framework: str,
        types: Result,
        refused: Mapping[int, str],
        notes: Iterable[Note] = (),
        roundings: Sequence[Rounding] = (),
    ) -> DecidedModel:
        """The decided model. ``types``: verdicts of rank LIST by the framework's rule; ``refused``: units that it would
        make low, with why, of which those that are pinned to float32 are noted; ``framework``: its name in notes."""
        settled = self.ledger.take(types)
        added = [*self._changed_notes(framework), *self._refused_notes(framework, refused), *notes]
        flow = self.flow
        numbers = frozenset(value.id for value in flow.values if value.weight and self._is_number(value))
        return DecidedModel(
            flow, self.options, settled, numbers=numbers, roundings=roundings, notes=[*self.ledger.notes, *added]
        )

    def _is_number(self, value: Value) -> bool:
        """Whether a stored tensor of one element is a number: without dimensions, or a parameter's dotted name."""
        unnamed = self.flow.shape(value.id) == () or "." not in value.name
        return unnamed and self.flow.weights.size(value) == 1

    def _changed_notes(self, framework: str) -> list[Note]:
        """At most one note: the user's patterns decided slots, so that the result is no longer the framework's."""
        given = self.given
        roots = [unit for unit in range(len(given.ranks)) if given.find(unit) == unit]
        count = sum(given.ranks[root] == USER for root in roots)
        if not count:
            return []
        text = f"--fp32 and --low decided {count} slots: the result is not what {framework} does any more"
        return [Note(PARITY, "", text)]

    def _refused_notes(self, framework: str, refused: Mapping[int, str]) -> list[Note]:
        """Notes where schema or kernel keep units float32 that the framework computes low (``refused``: unit -> why),
        one for each kind of operator and reason."""
        kinds: dict[tuple[str, str], list[str]] = {}  # (operator, reason) -> the nodes
        for unit in refused:
            owner = self.flow.units[unit].op
            why = self.given.why(unit)
            if owner != NONE and why is not None and self.given.ranks[self.given.find(unit)] == VALIDITY:
                op = self.flow.ops[owner]
                names = kinds.setdefault((op.kind, why.text), [])
                if describe(self.flow, op) not in names:
                    names.append(describe(self.flow, op))
        return [
            Note(PARITY, names[0], f"{len(names)} {kind} float32 where {framework} computes low: {text}")
            for (kind, text), names in kinds.items()
        ]


def begin(flow: Dataflow, options: Options, kernels: bool = True) -> Begun:
    """Decides validity and the user's patterns, before a framework's rule is asked. Raises AmpError AMP305 and AMP306
    for mistakes in the patterns. ``kernels``: whether a slot that the target has no low kernel for stays float32."""
    flow = flow.fork()
    if not kernels:
        options = replace(options, kernels=replace(options.kernels, missing="unasked", broken={}))
    facts = Facts.of(flow, options)
    valid = classify_validity(facts)
    for item in valid.first:
        if isinstance(item, Tie):
            flow.merge(item.units)
    ledger = Ledger(flow)
    held = ledger.take(valid)
    wishes = read_overrides(facts, Regions(), held)
    given = ledger.take(wishes)
    return Begun(flow, options, ledger, given)
