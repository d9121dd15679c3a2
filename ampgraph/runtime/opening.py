"""Opening files as their users do, on ONNX Runtime with all the optimisations that are its default, in a process of its
own: a file that kills the runtime kills that process alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import AmpError
from .child import Answer, in_child
from .devices import import_onnxruntime
from .onnxruntime_session import QUIET, refused

SECONDS, MEMORY = 60.0, 6 << 30  # for one file


@dataclass(frozen=True)
class Opening:
    """How ONNX Runtime opened a file on the CPU.

    Attributes:
        died: how the process ended, in words, where it did not live; an empty string if it did.
        fault: what the runtime has against the file, as an AmpError AMP502; None if it opens the file, or dies.
        optimised: whether it is its optimisations that do not take the file: without them it opens.
    """

    died: str = ""
    fault: AmpError | None = None
    optimised: bool = False

    @property
    def opens(self) -> bool:
        """Whether a session was made."""
        return not self.died and self.fault is None

    @property
    def lacks_kernel(self) -> bool:
        """Whether the CPU is said to have no kernel for an operator in its types; another provider may."""
        return self.fault is not None and "NOT_IMPLEMENTED" in self.fault.message


def open_as_users_do(path: str | os.PathLike[str]) -> Opening:
    """Opens one file and lets it go again; nothing is run.

    Raises AmpError AMP501 where ONNX Runtime is not installed, AMP101 for no such file, AMP504 for want of memory or
    time."""
    (found,) = open_each([path])
    return found


def open_each(paths: Sequence[str | os.PathLike[str]]) -> list[Opening]:
    """As `open_as_users_do` for many files, in as few processes as they leave alive."""
    import_onnxruntime()
    names = [os.path.abspath(path) for path in paths]
    first = _opened(names, optimised=True)
    again = [name for name, how in zip(names, first, strict=True) if not how.opens]
    plainly = dict(zip(again, _opened(again, optimised=False), strict=True))
    return [
        how if how.opens else Opening(how.died, how.fault, plainly[name].opens)
        for name, how in zip(names, first, strict=True)
    ]


def _opened(names: list[str], *, optimised: bool) -> list[Opening]:
    found: list[Opening] = []
    while len(found) < len(names):
        left = names[len(found) :]
        ended = in_child(_open_here, (left, optimised), seconds=SECONDS * len(left), memory=MEMORY)
        found += [Opening("", _fault(said, name)) for said, name in zip(ended.answers, left, strict=False)]
        if len(found) < len(names):
            if not ended.crashed:
                raise AmpError("AMP504", f"ONNX Runtime does not open it: {ended.said}", where=names[len(found)])
            found.append(Opening(ended.said))
    return found


def _open_here(asked: tuple[list[str], bool], answer: Answer) -> None:
    """What the process does: it answers what the runtime has against each file, nothing in an empty text."""
    import onnxruntime

    names, optimised = asked
    onnxruntime.set_default_logger_severity(QUIET)  # what is refused is raised
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # no threads are made for what is not run
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name in names:
        try:
            onnxruntime.InferenceSession(name, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            answer(str(error).strip() or type(error).__name__)
        else:
            answer("")


def _fault(said: str, name: str) -> AmpError | None:
    """Raises it where it is not the model's: AMP101 for no such file, AMP504 for want of memory."""
    if not said:
        return None
    fault = refused(RuntimeError(said), name)
    if fault.code != "AMP502":
        raise fault
    return fault
