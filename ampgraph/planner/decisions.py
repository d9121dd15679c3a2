"""What is decided of every unit and by which right, and the one place where that changes.

Steps say what should be decided; a ``Ledger`` takes it by precedence, and gives ``Decisions``, which never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..core.dataflow import NONE, Dataflow, Op, Ties
from ..core.errors import AmpError
from ..core.plan import Note, Why

FREE, LOW, HIGH = 0, 1, 2
"""Sides of a unit: not decided, low, float32."""
CUT, LIST, REGION, ACCURACY, RANGE, USER, VALIDITY = range(7)
"""Precedence, lowest first: validity guard > the user's pattern > measured range > accuracy guard > list > cut."""

FP32_STREAM = "fp32_stream"
"""The rule that holds what `--fp32-stream` asks for."""


class Verdict(NamedTuple):
    """What is decided of a unit: its side (`FREE`, `LOW`, `HIGH`), by which right (`CUT` to `VALIDITY`), and why."""

    side: int
    rank: int
    why: Why


class Hold(NamedTuple):
    """Keeps units in float32, by a rank and with why. ``unless_high``: not where all of them are float32 already."""

    units: tuple[int, ...]
    rank: int
    why: Why
    unless_high: bool = False


class Source(NamedTuple):
    """An operator (its id) whose results taint what follows; ``of_range``: because they leave the low type's range."""

    op: int
    why: Why
    of_range: bool


class Tie(NamedTuple):
    """Units that share one decision from now on; what was decided for one holds for all, by precedence."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """By representative of tied units: side, rank and reason. ``roots``: the representative of every unit. ``sources``:
    what was found to taint so far."""

    sides: Sequence[int]
    ranks: Sequence[int]
    whys: Sequence[Why | None]
    roots: Sequence[int]
    sources: Sequence[Source] = ()

    def find(self, unit: int) -> int:
        """The representative of the units that share one decision with ``unit``."""
        return self.roots[unit]

    def units_of(self, op: Op) -> set[int]:
        """The representatives of an operator's units."""
        return {self.roots[unit] for unit in op.slots.values()}

    def side(self, unit: int) -> int:
        """The side of a unit, of any that are tied: `LOW`, `HIGH` (float32), or `FREE` where nothing has decided."""
        return self.sides[self.roots[unit]]

    def is_high(self, unit: int) -> bool:
        """Whether the unit is float32; False for no unit."""
        return unit != NONE and self.sides[self.roots[unit]] == HIGH

    def is_low(self, unit: int) -> bool:
        """Whether the unit is low; False for no unit."""
        return unit != NONE and self.sides[self.roots[unit]] == LOW

    def why(self, unit: int) -> Why | None:
        """The reason of its side; None while it is free."""
        return self.whys[self.roots[unit]]

    def is_held(self, unit: int) -> bool:
        """Whether schema or kernels keep a unit in float32."""
        root = self.roots[unit]
        return self.sides[root] == HIGH and self.ranks[root] == VALIDITY


class Verdicts(NamedTuple):
    """Verdicts of units, entered in this order, with notes."""

    by_unit: Iterable[tuple[int, Verdict]]
    notes: Sequence[Note] = ()

    def enter(self, ledger: Ledger) -> None:
        """Enters the verdicts into the ledger. Raises AmpError AMP306 for a unit that is asked for in both types."""
        for unit, (side, rank, why) in self.by_unit:
            ledger.decide(unit, side, rank, why)
        ledger.notes += self.notes


class Result(Protocol):
    """What a step gives: it knows what it wants of the ledger."""

    def enter(self, ledger: Ledger) -> None:
        """Enters into the ledger what the step found."""
        ...


class Ledger:
    """The decisions of a model under way, which `take` copies. Only the code that drives the steps holds a ledger."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        count = len(flow.units)
        self._sides = [FREE] * count
        self._ranks = [CUT] * count
        self._whys: list[Why | None] = [None] * count
        self._ties = Ties(flow.find(unit) for unit in range(count))
        self._find = self._ties.find
        self._roots: list[int] | None = None  # the representative of every unit; None once a tie has changed them
        self.notes: list[Note] = []
        self.sources: list[Source] = []

    def take(self, *results: Result) -> Decisions:
        """Enters results, in this order, and returns the decisions. Raises AmpError AMP306 as `decide` does."""
        for result in results:
            result.enter(self)
        if self._roots is None:
            parents = enumerate(self._ties.parents)
            self._roots = [unit if unit == parent else self._find(unit) for unit, parent in parents]
        return Decisions(self._sides.copy(), self._ranks.copy(), self._whys.copy(), self._roots, self.sources.copy())

    def decide(self, unit: int, side: int, rank: int, why: Why) -> bool:
        """Decides a unit, unless something of higher rank did, or of the same rank that is float32 or says the same.
        True when it took effect. Raises AmpError AMP306 where the user asks for both precisions."""
        root = self._find(unit)
        before, right = self._sides[root], self._ranks[root]
        if rank == USER == right and before not in (FREE, side):
            raise AmpError(
                "AMP306",
                "asked for in both precisions",
                where=place(self.flow, unit),
                hint="make the --fp32 and --low patterns disjoint",
            )
        lowered = side == HIGH and before == LOW
        if rank < right or (rank == right and before != FREE and not lowered):
            return False
        self._sides[root], self._ranks[root], self._whys[root] = side, rank, why
        return True

    def hold(self, hold: Hold) -> bool:
        """Keeps units in float32, as `decide` does. True where it took effect on one, if only by a higher rank."""
        units, rank, why, unless_high = hold
        if unless_high and all(self._sides[self._find(unit)] == HIGH for unit in units):
            return False
        effects = [self.decide(unit, HIGH, rank, why) for unit in units]
        return any(effects)

    def tie(self, units: Iterable[int]) -> int:
        """Ties units, and returns the one that represents them; what was decided of each holds for all, by rank."""
        known = {self._find(unit) for unit in units}
        verdicts = [(self._sides[u], self._ranks[u], self._whys[u]) for u in known]
        root, self._roots = self._ties.tie(known), None
        self._sides[root], self._ranks[root], self._whys[root] = FREE, CUT, None
        for side, rank, why in sorted(verdicts, key=lambda verdict: verdict[1]):
            if why is not None:
                self.decide(root, side, rank, why)
        return root

    def release(self, unit: int, why: Why) -> None:
        """Leaves a unit to the cut, unless something stronger than a list or a region decided it."""
        root = self._find(unit)
        if self._ranks[root] <= REGION:
            self._sides[root], self._ranks[root], self._whys[root] = FREE, CUT, why

    def lower(self, unit: int, why: Why) -> None:
        """Makes a unit low, unless something stronger than a list decided it."""
        root = self._find(unit)
        if self._ranks[root] <= LIST:
            self._sides[root], self._ranks[root], self._whys[root] = LOW, CUT, why


def describe(flow: Dataflow, op: Op) -> str:
    """How the messages of decisions name a node: its name where it has one, else its place."""
    return op.name or f"{flow.scopes[op.scope].path}/{op.index}:{op.kind}"


def place(flow: Dataflow, unit: int) -> str:
    """How the messages of decisions name what a unit belongs to: a node, or an input or output of the model."""
    owner = flow.units[unit]
    return describe(flow, flow.ops[owner.op]) if owner.op != NONE else owner.slot
