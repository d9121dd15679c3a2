"""`ampgraph run`: one run of a model of either format, by the runtime that it belongs to."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from ..core.arguments import as_annotated
from ..core.arrays import Result
from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.installing import pip_install
from ..core.spellings import device_word, place_word
from ..formats.onnx.graph import OnnxGraph
from ..formats.onnx.io import read_proto
from ..numerics.graphs import interface_of, load_onnx
from ..numerics.inputs.samples import load_samples
from ..numerics.strict.session import StrictSession
from ..oplists.kernels import TARGETS, Kernels, load_kernels
from ..runtime.data import first_nan, load_inputs
from ..runtime.executed import ELSEWHERE, ExecutedLayer, ExecutedSession, Runtime, is_here
from ..runtime.mindspore_session import MindsporeSession
from ..runtime.onnxruntime_session import OnnxSession
from ..runtime.ports import Session
from .kinds import Feeds, Model, PathLike, path_of

ONNX_DEVICES, MINDIR_DEVICES = ("cpu", "cuda", "tensorrt", "cann"), ("cpu", "ascend")


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
    as_annotated(run, locals())
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
            raise lacking(target)
        session: Session = executed(found, model)
    else:
        session = opened(model, device, strict)
    doubts: list[str] = []
    notes: tuple[str, ...] = ()
    feeds: Feeds
    if data is None:
        drawn = load_samples(model, count=1, seed=seed, dims=dims).fitted(session.run)
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


def opened(model: PathLike | ModelProto, device: str = "auto", strict: bool = False) -> Session:
    """A session of the runtime that a model belongs to: ONNX Runtime, MindSpore or a strict run."""
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


def refuse_device(device: str, own: tuple[str, ...], model_format: str) -> None:
    """Raises AmpError AMP321 for a device of the other format."""
    others = {*ONNX_DEVICES, *MINDIR_DEVICES} - set(own)
    if isinstance(device, str) and device_word(device) in others:
        raise AmpError("AMP321", f"{model_format} models do not run on '{device}'", hint=f"auto, {', '.join(own)}")


# -- by the target's own runtime, where it is here or in the environment that ``--runtime`` names ----------------------


def runtime_of(target: str, python: str = "") -> Runtime | None:
    """The runtime that executes files of a target; None where none is known, or none is here and ``python`` is empty.

    Raises AmpError AMP304 for an unknown target, AMP404 where ``python`` is given for a target that nothing executes,
    AMP501 where that environment lacks it, AMP508 for what is no working Python."""
    kernels = load_kernels(place_word(target)) if target else None
    if kernels is None or not kernels.executes:
        if python:
            raise lacking(target)
        return None
    here = is_here(kernels.executes) and _computes_here(kernels)
    return Runtime(kernels.executes, python) if python or here else None


def _computes_here(kernels: Kernels) -> bool:
    """Whether this machine has the processor that the target's kernels are for."""
    return not kernels.machines or platform.machine() in kernels.machines


def lacking(target: str) -> AmpError:
    """The error where no runtime that executes a target's files is here."""
    kind = load_kernels(place_word(target)).executes if target else ""
    if target and load_kernels(place_word(target)).builder:
        hint = "check with runtime= builds it; run and verify without runtime= run strictly"
        return AmpError("AMP404", f"engines for {target} are built there, and not run", hint=hint)
    if not kind:
        known = ", ".join(name for name in TARGETS["ONNX"] if load_kernels(name).executes)
        message = f"nothing executes files for {target}" if target else "--runtime is given, and no target"
        return AmpError("AMP404", message, hint=f"give --target: {known}")
    if not _computes_here(load_kernels(place_word(target))):
        hint = "--runtime PYTHON names an environment on such a CPU, or on an emulated one: benchmarks/arm64/set-up"
        return AmpError("AMP501", f"this CPU ({platform.machine()}) does not compute as {target}", hint=hint)
    return AmpError("AMP501", f"{kind} is not installed here", hint=pip_install(kind) + ELSEWHERE)


def executed(
    runtime: Runtime, model: Model, graph: object = None, *, threads: int = 0, hint: str = ""
) -> ExecutedSession:
    """A session of a model for the verbs, opened by another environment's runtime in its process; a model in memory is
    written to the runtime's scratch folder first. ``graph``: the same model, loaded; ``hint``: what a refusal advises.
    Raises AmpError AMP304 for MindIR, AMP502 where it is refused."""
    path = path_of(model)
    if path is not None and is_mindir(path):
        raise AmpError("AMP304", f"{runtime.name} runs no MindIR models", where=str(path), hint="give an ONNX model")
    loaded = load_onnx(model if graph is None else graph)  # type: ignore[arg-type]
    if path is None:
        assert isinstance(loaded, OnnxGraph)
        path = Path(runtime.scratch, "model.onnx")
        loaded.save(path)
    interface = interface_of(loaded)
    return ExecutedSession(runtime, os.fspath(path), interface.inputs, interface.outputs, threads=threads, hint=hint)


def unproven(runtime: Runtime, low: list[str]) -> list[str]:
    """What a run of a model with these low types does not show, as the runtime has no kernels of them here."""
    wide = [dtype for dtype in low if dtype not in runtime.low]
    return [
        f"{runtime.name} computes {dtype} in float32 on this CPU: this run proves nothing about it" for dtype in wide
    ]
