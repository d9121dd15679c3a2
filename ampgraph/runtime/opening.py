"""Opening a file as its users do: on ONNX Runtime, with all the optimisations that are its default."""

from __future__ import annotations

import os

from .devices import import_onnxruntime
from .onnxruntime_session import CRASHING, QUIET, refused


class LacksKernel(Exception):
    """The CPU has no kernel for an operator in its types; another provider may."""


def open_plainly(path: str | os.PathLike[str], *, for_cpu: bool, optimised: bool = True) -> None:
    """Opens a file on the CPU and lets it go again; nothing is run.

    ``for_cpu``: the file is meant for the CPU, so that a kernel that is lacking is a fault, and so is an optimizer of
    the CPU's alone that dies of it. ``optimised``: False leaves all optimisations away.

    Raises AmpError AMP502 where the runtime refuses the file, AMP504 for want of memory; LacksKernel.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # no threads are made for what is not run
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    name = os.fspath(path)
    try:
        ort.InferenceSession(
            name,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=None if for_cpu else CRASHING,
            enable_fallback=0,
        )
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        if not for_cpu and "NOT_IMPLEMENTED" in str(error):
            raise LacksKernel from error
        raise refused(error, name) from error
