"""What is decided so far about each unit, and by which right: a later word of higher rank replaces an earlier one."""

from __future__ import annotations

from ..core.borders import Borders
from ..core.dataflow import NONE, Dataflow, Op
from ..core.errors import AmpError
from ..core.plan import Note, Rounding, Why
from ..oplists.operators import Listing
from .options import Options, largest

__all__ = ["Options", "State", "describe", "largest"]

CONVERSIONS = ("Cast", "CastLike")
SQUARE, INVERSE_ROOT = "mindspore::Square", "mindspore::Rsqrt"  # one operator there, two of the standard
FREE, LOW, HIGH = 0, 1, 2
CUT, LIST, REGION, ACCURACY, RANGE, USER, VALIDITY = range(7)
"""Precedence, lowest first: validity guard > the user's pattern > measured range > accuracy guard > list > cut."""


class State:
    """The decision, rank and reason of every unit, kept at the unit's representative."""

    def __init__(self, flow: Dataflow, options: Options) -> None:
        self.flow, self.options = flow, options
        count = len(flow.units)
        self.value = [FREE] * count
        self.rank = [CUT] * count
        self.why: list[Why | None] = [None] * count
        self.class_of_op: list[str] = [""] * len(flow.ops)  # the list class that governs an op, "" for none
        self.region_of_op: dict[int, str] = {}
        self.notes: list[Note] = []
        self.roundings: list[Rounding] = []
        self.seeded = False  # whether anything is low by right, so that the model changes at all
        self.sources: list[tuple[int, Why, bool]] = []  # hazards: op, reason, whether the range itself is the hazard
        self.borders = Borders(flow)
        self.counted: set[int] = set()  # float values that are integers in disguise
        self.tail: dict[int, int] = {}  # free units: what a byte saved there is worth; 1 where none is told
        self.wide: dict[int, Why] = {}  # free units that are float32 where that takes no more Casts
        self.angles: set[int] = set()  # ops that a guard found to compute angles
        self.activations: set[int] | None = None  # ops downstream of products, once a guard has asked
        self.passing: dict[int, str] = {}  # values measured to pass the limit, in words
        self.flushing: dict[int, float] = {}  # weights with the share that the low type makes zero

    def set(self, unit: int, value: int, rank: int, why: Why) -> bool:
        """Decides a unit unless something of higher rank did; between equals float32 wins. True when it took effect."""
        root = self.flow.find(unit)
        if rank == USER and self.rank[root] == USER and self.value[root] not in (FREE, value):
            raise AmpError(
                "AMP306",
                "asked for in both precisions",
                where=self.place(unit),
                hint="make the --fp32 and --low patterns disjoint",
            )
        if rank < self.rank[root] or (
            rank == self.rank[root] and self.value[root] != FREE and not (value == HIGH and self.value[root] == LOW)
        ):
            return False
        self.value[root], self.rank[root], self.why[root] = value, rank, why
        return True

    def merge(self, units: list[int]) -> int:
        """Ties units; what was decided for one holds for all, by the same precedence."""
        known = {self.flow.find(u) for u in units}
        verdicts = [(self.value[u], self.rank[u], self.why[u]) for u in known]
        root = self.flow.merge(units)
        self.value[root], self.rank[root], self.why[root] = FREE, CUT, None
        for value, rank, why in sorted(verdicts, key=lambda v: v[1]):
            if why is not None:
                self.set(root, value, rank, why)
        return root

    def release(self, unit: int, why: Why) -> None:
        """Leaves a unit to the cut, unless something stronger than a list decided it."""
        root = self.flow.find(unit)
        if self.rank[root] <= REGION:
            self.value[root], self.rank[root], self.why[root] = FREE, CUT, why

    def hold(self, op: Op, rank: int, why: Why) -> bool:
        """Keeps every slot of an operator in float32."""
        effects = [self.set(unit, HIGH, rank, why) for unit in op.slots.values()]
        return any(effects)

    def is_high(self, unit: int) -> bool:
        return unit != NONE and self.value[self.flow.find(unit)] == HIGH

    def is_low(self, unit: int) -> bool:
        return unit != NONE and self.value[self.flow.find(unit)] == LOW

    def place(self, unit: int) -> str:
        owner = self.flow.units[unit]
        return describe(self.flow, self.flow.ops[owner.op]) if owner.op != NONE else owner.slot

    def listing(self, op: Op) -> Listing | None:
        return self.options.lists.of(op.role)


def describe(flow: Dataflow, op: Op) -> str:
    """How messages name a node: its name where it has one, else its place."""
    scope = flow.scopes[op.scope].path
    return op.name or f"{scope}/{op.index}:{op.kind}"
