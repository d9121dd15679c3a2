"""The policy ``apex``: what NVIDIA Apex's `amp.initialize` makes of a forward pass at its levels."""

from __future__ import annotations

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...oplists.options import Options
from ..assemble import DecidedModel
from .forward import begin, typed
from .promotion import PromotedTypes
from .registry import Policy, register


class Patched(PromotedTypes):
    """O1: functions that cast their operands, or promote them by type alone, whatever their dimensions."""

    framework = "Apex"

    def rank(self, op: Op, value: Value) -> int:
        """How much an operand counts where types differ: in functions that Apex promotes tensors alike, whatever their
        dimensions, and more than numbers."""
        listing = self.calls[op.id].listing
        if listing is None or self.options.lists.framework.classes[listing.cls].name != "promote":
            return super().rank(op, value)
        return 0 if self.is_number(op, value) else 1


class Halved(PromotedTypes):
    """O2 and O3: parameters, buffers and inputs are half; then types flow."""

    framework = "Apex"

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader low: a stored tensor with dimensions, one that is known to be a parameter,
        and an input were cast."""
        if value.dtype != FLOAT32 or value.producer != NONE or (value.scope != 0 and not value.weight):
            return super().comes_low(value, reader)
        if not value.weight or reader == NONE:
            return True
        return not self.is_number(self.flow.ops[reader], value)


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Types by patched functions at O1, by a half model at O2 and O3."""
    begun = begin(flow, options)
    rule = Patched if options.level.name == "O1" else Halved
    types = rule(begun.flow, options, begun.given)
    types.settle()
    return begun.finish("Apex", typed(types), types.refused(), types.notes(), types.roundings())


register(
    Policy(
        name="apex",
        framework="Apex",
        rule=decide,
        levels={
            "O0": "float32",
            "O1": "patched functions",
            "O2": "half but batch norms, also O3 with keep_batchnorm_fp32=True",
            "O3": "half, also O2 with keep_batchnorm_fp32=False",
        },
        default_level="O1",
        formats=("ONNX",),
        refusals={
            "MindIR": ("policy 'apex' goes by PyTorch's modules", "take --policy pytorch, or --policy mindspore")
        },
        dtypes=("float16",),
        stores={"O2": "low", "O3": "low"},
    )
)
