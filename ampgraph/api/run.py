"""`ampgraph run`: one run of a model of either format, by the runtime that it belongs to."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ..core.arguments import check_annotated
from ..core.arrays import Result
from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.spellings import device_word
from ..formats.onnx.io import read_proto
from ..numerics.inputs.samples import load_samples
from ..numerics.strict.session import StrictSession
from ..runtime.data import first_nan, load_inputs
from ..runtime.executed import ExecutedLayer, ExecutedSession
from ..runtime.mindspore_session import MindsporeSession
from ..runtime.onnxruntime_session import OnnxSession
from ..runtime.ports import Session
from ..runtime.targets import MINDIR_DEVICES, ONNX_DEVICES, executed_session, lacking_runtime, refuse_device, runtime_of
from .kinds import Feeds, PathLike


def run(
    model: PathLike | ModelProto,
    data: PathLike | Feeds | None = None,
    *,
    device: str = "auto",
    strict: bool = False,
    target: str = "",
    runtime: str = "",
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Result]:
    """Runs a model once, and gives its outputs by name. Warns of inputs that hold NaN.

    Args:
        model: a path (.onnx or .mindir) or onnx.ModelProto.
        data: an .npz path (arrays that are no inputs are left out), or arrays by input name; generated if not given.
        device: auto, cpu, cuda, tensorrt or cann; for MindIR auto, cpu or ascend. ``auto`` takes the best that is here.
        strict: run on the CPU with every low value really rounded (MindSpore's CPU run rounds by itself).
        target: execute by the runtime of this target, in the precisions of the file, where that runtime is here or in
            the environment that ``runtime`` names.
        runtime: the Python of an environment with what the target needs; this one's if empty.
        seed: for generated inputs.
        dims: sizes of symbolic dimensions, for generated inputs.

    Returns:
        The outputs by name.

    Raises:
        AmpError: for a runtime or device that is not here, and for data that does not fit.
    """
    check_annotated(run, locals())
    done = run_with_notes(
        model, data, device=device, strict=strict, target=target, runtime=runtime, seed=seed, dims=dims
    )
    for note in done.doubts:
        warnings.warn(note, stacklevel=2)
    return done.outputs


@dataclass(frozen=True)
class RunWithNotes:
    """What `ampgraph run` got: outputs by name, ``notes`` on how inputs were generated, ``doubts`` about inputs that
    hold NaN. ``by``: the target's runtime that executed the model, and its ``layers``; "" for any other."""

    outputs: dict[str, Result]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    by: str = ""
    layers: tuple[ExecutedLayer, ...] = ()


def run_with_notes(
    model: PathLike | ModelProto, data: PathLike | Feeds | None, *, device: str, strict: bool, target: str,
    runtime: str, seed: int, dims: Mapping[str, int] | None,
) -> RunWithNotes:  # fmt: skip
    """Runs a model once, as `run` with these arguments, and returns the notes on the inputs with the outputs, without
    warnings. Raises AmpError AMP311 for a ``runtime`` without a target, AMP404 or AMP501 for a target that nothing
    executes here, and what `run` raises."""
    if runtime and not target:
        raise AmpError("AMP311", "--runtime names an environment for --target, which is not given", hint="name both")
    if target:
        executing = runtime_of(target, runtime)
        if executing is None:
            raise lacking_runtime(target)
        session: Session = executed_session(executing, model)
    else:
        session = open_session(model, device, strict)
    doubts: list[str] = []
    notes: tuple[str, ...] = ()
    feeds: Feeds
    if data is None:
        drawn = load_samples(model, count=1, seed=seed, dims=dims).fit_to(session.run)
        feeds, notes = next(iter(drawn)), drawn.notes
    else:
        if isinstance(data, (str, os.PathLike)):  # of its arrays those that are inputs: labels may lie beside them
            feeds = load_inputs(data, session.inputs, session.required, "the model")
        else:
            feeds = data
        for name, value in feeds.items():
            place = first_nan(value) if isinstance(value, np.ndarray) else None
            if place is not None:
                doubts.append(f"input '{name}' holds NaN, first at {place}")
    outputs = session.run(feeds)
    by, layers = (session.runtime.name, session.layers()) if isinstance(session, ExecutedSession) else ("", ())
    return RunWithNotes(outputs, notes, tuple(doubts), by, layers)


def open_session(model: PathLike | ModelProto, device: str = "auto", strict: bool = False) -> Session:
    """For the verbs `run` and `check`: opens a model by MindSpore if it is MindIR, else by ONNX Runtime, or for a
    strict run where ``strict`` is set (ONNX alone). Raises AmpError AMP323 for a device that the runtime has not, or
    that is not the CPU in a strict run."""
    device = device_word(device)
    if not isinstance(model, ModelProto) and is_mindir(model):
        refuse_device(device, MINDIR_DEVICES, "MindIR")
        return MindsporeSession(model, device)
    refuse_device(device, ONNX_DEVICES, "ONNX")
    if strict:
        if device not in ("auto", "cpu"):
            raise AmpError("AMP323", f"--strict runs on the CPU, not on {device}", hint="omit one of the two")
        return StrictSession(model if isinstance(model, ModelProto) else os.fspath(model))
    if not isinstance(model, ModelProto) and os.path.exists(f"{os.fspath(model)}.data"):
        read_proto(Path(model))  # the runtime would not see that its data file is another version's
    return OnnxSession(model, device)
