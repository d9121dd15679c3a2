"""What a policy's rule gives: every unit decided with a reason, and all that a plan and a report say besides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.dataflow import Dataflow
from ..core.plan import Note, Rounding
from .costs import CutTask
from .decisions import Decisions
from .options import Options


@dataclass(frozen=True)
class DecidedModel:
    """A decided model.

    Attributes:
        settled: side, right and reason of every unit.
        region_of: operators of a region, with the operator that it stands for.
        seeded: whether anything is low by right, so that the model changes at all.
        worth, counted, fused, joined: as for `CutTask`.
        floors: mask constants, by value, with what replaces their lowest elements.
        roundings: float32 values that some readers get rounded.
        numbers: stored tensors that are numbers of the program's and no parameters, whatever the file calls them.
    """

    flow: Dataflow
    options: Options
    settled: Decisions
    region_of: Mapping[int, str] = field(default_factory=dict)
    seeded: bool = True
    worth: Mapping[int, int] = field(default_factory=dict)
    counted: Collection[int] = frozenset()
    fused: Collection[int] = frozenset()
    joined: Collection[int] = frozenset()
    floors: Mapping[int, float] = field(default_factory=dict)
    roundings: Sequence[Rounding] = ()
    numbers: Collection[int] = frozenset()
    notes: Sequence[Note] = ()

    @property
    def task(self) -> CutTask:
        """What the cut would be asked to change a decision: the prices of a change of mind."""
        sets = self.counted, self.fused, self.joined
        return CutTask(self.flow, self.options, self.settled, self.worth, *sets)
