"""A MindIR model with the two faces that ampgraph works on: a dataflow to read, an editor to change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

from ...core.arrays import Array
from ...core.dataflow import Dataflow, Value
from ...core.errors import AmpError
from ...core.graph import Census
from ...core.progress import Progress
from ...oplists.mindspore_schemas import operator
from ..editable import EditableGraph
from ..rounding import pieces
from . import io as mindir_io
from . import view
from .dataflow import read_dataflow
from .editor import MindirEditor
from .schema import Message
from .step import UNSCALED, check_finite, has_float_status, has_loss_scale, is_step, refuse_unknown_step
from .values import NUMBER
from .weights import MindirFile, data_files, elements

OPERANDS = {"Load": 1, "Depend": 1, "TupleGetItem": 2, "list_getitem": 2, "Partial": 1, "Switch": 3, "SwitchLayer": 2}
"""Nodes that are no operators -> how many operands they have at least."""

MOST_ELEMENTS, DEEPEST = 1 << 16, 32  # of a tuple
UNREADABLE = "MindSpore cannot read it either: export it again"
NO_TYPE = "export it again with mindspore.export"


def check_structure(file: MindirFile) -> None:
    """Raises AmpError (AMP201 a node without a type, AMP202 names or operands that do not fit) for the first fault."""
    _Checker(file).check()


class _Checker:
    """Looks for the first fault in the structure of a MindIR model: names, operands, types."""

    def __init__(self, file: MindirFile) -> None:
        self.file, self.model = file, file.model
        self.graphs = [self.model.graph, *self.model.functions]
        self.primitives = view.primitives(self.model)
        self.functions = {graph.name for graph in self.model.functions}
        constants = (node for graph in self.graphs for node in graph.node if node.op_type == "Constant")
        self.constants = {name for node in constants for name in node.output}

    def check(self) -> None:
        """Raises AmpError AMP201 or AMP202 for the first fault: a name nothing makes, a node without a type, operands
        that do not fit."""
        self._names()
        everywhere = self.constants | self.functions | set(self.primitives)
        for graph in self.graphs:
            known = {item.name for item in (*graph.parameter, *graph.input)}
            later = {name for node in graph.node for name in node.output}
            sizes: dict[str, tuple[int, int]] = {}
            for node in graph.node:
                for name in node.input:
                    if name not in known and name not in everywhere:
                        when = "before it is made" if name in later else "which its graph does not have"
                        self._refuse(f"node '{view.shown(node.output[0])}' reads '{view.shown(name)}', {when}")
                self._node(node, sizes)
                known.add(node.output[0])
            for item in graph.output:
                if item.name not in known and item.name not in everywhere:
                    self._refuse(
                        f"graph '{view.shown(graph.name)}' returns '{view.shown(item.name)}', which nothing makes"
                    )

    def _names(self) -> None:
        """Refuses a name that means two things in the model."""
        taken = set(self.functions)
        if len(taken) < len(self.model.functions) or "" in taken:
            self._refuse("two functions have one name, or one has none")
        keys: set[str] = set()
        for graph in self.graphs:
            for tensor in graph.parameter:
                key = tensor.ref_key or tensor.name
                if key in keys:
                    self._refuse(f"two parameters are called '{view.shown(key)}'")
                keys.add(key)
            for node in graph.node:
                if len(node.output) != 1:
                    self._refuse(f"node '{view.shown(node.name)}' has {len(node.output)} outputs; every node has one")
            names = [item.name for item in (*graph.parameter, *graph.input)]
            for name in (*names, *(node.output[0] for node in graph.node)):
                if not name or name in taken:
                    self._refuse(f"two things are called '{view.shown(name)}'" if name else "something has no name")
                taken.add(name)

    def _node(self, node: Message, sizes: dict[str, tuple[int, int]]) -> None:
        """Operands and the type of one node; ``sizes``: elements and depth of the tuples made so far."""
        if node.op_type == "Constant":
            return
        kind, name = view.kind_of(node, self.primitives), node.output[0]
        if len(node.input) < OPERANDS.get(kind, 0):
            self._refuse(f"{kind} '{view.shown(name)}' has {len(node.input)} operands, and needs {OPERANDS[kind]}")
        if kind in view.TUPLES:
            inner = [sizes.get(given, (1, 0)) for given in node.input]
            sizes[name] = sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
            if sizes[name][0] > MOST_ELEMENTS or sizes[name][1] > DEEPEST:
                self._refuse(f"tuple '{view.shown(name)}' has {sizes[name][0]:,} elements, {sizes[name][1]} deep")
            return
        if kind in ("Depend", "Load", "TupleGetItem", "list_getitem") and node.input[0] in sizes:
            sizes[name] = sizes[node.input[0]]
        entry = operator(kind)
        if view.attribute(node, "shape") is None and (entry is None or not entry.structural):
            problem = f"{view.shown(kind)} '{view.shown(name)}' has no type"
            raise AmpError("AMP201", problem, where=self.file.where, hint=NO_TYPE)

    def _refuse(self, problem: str) -> None:
        """Raises AmpError AMP202 for a MindIR model that makes no sense."""
        raise AmpError("AMP202", problem, where=self.file.where, hint=UNREADABLE)


SMALL = 256  # bytes: constants up to here are part of the digest


class MindirGraph(EditableGraph):
    """A MindIR model: the file's own messages, edited in place and never rebuilt."""

    format, suffix = "MindIR", ".mindir"

    def __init__(self, file: MindirFile) -> None:
        super().__init__(self._read)
        self.file = file

    @staticmethod
    def load(path: str | os.PathLike[str]) -> MindirGraph:
        """Reads a MindIR file. Raises AmpError 1xx."""
        return MindirGraph(mindir_io.load(path))

    def prepare(self) -> None:
        """Raises AmpError 2xx for what MindSpore could not read; there is nothing to sort, as it writes sorted
        graphs."""
        check_structure(self.file)

    def refuse_training(self) -> None:
        """Raises AmpError AMP205 for a training step whose network, forward and backward, cannot be told apart."""
        refuse_unknown_step(self.file.model)

    def is_step(self) -> bool:
        """Whether the file is a whole training step of MindSpore's."""
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
        """A new dataflow of the file as it is now."""
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
        """The MindIR version, as ``mind_ir_version 3``."""
        return f"mind_ir_version {self.file.model.mind_ir_version}"

    def interface(self) -> dict[str, str]:
        """Names of the inputs, and ``output 0``, ``output 1`` ..., with their types: MindIR names no results."""
        self.prepare()
        flow = self.dataflow()
        main = flow.scopes[0]
        types = {flow.values[v].name: flow.values[v].dtype for v in main.inputs}
        return types | {f"output {n}": flow.values[v].dtype for n, v in enumerate(main.outputs)}

    def dimensions(self) -> set[str]:
        """MindIR does not name dimensions."""
        return set()

    def census(self) -> Census:
        """Nodes, Casts and bytes of stored tensors by type; constants are no nodes."""
        known, graphs = view.primitives(self.file.model), view.graphs(self.file.model)
        kinds = [view.kind_of(node, known) for graph in graphs for node in graph.node if node.op_type != "Constant"]
        tensors = ((view.dtype_of(t), elements(self.file, t).nbytes) for t in _stored_tensors(graphs))
        return Census.of(len(kinds), kinds.count("Cast"), tensors)

    def data_files(self) -> list[Path]:
        """The data files that the model reads."""
        return data_files(self.file)

    def save(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Writes the model and its data files, whole or not at all."""
        mindir_io.save(self.file, path, progress)

    def copy_unchanged(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Copies the file and its data files to another name."""
        mindir_io.copy_unchanged(source, target)


def _stored_tensors(graphs: list[Message]) -> Iterator[Message]:
    """Parameters, and the tensors of constants."""
    for graph in graphs:
        yield from graph.parameter
        for node in graph.node:
            if node.op_type == "Constant":
                yield from (t for t in view.elements(view.attribute(node, "value")) if t is not None)


class MindirWeights:
    """Reads stored tensors of a MindIR file for the dataflow, piece by piece."""

    def __init__(self, file: MindirFile) -> None:
        self.file = file

    def size(self, value: Value) -> int:
        """Number of elements of a stored tensor or number."""
        if value.dtype == NUMBER:
            array = self.array(value)
            return 0 if array is None else int(array.size)
        return int(self._elements(value).size)

    def _elements(self, value: Value) -> Array:
        """The flat elements of a stored tensor, mapped where they are external."""
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
        """The elements in pieces that fit the memory."""
        return pieces(self._elements(value))

    def key(self, value: Value) -> object:
        """Every value has a tensor of its own in MindIR."""
        return value.id
