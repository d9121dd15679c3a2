"""Checkpoints: the whole state of a training and its place in the data, in one safetensors file.

The file appears whole or not at all: it is written beside its place, forced to the disk, and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import AmpError, first_line
from .step import TrainingStep

KEY = "ampgraph.checkpoint"
VERSION = 1
HISTORY = "history/"  # tensors beside the state
WORDS = "bfloat16"  # stored as 16-bit words: numpy's reader of the format does not know the type


@dataclass(frozen=True)
class Position:
    """Where in the data a training is: so many batches of this epoch are done."""

    epoch: int = 0
    batch: int = 0
    seed: int = 0
    batch_size: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. ``digest`` names the step graph that it belongs to."""

    digest: str
    state: Mapping[str, np.ndarray]
    position: Position = Position()
    history: Mapping[str, np.ndarray] = field(default_factory=dict)


def digest(step: TrainingStep) -> str:
    """Changes with the graph and with what it holds beside the state; not with the state, nor with names of nodes."""
    graph, state = step.model.graph, {entry.name for entry in step.layout.states}
    made = hashlib.blake2b(digest_size=16)
    for value in (*graph.inputs, *graph.outputs):
        made.update(f"{value.name}:{value.dtype}\n".encode())
    for name in sorted(set(graph.initializers) - state):
        tensor = graph.initializers[name].const_value
        if tensor is not None:
            made.update(f"{name}:{tensor.dtype}:{list(tensor.shape)}\n".encode())
            made.update(tensor.tobytes())
    for entry in step.layout.states:
        tensor = graph.initializers[entry.name].const_value
        made.update(f"{entry.name}:{entry.kind}:{list(tensor.shape) if tensor is not None else ''}\n".encode())
    for node in graph:
        proto = ir.serde.serialize_node(node)
        proto.name = proto.doc_string = ""
        del proto.metadata_props[:]
        made.update(proto.SerializeToString(deterministic=True))
    return made.hexdigest()


def save(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Raises AmpError AMP105 where it cannot be written; what stood at ``path`` before stays then."""
    path = Path(path)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    tensors = {**checkpoint.state, **{HISTORY + name: array for name, array in checkpoint.history.items()}}
    words = [name for name, array in tensors.items() if array.dtype.name == WORDS]
    for name in words:
        tensors[name] = tensors[name].view(np.uint16)
    head = {"version": VERSION, "step": checkpoint.digest, "position": asdict(checkpoint.position), WORDS: words}
    if path.is_dir():
        raise AmpError("AMP105", "is a directory", where=str(path), hint="name a file in it")
    if not path.parent.is_dir():
        raise AmpError("AMP105", "the folder does not exist", where=str(path.parent), hint="create it first")
    try:
        _write(temporary, tensors, {KEY: json.dumps(head)})
        os.replace(temporary, path)
        _force(path.parent)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        told = "the disk is full" if full else f"cannot be written: {error.strerror or error}"
        kept = ": the old checkpoint is still there" if path.is_file() else ""
        hint = "free some space and go on with --resume" if kept else "free some space, or choose another place"
        raise AmpError("AMP105", told + kept, where=str(path), hint=hint) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Raises OSError for everything that the file system refuses."""
    _, numpy = _library()
    content = {name: np.array(array, order="C") for name, array in sorted(tensors.items())}
    data = numpy.save(content, metadata)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _force(folder: Path) -> None:
    """The rename itself reaches the disk, where a folder can be opened for that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Raises AmpError AMP101 for no such file, AMP108 for one that is no checkpoint of ours or is cut short."""
    path = Path(path)
    if not path.is_file():
        told = "is a directory, not a checkpoint" if path.is_dir() else "no such checkpoint"
        raise AmpError("AMP101", told, where=str(path), hint="check the path")
    safetensors, _ = _library()
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            head = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        if head["version"] != VERSION:
            raise ValueError(f"version {head['version']}")
        for name in head[WORDS]:
            tensors[name] = tensors[name].view(_bfloat16())
        position = Position(**{name: int(number) for name, number in head["position"].items()})
        history = {name.removeprefix(HISTORY): tensors.pop(name) for name in list(tensors) if name.startswith(HISTORY)}
        return Checkpoint(str(head["step"]), tensors, position, history)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise AmpError("AMP101", why, where=str(path), hint="check its permissions") from error
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"is no checkpoint of a training, or is cut short: {first_line(error)}"
        raise AmpError("AMP108", told, where=str(path), hint="take an earlier one") from error


def check_belongs(checkpoint: Checkpoint, expected: str, where: str) -> None:
    """Raises AmpError AMP405 for a checkpoint of another step graph."""
    if checkpoint.digest != expected:
        hint = "give the STEP.onnx that it was made with; a step that is built anew with other options is another one"
        raise AmpError("AMP405", "is a checkpoint of another training step", where=where, hint=hint)


def _bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _library() -> tuple[Any, Any]:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise AmpError("AMP501", "safetensors is not installed", hint="pip install safetensors") from error
    return safetensors, safetensors.numpy
