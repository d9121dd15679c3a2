"""The policy ``mindspore``: what `mindspore.amp.auto_mixed_precision` does, from the float32 file alone."""

from __future__ import annotations

from ...core.dataflow import Dataflow
from ...oplists.framework_lists import OWN
from ..decided import DecidedModel
from ..decisions import Ledger
from ..options import Options
from .forward import Typed
from .mindspore_mixlist import by_operator
from .mindspore_notes import notes
from .mindspore_rows import mindspore_rows
from .mindspore_rules import LEVELS
from .registry import Policy, register


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit as MindSpore would type it, and what it rounds and widens again."""
    rules = LEVELS[options.level.name](flow, options)
    rules.settle()
    settled = Ledger(flow).take(Typed(rules))
    return DecidedModel(flow, options, settled, roundings=rules.roundings(), notes=notes(rules))


register(
    Policy(
        name="mindspore",
        framework="MindSpore",
        rule=decide,
        levels={
            "O0": "off",
            "O1": "auto_mixed_precision O1: white cells and operators low",
            "O2": "auto_mixed_precision O2: all but norms low",
            "O3": "auto_mixed_precision O3: all low",
            "auto": "auto_mixed_precision auto: by operator",
        },
        default_level="O2",
        formats=("MindIR",),
        refusals={
            "ONNX": ("policy 'mindspore' goes by MindSpore's cells", "it is for .mindir files; leave --policy away")
        },
        lists=lambda _: OWN,
        fixed="cannot change what MindSpore does",
        rows=mindspore_rows,
        by_operator=by_operator,
    )
)
