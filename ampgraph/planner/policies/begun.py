"""How a framework's policy begins and ends: what no rule of a framework's can change, and its notes at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.dataflow import NONE, Dataflow, Value
from ...core.plan import Note, Rounding
from ..classify import classify_validity
from ..decided import DecidedModel
from ..decisions import USER, VALIDITY, Decisions, Ledger, Result, Tie, describe
from ..facts.facts import Facts
from ..options import Options
from ..overrides import read_overrides
from ..regions import Regions

PARITY = "parity"
"""The topic of notes that say where a result is not what the framework does."""


@dataclass(frozen=True)
class Begun:
    """A model of which validity and the user's patterns have been decided: ``given``.

    Attributes:
        flow: its dataflow; slots that must share a type are tied.
    """

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
        """The decided model. ``types``: what the framework's rule says, as verdicts of rank LIST; ``refused``: units
        that it would make low and that are held in float32, with why it would."""
        settled = self.ledger.take(types)
        added = [*self._changed(framework), *self._refused(framework, refused), *notes]
        flow = self.flow
        numbers = frozenset(value.id for value in flow.values if value.weight and self._is_number(value))
        return DecidedModel(
            flow, self.options, settled, numbers=numbers, roundings=roundings, notes=[*self.ledger.notes, *added]
        )

    def _is_number(self, value: Value) -> bool:
        """Whether a stored tensor is a number: without dimensions, or of one element and without a parameter's path."""
        plain = self.flow.shape(value.id) == () or "." not in value.name
        return plain and self.flow.weights.size(value) == 1

    def _changed(self, framework: str) -> list[Note]:
        """Patterns of the user's: the result is no longer the framework's."""
        given = self.given
        count = sum(given.ranks[unit] == USER for unit in range(len(given.ranks)) if given.find(unit) == unit)
        if not count:
            return []
        text = f"--fp32 and --low decided {count} slots: the result is not what {framework} does any more"
        return [Note(PARITY, "", text)]

    def _refused(self, framework: str, refused: Mapping[int, str]) -> list[Note]:
        """Where schema or kernel keep float32 what the framework computes low, once an operator and reason."""
        kinds: dict[tuple[str, str], list[str]] = {}
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
    """Validity and the user's patterns, decided. Raises AmpError AMP305 and AMP306 for mistakes in the patterns.

    ``kernels``: whether a slot that the target has no low kernel for stays float32.
    """
    flow = flow.fork()
    if not kernels:
        options = replace(options, kernels=replace(options.kernels, missing="unasked", broken={}))
    facts = Facts.of(flow, options)
    valid = classify_validity(facts)
    for tie in valid.first:
        if isinstance(tie, Tie):
            flow.merge(tie.units)
    ledger = Ledger(flow)
    held = ledger.take(valid)
    wishes = read_overrides(facts, Regions(), held)
    given = ledger.take(wishes)
    return Begun(flow, options, ledger, given)
