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
    """A run: the outputs by name, where generated inputs are from, and what is odd about those that were given.
    ``by``: the target's runtime that executed it, and its ``layers``."""

    outputs: dict[str, Result]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    by: str = ""
    layers: tuple[ExecutedLayer, ...] = ()


def run_with_notes(
    model: PathLike | ModelProto, data: PathLike | Feeds | None, *, device: str, strict: bool, target: str,
    runtime: str, seed: int, dims: Mapping[str, int] | None,
) -> RunWithNotes:  # fmt: skip
    """Runs a model once; the outputs as `run` gives them, and notes on the inputs."""
    if runtime and not target:
        raise AmpError("AMP311", "--runtime names an environment for --target, which is not given", hint="name both")
    if target:
        found = runtime_of(target, runtime)
        if found is None:
            raise lacking_runtime(target)
        session: Session = executed_session(found, model)
    else:
        session = open_session(model, device, strict)
    doubts: list[str] = []
    notes: tuple[str, ...] = ()
    feeds: Feeds
    if data is None:
        drawn = load_samples(model, count=1, seed=seed, dims=dims).fit_to(session.run)
        feeds, notes = next(iter(drawn)), drawn.notes
    else:
        if isinstance(data, (str, os.PathLike)):  # those that are inputs: labels may lie beside them
            feeds = load_inputs(data, session.inputs, session.required, "the model")
        else:
            feeds = data
        for name, value in feeds.items():
            place = first_nan(value) if isinstance(value, np.ndarray) else None
            doubts += [f"input '{name}' holds NaN, first at {place}"] if place is not None else []
    outputs = session.run(feeds)
    by, layers = (session.runtime.name, session.layers()) if isinstance(session, ExecutedSession) else ("", ())
    return RunWithNotes(outputs, notes, tuple(doubts), by, layers)


def open_session(model: PathLike | ModelProto, device: str = "auto", strict: bool = False) -> Session:
    """For the verbs: a session of the runtime that a model belongs to: ONNX Runtime, MindSpore or a strict run."""
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
