"""A MindIR model with the two faces that ampgraph works on: a dataflow to read, an editor to change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

from ...core.arrays import Array
from ...core.dataflow import Dataflow, Value
from ...core.errors import AmpError
from ...core.graph import Census, Progress, Stored
from ..editable import EditableGraph
from . import io as mindir_io
from . import view
from .check import check_structure
from .dataflow import read_dataflow
from .editor import MindirEditor
from .float_status import check_finite, has_float_status
from .schema import Message
from .values import NUMBER
from .weights import CHUNK, MindirFile, data_files, elements
from .whole_step import UNSCALED, has_loss_scale, is_step, refuse_unknown_step

SMALL = 256  # bytes: constants up to here are part of the digest


class MindirGraph(EditableGraph):
    """The native model, never rebuilt."""

    format, suffix = "MindIR", ".mindir"

    def __init__(self, file: MindirFile) -> None:
        super().__init__(self._read)
        self.file = file

    @staticmethod
    def load(path: str | os.PathLike[str]) -> MindirGraph:
        return MindirGraph(mindir_io.load(path))

    def prepare(self) -> None:
        """MindSpore writes and reads sorted graphs only. Raises AmpError 2xx for what it could not read."""
        check_structure(self.file)

    def refuse_training(self) -> None:
        refuse_unknown_step(self.file.model)

    def is_step(self) -> bool:
        return is_step(self.file.model)

    def scale_doubts(self) -> list[str]:
        """That small gradients get lost, where a step has no loss scale of MindSpore's cell."""
        return [UNSCALED] if self.is_step() and not has_loss_scale(self.file.model) else []

    def check_gradients(self) -> int:
        """Finite checks in the place of the float status of Ascend; how many gradients are checked."""
        count = check_finite(self.file.model) if has_float_status(self.file.model) else 0
        if count:
            self.edited()
        return count

    def fault(self) -> str:
        """What MindSpore could not read in the model; an empty string for a valid one."""
        try:
            check_structure(self.file)
        except AmpError as error:
            return error.message
        return ""

    def _read(self, low: str, low_io: frozenset[str]) -> Dataflow:
        return read_dataflow(self.file, MindirWeights(self.file), low, low_io)

    def editor(self, flow: Dataflow, signature: Mapping[str, Hashable] | None = None) -> MindirEditor:
        """An editor over the newest dataflow. A function is one scope, so ``signature`` says nothing new."""
        self.require_newest(flow)
        return MindirEditor(self.file, flow, self.edited)

    def digest(self) -> str:
        """Changes with the structure, the types and the small constants; large weights count by type and shape."""
        digest = hashlib.blake2b(digest_size=16)
        for graph in view.graphs(self.file.model):
            for tensor in graph.parameter:
                small = bytes(tensor.raw_data) if len(tensor.raw_data) <= SMALL else b""
                digest.update(f"{tensor.name}:{tensor.data_type}:{list(tensor.dims)}:".encode() + small)
            for part in (*graph.input, *graph.output, *graph.node):
                digest.update(part.SerializeToString(deterministic=True))
        for primitive in self.file.model.primitives:
            digest.update(primitive.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def version(self) -> str:
        return f"mind_ir_version {self.file.model.mind_ir_version}"

    def interface(self) -> list[str]:
        """Names of the inputs, and ``output 0``, ``output 1`` ...: MindIR names no results."""
        self.prepare()
        flow = self.dataflow()
        main = flow.scopes[0]
        return [flow.values[v].name for v in main.inputs] + [f"output {n}" for n in range(len(main.outputs))]

    def dimensions(self) -> set[str]:
        """MindIR does not name dimensions."""
        return set()

    def census(self) -> Census:
        nodes = casts = 0
        weights: dict[str, list[int]] = {}
        known = view.primitives(self.file.model)
        for graph in view.graphs(self.file.model):
            nodes += sum(node.op_type != "Constant" for node in graph.node)
            casts += sum(view.kind_of(node, known) == "Cast" for node in graph.node)
        for tensor in _stored(view.graphs(self.file.model)):
            row = weights.setdefault(view.dtype_of(tensor), [0, 0])
            row[0] += 1
            row[1] += elements(self.file, tensor).nbytes
        return Census(nodes, casts, {name: Stored(*row) for name, row in sorted(weights.items())})

    def data_files(self) -> list[Path]:
        return data_files(self.file)

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        mindir_io.save(self.file, path, progress)

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        mindir_io.copy_unchanged(source, target)


def _stored(graphs: list[Message]) -> Iterator[Message]:
    """Parameters, and the tensors of constants."""
    for graph in graphs:
        yield from graph.parameter
        for node in graph.node:
            if node.op_type == "Constant":
                yield from (t for t in view.elements(view.attribute(node, "value")) if t is not None)


class MindirWeights:
    """The WeightReader of the dataflow."""

    def __init__(self, file: MindirFile) -> None:
        self.file = file

    def size(self, value: Value) -> int:
        if value.dtype == NUMBER:
            array = self.array(value)
            return 0 if array is None else int(array.size)
        return int(self._elements(value).size)

    def _elements(self, value: Value) -> Array:
        return elements(self.file, value.native)

    def array(self, value: Value, limit: int = 1 << 16) -> Array | None:
        """The whole tensor if it has at most ``limit`` elements, else None."""
        if value.dtype == NUMBER:
            return view.plain_array(view.number(value.native))
        data = self._elements(value)
        if data.size > limit:
            return None
        return data.reshape([dim if isinstance(dim, int) else -1 for dim in value.shape or ()])

    def chunks(self, value: Value) -> Iterator[Array]:
        data = self._elements(value)
        for start in range(0, data.size, CHUNK):
            yield data[start : start + CHUNK]

    def key(self, value: Value) -> object:
        return value.id
