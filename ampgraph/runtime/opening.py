"""Whether what was written opens as its users open it, where the model that it was made from does: on ONNX Runtime with
all the optimisations that are its default, in a process of its own. A file that kills the runtime kills that alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.dataflow import NONE, Dataflow
from ..core.errors import AmpError, first_line
from ..core.graph import LOW, is_mindir
from ..formats.kinds import PathLike
from ..oplists.kernels import load_kernels
from .child import Answer, in_child
from .devices import import_onnxruntime
from .onnxruntime_session import quiet_options, refusal_error

CPU = "cpu"
SECONDS, MEMORY = 60.0, 6 << 30  # for one file
OPTIMISED = "an optimisation of ONNX Runtime breaks it: with ORT_DISABLE_ALL it is not refused"
KILLED = "an optimisation of ONNX Runtime crashes on it: with ORT_DISABLE_ALL it does not"

_HEAD = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


@dataclass(frozen=True)
class Opening:
    """How ONNX Runtime opened a file on the CPU.

    Attributes:
        said: what it has against the file, or how it died; an empty text where it opens it.
        died: whether the process died.
        optimised: whether its optimisations are at fault: without them it opens the file.
        lacks_kernel: whether the CPU is said to have no kernel for an operator in its types; another provider may.
    """

    said: str = ""
    died: bool = False
    optimised: bool = False
    lacks_kernel: bool = False

    @property
    def opens(self) -> bool:
        """Whether ONNX Runtime made a session of the file."""
        return not self.said

    @property
    def why(self) -> str:
        """The cause for which ONNX Runtime did not open the file, if that is an optimisation; else ""."""
        if not self.optimised:
            return ""
        return KILLED if self.died else OPTIMISED


def open_each(paths: Sequence[PathLike]) -> list[Opening]:
    """Opens files by ONNX Runtime and lets them go again, in as few processes as they leave alive; nothing is run.

    Raises AmpError AMP501 where ONNX Runtime is not installed, AMP101 for no such file, AMP504 for want of memory or
    time."""
    import_onnxruntime()
    names = [os.path.abspath(path) for path in paths]
    first = _open_in_children(names, optimised=True)
    again = [name for name, how in zip(names, first, strict=True) if not how.opens]
    plainly = dict(zip(again, _open_in_children(again, optimised=False), strict=True))
    return [
        how if how.opens else replace(how, optimised=plainly[name].opens)
        for name, how in zip(names, first, strict=True)
    ]


def _open_in_children(names: list[str], *, optimised: bool) -> list[Opening]:
    """Opens files one after the other in a child process; where it dies, the next goes on with the file behind. Raises
    AmpError AMP504, with the file, where the child is ended for want of time or memory."""
    found: list[Opening] = []
    while len(found) < len(names):
        left = names[len(found) :]
        ended = in_child(_answer_in_child, (left, optimised), seconds=SECONDS * len(left), memory=MEMORY)
        found += [_opening_from_answer(said, name) for said, name in zip(ended.answers, left, strict=False)]
        if len(found) < len(names):
            if not ended.crashed:
                raise AmpError("AMP504", f"ONNX Runtime does not open it: {ended.said}", where=names[len(found)])
            found.append(Opening(ended.said, died=True))
    return found


def _answer_in_child(asked: tuple[list[str], bool], answer: Answer) -> None:
    """Runs in the child process: opens files with ONNX Runtime, and answers the refusal of each in turn, "" for none.
    ``asked``: the files, and whether ONNX Runtime may optimise."""
    import onnxruntime

    names, optimised = asked
    options = quiet_options(threads=1)  # no threads are made for what is not run
    onnxruntime.set_default_logger_severity(options.log_severity_level)  # what is refused is raised
    options.inter_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name in names:
        try:
            onnxruntime.InferenceSession(name, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:  # onnxruntime raises kinds of its own for every fault
            answer(str(error).strip() or type(error).__name__)
        else:
            answer("")


def _opening_from_answer(said: str, name: str) -> Opening:
    """How a file was opened, from what ONNX Runtime ``said`` against it in the child, "" for nothing. Raises what is
    not the model's fault (any code but AMP502): AMP101 for no such file, AMP504 for want of memory."""
    if not said:
        return Opening()
    error = RuntimeError(said)
    if (fault := refusal_error(error, name)).code != "AMP502":
        raise fault
    line = first_line(error)
    return Opening(_HEAD.sub("", line).removesuffix("."), lacks_kernel="NOT_IMPLEMENTED" in line)


# -- beside what it was made from -------------------------------------------------------------------------------------


def opening_refusal(model: str) -> Opening | None:
    """ONNX Runtime's refusal to open a file on the CPU; None if it opens. Raises AmpError AMP101, AMP501, AMP504."""
    (found,) = open_each([model])
    return None if found.opens else found


def opening_fault(reference: str, model: str, target: str) -> Opening | None:
    """Why ONNX Runtime does not open a converted file (``model``), if that is the conversion's fault as `is_fault`
    says; else None. ``target``: that the file was made for, "" for none."""
    found = opening_refusal(model)
    return found if found is not None and is_fault(found, reference, model, target) else None


def is_fault(found: Opening, reference: str, model: str, target: str) -> bool:
    """Whether ONNX Runtime's refusal of a file is the conversion's fault: the reference opens. A kernel that the CPU
    lacks counts for the CPU's target only.

    Where it lacks one it may write the operator's definition out, which need not be valid in these types: what is
    refused without optimisations too is a fault at another target only where onnx's checker finds one.
    """
    if (found.lacks_kernel and target != CPU) or opening_refusal(reference) is not None:
        return False
    known = found.died or found.optimised or target == CPU
    return known or (_is_invalid(model) and not _is_invalid(reference))


def opening_notes(reference: PathLike | None, model: PathLike | None) -> list[str]:
    """A note on a converted file that ONNX Runtime does not open on the CPU while it opens the reference, else none;
    none for a model in memory (None) and for MindIR."""
    if reference is None or model is None or is_mindir(model):
        return []
    found = opening_fault(os.fspath(reference), os.fspath(model), "")
    opens = "ONNX Runtime opens the reference with its default optimisations, and not the model"
    return [] if found is None else [f"{opens}: {found.said}"]


def stopped_on_cpu(flow: Dataflow) -> str:
    """A sentence on the low operators that ONNX Runtime's CPU opens and cannot run, with reasons; "" for none."""
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


def _is_invalid(path: str) -> bool:
    """Of a file that ONNX Runtime does not open: whether onnx's checker or shape inference refuses it too."""
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception:  # the checker and its inference raise several kinds
        return True
    return False
