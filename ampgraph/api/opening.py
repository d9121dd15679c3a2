"""Whether what was written opens as its users open it, where the model that it was made from does."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.verdict import MISSED, CheckVerdict
from ..runtime.opening import LacksKernel, open_plainly
from .check_request import Request
from .kinds import PathLike

CPU = "cpu"
DIES = "it dies while it opens the file"
OPTIMISED = "an optimisation of ONNX Runtime breaks it: with ORT_DISABLE_ALL it is not refused"

_HEAD = re.compile(r"^ONNX Runtime refuses the model: (\[ONNXRuntimeError\] : \d+ : \w+ : )?")


@dataclass(frozen=True)
class Refusal:
    """What ONNX Runtime has against a file; ``optimised``: only when it optimises."""

    said: str
    optimised: bool

    @property
    def why(self) -> str:
        """The cause, where it is known."""
        return OPTIMISED if self.optimised else ""


def refusal(model: str, target: str) -> Refusal | None:
    """Why ONNX Runtime does not open a file; None if it does, or lacks no more than kernels that a target has.

    Raises AmpError AMP504 for want of memory."""
    said = _said(model, target, optimised=True)
    return Refusal(said, not _said(model, target, optimised=False)) if said else None


def _said(model: str, target: str, *, optimised: bool) -> str:
    try:
        open_plainly(model, for_cpu=target == CPU, optimised=optimised)
    except LacksKernel:
        return ""
    except AmpError as error:
        if error.code != "AMP502":
            raise
        return _HEAD.sub("", error.message).removesuffix(".")
    return ""


def refused(request: Request) -> CheckVerdict | None:
    """The verdict on a file that does not open though its reference does; None for all others."""
    found = fault(request.reference, request.model, request.target)
    return None if found is None else CheckVerdict(MISSED, None, request.tolerance, refused=found.said, why=found.why)


def fault(reference: str, model: str, target: str) -> Refusal | None:
    """Why a file does not open though its reference does.

    What the CPU has no kernel for it replaces by the operator's definition, which need not be valid there: refused
    without optimisations too, that is a fault at another target only where onnx's checker finds one."""
    found = refusal(model, target)
    if found is None or _said(reference, CPU, optimised=True):
        return None
    known = found.optimised or target == CPU
    return found if known or (_is_invalid(model) and not _is_invalid(reference)) else None


def noted(reference: PathLike | None, model: PathLike | None) -> list[str]:
    """What to say of two files in words, if anything; of models in memory nothing is known."""
    if reference is None or model is None or is_mindir(model):
        return []
    found = fault(os.fspath(reference), os.fspath(model), "")
    opens = "ONNX Runtime opens the reference with its default optimisations, and not the model"
    return [] if found is None else [f"{opens}: {found.said}"]


def died(request: Request) -> CheckVerdict:
    """The verdict on a file that kills the runtime."""
    return CheckVerdict(MISSED, None, request.tolerance, refused=DIES)


def _is_invalid(path: str) -> bool:
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception:  # the checker and its inference raise several kinds
        return True
    return False
