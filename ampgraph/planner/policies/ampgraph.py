"""The policy ``ampgraph``: lists, regions and ties, guards, the user's patterns, and the minimum cut for the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...core.dataflow import Dataflow
from ...core.plan import Note, Why
from ...core.spellings import LEVELS
from ..bounded import float32_units
from ..classify import classify
from ..costs import CutTask
from ..decided import DecidedModel
from ..decisions import CUT, FREE, HIGH, LIST, LOW, Ledger, Verdict
from ..facts.facts import Facts
from ..facts.measured import Passing
from ..guards.accuracy import guard_accuracy
from ..guards.coarse_masks import report_coarse_masks
from ..guards.common_parts import guard_common_parts
from ..guards.constants import guard_constants
from ..guards.hazards import spread_hazards
from ..guards.index import guard_indices
from ..guards.integers import guard_integers
from ..guards.joined import release_joined
from ..guards.ranges import guard_ranges, report_ranges
from ..guards.raw import guard_raw
from ..guards.recurrences import guard_recurrences
from ..guards.streams import guard_streams
from ..guards.tail import release_branches, release_tail
from ..guards.unserved import release_unserved
from ..guards.weights import Unstorable, floors_read_low, guard_weights, report_floors, report_flushing
from ..joints import find_joints
from ..options import Options
from ..overrides import read_overrides
from ..regions import Regions, tie_regions
from ..stages import Guarded, Held, Judged, Listed, Loose, Settled, Steady, Tied, Weighed
from ..wide_streams import hold_wide_streams, stream_additions
from .registry import Policy, register


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit: judged, or by the cut."""
    judgement = judge(Facts.of(flow, options))
    cut = _cut(judgement)
    settled = Settled(judgement.ledger.take(cut))
    return _reported(judgement, cut, settled)


@dataclass(frozen=True)
class Judgement:
    """All that is decided before the cut, and what the cut and the reports need to know."""

    facts: Facts
    ledger: Ledger
    judged: Judged
    regions: Regions
    passing: Passing
    unstorable: Unstorable
    counted: Collection[int]
    worth: Mapping[int, int]
    wide: Mapping[int, Why]
    joined: Collection[int]

    @property
    def task(self) -> CutTask:
        """What the cut is asked."""
        flow, options, fused = self.facts.flow, self.facts.options, self.regions.fused
        return CutTask(flow, options, self.judged, self.worth, self.counted, fused, self.joined)


def judge(facts: Facts) -> Judgement:
    """All that lists, regions, patterns and guards decide; what they leave free is the cut's.

    Each step takes what it builds on: a stage of the decisions, or what an earlier step found.
    """
    ledger = Ledger(facts.flow)
    beyond = facts.passing
    classes = classify(facts)
    joints = find_joints(facts.flow, facts.options)
    regions = tie_regions(facts, classes, beyond, joints)
    if kept := stream_additions(facts, regions):
        regions = tie_regions(facts, classes, beyond, joints, kept)
    tied = Tied(ledger.take(classes, regions))
    wishes = read_overrides(facts, regions, tied)
    integers = guard_indices(facts, regions)
    listed = Listed(ledger.take(wishes, integers))
    fragile = guard_accuracy(facts, regions, listed)
    quantized = guard_integers(facts, regions, listed)
    unscaled = guard_raw(facts, regions)
    constants = guard_constants(facts, regions)
    common = guard_common_parts(facts, regions)
    wide_streams = hold_wide_streams(facts, regions)
    held = Held(ledger.take(fragile, quantized, unscaled, constants, common, wide_streams))
    streams = guard_streams(facts, regions, held)
    recurrences = guard_recurrences(facts, regions)
    steady = Steady(ledger.take(streams, recurrences))
    unstorable = guard_weights(facts, steady)
    weighed = Weighed(ledger.take(unstorable))
    overflows = guard_ranges(facts, beyond, weighed)
    hazards = spread_hazards(facts, regions, fragile, unstorable, overflows)
    guarded = Guarded(ledger.take(overflows, hazards))
    tail = release_tail(facts, regions, guarded)
    loose = Loose(ledger.take(tail))
    branches = release_branches(facts, loose)
    unserved = release_unserved(facts, regions, loose)
    joined = release_joined(facts, regions, joints, loose)
    judged = Judged(ledger.take(branches, unserved, joined))
    worth, wide = {**tail.worth, **branches.worth}, {**joined.wide, **tail.wide, **branches.wide}
    counted, values = integers.counted, joined.values
    return Judgement(facts, ledger, judged, regions, beyond, unstorable, counted, worth, wide, values)


@dataclass(frozen=True)
class Cut:
    """The cut's verdicts of the units that nothing else decided. ``seeded``: whether anything is low by right."""

    verdicts: Mapping[int, Verdict]
    seeded: bool

    def enter(self, ledger: Ledger) -> None:
        for unit, (side, rank, why) in self.verdicts.items():
            ledger.decide(unit, side, rank, why)


def _cut(judgement: Judgement) -> Cut:
    """What is still free takes the cheaper type; where nothing is low by right, all of it stays float32."""
    judged, roots = judgement.judged, dict.fromkeys(judgement.judged.roots)
    free = [root for root in roots if judged.sides[root] == FREE]
    if not any(judged.sides[root] == LOW and judged.ranks[root] >= LIST for root in roots):
        unseeded = Verdict(HIGH, CUT, Why("cut", "nothing in the model is low at this level"))
        return Cut(dict.fromkeys(free, unseeded), seeded=False)
    low = Verdict(LOW, CUT, Why("cut", "costs least in the low type, with its neighbours"))
    why = Why("cut", "costs least in float32, with its neighbours")
    verdicts = dict.fromkeys(free, low)
    verdicts |= {root: Verdict(HIGH, CUT, judgement.wide.get(root, why)) for root in float32_units(judgement.task)}
    return Cut(verdicts, seeded=True)


def _reported(judgement: Judgement, cut: Cut, settled: Settled) -> DecidedModel:
    """The decided model, with its notes once everything is decided."""
    facts = judgement.facts
    floors = floors_read_low(facts, judgement.unstorable, settled)
    notes: Sequence[Note] = [
        *judgement.ledger.notes,
        *report_floors(facts, floors),
        *report_coarse_masks(facts, settled),
        *report_flushing(facts, judgement.unstorable, settled),
        *report_ranges(facts, judgement.passing, settled),
    ]
    return DecidedModel(
        flow=facts.flow,
        options=facts.options,
        settled=settled,
        region_of=judgement.regions.of_op,
        seeded=cut.seeded,
        worth=judgement.worth,
        counted=judgement.counted,
        fused=judgement.regions.fused,
        joined=judgement.joined,
        floors=floors,
        notes=notes,
    )


register(
    Policy(
        name="ampgraph",
        framework="ampgraph",
        rule=decide,
        levels={
            "O0": "off",
            "O1": "products low",
            "O2": "all but norms and losses low",
            "O3": "all low",
            "auto": "what costs least",
        },
        default_level="O2",
        stores=dict.fromkeys(LEVELS, "low"),
        ours=True,
    )
)
