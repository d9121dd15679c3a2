"""The policy ``apex``: what NVIDIA Apex's `amp.initialize` makes of a forward pass at its levels."""

from __future__ import annotations

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op, Value
from ...oplists.options import Options
from ..assemble import DecidedModel
from .forward import begin, verdicts_of_types
from .promotion import PromotedTypes
from .registry import Policy, register


class PatchedTypes(PromotedTypes):
    """Types as Apex's O1 gives them: functions cast operands, or promote them by type alone, not by dimensions."""

    framework = "Apex"

    def priority(self, op: Op, value: Value) -> int:
        """How much an operand counts where types differ: in functions that Apex promotes 1 for any tensor, whatever its
        dimensions, and 0 for a number; elsewhere as PyTorch has it."""
        listing = self.calls[op.id].listing
        if listing is None or self.options.lists.framework.classes[listing.cls].name != "promote":
            return super().priority(op, value)
        return 0 if self.is_number(op, value) else 1


class HalvedTypes(PromotedTypes):
    """Types as Apex's O2 and O3 give them: parameters, buffers and inputs are half; then types flow."""

    framework = "Apex"

    def comes_low(self, value: Value, reader: int) -> bool:
        """Whether a value reaches a reader (an operator's id, `NONE` for a boundary) low: inputs of the model and
        stored tensors were cast by Apex, but what a reader has for a number was not; what an operator makes, and what a
        body or function is given, has its own type."""
        if value.dtype != FLOAT32 or value.producer != NONE or (value.scope != 0 and not value.weight):
            return super().comes_low(value, reader)
        if not value.weight or reader == NONE:
            return True
        return not self.is_number(self.flow.ops[reader], value)


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Decides every unit as Apex would: by patched functions at O1, by a half model at O2 and O3."""
    begun = begin(flow, options)
    rule = PatchedTypes if options.level.name == "O1" else HalvedTypes
    types = rule(begun.flow, options, begun.given)
    types.settle()
    return begun.finish("Apex", verdicts_of_types(types), types.refused(), types.notes(), types.roundings())


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
