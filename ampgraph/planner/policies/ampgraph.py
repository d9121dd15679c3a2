"""The policy ``ampgraph``: lists, regions and ties, guards, the user's patterns, and the minimum cut for the rest."""

from __future__ import annotations

from ...core.dataflow import Dataflow
from ...core.plan import Why
from ...core.spellings import LEVELS
from ...oplists.options import Options
from ..assemble import DecidedModel
from ..bounded import float32_units
from ..decisions import CUT, FREE, HIGH, LIST, LOW, Decisions, Verdict, Verdicts
from ..facts.facts import Facts
from ..order import REPORTS, Judgement, judge
from ..rules.weights import floors_read_low, report_floors
from .registry import Policy, register


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Decides every unit: by lists, rules and the user's patterns, and what these leave free by the cut."""
    judgement = judge(Facts.of(flow, options))
    verdicts, seeded = _cut(judgement)
    settled = judgement.behind(judgement.ledger.take(Verdicts(verdicts.items())))
    return _reported(judgement, seeded, settled)


def _cut(judgement: Judgement) -> tuple[dict[int, Verdict], bool]:
    """The verdicts of the cut on what is still free, by representative, the cheaper type each; and whether a list, rule
    or pattern makes anything low: if not, all of them are float32."""
    judged, roots = judgement.judged, dict.fromkeys(judgement.judged.roots)
    free = [root for root in roots if judged.sides[root] == FREE]
    if not any(judged.sides[root] == LOW and judged.ranks[root] >= LIST for root in roots):
        unseeded = Verdict(HIGH, CUT, Why("cut", "nothing in the model is low at this level"))
        return dict.fromkeys(free, unseeded), False
    low = Verdict(LOW, CUT, Why("cut", "costs least in the low type, with its neighbours"))
    why = Why("cut", "costs least in float32, with its neighbours")
    verdicts = dict.fromkeys(free, low)
    preferred = judgement.found.prefer_float32
    verdicts |= {root: Verdict(HIGH, CUT, preferred.get(root, why)) for root in float32_units(judgement.task)}
    return verdicts, True


def _reported(judgement: Judgement, seeded: bool, settled: Decisions) -> DecidedModel:
    """The decided model, with the notes of rules that report once everything is decided (``settled``). ``seeded``:
    whether anything is low by right, as `_cut` returns it."""
    facts, found, off = judgement.facts, judgement.found, judgement.facts.options.off
    floors = floors_read_low(facts, found.floors, settled)
    reports = (rule.report(facts, found, settled) for rule in REPORTS if rule.report and rule.name not in off)
    reported = [note for report in reports for note in report]
    return DecidedModel(
        flow=facts.flow,
        options=facts.options,
        settled=settled,
        region_of=judgement.regions.of_op,
        seeded=seeded,
        asked=judgement.task,
        floors=floors,
        notes=[*judgement.ledger.notes, *report_floors(facts, floors), *reported],
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
