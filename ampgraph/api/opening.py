"""Whether what was written opens as its users open it, where the model that it was made from does."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ..core.dataflow import NONE, Dataflow
from ..core.graph import LOW, is_mindir
from ..core.verdict import MISSED, CheckVerdict
from ..oplists.kernels import load_kernels
from ..runtime.opening import open_as_users_do
from .check_request import Request
from .kinds import PathLike

CPU = "cpu"
OPTIMISED = "an optimisation of ONNX Runtime breaks it: with ORT_DISABLE_ALL it is not refused"
KILLED = "an optimisation of ONNX Runtime crashes on it: with ORT_DISABLE_ALL it does not"

_HEAD = re.compile(r"^ONNX Runtime refuses the model: (\[ONNXRuntimeError\] : \d+ : \w+ : )?")


@dataclass(frozen=True)
class Refusal:
    """What ONNX Runtime has against a file that it does not open.

    Attributes:
        said: its words, or how it died.
        died: whether the process died.
        optimised: whether its optimisations are at fault: without them it opens the file.
        lacks_kernel: whether the CPU only has no kernel for it.
    """

    said: str
    died: bool = False
    optimised: bool = False
    lacks_kernel: bool = False

    @property
    def why(self) -> str:
        """The cause, where it is known."""
        return "" if not self.optimised else KILLED if self.died else OPTIMISED


def refusal(model: str) -> Refusal | None:
    """Why ONNX Runtime does not open a file on the CPU, in a process that may die of it; None if it does.

    Raises AmpError AMP504 for want of memory or time."""
    how = open_as_users_do(model)
    if how.died:
        return Refusal(how.died, True, how.optimised)
    if how.fault is None:
        return None
    return Refusal(_HEAD.sub("", how.fault.message).removesuffix("."), False, how.optimised, how.lacks_kernel)


def fault(reference: str, model: str, target: str) -> Refusal | None:
    """Why a file does not open though its reference does."""
    found = refusal(model)
    return found if found is not None and _is_fault(found, reference, model, target) else None


def _is_fault(found: Refusal, reference: str, model: str, target: str) -> bool:
    """Whether a refusal is a fault of a file. A kernel that the CPU lacks is one for that target alone.

    Where it lacks one it may write the operator's definition out, which need not be valid in these types: what is
    refused without optimisations too is a fault at another target only where onnx's checker finds one."""
    if (found.lacks_kernel and target != CPU) or refusal(reference) is not None:
        return False
    known = found.died or found.optimised or target == CPU
    return known or (_is_invalid(model) and not _is_invalid(reference))


def seen_by_users(request: Request) -> tuple[CheckVerdict | None, str]:
    """The verdict on a file that does not open though its reference does; and what to say of one that is right for its
    target, and that ONNX Runtime's CPU has no kernels for."""
    found = refusal(request.model)
    if found is None:
        return None, ""
    if _is_fault(found, request.reference, request.model, request.target):
        return CheckVerdict(MISSED, None, request.tolerance, refused=found.said, why=found.why), ""
    return None, f"ONNX Runtime's CPU does not open it: {found.said}" if found.lacks_kernel else ""


def stopped_on_cpu(flow: Dataflow) -> str:
    """What low operators ONNX Runtime's CPU opens and cannot run, each with the reason; an empty text for none."""
    kernels, found = load_kernels(CPU), dict[str, str]()
    for op in flow.ops:
        broken = kernels.broken.get(op.kind)
        if broken is None:
            continue
        dtypes = {flow.values[v].dtype for v in (*op.inputs, *op.outputs) if v != NONE}
        attributes = {broken.attribute: flow.attribute(op, broken.attribute)} if broken.attribute else {}
        for low in dtypes.intersection(LOW):
            if reason := kernels.refuses(op.kind, flow.opset, low, attributes):
                found[op.kind] = reason
    reasons = ", ".join(f"{kind}: {reason}" for kind, reason in found.items())
    return f"ONNX Runtime's CPU does not run it: {reasons}" if reasons else ""


def noted(reference: PathLike | None, model: PathLike | None) -> list[str]:
    """What to say of two files in words, if anything; of models in memory nothing is known."""
    if reference is None or model is None or is_mindir(model):
        return []
    found = fault(os.fspath(reference), os.fspath(model), "")
    opens = "ONNX Runtime opens the reference with its default optimisations, and not the model"
    return [] if found is None else [f"{opens}: {found.said}"]


def _is_invalid(path: str) -> bool:
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception:  # the checker and its inference raise several kinds
        return True
    return False
