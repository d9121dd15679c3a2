"""The policy ``mindspore``: what `mindspore.amp.auto_mixed_precision` does, from the float32 file alone."""

from __future__ import annotations

from ...core.dataflow import Dataflow
from ...core.plan import Why
from ..decided import DecidedModel
from ..decisions import HIGH, LIST, LOW, Ledger, Verdict
from ..options import Options
from ..stages import Settled
from .forward import ForwardTypes
from .mindspore_notes import notes
from .mindspore_rules import LEVELS
from .registry import register


@register("mindspore")
def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit as MindSpore would type it, and what it rounds and widens again."""
    rules = LEVELS[options.level.name](flow, options)
    rules.settle()
    settled = Settled(Ledger(flow).take(Typed(rules)))
    return DecidedModel(flow, options, settled, roundings=rules.roundings(), notes=notes(rules))


class Typed:
    """The types that have flowed forward, as verdicts."""

    def __init__(self, types: ForwardTypes) -> None:
        self.types = types

    def enter(self, ledger: Ledger) -> None:
        verdicts: dict[int, Verdict] = {}  # by representative: the last of its units has the reason
        for unit in self.types.flow.units:
            root = self.types.flow.find(unit.id)
            text = unit.fixed or self.types.why.get(root, "takes the type that comes")
            verdicts[root] = Verdict(LOW if self.types.low[root] else HIGH, LIST, Why("mindspore", text))
        for root, (side, rank, why) in verdicts.items():
            ledger.decide(root, side, rank, why)
