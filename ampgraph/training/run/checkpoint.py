"""Checkpoints: the whole state of a training and its place in the data, in one safetensors file.

The file appears whole or not at all: it is written under another name, forced to the disk, and renamed. It is written
tensor by tensor, so that a save takes no more memory than the largest of them. Its header holds a checksum of the whole
file, which is computed with zeros in the checksum's own place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import DTypeLike

from ...core.arrays import Array, DType
from ...core.errors import AmpError, first_line
from ...core.files import sweep, whole_file
from ...core.low_types import numpy_type
from ..step.training_step import TrainingStep

KEY = "ampgraph.checkpoint"
VERSION = 2
CHECKSUM, ZEROS = "checksum", "0" * 32
HISTORY = "history/"  # tensors beside the state
WORDS = "bfloat16"  # stored as 16-bit words: numpy's reader of the format does not know the type
CODES = {"bool": "BOOL"} | {f"{word}{n}": f"{word[0].upper()}{n}" for word in ("int", "uint") for n in (8, 16, 32, 64)}
CODES |= {f"float{n}": f"F{n}" for n in (16, 32, 64)}
"""What the format calls numpy's types."""


@dataclass(frozen=True)
class Position:
    """Where in the data a training is, and what it must have in common with one that goes on from there."""

    epoch: int = 0  # epochs that are done
    batch: int = 0  # batches of the next epoch that are done
    seed: int = 0
    batch_size: int = 0
    samples: int = 0
    past: int = 0  # updates that the state had seen before this training began
    epochs: int = 0
    lr_schedule: str = ""
    data: str = ""  # the digest of the data
    accumulate: int = 1  # micro-batches of a batch
    last_batch: str = "drop"  # what is done with one that is not full


LATER = {"accumulate": 1, "last_batch": "drop"}
"""Fields of a `Position` that older checkpoints lack; at these values a new file leaves them out too."""


@dataclass(frozen=True)
class LateArray:
    """A checkpoint's array that is copied from the device (``fetch``) only while it is written."""

    dtype: DType
    shape: tuple[int, ...]
    fetch: Callable[[], Array]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.asarray(self.fetch(), dtype)


Stored = TypeVar("Stored", bound="Array | LateArray", covariant=True)


@dataclass(frozen=True)
class Checkpoint(Generic[Stored]):
    """What a checkpoint file holds: the `digest` of the step graph, the ``state`` by name (arrays; to be saved,
    `LateArray` ones too), the position, and ``history``: "losses" and "finite" of every step in `fit`."""

    digest: str
    state: Mapping[str, Stored]
    position: Position = Position()
    history: Mapping[str, Array] = field(default_factory=dict)


def digest(step: TrainingStep) -> str:
    """A digest of a step graph, by which its checkpoints are known: of interface, constants, nodes and the kinds and
    shapes of its state, not of the state's numbers, and not of the names of nodes."""
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


def digest_of(state: Mapping[str, Array | LateArray]) -> str:
    """A digest of every bit of a training state, or of a batch: names, types, shapes and numbers."""
    made = hashlib.blake2b(digest_size=16)
    for name, array in sorted(state.items()):
        made.update(f"{name}:{array.dtype}:{list(array.shape)}\n".encode())
        made.update(_safetensors_bytes(np.asarray(array)))
    return made.hexdigest()


def save(path: str | os.PathLike[str], checkpoint: Checkpoint[Array | LateArray]) -> None:
    """Writes a checkpoint, whole or not at all. Raises AmpError AMP105 where it cannot be written; a file that stood at
    ``path`` stays then."""
    path = Path(path)
    tensors = {**checkpoint.state, **{HISTORY + name: array for name, array in checkpoint.history.items()}}
    words = [name for name, array in tensors.items() if array.dtype.name == WORDS]
    place = {name: value for name, value in asdict(checkpoint.position).items() if LATER.get(name, ...) != value}
    head = {"version": VERSION, "step": checkpoint.digest, "position": place, WORDS: words, CHECKSUM: ZEROS}
    try:
        with whole_file(path, durable=True) as beside:
            _write(beside, tensors, {KEY: json.dumps(head)})
    except AmpError as error:
        if not isinstance(error.__cause__, OSError) or not path.is_file():
            raise
        message, hint = f"{error.message}: the old checkpoint is still there", "free some space and go on with --resume"
        raise AmpError(error.code, message, where=error.where, hint=hint) from error.__cause__


def _write(path: Path, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
    """Writes a checkpoint in the safetensors format: the size of the header (8 bytes), the header, the numbers, the
    widest types first; ``tensors`` are arrays or `LateArray`. Then puts the checksum into its place in the header.
    Raises OSError for whatever the file system refuses."""
    header: dict[str, Any] = {"__metadata__": metadata}
    order, end = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)), 0
    for name in order:
        dtype, shape = tensors[name].dtype, tensors[name].shape
        start, end = end, end + dtype.itemsize * math.prod(shape)
        code = CODES["uint16" if dtype.name == WORDS else dtype.name]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    made = hashlib.blake2b(digest_size=16)
    with open(path, "xb") as file:
        front = len(text).to_bytes(8, "little") + text
        made.update(front)
        file.write(front)
        for name in order:
            words = _safetensors_bytes(np.asarray(tensors[name]))
            made.update(words)
            file.write(words)
            del words  # before the next one is fetched
        file.seek(front.index(_MARK) + len(_MARK))
        file.write(made.hexdigest().encode())


_MARK = json.dumps(json.dumps({CHECKSUM: ""})[1:-2])[1:-1].encode()  # what precedes it: JSON as a text in JSON


def _refuse_damaged(path: Path) -> None:
    """Raises ValueError for a checkpoint whose checksum is not that of its bytes, or is missing, and OSError where it
    cannot be read."""
    with open(path, "rb") as file:
        size = file.read(8)
        start = size + file.read(min(int.from_bytes(size, "little"), os.path.getsize(path)))
        place = start.find(_MARK) + len(_MARK)
        noted = start[place : place + len(ZEROS)]
        made = hashlib.blake2b(start.replace(_MARK + noted, _MARK + ZEROS.encode(), 1), digest_size=16)
        while block := file.read(1 << 20):
            made.update(block)
    if _MARK not in start or made.hexdigest().encode() != noted:
        raise ValueError("its checksum is another one")


def _safetensors_bytes(array: Array) -> memoryview:
    """The bytes of a checkpoint's tensor as safetensors stores them, little-endian; bfloat16 as its 16 bits."""
    array = array.view(np.uint16) if array.dtype.name == WORDS else array
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).data


def load(path: str | os.PathLike[str]) -> Checkpoint[Array]:
    """Reads a checkpoint. Raises AmpError AMP101 for no such file or one that cannot be read, AMP108 for one that is no
    checkpoint of ours, is of another version or is damaged, AMP501 without the package safetensors."""
    path = Path(path)
    if not path.is_file():
        message = "is a directory, not a checkpoint" if path.is_dir() else "no such checkpoint"
        raise AmpError("AMP101", message, where=str(path), hint="check the path")
    try:
        import safetensors
    except ImportError as error:
        raise AmpError("AMP501", "safetensors is not installed", hint="pip install safetensors") from error
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            head = json.loads((file.metadata() or {})[KEY])
            if head["version"] != VERSION:
                raise ValueError(f"version {head['version']}")
            _refuse_damaged(path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        for name in head[WORDS]:
            tensors[name] = tensors[name].view(numpy_type(WORDS))
        place = LATER | head["position"]
        numbers: dict[str, Any] = {f.name: place[f.name] for f in fields(Position)}
        if any(type(numbers[f.name]) is not type(f.default) for f in fields(Position)):
            raise TypeError("its position is invalid")
        position = Position(**numbers)
        history = {name.removeprefix(HISTORY): tensors.pop(name) for name in list(tensors) if name.startswith(HISTORY)}
        return Checkpoint(str(head["step"]), tensors, position, history)
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise AmpError("AMP101", why, where=str(path), hint="check its permissions") from error
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"is not a training checkpoint, or is damaged: {first_line(error)}"
        raise AmpError("AMP108", message, where=str(path), hint="take another one, or begin anew") from error


def check_belongs(checkpoint: Checkpoint[Array | LateArray], expected: str, where: str) -> None:
    """Raises AmpError AMP405 for a checkpoint of a step graph other than the one whose digest is ``expected``;
    ``where`` is its path."""
    if checkpoint.digest != expected:
        hint = "give the STEP.onnx that it was made with; a step that is built anew with other options is another one"
        raise AmpError("AMP405", "is a checkpoint of another training step", where=where, hint=hint)


def claim_folder(file: Path, until: contextlib.ExitStack) -> None:
    """Makes the folder of a checkpoint ``file``, locks other trainings out of it, and removes what killed ones left.
    The lock holds until ``until`` closes, and ends with the process, whatever ends it; there is none on Windows and on
    file systems without locks. The folder itself is locked: a lock file, as the package filelock has one, would stay in
    the user's folder. Raises AmpError AMP105 where the folder cannot be made, AMP325 where another training has it."""
    folder = file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the folder for checkpoints cannot be created: {error.strerror or error}"
        raise AmpError("AMP105", message, where=str(folder), hint="choose another place with --checkpoint") from error
    if sys.platform != "win32":
        import fcntl

        try:
            handle = os.open(folder, os.O_RDONLY)
            until.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message, hint = "another training that is running writes its checkpoints there", "wait for its end"
            raise AmpError("AMP325", message, where=str(folder), hint=f"{hint}, or name another folder") from error
        except OSError:
            pass  # a file system without locks, or a folder that may only be written
    sweep(file)
