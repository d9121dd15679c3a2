"""The policy ``pytorch``: what `torch.autocast` does in a forward pass, on CUDA and on the CPU."""

from __future__ import annotations

from ...core.dataflow import Dataflow
from ...core.plan import Note
from ...oplists.options import Options
from ..assemble import DecidedModel
from .forward import PARITY, begin, typed
from .promotion import PromotedTypes
from .registry import Policy, Setting, register

CPU = "cpu"
NONE_THERE = "ONNX Runtime's CPU provider has few of them"


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Listed calls in the type of their list, all others in the widest of what comes.

    ONNX Runtime's CPU provider has next to no low kernels, PyTorch's CPU has them: the CPU's lists go by the schema.
    """
    own = options.target == CPU and flow.opset > 0
    begun = begin(flow, options, kernels=not own)
    types = PromotedTypes(begun.flow, options, begun.given)
    types.settle()
    notes = [*types.notes(), Note(PARITY, "", f"for runtimes with {options.dtype} kernels: {NONE_THERE}")]
    return begun.finish("PyTorch", typed(types), types.refused(), notes if own else notes[:-1], types.roundings())


def _list_file(setting: Setting) -> str:
    """As PyTorch's autocast: the file of CUDA's lists, or of the CPU's own."""
    return "pytorch_cpu.toml" if setting.target == CPU else "pytorch.toml"


register(
    Policy(
        name="pytorch",
        framework="PyTorch",
        rule=decide,
        levels={"O0": "off", "auto": "torch.autocast"},
        default_level="auto",
        lists=_list_file,
    )
)
