"""Which runtime executes a target's files, and a session of it; which devices a format's models run on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..core.errors import AmpError
from ..core.graph import is_mindir
from ..core.installing import pip_install
from ..core.spellings import device_word, place_word
from ..formats.adapters import OnnxGraph, load_onnx
from ..formats.kinds import Model, path_of
from ..oplists.kernels import TARGETS, Kernels, load_kernels
from .executed import ELSEWHERE, ExecutedSession, Runtime, is_here
from .ports import interface_of

ONNX_DEVICES, MINDIR_DEVICES = ("cpu", "cuda", "tensorrt", "cann"), ("cpu", "ascend")


def refuse_device(device: str, own: tuple[str, ...], model_format: str) -> None:
    """Before a session is opened: raises AmpError AMP321 for a device of the other format; ``own``: those of this one.
    An unknown word is let through, to be refused by who opens."""
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
            raise lacking_runtime(target)
        return None
    here = is_here(kernels.executes) and _computes_here(kernels)
    return Runtime(kernels.executes, python) if python or here else None


def _computes_here(kernels: Kernels) -> bool:
    """Whether this machine has the processor that the target's kernels are for, so that its runtime runs here; true
    for kernels that name no machines."""
    return not kernels.machines or platform.machine() in kernels.machines


def lacking_runtime(target: str) -> AmpError:
    """The error where no runtime that executes a target's files is here: AMP501, or AMP404 if there is none at all."""
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


def executed_session(
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


def unproven_notes(runtime: Runtime, low: list[str]) -> list[str]:
    """Notes on those of a model's ``low`` types that a target's runtime computes in float32 here, proving nothing."""
    wide = [dtype for dtype in low if dtype not in runtime.low]
    return [
        f"{runtime.name} computes {dtype} in float32 on this CPU: this run proves nothing about it" for dtype in wide
    ]
