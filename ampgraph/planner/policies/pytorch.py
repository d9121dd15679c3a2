"""The policy ``pytorch``: what `torch.autocast` does in a forward pass, on CUDA and on the CPU."""

from __future__ import annotations

from ...core.dataflow import Dataflow
from ...core.plan import Note
from ...oplists.options import Options
from ..assemble import DecidedModel
from .forward import PARITY, begin, verdicts_of_types
from .promotion import PromotedTypes
from .registry import Policy, Setting, register

CPU = "cpu"
FEW_KERNELS = "ONNX Runtime's CPU provider has few of them"


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Decides every unit as PyTorch's autocast would: listed calls in the type of their list, all others in the widest
    of what comes. An ONNX model (its opset is above 0) for the CPU goes by the schema, whatever kernels ONNX Runtime
    has, and a note says so: its CPU provider has next to no low kernels, and PyTorch's CPU has them."""
    by_schema = options.target == CPU and flow.opset > 0
    begun = begin(flow, options, kernels=not by_schema)
    types = PromotedTypes(begun.flow, options, begun.given)
    types.settle()
    notes = list(types.notes())
    if by_schema:
        notes.append(Note(PARITY, "", f"for runtimes with {options.dtype} kernels: {FEW_KERNELS}"))
    return begun.finish("PyTorch", verdicts_of_types(types), types.refused(), notes, types.roundings())


def _list_file(setting: Setting) -> str:
    """The file of PyTorch's lists for a target: the CPU's own, or CUDA's for any other."""
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
