"""Whether what was written opens as its users open it, where the model that it was made from does."""

from __future__ import annotations

import os
import re

from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.verdict import MISSED, CheckVerdict
from ..runtime.opening import LacksKernel, open_plainly
from .check_request import Request

CPU = "cpu"
DIES = "it dies while it opens the file"
OPTIMISED = "an optimisation of ONNX Runtime breaks it: with ORT_DISABLE_ALL it opens"

_HEAD = re.compile(r"^ONNX Runtime refuses the model: (\[ONNXRuntimeError\] : \d+ : \w+ : )?")


def refusal(model: str, target: str) -> str:
    """What ONNX Runtime has against a file; empty if it opens, or lacks no more than kernels that a target has.

    Raises AmpError AMP504 for want of memory."""
    try:
        open_plainly(model, for_cpu=target == CPU)
    except LacksKernel:
        return ""
    except AmpError as error:
        if error.code != "AMP502":
            raise
        return _HEAD.sub("", error.message).removesuffix(".")
    return ""


def refused(request: Request) -> CheckVerdict | None:
    """The verdict on a file that does not open though its reference does; None for all others."""
    said = refusal(request.model, request.target)
    if not said or _fails(request.reference, optimised=True):
        return None
    why = "" if _fails(request.model, optimised=False) else OPTIMISED
    return CheckVerdict(MISSED, None, request.tolerance, refused=said, why=why)


def noted(reference: str | os.PathLike[str] | None, model: str | os.PathLike[str] | None) -> list[str]:
    """What to say of two files in words, if anything; of models in memory nothing is known."""
    if reference is None or model is None or is_mindir(model):
        return []
    said = refusal(os.fspath(model), "")
    if not said or _fails(os.fspath(reference), optimised=True):
        return []
    return [f"ONNX Runtime opens the reference with its default optimisations, and not the model: {said}"]


def died(request: Request) -> CheckVerdict:
    """The verdict on a file that kills the runtime."""
    return CheckVerdict(MISSED, None, request.tolerance, refused=DIES)


def _fails(path: str, *, optimised: bool) -> bool:
    try:
        open_plainly(path, for_cpu=True, optimised=optimised)
    except AmpError:
        return True
    return False
